"""What frozen features give without any federated training: zero-shot logits, with what a client knows of its classes, and logistic
regression on CLS features. Every prompt method has to beat these (METHODS 3.7).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from models.split import ModelError


def zero_shot(cls: Tensor, text: Tensor, scale: float, present: Tensor | None = None, prior: Tensor | None = None) -> Tensor:
    """Logits (B, C) of CLS features (B, D) for text features (C, D), both of length 1.

    ``present`` (C,) bool: classes that the client has; the others get -inf. ``prior`` (C,), above 0: its logarithm is added.
    """
    logits = scale * cls.float() @ text.float().T
    if prior is not None:
        logits = logits + prior.log()
    return logits if present is None else logits.masked_fill(~present, -torch.inf)


@dataclass(frozen=True)
class Logistic:
    """Logistic regression: ``weight`` (C, D), ``bias`` (C,); -inf for a class that was not seen."""

    weight: np.ndarray
    bias: np.ndarray

    def logits(self, cls: np.ndarray) -> np.ndarray:
        """(B, C) of CLS features (B, D)."""
        return cls.astype(np.float32) @ self.weight.T + self.bias


def fit_logistic(cls: np.ndarray, labels: np.ndarray, classes: int, penalty: float = 1.0) -> Logistic:
    """Fit on this client's CLS features (n, D) and labels (n,): strictly local.

    ``penalty`` is scikit-learn's inverse C on features scaled to length sqrt(D), our choice: at length 1 any C near 1 underfits.
    One class alone is always predicted. Raises ``ModelError`` for no sample.
    """
    from sklearn.linear_model import LogisticRegression

    dim = cls.shape[1] if cls.ndim == 2 else 0
    if not len(labels) or not dim or len(cls) != len(labels):
        raise ModelError("logistic regression needs features (n, D) and labels (n,) of one sample or more; "
                         f"got {cls.shape} and {labels.shape}")
    weight, bias = np.zeros((classes, dim), np.float32), np.full(classes, -np.inf, np.float32)
    seen = np.unique(labels)
    if len(seen) == 1:
        bias[seen] = 0
        return Logistic(weight, bias)
    fit = LogisticRegression(C=1 / penalty, max_iter=1000).fit(cls.astype(np.float64) * dim**0.5, labels)
    # two classes come as one row of log-odds
    rows, offsets = (fit.coef_, fit.intercept_) if len(seen) > 2 else (
        np.concatenate([-fit.coef_, fit.coef_]) / 2, np.concatenate([-fit.intercept_, fit.intercept_]) / 2)
    weight[seen], bias[seen] = rows * dim**0.5, offsets
    return Logistic(weight, bias)
