"""Zero-shot and local logistic regression as models with parts, so that they are scored, kept and exported as every other one.

The formulas stand in ``models/frozen_baselines.py``. Neither has anything that is trained by steps.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor, nn

from models.frozen_baselines import fit_logistic, zero_shot
from models.prompt_classifier import LOCAL, PromptClassifier, PromptStart
from models.towers import ImageFeatures, TextTower

# in place of -inf for a class that a client has not seen: what a client keeps must be finite
NEVER = -1e30


class ZeroShot(PromptClassifier):
    """Cosines of CLS features and the text features of the starting words; ``present`` (C,) is 0 for classes to leave out, else 1."""

    held = {LOCAL: ("present",)}

    def __init__(self, tower: TextTower, names: Sequence[str], start: PromptStart, seed: int = 0) -> None:
        super().__init__(tower, names, start, seed)
        self.present = nn.Parameter(torch.ones(len(names)), requires_grad=False)

    def forward(self, images: ImageFeatures) -> Tensor:
        """Logits (B, C), -inf for a class that is left out."""
        return zero_shot(images.cls, self.text_features(), self.text.logit_scale, self.present > 0)

    def trainable(self) -> dict[str, list[nn.Parameter]]:
        """Nothing."""
        return {}


class LocalLogistic(PromptClassifier):
    """Logistic regression on CLS features: ``weight`` (C, D) and ``bias`` (C,), zeros until ``fit``. No text is read."""

    held = {LOCAL: ("weight", "bias")}

    def __init__(self, tower: TextTower, names: Sequence[str], start: PromptStart, penalty: float = 1.0, seed: int = 0) -> None:
        """``penalty`` as ``models.frozen_baselines.fit_logistic`` has it."""
        super().__init__(tower, names, start, seed)
        self.penalty = penalty
        self.weight = nn.Parameter(torch.zeros(len(names), tower.dim), requires_grad=False)
        self.bias = nn.Parameter(torch.zeros(len(names)), requires_grad=False)

    def forward(self, images: ImageFeatures) -> Tensor:
        """Logits (B, C)."""
        return images.cls.float() @ self.weight.T + self.bias

    def trainable(self) -> dict[str, list[nn.Parameter]]:
        """Nothing, by steps."""
        return {}

    def fit(self, cls: np.ndarray, labels: np.ndarray) -> None:
        """Fit on CLS features (n, D) and labels (n,). Raises ``ModelError`` for no sample."""
        found = fit_logistic(cls, labels, len(self.bias), self.penalty)
        self.load(LOCAL, {"weight": found.weight, "bias": np.maximum(found.bias, NEVER, dtype=np.float32)})
