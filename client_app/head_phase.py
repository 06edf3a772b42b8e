"""A head fitted on a frozen encoder: encode the images once, then train the head alone over their features.

How a client that comes after training gets a head of its own. Features are an argument, so that a cache of them can
stand where ``encode`` does. Our own choices: plain SGD with the run's lr, momentum, weight decay and batch, as
``client_app.loop`` trains; the encoder in eval mode, with the BatchNorm statistics it has, so that the head is fitted
on the features it will see.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import torch
from torch.nn.functional import cross_entropy

from client_app.device_data import in_order
from client_app.loop import (
    FitStats,
    LoopSettings,
    Sgd,
    array_on_device,
    batch_sizes,
    check_labels,
    descend,
    is_finite,
    place,
    precision,
)
from client_app.placing import eval_mode
from models.split import SplitModel


def encode(model: SplitModel, images: np.ndarray, settings: LoopSettings) -> np.ndarray:
    """Features (n, D) float32 of images (n, channels, height, width); (0, D) for no image.

    ``settings.score_batch`` images at a time; the encoder runs in eval mode, without gradient, and stays as it was.
    """
    if not len(images):
        return np.zeros((0, model.feature_dim), np.float32)
    place(model, settings)
    chunks = np.split(images, range(settings.score_batch, len(images), settings.score_batch))
    with eval_mode(model.encoder), torch.inference_mode(), precision(settings):
        features = [model.encoder(chunk).float() for chunk in in_order(chunks, settings)]
    return torch.cat(features).cpu().numpy()


def fit_head(model: SplitModel, features: np.ndarray | Callable[[], np.ndarray], labels: np.ndarray, settings: LoopSettings, seed: int,
             epochs: int) -> FitStats:
    """Train ``model.head`` in place on features (n, D) with labels (n,), n of 1 or more; the encoder is not looked at.

    ``features`` may be a function that gives them anew for every epoch, the same ones every time. The same head, features,
    settings and ``seed`` give the same bits on one machine's CPU.

    Raises ``TrainingDiverged`` if the loss of an epoch is not finite, ``ValueError`` for unusable labels or features.
    """
    place(model, settings)
    y = array_on_device(labels.astype(np.int64, copy=False), settings)

    def on_device(found: np.ndarray) -> torch.Tensor:
        check_labels(found, labels, model.head.out_features)
        if found.shape[1:] != (model.feature_dim,) or found.dtype != np.float32:
            raise ValueError(f"expected float32 features (n, {model.feature_dim}), got {found.dtype} with {found.ndim} axes")
        return array_on_device(found, settings)

    sizes = batch_sizes(len(labels), settings.batch)
    x = (lambda: on_device(features())) if callable(features) else on_device(features)
    # compiling a single product is not worth a compilation
    loss = descend(Sgd(model.head, replace(settings, compile=False)), x, y, sizes, epochs, seed)
    return FitStats(loss, epochs * len(sizes), is_finite(model.head))


def score_features(model: SplitModel, features: np.ndarray, labels: np.ndarray, settings: LoopSettings) -> float | None:
    """Share of features (n, D) whose label (n,) the head finds, None where n is 0: `loop.score` behind the encoder, bit for bit."""
    if not len(labels):
        return None
    return sum(int((logits.argmax(1) == y).sum()) for logits, y in _logits(model, features, labels, settings)) / len(labels)


def loss_on_features(model: SplitModel, features: np.ndarray, labels: np.ndarray, settings: LoopSettings) -> float:
    """Mean cross-entropy of the head on features (n, D) with labels (n,), n of 1 or more: `loop.mean_loss` behind the encoder."""
    pairs = _logits(model, features, labels, settings)
    return sum(float(cross_entropy(logits, y, reduction="sum")) for logits, y in pairs) / len(labels)


def _logits(model: SplitModel, features: np.ndarray, labels: np.ndarray, settings: LoopSettings) -> list[tuple[torch.Tensor, torch.Tensor]]:
    """Logits (B, C) float32 and labels (B,), in the chunks of `encode`, since a product may round otherwise in others."""
    place(model, settings)
    x, y = array_on_device(features, settings), array_on_device(labels.astype(np.int64, copy=False), settings)
    with torch.inference_mode(), precision(settings):
        # a product can round otherwise where its operand begins elsewhere in memory: a copy begins where a layer's output does
        logits = [model.head(chunk.clone()).float() for chunk in torch.split(x, settings.score_batch)]
    return list(zip(logits, torch.split(y, settings.score_batch), strict=True))
