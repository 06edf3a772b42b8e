"""The one training loop and the one scoring loop; precision lives here, and device, channels_last and threads in ``placing``.

Training is plain mini-batch SGD with cross-entropy (momentum and weight decay as in torch.optim.SGD). Our own
choices:

- No sample is dropped: a last batch of one sample joins the batch before it, because BatchNorm cannot
  normalise one sample. Where every batch is one sample (one sample in all, or ``batch = 1``) BatchNorm layers
  stay in eval mode: they use, and do not touch, the statistics that came in.
- The order of samples comes from a CPU generator seeded by the caller, so it is the same on every device.
- Only parameters that ask for a gradient are trained; freeze a part with ``requires_grad_(False)``.
- BatchNorm re-computation averages the statistics of near-equal chunks, as torch's ``update_bn`` does; with
  at most ``score_batch`` images that is the exact statistic. It uses neither label nor gradient.
- ``bf16`` is autocast with float32 weights and statistics. What a GPU does beside is in ``client_app.device``, ``device_data`` and
  ``compiled``. Within an epoch nothing waits for it.

Errors carry no data value, no label and no number of samples.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from functools import partial

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from torch.optim.sgd import sgd
from torch.optim.swa_utils import update_bn

from client_app.cohort import Fit, seated
from client_app.compiled import loss_function
from client_app.device_data import Streamed, array_on_device, batches, for_training, in_order, inputs, normalised
from client_app.loop_settings import DeviceError, LoopSettings, resolve_device
from client_app.placing import eval_mode, place, threads
from models.split import SplitModel, batchnorms, has_batchnorm

__all__ = ["DeviceError", "FitStats", "LoopSettings", "Sgd", "TrainingDiverged", "array_on_device", "batch_sizes", "check_labels",
           "descend", "diverged", "fit", "inputs", "is_finite", "mean_loss", "normalised", "place", "precision", "recompute_batchnorm",
           "resolve_device", "score", "threads", "train_mode"]


@dataclass(frozen=True)
class FitStats:
    """What training reports.

    Attributes
    ----------
    loss : mean training loss over the samples of the last epoch, each taken at its step.
    steps : optimiser steps made.
    finite : whether every weight and statistic is a finite number afterwards.
    """

    loss: float
    steps: int
    finite: bool


class TrainingDiverged(RuntimeError):
    """The training loss became NaN or infinite; the model is not worth sending."""


def fit(model: SplitModel, images: np.ndarray, labels: np.ndarray, settings: LoopSettings, seed: int,
        step: Callable[[SplitModel, LoopSettings], Callable[[Tensor, Tensor], Tensor]] | None = None) -> FitStats:
    """Train ``model`` in place on images (n, channels, height, width) with labels (n,), n of 1 or more; leaves it in eval mode.

    The same weights, data, settings and ``seed`` give the same bits on one machine's CPU. ``step`` makes what stands in for `Sgd`.
    Where this client is one of a cohort, plain steps are made with the others', with the same numbers up to rounding.

    Raises ``TrainingDiverged`` if the loss of an epoch is not finite, ``ValueError`` for unusable data.
    """
    check_labels(images, labels, model.head.out_features)
    if step is None and (seat := seated()):
        return seat.meet(Fit(model, images, labels, settings, seed))
    place(model, settings)
    x, y = for_training(images, settings), _labels(labels, settings)
    sizes = batch_sizes(len(labels), settings.batch)
    train_mode(model, batchnorm=sizes[0] > 1)
    loss = descend((step or Sgd)(model, settings), x, y, sizes, settings.epochs, seed)
    model.eval()  # scoring comes next, several times
    return FitStats(loss, settings.epochs * len(sizes), is_finite(model))


def descend(step: Callable[[Tensor, Tensor], Tensor], x: Tensor | Streamed | Callable[[], Tensor], y: Tensor, sizes: list[int],
            epochs: int, seed: int) -> float:
    """Epochs of ``step`` over x (n, ...) and y (n,) in a seeded order, ``sizes`` samples a step; the last epoch's mean loss.

    ``x`` may be a function that gives it anew for every epoch.

    Raises ``TrainingDiverged`` if the loss of an epoch is not finite.
    """
    order = torch.Generator().manual_seed(seed)
    loss = math.nan
    for epoch in range(1, epochs + 1):
        now = x() if callable(x) else x
        total = torch.zeros((), device=y.device)
        rows = torch.randperm(len(y), generator=order)
        for images, labels in zip(batches(now, rows, sizes), batches(y, rows, sizes), strict=True):
            total += step(images, labels) * len(labels)
        loss = float(total) / len(y)  # the only wait for the device in an epoch
        if not math.isfinite(loss):
            raise diverged(epoch)
    return loss


def diverged(epoch: int) -> TrainingDiverged:
    """What a client says whose loss became NaN or infinite in ``epoch``, counted from 1."""
    return TrainingDiverged(f"training loss became non-finite in epoch {epoch}; lower lr or the method's learning rates")


def score(model: SplitModel, images: np.ndarray, labels: np.ndarray, settings: LoopSettings) -> float | None:
    """Share of images (n, channels, height, width) whose label (n,) the model finds; None where n is 0."""
    if len(labels) == 0:
        return None
    pairs = _in_eval_mode(model, images, labels, settings)
    return int(torch.stack([(logits.argmax(1) == y).sum() for logits, y in pairs]).sum()) / len(labels)


def mean_loss(model: SplitModel, images: np.ndarray, labels: np.ndarray, settings: LoopSettings) -> float:
    """Mean cross-entropy in eval mode on images (n, channels, height, width), labels (n,), n of 1 or more."""
    pairs = _in_eval_mode(model, images, labels, settings)
    return sum(torch.stack([cross_entropy(logits, y, reduction="sum") for logits, y in pairs]).tolist()) / len(labels)


def recompute_batchnorm(encoder: nn.Module, images: np.ndarray, settings: LoopSettings) -> bool:
    """Replace the running statistics of ``encoder`` by those of images (n, channels, height, width).

    One forward pass over the recipient's own training images; no weight changes. Where n is below 2 or the
    encoder has no BatchNorm, nothing changes. Returns whether the statistics were replaced.
    """
    n = len(images)
    if n < 2 or not has_batchnorm(encoder):
        return False
    place(encoder, settings)
    # a chunk of one image has no variance where a late layer sees a single pixel
    chunks = np.array_split(images, min(math.ceil(n / settings.score_batch), n // 2))
    with precision(settings):
        update_bn(in_order(chunks, settings), encoder)
    return True


def batch_sizes(n: int, batch: int) -> list[int]:
    """How ``n`` samples, 1 or more, divide into steps: none is dropped, none is left alone at the end.

    >>> batch_sizes(7, 3), batch_sizes(8, 3), batch_sizes(1, 3)
    ([3, 4], [3, 3, 2], [1])
    """
    sizes = [batch] * (n // batch)
    rest = n % batch
    if rest == 1 and sizes:
        sizes[-1] += 1
    elif rest:
        sizes.append(rest)
    return sizes


class Sgd:
    """One step of torch's own SGD, in its functional form.

    ``torch.optim.SGD`` computes the same bits but imports the compiler when constructed, which costs every
    process of a federation seconds and tens of megabytes.
    """

    def __init__(self, model: nn.Module, settings: LoopSettings) -> None:
        self.model, self.settings, self.loss = model, settings, loss_function(settings)
        self.weights: list[Tensor] = [p for p in model.parameters() if p.requires_grad]
        self.momentum: list[Tensor | None] = [None] * len(self.weights)
        rates = {"lr": settings.lr, "momentum": settings.momentum, "weight_decay": settings.weight_decay}
        self.update = partial(sgd, dampening=0.0, nesterov=False, maximize=False, **rates)

    def __call__(self, images: Tensor, labels: Tensor) -> Tensor:
        """Step on images (B, channels, height, width) and labels (B,); the mean loss before the step."""
        with precision(self.settings):
            loss = self.loss(self.model, images, labels)
        self.apply(list(torch.autograd.grad(loss, self.weights)))
        return loss.detach()

    def apply(self, gradients: list[Tensor]) -> None:
        """Step along ``gradients``, one a weight, in the order of ``weights``."""
        with torch.no_grad():
            self.update(self.weights, gradients, self.momentum)


def _in_eval_mode(
    model: SplitModel, images: np.ndarray, labels: np.ndarray, settings: LoopSettings
) -> list[tuple[Tensor, Tensor]]:
    """Logits (B, C) in float32 and labels (B,), a pair a batch; the model's mode stays as it was."""
    check_labels(images, labels, model.head.out_features)
    place(model, settings)
    cuts = range(settings.score_batch, len(labels), settings.score_batch)
    with eval_mode(model), torch.inference_mode(), precision(settings):
        logits = [model(chunk).float() for chunk in in_order(np.split(images, cuts), settings)]
    return list(zip(logits, torch.split(_labels(labels, settings), settings.score_batch), strict=True))


