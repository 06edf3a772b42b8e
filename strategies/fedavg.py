"""FedAvg: one shared model for all clients (McMahan et al. 2017, arXiv 1602.05629, algorithm 1).

The control that personalises nothing. Shared: every weight and every BatchNorm running mean and variance (averaged
by the run's ``bn`` rule). Integer counters never travel. A held-out client is served the shared model as it is.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from strategies.config import RunConfig
from strategies.contract import Slot, Wire
from strategies.reduce import make_mean
from strategies.types import Round, Shelf, Slots, Tensors, Update

WIRE = Wire(
    down=(Slot("encoder", "encoder tensors", "the shared encoder", like="encoder"),
          Slot("head", "classes x dim, classes", "the shared head", like="head")),
    up=(Slot("encoder", "encoder tensors", "the locally trained encoder", like="encoder"),
        Slot("head", "classes x dim, classes", "the locally trained head", like="head")),
    local=("data", "optimiser state"),
)


@dataclass(frozen=True)
class Config:
    """FedAvg has no settings of its own."""

    @property
    def wire(self) -> Wire:
        return WIRE


@dataclass(frozen=True)
class State:
    """The shared model."""

    encoder: Tensors
    head: Tensors


@dataclass(frozen=True)
class FedAvgRule:
    """Average encoder and head, weighted as the run says."""

    config: Config
    run: RunConfig
    shelf: Shelf | None = None

    def init(self, start: Slots) -> State:
        return State(encoder=start["encoder"], head=start["head"])

    def downlink(self, state: State, client: str, rnd: Round) -> Slots:
        return {"encoder": state.encoder, "head": state.head}

    def merge(self, state: State, updates: Iterable[Update], rnd: Round) -> State:
        encoder, head = make_mean(self.run.bn), make_mean(self.run.bn)
        for update in updates:
            encoder.add(update.slots["encoder"], update.weight)
            head.add(update.slots["head"], update.weight)
        return State(encoder=encoder.result(), head=head.result())

    def diagnostics(self, state: State) -> Mapping[str, Any]:
        return {}
