"""Class means of a client's features, and answers by the nearest prototype (FedProto, arXiv 2105.00243).

The nearest of prototypes c to features f is where ``c . f - |c|^2 / 2`` is largest, so it is a linear head, and whatever scores or
exports a split model serves.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from client_app.data.client_data import Split
from client_app.loop import LoopSettings
from client_app.reuse import FeatureSource
from models.split import SplitModel
from strategies.types import Tensors

# the logit of a class without a prototype: no distance of float32 features comes near it
NEVER = -1e30


def class_means(features: np.ndarray, labels: np.ndarray, classes: int) -> tuple[np.ndarray, np.ndarray]:
    """Means (C, D) float32 of features (n, D) a class, zeros for a class without a sample, and counts (C,)."""
    counts = np.bincount(labels, minlength=classes)
    sums = np.zeros((classes, features.shape[1]))
    np.add.at(sums, labels, features)
    return (sums / np.maximum(counts, 1)[:, None]).astype(np.float32), counts


def nearest_prototype_head(prototypes: Tensors) -> Tensors | None:
    """The head that decides by the nearest of ``prototypes`` (1, C, D) that are ``known`` (1, C); None if none is."""
    rows, known = prototypes["prototypes"][0].astype(np.float64), prototypes["known"][0] > 0
    if not known.any():
        return None
    bias = np.where(known, -np.square(rows).sum(axis=1) / 2, NEVER)
    return {"weight": np.where(known[:, None], rows, 0.0).astype(np.float32), "bias": bias.astype(np.float32)}


class AnswersByPrototype:
    """A ``FeatureSource`` that scores with another head than the model has; all else is ``inner``'s."""

    def __init__(self, inner: FeatureSource, head: Tensors) -> None:
        self.inner, self.head = inner, head

    def recompute(self, model: SplitModel, split: Split, settings: LoopSettings) -> bool:
        return self.inner.recompute(model, split, settings)

    def score(self, model: SplitModel, split: Split, settings: LoopSettings) -> float | None:
        own = {name: tensor.copy() for name, tensor in model.tensors("head").items()}
        model.load("head", self.head)
        try:
            return self.inner.score(model, split, settings)
        finally:
            model.load("head", own)

    def mean_loss(self, model: SplitModel, split: Split, settings: LoopSettings) -> float:
        return self.inner.mean_loss(model, split, settings)

    def features(self, model: SplitModel, split: Split, settings: LoopSettings) -> np.ndarray:
        return self.inner.features(model, split, settings)

    def every_epoch(self, model: SplitModel, split: Split, settings: LoopSettings) -> np.ndarray | Callable[[], np.ndarray]:
        return self.inner.every_epoch(model, split, settings)
