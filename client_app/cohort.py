"""Clients that are answered together, so that they can be trained at once: the seats of a cohort, and how they meet.

Everything before and after a client's local fit (the contract, its data, its scores, its state on disk, what it sends) is one
client's and stays so. So each client of a cohort is answered by the code that would answer it alone, in a thread of its own;
``loop.fit`` is where they meet: a client that comes there waits until all others wait there too, or are done. Then all waiting
fits are trained in one call, and each client goes on with its own result. A method that fits twice a round meets twice.

Threads are used as coroutines here: exactly one runs at any time, so nothing needs a lock that needs none in one thread. What
one client would fill anew for every message, its model, must not be shared by clients that wait side by side: a seat keeps one.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Hashable, Sequence
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

import numpy as np

from client_app.loop_settings import LoopSettings
from models.split import SplitModel

T = TypeVar("T")
WAIT_FOR_LOCKS = 5.0


@dataclass(frozen=True)
class Fit:
    """What ``loop.fit`` is asked for: its arguments."""

    model: SplitModel
    images: np.ndarray
    labels: np.ndarray
    settings: LoopSettings
    seed: int


# trains fits at once; an answer each, an exception where that client's training failed
FitTogether = Callable[[Sequence[Fit]], Sequence[Any]]


class Abandoned(BaseException):
    """The cohort was given up while this client waited. No ``Exception``: nobody is to answer for it."""


class Seat:
    """A client's place in a cohort. ``keep`` holds what no client owns, and what two clients must not share at a time."""

    def __init__(self) -> None:
        self._kept: tuple[Hashable, Any] = (None, None)
        self.turn: Turn[Any] | None = None

    def keep(self, key: Hashable, make: Callable[[], T]) -> T:
        """What was made for ``key`` at this seat; of another key, it is made anew and the old one forgotten."""
        if self._kept[0] != key:
            self._kept = (key, make())
        return self._kept[1]

    def meet(self, fit: Fit) -> Any:
        """Wait for the others, and be trained with them: the ``FitStats``. Raises what this client's training alone would."""
        assert self.turn is not None
        return self.turn.wait_for(fit)


_SEAT: ContextVar[Seat | None] = ContextVar("seat", default=None)


def seated() -> Seat | None:
    """The seat of the client that this code runs for, None where it is answered alone."""
    return _SEAT.get()


class Turn(Generic[T]):
    """One client's call in a thread that runs only while ``go_on`` waits for it."""

    def __init__(self, seat: Seat, call: Callable[[], T]) -> None:
        self.asked: Fit | None = None
        self.done = False
        self._seat, self._call = seat, call
        self._go, self._stopped = threading.Semaphore(0), threading.Semaphore(0)
        self._answer: Any = None
        self._result: Any = None
        self._fault: BaseException | None = None
        seat.turn = self
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def go_on(self, answer: Any = None) -> None:
        """Let it run, with the ``answer`` to what it asked, until it asks again or is done."""
        self.asked, self._answer = None, answer
        self._go.release()
        self._stopped.acquire()

    def wait_for(self, fit: Fit) -> Any:
        """In its thread: ask for ``fit`` and stand still until it is answered."""
        self.asked = fit
        self._stopped.release()
        self._go.acquire()
        if isinstance(self._answer, BaseException):
            raise self._answer
        return self._answer

    def result(self) -> T:
        if self._fault is not None:
            raise self._fault
        return self._result

    def abandon(self) -> None:
        """Unless it is done: have it let go of its locks, now or where it would next wait."""
        if not self.done:
            self._answer = Abandoned()
            self._go.release()
            self._thread.join(WAIT_FOR_LOCKS)

    def _run(self) -> None:
        self._go.acquire()
        _SEAT.set(self._seat)
        try:
            if isinstance(self._answer, Abandoned):
                return
            self._result = self._call()
        except BaseException as fault:  # belongs to whoever asks for the result
            self._fault = fault
        finally:
            self.done = True
            self._stopped.release()


class Cohort:
    """``size`` seats, and ``train``, which trains what is asked for at them."""

    def __init__(self, size: int, train: FitTogether) -> None:
        if size < 1:
            raise ValueError(f"a cohort has 1 client or more, got {size}")
        self.size = size
        self._train = train
        self._seats = [Seat() for _ in range(size)]

    def run(self, calls: Sequence[Callable[[], T]]) -> list[T]:
        """What ``calls``, at most ``size`` of them, return, in their order; fits they ask for are trained at once.

        A single call runs as it would without a cohort. An exception that a call lets out is raised here.
        """
        if len(calls) > self.size:
            raise ValueError(f"a cohort of {self.size} cannot answer {len(calls)} clients at once")
        if len(calls) == 1:
            return [calls[0]()]
        turns = [Turn(seat, call) for seat, call in zip(self._seats, calls, strict=False)]
        try:
            for turn in turns:
                turn.go_on()
            while waiting := [turn for turn in turns if turn.asked]:
                answers = self._train([turn.asked for turn in waiting if turn.asked])
                for turn, answer in zip(waiting, answers, strict=True):
                    turn.go_on(answer)
        finally:
            for turn in turns:
                turn.abandon()
        return [turn.result() for turn in turns]
