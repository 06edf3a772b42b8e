"""Which patches of an image speak for a class, and what they say: FedIA's visual evidence (arXiv:2611.05994).

A class's *anchor* is its text feature under the global prompt as broadcast, so it is the same on all clients. Of an image's M patches
a class keeps the k = ceil(keep x M) that are most like its anchor, and pools them by a softmax of their similarities. A mask stands
for gathering, so that nothing of shape (B, M, C, D) is ever built: the largest tensors are (B, C, M) and (B, C, D).

The paper's abstract gives the idea; all numbers and these choices are ours (METHODS 3.2, 3.7):

- ``select``: ``plain`` keeps by similarity, which two classes largely share (73 % in the pilot); ``class-centred`` keeps by similarity
  less its mean over the classes; ``none`` keeps every patch.
- ``pool``: which of the two similarities the softmax over the kept patches takes, ``plain`` or ``class-centred``.
- ``add_cls``: the evidence is the normalised sum of the pooled patches and the CLS feature.

Degenerate cases: keep = 1 is softmax pooling over all patches. With one class, class-centred similarities are all 0.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import normalize

from models.split import ModelError

SELECTIONS = ("plain", "class-centred", "none")
POOLINGS = ("plain", "class-centred")


@dataclass(frozen=True)
class EvidenceConfig:
    """How evidence is made.

    Attributes
    ----------
    keep : share of the patches kept for each class, above 0 to 1; our choice.
    tau : temperature of the softmax over kept patches, above 0; our choice: .05 and more weigh all patches alike.
    select, pool, add_cls : as the module says.
    """

    keep: float = 0.15
    tau: float = 0.015
    select: str = "plain"
    pool: str = "plain"
    add_cls: bool = False

    def __post_init__(self) -> None:
        for key, allowed in (("select", SELECTIONS), ("pool", POOLINGS)):
            if getattr(self, key) not in allowed:
                raise ModelError(f"{key} must be one of {', '.join(allowed)}; got {getattr(self, key)!r}")
        if not 0 < self.keep <= 1:
            raise ModelError(f"keep must be above 0 and at most 1; got {self.keep}")
        if not (self.tau > 0 and math.isfinite(self.tau)):
            raise ModelError(f"tau must be a finite number above 0; got {self.tau}")

    def kept_of(self, patches: int) -> int:
        """k, how many of M = ``patches`` each class keeps."""
        # rounded first, so that .15 x 20, a hair above 3 in floating point, is 3
        return patches if self.select == "none" else math.ceil(round(self.keep * patches, 9))


@dataclass(frozen=True)
class Evidence:
    """What the patches of B images say of C classes.

    Attributes
    ----------
    features : (B, C, D), each of length 1.
    entropy : (B, C) of the pooling weights over log k, 0 to 1; 0 for k = 1.
    peak : (B, C) highest similarity of any patch.
    """

    features: Tensor
    entropy: Tensor
    peak: Tensor

    def __post_init__(self) -> None:
        if self.features.ndim != 3 or not self.features.shape[:2] == self.entropy.shape == self.peak.shape:
            raise ModelError("evidence must be features (B, C, D), entropy (B, C) and peak (B, C); got "
                             f"{tuple(self.features.shape)}, {tuple(self.entropy.shape)} and {tuple(self.peak.shape)}")

    def __len__(self) -> int:
        return len(self.features)

    def __getitem__(self, rows: Tensor | slice) -> Evidence:
        return Evidence(self.features[rows], self.entropy[rows], self.peak[rows])


def patch_evidence(patches: Tensor, anchors: Tensor, cls: Tensor, config: EvidenceConfig) -> Evidence:
    """Evidence of patch features (B, M, D) for anchors (C, D), both of length 1; CLS features (B, D) serve ``add_cls``. float32.

    Gradient reaches the anchors, though not through which patches are kept.
    """
    patches, similarity = patches.float(), similarities(patches, anchors)
    kept = kept_patches(similarity, config)
    scores = _centred(similarity) if config.pool == "class-centred" else similarity
    log_weights = (scores / config.tau).masked_fill(~kept, -torch.inf).log_softmax(dim=2)  # (B, C, M)
    weights = log_weights.exp()
    features = normalize(weights @ patches, dim=2)
    if config.add_cls:
        features = normalize(features + cls.float()[:, None], dim=2)
    entropy = -(weights * log_weights.masked_fill(~kept, 0)).sum(dim=2)
    k = config.kept_of(patches.shape[1])
    return Evidence(features, entropy / math.log(k) if k > 1 else torch.zeros_like(entropy), similarity.amax(dim=2))


@torch.no_grad()
def evidence_of(patches: Tensor | np.ndarray, anchors: Tensor, cls: Tensor | np.ndarray, config: EvidenceConfig, chunk: int = 64,
                dtype: torch.dtype = torch.float32) -> Evidence:
    """Evidence of n images at once, ``chunk`` at a time, on the anchors' device; no gradient.

    ``patches`` (n, M, D) and ``cls`` (n, D) may be memory-mapped float16. ``dtype`` is that of the features kept: C x D numbers an image.
    """
    parts = []
    for start in range(0, len(patches), chunk):
        part = patch_evidence(_rows(patches, start, chunk, anchors), anchors, _rows(cls, start, chunk, anchors), config)
        parts.append((part.features.to(dtype), part.entropy, part.peak))
    if not parts:
        empty = anchors.new_zeros(0, len(anchors))
        return Evidence(anchors.new_zeros(0, *anchors.shape, dtype=dtype), empty, empty)
    return Evidence(*(torch.cat(column) for column in zip(*parts, strict=True)))


def similarities(patches: Tensor, anchors: Tensor) -> Tensor:
    """Cosines (B, C, M) of patch features (B, M, D) and anchors (C, D), both of length 1; float32."""
    return anchors.float() @ patches.float().transpose(1, 2)


def kept_patches(similarity: Tensor, config: EvidenceConfig) -> Tensor:
    """Which patches each class keeps, bool (B, C, M), k a class, of similarities (B, C, M)."""
    if config.select == "none":
        return torch.ones_like(similarity, dtype=torch.bool)
    scores = _centred(similarity) if config.select == "class-centred" else similarity
    best = scores.topk(config.kept_of(similarity.shape[2]), dim=2).indices
    return torch.zeros_like(similarity, dtype=torch.bool).scatter_(2, best, True)


def overlap(kept: Tensor) -> Tensor:
    """Share of kept patches that two classes have in common, mean over pairs of classes, (B,), of ``kept`` (B, C, M); 0 for one class.

    By chance it is k / M.
    """
    held = kept.float()
    classes, k = held.shape[1], held[:, 0].sum(dim=1)
    if classes == 1:
        return torch.zeros_like(k)
    # a patch kept by c classes is shared by c (c - 1) ordered pairs
    counts = held.sum(dim=1)  # (B, M)
    return (counts * (counts - 1)).sum(dim=1) / (classes * (classes - 1) * k)


def _centred(similarity: Tensor) -> Tensor:
    return similarity - similarity.mean(dim=1, keepdim=True)


def _rows(array: Tensor | np.ndarray, start: int, count: int, like: Tensor) -> Tensor:
    rows = array[start : start + count]
    # copied, because torch warns about a view of a read-only array
    return (torch.from_numpy(np.array(rows)) if isinstance(rows, np.ndarray) else rows).to(like.device)
