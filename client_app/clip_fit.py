"""Training of a prompt model on cached features: one step of each kind of weights at its own rate, by SGD or AdamW.

SGD as in ``client_app.loop``, with the run's momentum and weight decay: decay draws a prompt to its starting words, since what is trained
is the difference from them. Optimiser state is fresh every round. The text tower computes in float32 under every ``precision``, because
logits are 100 times a cosine.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.optim.adamw import adamw
from torch.optim.sgd import sgd

from client_app.clip_features import Rows
from client_app.loop import TrainingDiverged, batch_sizes, descend
from client_app.loop_settings import LoopSettings
from models.patch_evidence import Evidence
from models.prompt_classifier import PromptClassifier
from models.towers import ImageFeatures
from strategies.global_prompt import Rate


@dataclass(frozen=True)
class Seen:
    """What is known of n images, on the device: CLS features (n, D), evidence of this round, random access to patch features."""

    cls: Tensor
    evidence: Evidence | None = None
    patches: Rows | None = None

    def __getitem__(self, rows: Tensor) -> ImageFeatures:
        """The features of the images at positions (B,)."""
        patches = None if self.patches is None else torch.from_numpy(self.patches(rows.cpu().numpy())).to(self.cls.device)
        return ImageFeatures(self.cls[rows], patches, None if self.evidence is None else self.evidence[rows])


@dataclass
class Kind:
    """Weights that are trained alike, and what their optimiser remembers within a round."""

    weights: list[Tensor]
    rate: Rate
    settings: LoopSettings
    momentum: list[Tensor | None] = field(default_factory=list)
    moments: list[list[Tensor]] = field(default_factory=list)

    def step(self, gradients: list[Tensor | None]) -> None:
        """One step; weights without a gradient stay as they are."""
        held = [(weight, gradient) for weight, gradient in zip(self.weights, gradients, strict=True) if gradient is not None]
        if not held:
            return
        weights, found = [w for w, _ in held], [g for _, g in held]
        if self.rate.adam:
            if not self.moments:
                self.moments = [[torch.zeros_like(w) for w in weights] for _ in range(2)] + [[torch.zeros(()) for _ in weights]]
            adamw(weights, found, self.moments[0], self.moments[1], [], self.moments[2], amsgrad=False, beta1=0.9, beta2=0.999,
                  lr=self.rate.lr, weight_decay=self.rate.decay, eps=1e-8, maximize=False)
            return
        self.momentum = self.momentum or [None] * len(weights)
        sgd(weights, found, self.momentum, lr=self.rate.lr, momentum=self.settings.momentum, weight_decay=self.settings.weight_decay,
            dampening=0.0, nesterov=False, maximize=False)


class ClipStep:
    """One step on the images at given positions."""

    def __init__(self, net: PromptClassifier, seen: Seen, settings: LoopSettings, rates: Mapping[str, Rate]) -> None:
        self.net, self.seen = net, seen
        self.kinds = [Kind(list(held), rates[name], settings) for name, held in net.trainable().items() if name in rates]

    def __call__(self, positions: Tensor, labels: Tensor) -> Tensor:
        """Step on positions (B,) with labels (B,); the mean loss before the step."""
        loss = self.net.loss(self.seen[positions], labels)
        found: Any = torch.autograd.grad(loss, [weight for kind in self.kinds for weight in kind.weights], allow_unused=True)
        gradients: list[Tensor | None] = list(found)
        with torch.no_grad():
            for kind in self.kinds:
                own, gradients = gradients[: len(kind.weights)], gradients[len(kind.weights):]
                kind.step(own)
        return loss.detach()


def fit_prompts(net: PromptClassifier, seen: Seen, labels: np.ndarray, settings: LoopSettings, rates: Mapping[str, Rate],
                seed: int) -> float:
    """Train the kinds of weights in ``rates`` in place, on n >= 1 images with labels (n,); the last epoch's mean loss.

    Raises ``TrainingDiverged`` if a loss or a weight is no finite number.
    """
    y = torch.from_numpy(labels.astype(np.int64)).to(seen.cls.device)
    step = ClipStep(net, seen, settings, rates)
    loss = descend(step, torch.arange(len(y), device=y.device), y, batch_sizes(len(y), settings.batch), settings.epochs, seed)
    if not all(bool(weight.isfinite().all()) for kind in step.kinds for weight in kind.weights):
        raise TrainingDiverged("a weight became non-finite in training; lower the method's learning rates")
    return loss
