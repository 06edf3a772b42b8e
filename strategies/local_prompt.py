"""Local prompt: every client trains a text prompt of its own and shares nothing. The control for "does sharing a prompt help?".

CoOp (arXiv:2109.01134) at each client. A held-out client trains alone for as many rounds as the others, when they are done.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from strategies.config import RunConfig
from strategies.contract import Wire
from strategies.global_prompt import AT_HOME, GlobalPromptRule, Rate, State, prompt_rate, require_number

__all__ = ["Config", "GlobalPromptRule", "State"]


@dataclass(frozen=True)
class Config:
    """Settings of the local prompt.

    Attributes
    ----------
    prompt_lr : learning rate of the prompt; 0: what goes with the text tower (.2 for minilm-bridge, .002 for open_clip's).
    """

    prompt_lr: float = 0.0

    def __post_init__(self) -> None:
        require_number("local-prompt", self, "prompt_lr")

    @property
    def wire(self) -> Wire:
        return Wire(down=(), up=(), local=("prompt", *AT_HOME))

    def rates(self, run: RunConfig) -> Mapping[str, Rate]:
        """How each kind of weights is trained."""
        return {"global_prompt": prompt_rate(self.prompt_lr, run)}
