"""SGPT: shared prompts, and groups of prompts picked by sample (Deng et al. 2023, arXiv 2310.18285).

Clients train in two stages, first shared prompts and head, then groups, keys and head; the server averages and keeps half of the
old prompts and keys. A group is picked by the nearest key to the frozen backbone's feature; while training, rarely used groups are
favoured. No parameter belongs to a client.

Values from the paper's code as METHODS 4.6 reports it; the prompts' learning rate is this project's choice (the code: .01 for all).
Our reading, where only the words are known: usage is balanced as in L2P (arXiv 2112.08654: distance times relative frequency, from
equal frequencies at the start of each round); a round of E epochs gives the first half (rounded up) to stage 1, and with E = 1 the
stages take turns by round.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from strategies.config import RunConfig, require
from strategies.contract import Slot, Wire
from strategies.prompt_average import AT_HOME, HEAD_DOWN, HEAD_UP, State, averages
from strategies.reduce import momentum
from strategies.types import Round, Shelf, Slots, Update

__all__ = ["Config", "SgptRule", "State"]

_PROMPTS = "layers x tokens x dim, groups x layers x tokens x dim, groups x dim"
WIRE = Wire(down=(Slot("prompts", _PROMPTS, "shared prompts, groups of prompts, and the groups' keys", like="prompts"), HEAD_DOWN),
            up=(Slot("prompts", _PROMPTS, "the same, locally trained", like="prompts"), HEAD_UP), local=AT_HOME)


@dataclass(frozen=True)
class Config:
    """Settings of SGPT.

    Attributes
    ----------
    groups : groups of prompts; at layers 5-7, one token each.
    prompt_lr : learning rate of shared and group prompts; the head has the run's ``lr``.
    key_lr : learning rate of the keys.
    key_rounds : rounds in which keys are drawn to the queries that picked them; then they stand still.
    momentum : share of the old prompts and keys that stays.
    """

    groups: int = 20
    prompt_lr: float = 1.0
    key_lr: float = 0.1
    key_rounds: int = 5
    momentum: float = 0.5

    def __post_init__(self) -> None:
        require(self.groups >= 1, "sgpt.groups", "1 or more", self.groups)
        require(self.key_rounds >= 0, "sgpt.key-rounds", "0 or more", self.key_rounds)
        require(0 <= self.momentum < 1, "sgpt.momentum", "at least 0 and below 1", self.momentum)
        for key in ("prompt_lr", "key_lr"):
            value = getattr(self, key)
            require(value > 0 and math.isfinite(value), f"sgpt.{key.replace('_', '-')}", "a finite number above 0", value)

    @property
    def wire(self) -> Wire:
        return WIRE

    @property
    def prompts(self) -> Mapping[str, Any]:
        """Settings of ``models.grouped_vit.GroupConfig``."""
        return {"groups": self.groups}


@dataclass(frozen=True)
class SgptRule:
    """Average; prompts and keys with momentum."""

    config: Config
    run: RunConfig
    shelf: Shelf | None = None

    def init(self, start: Slots) -> State:
        return State(start["prompts"], start["head"])

    def downlink(self, state: State, client: str, rnd: Round) -> Slots:
        return {"prompts": state.prompts, "head": state.head}

    def merge(self, state: State, updates: Iterable[Update], rnd: Round) -> State:
        mean = averages(updates, ("prompts", "head"))
        return State(momentum(state.prompts, mean["prompts"], self.config.momentum), mean["head"])

    def diagnostics(self, state: State) -> Mapping[str, Any]:
        return {}
