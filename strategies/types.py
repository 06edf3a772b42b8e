"""The types that both halves of a method share.

Letters used in shapes, here and everywhere: B batch, N clients, C classes, D feature width of the
encoder, K clusters, R rank, Q projected descriptor width, n samples of one client.

``Slots`` is the whole vocabulary of the wire: a slot ("encoder", "head", ...) holds named tensors.
What may be in which slot is said by ``strategies.wire``.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any, Protocol, TypeVar

import numpy as np

Tensors = Mapping[str, np.ndarray]
Slots = Mapping[str, Tensors]
# tensor name -> (shape, numpy dtype name)
Layout = Mapping[str, tuple[tuple[int, ...], str]]


def layout_of(tensors: Tensors) -> Layout:
    """The names, shapes and dtypes of ``tensors``: what a slot that carries them must look like."""
    return {name: (tuple(t.shape), dtype_name(t.dtype)) for name, t in tensors.items()}


@lru_cache(64)  # a message may name any
def dtype_name(dtype: np.dtype) -> str:
    """How a layout calls a kind of number, "float32" say; kept, since numpy composes the word anew every time."""
    return str(dtype)


@dataclass(frozen=True)
class Round:
    """Where in the run a message stands, for one client.

    Attributes
    ----------
    number : 1-based round; the closing evaluation carries the last round's number.
    total : rounds of the whole run.
    seed : the run's seed; every random choice derives from (seed, client, number).
    acked : last round whose update the server accepted from this client, 0 if none. The client
        continues from the local version of that round.
    score_served, score_adapted : whether this message scores the model before, after local training.
    closing : whether this is the evaluation after the last round.
    joining : whether this is the message after the last round that takes a held-out client in; it carries the last
        round's number too, and what the client makes of it is its version of that round.
    """

    number: int
    total: int
    seed: int
    acked: int = 0
    score_served: bool = False
    score_adapted: bool = False
    closing: bool = False
    joining: bool = False

    def __post_init__(self) -> None:
        if not 1 <= self.number <= self.total:
            raise ValueError(f"round {self.number} is outside 1..{self.total}")
        if not 0 <= self.acked <= self.number:
            raise ValueError(f"acknowledged round {self.acked} is outside 0..{self.number}")

    @property
    def completed(self) -> int:
        """How many rounds lie behind the state this message carries."""
        return self.number if self.closing or self.joining else self.number - 1


@dataclass(frozen=True)
class Update:
    """One client's accepted reply, as a rule folds it in.

    ``weight`` is the client's share in an average (its number of training samples, or 1). The slots are there until the
    next update is asked for and no longer, so that one client's model is in memory at a time.
    """

    client: str
    slots: dict[str, Tensors]
    weight: float
    metrics: Mapping[str, float] = field(default_factory=dict)


class Members(Protocol):
    """Who takes part; ``server_app.roster`` is the real one."""

    def names(self) -> tuple[str, ...]: ...
    def node_id(self, name: str) -> int | None: ...
    def sample(self, round_number: int) -> tuple[str, ...]: ...
    def held_out(self) -> tuple[str, ...]: ...


class Shelf(Protocol):
    """Cached client encoders, off the server's memory (D3). Keys are (client, round)."""

    def put(self, client: str, round_number: int, tensors: Tensors) -> None: ...
    def get(self, client: str, round_number: int) -> Tensors: ...


S = TypeVar("S")


class ServerRule(Protocol[S]):
    """What a method computes on the server. Pure: no Flower, no torch, no I/O but the shelf.

    ``merge`` gets the updates lazily and in a fixed order of clients, whatever order they arrived
    in; it must fold them one by one and never build a list of them. A rule may also have a method
    ``newcomers(state, updates, rnd) -> state``, which folds what held-out clients send when they join after the last
    round; it may change what those clients are served, and nothing of anybody else. A rule that has nothing for a client it
    has not trained with says ``serves_newcomers = False``: held-out clients are then never asked.
    """

    def init(self, start: Slots) -> S: ...
    def downlink(self, state: S, client: str, rnd: Round) -> Slots: ...
    def merge(self, state: S, updates: Iterable[Update], rnd: Round) -> S: ...
    def diagnostics(self, state: S) -> Mapping[str, Any]: ...
