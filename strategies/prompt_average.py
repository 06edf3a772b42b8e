"""FedAvg of prompts and head around a frozen Vision Transformer: the server's half of every method that shares them all.

McMahan et al. 2017 (arXiv 1602.05629, algorithm 1) over the trained tensors alone; the backbone never travels. What is shared is
what the method's contract sends up: ``prompts`` and ``head``, or one of them. A newcomer is served the shared model as it is.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

from strategies.config import RunConfig
from strategies.contract import Slot, Wire
from strategies.reduce import WeightedMean
from strategies.types import Round, Shelf, Slots, Tensors, Update

PROMPTS_DOWN = Slot("prompts", "layers x tokens x dim", "the shared prompts", like="prompts")
PROMPTS_UP = Slot("prompts", "layers x tokens x dim", "the locally trained prompts", like="prompts")
HEAD_DOWN = Slot("head", "classes x dim, classes", "the shared head", like="head")
HEAD_UP = Slot("head", "classes x dim, classes", "the locally trained head", like="head")
# what stays at home under every method with prompts
AT_HOME = ("class prior", "features", "data", "optimiser state")

PROMPTS_AND_HEAD = Wire(down=(PROMPTS_DOWN, HEAD_DOWN), up=(PROMPTS_UP, HEAD_UP), local=AT_HOME)
HEAD_ALONE = Wire(down=(HEAD_DOWN,), up=(HEAD_UP,), local=AT_HOME)


class PromptConfig(Protocol):
    """Settings whose contract says what is averaged."""

    @property
    def wire(self) -> Wire: ...


@dataclass(frozen=True)
class State:
    """The shared prompts and head; empty is what the method does not share."""

    prompts: Tensors = field(default_factory=dict)
    head: Tensors = field(default_factory=dict)


@dataclass(frozen=True)
class PromptAverageRule:
    """Average what clients send, weighted as the run says."""

    config: PromptConfig
    run: RunConfig
    shelf: Shelf | None = None

    def init(self, start: Slots) -> State:
        return State(**{slot.name: start[slot.name] for slot in self.config.wire.down})

    def downlink(self, state: State, client: str, rnd: Round) -> Slots:
        return {slot.name: getattr(state, slot.name) for slot in self.config.wire.down}

    def merge(self, state: State, updates: Iterable[Update], rnd: Round) -> State:
        return State(**averages(updates, [slot.name for slot in self.config.wire.up]))

    def diagnostics(self, state: State) -> Mapping[str, Any]:
        return {}


def averages(updates: Iterable[Update], slots: Iterable[str]) -> dict[str, Tensors]:
    """Weighted mean of each of ``slots`` over the updates."""
    means = {slot: WeightedMean() for slot in slots}
    for update in updates:
        for slot, mean in means.items():
            mean.add(update.slots[slot], update.weight)
    return {slot: mean.result() for slot, mean in means.items()}