def precision(settings: LoopSettings) -> AbstractContextManager[object]:
    """What to compute under: autocast for ``bf16``, nothing for ``float32``."""
    if settings.precision == "float32":
        return nullcontext()
    return torch.autocast(settings.torch_device.type, dtype=torch.bfloat16)


def _labels(labels: np.ndarray, settings: LoopSettings) -> Tensor:
    return array_on_device(labels.astype(np.int64, copy=False), settings)


def train_mode(model: nn.Module, batchnorm: bool) -> None:
    """Put ``model`` in training mode, its BatchNorm layers only if ``batchnorm``."""
    model.train()
    for layer in batchnorms(model):
        layer.train(batchnorm)


def is_finite(model: nn.Module) -> bool:
    """Whether every weight and statistic of ``model`` is a finite number."""
    # a sum carries NaN and Inf along and needs no temporary as large as the model
    sums = [t.sum() for t in model.state_dict().values() if t.is_floating_point()]
    return not sums or bool(torch.stack(sums).isfinite().all())


def check_labels(images: np.ndarray, labels: np.ndarray, classes: int) -> None:
    """Raise ``ValueError`` unless labels (n,) are n >= 1 whole numbers in 0..classes-1, one for each of ``images``."""
    # the number of samples can be private, so no message carries a shape
    if len(labels) == 0 or labels.ndim != 1 or len(labels) != len(images) or labels.dtype.kind not in "iu":
        raise ValueError(
            "labels must be whole numbers, one an image and one or more in all, "
            f"got {labels.dtype} with {labels.ndim} axes. Correct the data loader"
        )
    if labels.min() < 0 or labels.max() >= classes:
        raise ValueError(f"labels must lie in 0..{classes - 1}; the data loader must list every class")
