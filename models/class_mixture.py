"""PEP-FedPT's mixture weights: how much each class prompt counts for one sample (arXiv:2510.25372).

``s_c`` is proportional to ``prior_c * exp(cos(cls, prototype_c) / tau)``, a posterior of the class given the CLS token that enters
a layer and the client's class prior. The log-prior form is derived from the paper's MMSE claim (METHODS D5).

Our own choices: cosines are *centred*, that is taken after subtracting the mean prototype from both sides, because raw ones hardly
differ between classes (METHODS 4.7); a row of zeros is a class that has no prototype yet and is left out; where no class has one,
every cosine is 0, so that ``log`` leaves the prior. One class, or equal prototypes, also give cosine 0 when centred.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import normalize

COSINES = ("centred", "raw")
SCORES = ("log", "scaled", "prior", "cosine")


def mixture_weights(cls: Tensor, prototypes: Tensor, log_prior: Tensor, tau: float, cosine: str, score: str) -> Tensor:
    """Weights s (B, C), each row on the simplex, of tokens (B, D), prototypes (C, D) and a log prior (C,); all float32.

    ``score`` is ``log`` (softmax of cos / tau + log prior) or an ablation: ``scaled`` (of prior * cos / tau: no posterior), ``prior``
    (the prior over classes that have a prototype) or ``cosine`` (of cos / tau, without the prior).
    """
    filled = prototypes.ne(0).any(dim=1)  # (C,)
    similarity = _cosine(cls, prototypes, filled, cosine == "centred")
    if score == "scaled":
        evidence = log_prior.exp() * similarity / tau
    elif score == "cosine":
        evidence = similarity / tau
    else:
        evidence = (similarity / tau if score == "log" else torch.zeros_like(similarity)) + log_prior
    known = filled | ~filled.any()
    return evidence.masked_fill(~known, -torch.inf).softmax(dim=1)


def _cosine(cls: Tensor, prototypes: Tensor, filled: Tensor, centred: bool) -> Tensor:
    """Cosines (B, C), 0 for a class without prototype."""
    if centred:
        mean = prototypes.sum(dim=0) / filled.sum().clamp(min=1)
        cls, prototypes = cls - mean, prototypes - mean
    return normalize(cls, dim=1) @ normalize(prototypes, dim=1).T * filled
