"""FedPR: deep prompts whose updates stay in the approximate null space of the global prompt (Feng et al. 2023, arXiv 2303.16181).

Clients step with Adam and take out of every step what lies along the leading right singular vectors of the global prompt they
received (SVD, a layer at a time), so that what the others have put there is disturbed little; the server averages. Made for MRI
reconstruction: classification with a head is an adaptation. Values from the paper as METHODS 4.6 reports it: 20 tokens a layer,
rate .1, ratio .8. Our reading: ``ratio`` is the share of the squared singular values that the protected directions hold.
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
    """Settings of FedPR.

    Attributes
    ----------
    tokens : prompt tokens at each layer.
    prompt_lr : learning rate of the prompts (Adam); the head has the run's ``lr`` (SGD).
    ratio : share of the global prompt's energy that a step must not touch; 0 leaves steps as they are.
    """

    tokens: int = 20
    prompt_lr: float = 0.1
    ratio: float = 0.8

    def __post_init__(self) -> None:
        require(self.tokens >= 1, "fedpr.tokens", "1 or more", self.tokens)
        require(self.prompt_lr > 0 and math.isfinite(self.prompt_lr), "fedpr.prompt-lr", "a finite number above 0", self.prompt_lr)
        require(0 <= self.ratio <= 1, "fedpr.ratio", "0 to 1", self.ratio)

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
