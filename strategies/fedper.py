"""FedPer: shared encoder, private head (Arivazhagan et al. 2019, arXiv 1912.00818, algorithm 1).

Every client starts from the same head (our choice, so that HDC-FL and FedPer share one trajectory); from then on the
head never leaves it. Shared: encoder weights and BatchNorm running mean and variance (averaged by the run's ``bn``
rule). Integer counters never travel. A held-out client (cold start, our own choice) fits a head of its own on the frozen
shared encoder and sends no tensor.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from strategies.config import RunConfig
from strategies.contract import Slot, Wire
from strategies.reduce import make_mean
from strategies.types import Round, Shelf, Slots, Tensors, Update

ENCODER_DOWN = Slot("encoder", "encoder tensors", "the shared encoder", like="encoder")
INITIAL_HEAD = Slot("initial-head", "classes x dim, classes", "the common first head, until a client's first update is accepted",
                    like="head", optional=True)
ENCODER_UP = Slot("encoder", "encoder tensors", "the locally trained encoder", like="encoder")

WIRE = Wire(down=(ENCODER_DOWN, INITIAL_HEAD), up=(ENCODER_UP,), local=("head", "data", "optimiser state"))


@dataclass(frozen=True)
class Config:
    """FedPer has no settings of its own."""

    @property
    def wire(self) -> Wire:
        return WIRE


@dataclass(frozen=True)
class State:
    """The shared encoder, and the head every client starts from."""

    encoder: Tensors
    initial_head: Tensors


@dataclass(frozen=True)
class FedPerRule:
    """Average the encoder, weighted as the run says; heads never come here."""

    config: Config
    run: RunConfig
    shelf: Shelf | None = None

    def init(self, start: Slots) -> State:
        return State(encoder=start["encoder"], initial_head=start["head"])

    def downlink(self, state: State, client: str, rnd: Round) -> Slots:
        return shared_encoder(state.encoder, state.initial_head, rnd)

    def merge(self, state: State, updates: Iterable[Update], rnd: Round) -> State:
        encoder = make_mean(self.run.bn)
        for update in updates:
            encoder.add(update.slots["encoder"], update.weight)
        return State(encoder=encoder.result(), initial_head=state.initial_head)

    def diagnostics(self, state: State) -> Mapping[str, Any]:
        return {}


def shared_encoder(encoder: Tensors, initial_head: Tensors, rnd: Round) -> dict[str, Tensors]:
    """What a client with a private head gets: the encoder, and the first head as long as it has none of its own."""
    return {"encoder": encoder} if rnd.acked else {"encoder": encoder, "initial-head": initial_head}
