"""Several clients' fits at once: one model's layers with as many weights as there are clients, through ``torch.func``.

Weights, BatchNorm statistics and momenta of the clients are stacked, and one forward pass under ``vmap`` (grouped convolutions, batched
products) and one backward pass serve a step of all of them. Rows never mix: no sum runs over clients but that of the losses, whose gradient
is 1 for each. So each client gets the numbers that ``loop.fit`` gives it alone, up to rounding, and one whose loss is NaN harms none.

Every client keeps its own order of samples, its own momenta and its own number of steps. A batch is never padded, since BatchNorm would see
the padding: clients step together where their batches are equally large, and odd ones (last batches) first and by themselves; see
`timetable`. The memory order is always the plain one, steps are never compiled, and the images of all lie on the device.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Iterator, Sequence
from functools import partial
from itertools import groupby
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.func import functional_call, vmap
from torch.nn.functional import cross_entropy
from torch.optim.sgd import sgd

from client_app.cohort import Fit
from client_app.loop import (
    FitStats,
    TrainingDiverged,
    array_on_device,
    batch_sizes,
    diverged,
    fit,
    inputs,
    is_finite,
    place,
    precision,
    train_mode,
)
from models.split import SplitModel

log = logging.getLogger(__name__)


def fit_together(fits: Sequence[Fit]) -> list[FitStats | Exception]:
    """Train every model of ``fits`` in place, those that are alike at once; an answer each, the exception where one failed.

    What is alone in its kind, and a group that cannot be trained at once after all (the device's memory may be too small for it), is
    trained one by one.
    """
    answers: dict[int, FitStats | Exception] = {}
    kinds = [_kind(asked) for asked in fits]
    for _, members in groupby(sorted(range(len(fits)), key=kinds.__getitem__), key=kinds.__getitem__):
        group = sorted(members, key=lambda i: _length(fits[i]), reverse=True)
        answers |= zip(group, _group([fits[i] for i in group]), strict=True)
    return [answers[i] for i in range(len(fits))]


def timetable(steps: Sequence[Sequence[int]], usual: int) -> Iterator[tuple[int, int, int]]:
    """Which clients step next: (first, one past the last, samples each), until all steps are made.

    ``steps`` are the batch sizes of every client's steps, in order. Neighbours step together where their next batches are equally large;
    sizes other than the ``usual`` go first, so that as many as possible meet in usual steps.

    >>> list(timetable([[2, 2, 1], [2, 1]], usual=2))
    [(0, 2, 2), (1, 2, 1), (0, 1, 2), (0, 1, 1)]
    """
    made = [0] * len(steps)
    while any(due := [sizes[done] if done < len(sizes) else 0 for sizes, done in zip(steps, made, strict=True)]):
        chosen = set(due) - {0, usual} or {usual}
        for size, run in groupby(range(len(due)), key=due.__getitem__):
            if size in chosen:
                members = list(run)
                yield members[0], members[-1] + 1, size
                for i in members:
                    made[i] += 1


class Stack:
    """The weights, statistics and momenta of ``fits``, whose models are alike: each tensor has a client axis in front."""

    def __init__(self, fits: Sequence[Fit]) -> None:
        self.settings, self.model = fits[0].settings, fits[0].model
        models = [asked.model for asked in fits]
        weights = [dict(model.named_parameters()) for model in models]
        self.trained = {name: _stacked([each[name] for each in weights]) for name, w in weights[0].items() if w.requires_grad}
        statistics = [dict(model.named_buffers()) for model in models]
        frozen = [name for name, w in weights[0].items() if not w.requires_grad]
        self.others = {name: _stacked([each[name] for each in weights]) for name in frozen}
        self.others |= {name: _stacked([each[name] for each in statistics]) for name in statistics[0]}
        # from zeros the first step gives what torch gives where there is no momentum yet: the gradient itself
        self.momentum = [torch.zeros_like(t) if self.settings.momentum else None for t in self.trained.values()]
        rates = {"lr": self.settings.lr, "momentum": self.settings.momentum, "weight_decay": self.settings.weight_decay}
        self._update = partial(sgd, dampening=0.0, nesterov=False, maximize=False, **rates)
        self._losses = vmap(self._loss)
        self._views: dict[tuple[int, int], tuple[dict[str, Tensor], dict[str, Tensor], list[Tensor | None]]] = {}

    def step(self, first: int, end: int, images: Tensor, labels: Tensor) -> Tensor:
        """One step of clients ``first`` to ``end`` on images (clients, B, channels, height, width), labels (clients, B); their losses."""
        trained, others, momentum = self._rows(first, end)
        with precision(self.settings):
            if end - first == 1:  # a step of its own costs what it costs alone
                losses = self._loss(trained, others, images[0], labels[0])[None]
            else:
                losses = self._losses(trained, others, images, labels)
        gradients = list(torch.autograd.grad(losses.sum(), list(trained.values())))
        with torch.no_grad():
            self._update(list(trained.values()), gradients, momentum)
        return losses.detach()

    def give_back(self, i: int, model: SplitModel) -> None:
        """Put what was trained in row ``i`` into the client's own ``model``."""
        with torch.no_grad():
            for name, tensor in (*model.named_parameters(), *model.named_buffers()):
                tensor.copy_((self.trained if name in self.trained else self.others)[name][i])

    def _loss(self, trained: dict[str, Tensor], others: dict[str, Tensor], images: Tensor, labels: Tensor) -> Tensor:
        return cross_entropy(functional_call(self.model, (trained, others), (images,)), labels)

    def _rows(self, first: int, end: int) -> tuple[dict[str, Tensor], dict[str, Tensor], list[Tensor | None]]:
        """Views of the rows, which steps change in place; the same ones every time. One client's have no client axis."""
        if (first, end) not in self._views:
            rows: Any = first if end - first == 1 else slice(first, end)
            self._views[first, end] = ({name: t[rows].detach().requires_grad_() for name, t in self.trained.items()},
                                       {name: t[rows] for name, t in self.others.items()},
                                       [None if t is None else t[rows] for t in self.momentum])
        return self._views[first, end]


def train_stacked(fits: Sequence[Fit]) -> list[FitStats | TrainingDiverged]:
    """Train models that are alike in place, with the same settings; the models stay as they are until all steps are made."""
    settings = fits[0].settings
    sizes = [batch_sizes(len(each.labels), settings.batch) for each in fits]
    for each in fits:
        place(each.model, settings)
        train_mode(each.model, batchnorm=sizes[0][0] > 1)
    stack, samples = Stack(fits), _Samples(fits)
    losses: list[list[tuple[Tensor, int]]] = [[] for _ in fits]
    for first, end, size in timetable([epoch * settings.epochs for epoch in sizes], settings.batch):
        found = stack.step(first, end, *samples.next(first, end, size))
        for i in range(first, end):
            losses[i].append((found, i - first))
    answers = []
    for i, (asked, epoch) in enumerate(zip(fits, sizes, strict=True)):
        stack.give_back(i, asked.model)
        steps = torch.stack([found[row] for found, row in losses[i]]).float().cpu()  # a client's only wait for the device
        loss = _epoch_losses(steps, epoch, settings.epochs)
        bad = next((number for number, mean in enumerate(loss, 1) if not math.isfinite(mean)), 0)
        answers.append(diverged(bad) if bad else FitStats(loss[-1], len(steps), is_finite(asked.model)))
    return answers


class _Samples:
    """The images and labels of all clients on the device, and each client's seeded order of them."""

    def __init__(self, fits: Sequence[Fit]) -> None:
        settings = fits[0].settings
        self.images = inputs(np.concatenate([asked.images for asked in fits]), settings)
        self.labels = array_on_device(np.concatenate([asked.labels for asked in fits]).astype(np.int64, copy=False), settings)
        self._orders, start = [], 0
        for asked in fits:
            seeded, n = torch.Generator().manual_seed(asked.seed), len(asked.labels)
            order = torch.cat([torch.randperm(n, generator=seeded) for _ in range(settings.epochs)]) + start
            self._orders.append(order.to(self.labels.device))
            start += n
        self._taken = [0] * len(fits)

    def next(self, first: int, end: int, size: int) -> tuple[Tensor, Tensor]:
        """The next ``size`` samples of clients ``first`` to ``end``: images (clients, size, ...) and labels (clients, size)."""
        rows = torch.stack([self._orders[i][self._taken[i]:self._taken[i] + size] for i in range(first, end)])
        for i in range(first, end):
            self._taken[i] += size
        return self.images[rows], self.labels[rows]


def _group(fits: Sequence[Fit]) -> list[FitStats | Exception]:
    if len(fits) > 1:
        try:
            return list(train_stacked(fits))
        except Exception as fault:  # one client's fault is no other's, and alone each says its own
            log.warning("%d clients cannot be trained at once and are trained one by one (%s)", len(fits), type(fault).__name__)
            log.info("the reason", exc_info=True)
        if torch.cuda.is_available():
            torch.cuda.empty_cache()
    return [_alone(each) for each in fits]


def _alone(asked: Fit) -> FitStats | Exception:
    try:
        return fit(asked.model, asked.images, asked.labels, asked.settings, asked.seed)
    except Exception as fault:
        return fault


def _kind(asked: Fit) -> str:
    """What must be equal for two fits to be trained at once."""
    weights = [(name, tuple(w.shape), w.requires_grad) for name, w in asked.model.named_parameters()]
    statistics = [(name, tuple(t.shape)) for name, t in asked.model.named_buffers()]
    # where every batch is one sample, BatchNorm is in eval mode
    several = batch_sizes(len(asked.labels), asked.settings.batch)[0] > 1
    return repr((asked.settings, asked.images.shape[1:], str(asked.images.dtype), several, weights, statistics))


def _length(asked: Fit) -> tuple[int, int]:
    """How many usual batches an epoch has, and how large its last is: in this order, clients that step together are neighbours."""
    sizes = batch_sizes(len(asked.labels), asked.settings.batch)
    return sizes.count(asked.settings.batch), sizes[-1]


def _stacked(tensors: Sequence[Tensor]) -> Tensor:
    return torch.stack([tensor.detach() for tensor in tensors]).contiguous()


def _epoch_losses(steps: Tensor, sizes: Sequence[int], epochs: int) -> list[float]:
    """The mean loss of every epoch from those of its steps, summed as `loop.descend` sums."""
    means = []
    for epoch in steps.split([len(sizes)] * epochs):
        total = torch.zeros(())
        for loss, size in zip(epoch, sizes, strict=True):
            total += loss * size
        means.append(float(total) / sum(sizes))
    return means
