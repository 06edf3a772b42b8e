"""PromptFL: one text prompt for all clients, averaged (Guo et al. 2022, arXiv:2208.11625).

CoOp (arXiv:2109.01134) under FedAvg: the prompt before the class names is trained, both towers are frozen.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from strategies.config import RunConfig
from strategies.contract import Wire
from strategies.global_prompt import GlobalPromptRule, Rate, State, prompt_rate, require_number, shared_prompt_wire

__all__ = ["Config", "GlobalPromptRule", "State"]


@dataclass(frozen=True)
class Config:
    """Settings of PromptFL.

    Attributes
    ----------
    prompt_lr : learning rate of the prompt; 0: what goes with the text tower (.2 for minilm-bridge, .002 for open_clip's).
    """

    prompt_lr: float = 0.0

    def __post_init__(self) -> None:
        require_number("promptfl", self, "prompt_lr")

    @property
    def wire(self) -> Wire:
        return shared_prompt_wire()

    def rates(self, run: RunConfig) -> Mapping[str, Rate]:
        """How each kind of weights is trained."""
        return {"global_prompt": prompt_rate(self.prompt_lr, run)}
