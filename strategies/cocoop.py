"""CoCoOp under FedAvg: a small network turns an image's CLS feature into a shift of the prompt (Zhou et al. 2022, arXiv:2203.05557).

Prompt and network are averaged together. It reads B x C texts a step, so it is the slowest rival by far.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from strategies.config import RunConfig
from strategies.contract import Wire
from strategies.global_prompt import AT_HOME, DOWN, UP, GlobalPromptRule, Rate, State, prompt_rate, require_number

__all__ = ["Config", "GlobalPromptRule", "State"]

WIRE = Wire(down=(replace(DOWN, shape="tokens x word width, network", purpose="the shared prompt and the network that shifts it"),),
            up=(replace(UP, shape="tokens x word width, network", purpose="the same, locally trained"),), local=AT_HOME)


@dataclass(frozen=True)
class Config:
    """Settings of federated CoCoOp.

    Attributes
    ----------
    prompt_lr : learning rate of the prompt; 0: what goes with the text tower (.2 for minilm-bridge, .002 for open_clip's).
    meta_lr : of the network, by Adam; our choice, as FedIA's meta-net.
    """

    prompt_lr: float = 0.0
    meta_lr: float = 0.001

    def __post_init__(self) -> None:
        require_number("cocoop", self, "prompt_lr")
        require_number("cocoop", self, "meta_lr", above=0)

    @property
    def wire(self) -> Wire:
        return WIRE

    def rates(self, run: RunConfig) -> Mapping[str, Rate]:
        """How each kind of weights is trained."""
        return {"global_prompt": prompt_rate(self.prompt_lr, run), "meta": Rate(self.meta_lr, adam=True)}
