"""FedVPT: prompts at the first layer of a frozen Vision Transformer, and a head, averaged.

Visual prompt tuning, shallow (Jia et al. 2022, arXiv 2203.12119), under FedAvg. Ten tokens, 7,680 numbers at width 768, as
pFedPG's paper counts its FedVPT (arXiv 2308.15367); the learning rate is this project's choice, from a pilot (METHODS 4.7).
With ``logit-prior = true`` it is the prior-only control.
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
    """Settings of FedVPT.

    Attributes
    ----------
    tokens : prompt tokens at the first layer.
    prompt_lr : learning rate of the prompts; the head has the run's ``lr``.
    """

    tokens: int = 10
    prompt_lr: float = 1.0

    def __post_init__(self) -> None:
        require(self.tokens >= 1, "fedvpt.tokens", "1 or more", self.tokens)
        require(self.prompt_lr > 0 and math.isfinite(self.prompt_lr), "fedvpt.prompt-lr", "a finite number above 0", self.prompt_lr)

    @property
    def wire(self) -> Wire:
        return PROMPTS_AND_HEAD

    @property
    def prompts(self) -> Mapping[str, Any]:
        """Settings of ``models.prompt_config.PromptConfig``."""
        return {"use": "shared", "shared_tokens": self.tokens}

    @property
    def rates(self) -> Mapping[str, float]:
        """Learning rates of the prompts by kind."""
        return {"shared": self.prompt_lr}
