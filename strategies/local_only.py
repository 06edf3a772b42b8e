"""Local-only: every client trains alone. The control for "does sharing help at all?".

All clients start from the same model, which comes down until a client's first round is acknowledged; nothing but
scalars ever goes up. Shared buffers: none. A held-out client trains alone for as many rounds as all others, when they are
done; it ends where it would have ended among them.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from strategies.config import RunConfig
from strategies.contract import Slot, Wire
from strategies.types import Round, Shelf, Slots, Tensors, Update

WIRE = Wire(
    down=(Slot("initial-encoder", "encoder tensors", "the common first encoder, until a client's first round is accepted",
               like="encoder", optional=True),
          Slot("initial-head", "classes x dim, classes", "the common first head, until a client's first round is accepted",
               like="head", optional=True)),
    up=(),
    local=("encoder", "head", "data", "optimiser state"),
)


@dataclass(frozen=True)
class Config:
    """Local-only has no settings of its own."""

    @property
    def wire(self) -> Wire:
        return WIRE


@dataclass(frozen=True)
class State:
    """The common start; it never changes."""

    encoder: Tensors
    head: Tensors


@dataclass(frozen=True)
class LocalOnlyRule:
    """Hand out the start, fold nothing in."""

    config: Config
    run: RunConfig
    shelf: Shelf | None = None

    def init(self, start: Slots) -> State:
        return State(encoder=start["encoder"], head=start["head"])

    def downlink(self, state: State, client: str, rnd: Round) -> Slots:
        return {} if rnd.acked else {"initial-encoder": state.encoder, "initial-head": state.head}

    def merge(self, state: State, updates: Iterable[Update], rnd: Round) -> State:
        for _ in updates:
            pass
        return state

    def diagnostics(self, state: State) -> Mapping[str, Any]:
        return {}
