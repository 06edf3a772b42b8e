"""Fixed mix: a global and a local text prompt whose features are mixed with one weight for all images and classes.

The design that FedIA is measured against (PromptFolio, arXiv:2409.19610, mixes text features this way; its protocol is not followed
here). The global prompt is averaged, the local one never leaves. ``weight`` 0 is PromptFL, 1 a local prompt.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from strategies.config import RunConfig, require
from strategies.contract import Wire
from strategies.global_prompt import GlobalPromptRule, Rate, State, prompt_rate, require_number, shared_prompt_wire

__all__ = ["Config", "GlobalPromptRule", "State"]


@dataclass(frozen=True)
class Config:
    """Settings of the fixed mix.

    Attributes
    ----------
    weight : of the local text features, 0 to 1.
    lambda_global : weight of the global branch's own cross-entropy.
    prompt_lr, local_lr : learning rates of the global and the local prompt; 0: what goes with the text tower (.2 for minilm-bridge,
        .002 for open_clip's).
    """

    weight: float = 0.5
    lambda_global: float = 0.0
    prompt_lr: float = 0.0
    local_lr: float = 0.0

    def __post_init__(self) -> None:
        require(0 <= self.weight <= 1, "fixed-mix.weight", "0 to 1", self.weight)
        require_number("fixed-mix", self, "lambda_global", "prompt_lr", "local_lr")

    @property
    def wire(self) -> Wire:
        return shared_prompt_wire("local prompt")

    def rates(self, run: RunConfig) -> Mapping[str, Rate]:
        """How each kind of weights is trained."""
        return {"global_prompt": prompt_rate(self.prompt_lr, run), "local_prompt": prompt_rate(self.local_lr, run)}
