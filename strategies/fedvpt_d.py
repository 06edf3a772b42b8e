"""FedVPT-D: prompts at every layer of a frozen Vision Transformer, and a head, averaged.

Visual prompt tuning, deep (Jia et al. 2022, arXiv 2203.12119: each layer's prompts take the place of the ones before), under
FedAvg. One token a layer, 9,216 numbers at width 768 and 12 layers, as pFedPG's paper counts its FedVPT-D (arXiv 2308.15367);
the learning rate is this project's choice.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from strategies.config import require
from strategies.contract import Wire
from strategies.prompt_average import PROMPTS_AND_HEAD, PromptAverageRule, State

__all__ = ["Config", "PromptAverageRule", "State"]


@dataclass(frozen=True)
class Config:
    """Settings of FedVPT-D.

    Attributes
    ----------
    tokens : prompt tokens at each layer.
    prompt_lr : learning rate of the prompts; the head has the run's ``lr``.
    """

    tokens: int = 1
    prompt_lr: float = 1.0

    def __post_init__(self) -> None:
        require(self.tokens >= 1, "fedvpt-d.tokens", "1 or more", self.tokens)
        require(self.prompt_lr > 0 and math.isfinite(self.prompt_lr), "fedvpt-d.prompt-lr", "a finite number above 0", self.prompt_lr)

    @property
    def wire(self) -> Wire:
        return PROMPTS_AND_HEAD

    @property
    def prompts(self) -> Mapping[str, Any]:
        """Settings of ``models.prompt_config.PromptConfig``."""
        return {"use": "shared", "shared_tokens": self.tokens, "deep": True}

    @property
    def rates(self) -> Mapping[str, float]:
        """Learning rates of the prompts by kind."""
        return {"shared": self.prompt_lr}
