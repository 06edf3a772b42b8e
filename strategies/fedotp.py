"""FedOTP: a global and a local prompt share an image's patches by unbalanced optimal transport (Li et al. 2024, arXiv:2403.00041).

The global prompt is averaged, the local one never leaves. Values of the plan by the authors' code (METHODS 3.6).
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
    """Settings of FedOTP.

    Attributes
    ----------
    eps, mass, iterations, stop : of the transport plan, see ``models.prompt_transport.Transport``.
    prompt_lr, local_lr : learning rates of the global and the local prompt; 0: what goes with the text tower (.2 for minilm-bridge,
        .002 for open_clip's).
    """

    eps: float = 0.1
    mass: float = 0.8
    iterations: int = 100
    stop: float = 0.001
    prompt_lr: float = 0.0
    local_lr: float = 0.0

    def __post_init__(self) -> None:
        require(0.01 <= self.eps < float("inf"), "fedotp.eps", "a finite number of .01 or more", self.eps)
        require(0 < self.mass <= 1, "fedotp.mass", "above 0 and at most 1", self.mass)
        require(self.iterations >= 1, "fedotp.iterations", "1 or more", self.iterations)
        require_number("fedotp", self, "stop", "prompt_lr", "local_lr")

    @property
    def wire(self) -> Wire:
        return shared_prompt_wire("local prompt")

    def rates(self, run: RunConfig) -> Mapping[str, Rate]:
        """How each kind of weights is trained."""
        return {"global_prompt": prompt_rate(self.prompt_lr, run), "local_prompt": prompt_rate(self.local_lr, run)}
