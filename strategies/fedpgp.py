"""FedPGP: a shared prompt plus a client's own low-rank change of it, held apart by a contrast (Cui et al. 2024, arXiv:2405.09771).

The shared prompt is averaged, the low-rank part never leaves. Published: rank 4-8, mu .5-1, temperature .5 (METHODS 3.6).
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
    """Settings of FedPGP.

    Attributes
    ----------
    rank : of a client's own change of the prompt.
    mu, temperature : weight and temperature of the contrast, see ``models.prompt_rivals.LowRankPrompt``.
    prompt_lr, local_lr : learning rates of the shared prompt and of the low-rank factors; 0: what goes with the text tower (.2 for
        minilm-bridge, .002 for open_clip's).
    """

    rank: int = 8
    mu: float = 1.0
    temperature: float = 0.5
    prompt_lr: float = 0.0
    local_lr: float = 0.0

    def __post_init__(self) -> None:
        require(self.rank >= 1, "fedpgp.rank", "1 or more", self.rank)
        require_number("fedpgp", self, "mu", "prompt_lr", "local_lr")
        require_number("fedpgp", self, "temperature", above=0)

    @property
    def wire(self) -> Wire:
        return shared_prompt_wire("low-rank part of the prompt")

    def rates(self, run: RunConfig) -> Mapping[str, Rate]:
        """How each kind of weights is trained."""
        local = prompt_rate(self.local_lr, run)
        return {"global_prompt": prompt_rate(self.prompt_lr, run), "u": local, "v": local}
