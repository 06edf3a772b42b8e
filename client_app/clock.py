"""How long a client trained and how long it scored in one round; the report divides a round's seconds by it.

Seconds tell how many samples a client has, so they are sent only where counts are (``weighting = examples``).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from functools import wraps
from time import perf_counter
from typing import ParamSpec, TypeVar

P = ParamSpec("P")
R = TypeVar("R")
DIGITS = 3  # of a second


@dataclass
class Clock:
    """One round's: when it began, and the seconds spent on scoring since."""

    began: float = field(default_factory=lambda: perf_counter())
    scored: float = 0.0
    scoring: bool = False

    def metrics(self) -> dict[str, float]:
        """``train-seconds`` and ``score-seconds`` until now; what is not scoring is training, local state read and written included."""
        return {"train-seconds": round(perf_counter() - self.began - self.scored, DIGITS), "score-seconds": round(self.scored, DIGITS)}


# a thread's own: the clients of a cohort train in threads of one process
_current: ContextVar[Clock | None] = ContextVar("clock", default=None)


@contextmanager
def clock() -> Iterator[Clock]:
    """The clock that ``scoring`` functions called inside count on."""
    mine = Clock()
    token = _current.set(mine)
    try:
        yield mine
    finally:
        _current.reset(token)


def scoring(function: Callable[P, R]) -> Callable[P, R]:
    """Count what the calls of ``function`` take as scoring, once where such functions call each other."""

    @wraps(function)
    def timed(*arguments: P.args, **named: P.kwargs) -> R:
        mine = _current.get()
        if mine is None or mine.scoring:
            return function(*arguments, **named)
        began, mine.scoring = perf_counter(), True
        try:
            return function(*arguments, **named)
        finally:
            mine.scored, mine.scoring = mine.scored + perf_counter() - began, False

    return timed
