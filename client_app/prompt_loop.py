"""Training and scoring of a prompted Vision Transformer: the one loop's steps, with a learning rate for each kind of tensor.

Images stay as the data have them (uint8 as a rule) and are resized and normalised a batch at a time, as the backbone wants
them (``models.backbones.prepare``). Only prompts and head get gradients. SGD as in ``client_app.loop``: same order of samples, same
momentum and weight decay. The model computes in its backbone's precision by itself.

Our own choice: no dropout, no augmentation.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.optim.sgd import sgd

from client_app.compiled import loss_function
from client_app.device_data import raw_for_training, uploaded
from client_app.loop import FitStats, TrainingDiverged, array_on_device, batch_sizes, check_labels, descend
from client_app.loop_settings import LoopSettings
from client_app.placing import place_backbone
from models.backbones import prepare
from models.prompted_vit import PromptedViT

# turns the gradients of one kind of tensor into the direction of its step
Direction = Callable[[list[Tensor], list[Tensor]], list[Tensor]]


class RatedSgd:
    """One step of SGD on the kinds of tensors that ``rates`` names, the head among them.

    ``directions`` may replace a kind's gradients (of its weights, in order) before the step; such a kind has neither momentum nor
    weight decay.
    """

    def __init__(self, model: PromptedViT, settings: LoopSettings, rates: Mapping[str, float],
                 directions: Mapping[str, Direction] | None = None) -> None:
        self.model, self.directions, self.loss = model, dict(directions or {}), loss_function(settings)
        kinds = model.trainable()
        self.kinds = {kind: kinds[kind] for kind in rates if kind in kinds}
        self.momentum: dict[str, list[Tensor | None]] = {kind: [None] * len(held) for kind, held in self.kinds.items()}
        plain: dict[str, Any] = {"dampening": 0.0, "nesterov": False, "maximize": False}
        self.update = {kind: partial(sgd, lr=rates[kind], momentum=settings.momentum * (kind not in self.directions),
                                     weight_decay=settings.weight_decay * (kind not in self.directions), **plain) for kind in self.kinds}

    def __call__(self, images: Tensor, labels: Tensor) -> Tensor:
        """Step on images (B, channels, height, width), as the data have them, and labels (B,); the mean loss before the step."""
        loss = self.loss(self.model, prepare(images, self.model.vit), labels)
        self.step(loss)
        return loss.detach()

    def step(self, loss: Tensor) -> None:
        """Step down ``loss``."""
        weights: list[Tensor] = [weight for held in self.kinds.values() for weight in held]
        gradients = list(torch.autograd.grad(loss, weights))
        with torch.no_grad():
            for kind, held in self.kinds.items():
                own, gradients = gradients[: len(held)], gradients[len(held):]
                if kind in self.directions:
                    own = self.directions[kind](list(held), own)
                self.update[kind](list(held), own, self.momentum[kind])


def fit_prompts(model: PromptedViT, images: np.ndarray, labels: np.ndarray, settings: LoopSettings, rates: Mapping[str, float],
                seed: int, directions: Mapping[str, Direction] | None = None) -> FitStats:
    """Train the kinds of tensors in ``rates`` in place, on images (n, channels, height, width) with labels (n,), n of 1 or more.

    The same weights, data, settings and ``seed`` give the same bits on one machine's CPU.

    Raises ``TrainingDiverged`` if the loss of an epoch is not finite, ``ValueError`` for unusable labels.
    """
    check_labels(images, labels, model.head.out_features)
    x, y = raw_for_training(images, settings), array_on_device(labels.astype(np.int64, copy=False), settings)
    sizes = batch_sizes(len(labels), settings.batch)
    model.train()
    loss = descend(RatedSgd(model, settings, rates, directions), x, y, sizes, settings.epochs, seed)
    return FitStats(loss, settings.epochs * len(sizes), trained_is_finite(model))


def chunks(images: np.ndarray, settings: LoopSettings) -> list[np.ndarray]:
    """Images (n, ...) in pieces of ``score_batch``; no piece for no image."""
    return np.split(images, range(settings.score_batch, len(images), settings.score_batch)) if len(images) else []


def logits_of(model: PromptedViT, images: np.ndarray, settings: LoopSettings) -> np.ndarray:
    """Logits (n, C) float32, without any prior, of images (n, channels, height, width)."""
    return _forward(model, model, images, settings, (0, model.head.out_features))


def features_of(model: PromptedViT, images: np.ndarray, settings: LoopSettings) -> np.ndarray:
    """What the head reads, (n, D) float32, of images (n, channels, height, width)."""
    return _forward(model, model.features, images, settings, (0, model.head.in_features))


def class_means(model: PromptedViT, images: np.ndarray, labels: np.ndarray, settings: LoopSettings,
                mixed: bool) -> tuple[dict[str, np.ndarray], np.ndarray, dict[str, float]]:
    """Mean CLS token a class at the layers of the class prompts, ``{layer: (C, D)}`` float32, zeros for a class without a sample;
    the samples a class (C,); and the share of samples whose class has the largest mixture weight, a layer.

    Without ``mixed`` no class prompt enters.
    """
    names, classes = list(model.tensors("prototypes")), model.head.out_features
    sums, right = np.zeros((len(names), classes, model.head.in_features)), np.zeros(len(names))
    place_backbone(model, settings)
    model.eval()
    with torch.inference_mode():
        for part, wanted in zip(chunks(images, settings), chunks(labels, settings), strict=True):
            tokens = model.class_tokens(prepare(array_on_device(part, settings), model.vit), mixed)  # (P, B, D)
            chosen = torch.stack([model.weights_of(token, place).argmax(1) for place, token in enumerate(tokens)])  # (P, B)
            right += (chosen == array_on_device(wanted, settings)).sum(1).cpu().numpy()
            for place, token in enumerate(tokens.cpu().double().numpy()):
                np.add.at(sums[place], wanted, token)
    counts = np.bincount(labels, minlength=classes)
    means = (sums / np.maximum(counts, 1)[:, None]).astype(np.float32)
    shares = (right / max(1, len(labels))).tolist()
    return dict(zip(names, means, strict=True)), counts, dict(zip(names, shares, strict=True))


def trained_is_finite(model: PromptedViT) -> bool:
    """Whether all that is trained is finite numbers."""
    return all(bool(weight.isfinite().all()) for held in model.trainable().values() for weight in held)


def require_finite(fitted: FitStats) -> None:
    """Raise ``TrainingDiverged`` unless what was fitted is finite: the last step can overflow after a finite loss."""
    if not fitted.finite:
        raise TrainingDiverged("a weight became non-finite in training; lower lr or the method's learning rates")


def _forward(model: PromptedViT, call: Callable[[Tensor], Tensor], images: np.ndarray, settings: LoopSettings,
             empty: tuple[int, int]) -> np.ndarray:
    place_backbone(model, settings)
    model.eval()
    with torch.inference_mode():
        found = [call(prepare(part, model.vit)).float() for part in uploaded(chunks(images, settings), settings)]
    return torch.cat(found).cpu().numpy() if found else np.zeros(empty, np.float32)
