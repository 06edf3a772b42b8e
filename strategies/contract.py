"""What may cross the wire: the contract that every method states.

Every method states a ``Wire``: the slots that go down and up, the scalars that may leave a client, and, so that a
reader sees it, what never does. ``strategies.wire`` checks messages against it. Two limits: the contract bounds *which*
tensors leave, not what they reveal; and it catches mistakes, not malice, since the app itself comes from whoever submits
the run.

Flower is not imported here: the list of methods and contracts is to answer at once.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from strategies.data_warnings import FORM as DATA_WARNINGS
from strategies.precision import TRAVEL
from strategies.scalars import COMMON_METRICS, DONOR_SCORES
from strategies.types import Layout

# beside a round's "down" and "up": "join", up, when a held-out client is taken in after the last round; "closing", up, with the
# evaluation after it, which has scalars and no slot; "swap-down" and "swap-up" with a donor swap, if there is one, after that
Direction = Literal["down", "up", "join", "closing", "swap-down", "swap-up"]
# What a hello says and in what form, so that no free text fits in: class names travel as a digest or not at all.
HELLO_FACTS = {"site": r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}", "classes": r"[1-9][0-9]{0,8}", "class-digest": r"[0-9a-f]{1,64}",
                "input-shape": r"[1-9][0-9]{0,8}(x[1-9][0-9]{0,8}){2}", "split-digest": r"[0-9a-f]{0,64}",
                "warnings": DATA_WARNINGS, "weights-digest": r"[0-9a-f]{0,16}"}
# whether encoders may travel as a difference against what the other side holds (``strategies.thin``)
DELTAS = ("none", "lossless")


class WireViolation(ValueError):
    """A record does not fit the contract. ``kind`` is the short reason under which it is counted."""

    def __init__(self, kind: str, text: str) -> None:
        super().__init__(text)
        self.kind = kind


@dataclass(frozen=True)
class Slot:
    """One named place for tensors in a message.

    Attributes
    ----------
    shape : the tensors in words or letters, for the privacy table.
    like : the model part ("encoder", "head") whose tensors the slot carries, or "".
    layout : the tensors spelt out, when they are no model part's; in a shape, "C" and "D" stand for the head's sizes.
    optional : whether a message may come without it.
    serves : down only: the slot is what the client serves with, so a message that carries it is scored.
    """

    name: str
    shape: str
    purpose: str
    like: str = ""
    layout: tuple[tuple[str, tuple[int | str, ...], str], ...] = ()
    optional: bool = False
    serves: bool = False

    def expected(self, parts: Mapping[str, Layout]) -> Layout:
        """The layout this slot must have, given the layouts of the model's parts."""
        if self.like:
            return parts[self.like]
        return {name: (tuple(n if isinstance(n, int) else _size(n, parts) for n in shape), dtype) for name, shape, dtype in self.layout}


def _size(letter: str, parts: Mapping[str, Layout]) -> int:
    return parts["head"]["weight"][0]["CD".index(letter)]


@dataclass(frozen=True)
class Wire:
    """The contract of one method: see the module's docstring."""

    down: tuple[Slot, ...]
    up: tuple[Slot, ...]
    local: tuple[str, ...]
    metrics: frozenset[str] = COMMON_METRICS
    travel: str = "float32"
    join: tuple[Slot, ...] = ()
    swap: tuple[Slot, ...] = ()
    delta: str = "none"

    def __post_init__(self) -> None:
        if self.delta not in DELTAS:
            raise ValueError(f"delta must be one of {', '.join(DELTAS)}, got {self.delta!r}")
        if self.travel not in TRAVEL:
            raise ValueError(f"travel must be one of {', '.join(TRAVEL)}, got {self.travel!r}")

    def slots(self, direction: Direction) -> dict[str, Slot]:
        ways = {"down": self.down, "up": self.up, "join": self.join, "swap-down": self.swap}
        return {slot.name: slot for slot in ways.get(direction, ())}

    def scalars(self, direction: Direction) -> frozenset[str]:
        none: frozenset[str] = frozenset()
        return {"down": none, "swap-down": none, "swap-up": DONOR_SCORES if self.swap else none}.get(direction, self.metrics)

    def check(self, direction: Direction, content: Any, parts: Mapping[str, Layout]) -> None:
        """Raise ``WireViolation`` unless ``content``, a Flower ``RecordDict``, is exactly what the contract allows."""
        from strategies.wire import unpack

        unpack(self, direction, content, parts)
