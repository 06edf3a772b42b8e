"""The round loop: it drives any Flower ``Strategy`` through its five public methods.

A strategy may have two more, ``configure_join`` and ``aggregate_join``, for clients that were held out of training: one
exchange after the last round, before the closing evaluation.

Flower's own ``Strategy.start`` keeps every reply of a round in memory, waits for ever, and cannot resume
(FLOWER.md 5, 6, 11.9). Here replies stream: they are handed to ``aggregate_*`` as a generator, *in the order of the
messages* whatever order they arrive in, so that a sum of floats does not depend on who was faster; a reply that is
early waits, in a spool file if there are many, so memory stays flat. A round ends when every reply is in, or at its deadline. A dead
simulation actor (error code 0) ends the run, because Flower would hand it more and more of the work.
"""

from __future__ import annotations

import io
import logging
import math
import tempfile
import time
from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator
from dataclasses import dataclass
from itertools import islice
from operator import length_hint
from typing import IO

from flwr.app import ArrayRecord, ConfigRecord, Message
from flwr.common.serde import message_from_proto, message_to_proto
from flwr.proto.message_pb2 import Message as MessageProto
from flwr.serverapp import Grid
from flwr.serverapp.strategy import Strategy

from server_app.failures import RunFailed as RunFailed
from strategies.wire import bytes_of

log = logging.getLogger(__name__)
DEAD_ACTOR = 0
BATCH = 16
PULL_MOST = 64
PULL_BYTES = 8 << 20
SPOOL_BYTES = 8 << 20


@dataclass(frozen=True)
class Plan:
    """How rounds run.

    Attributes
    ----------
    rounds : rounds of the whole run; ``done`` of them lie behind.
    deadline : seconds an exchange may take.
    quorum : share of the messages of a round that must come back without error.
    max_void : consecutive void rounds after which the run fails.
    pause : seconds to wait after a round in which nobody was there to ask, so that a short break of the network does
        not use up ``max_void`` at once.
    """

    rounds: int
    deadline: float
    quorum: float
    max_void: int = 3
    done: int = 0
    poll: float = 0.2
    pause: float = 10.0

    def __post_init__(self) -> None:
        if not 0 <= self.done <= self.rounds or self.deadline <= 0 or not 0 < self.quorum <= 1 or self.max_void < 1:
            raise ValueError("expected 0 <= done <= rounds, deadline > 0, 0 < quorum <= 1, max_void >= 1")


@dataclass
class Outcome:
    """What one round came to, for those who write it down."""

    number: int
    arrays: ArrayRecord
    void: bool = False
    asked: int = 0
    replied: int = 0
    seconds: float = 0.0
    largest: int = 0  # bytes of the largest message so far, either way


OnReply = Callable[[int, int, int], None]  # (round, replies so far, messages so far)
OnRound = Callable[[Outcome], None]
Fold = Callable[[int, Iterable[Message]], object]


def run_rounds(grid: Grid, strategy: Strategy, arrays: ArrayRecord, plan: Plan, on_round: OnRound | None = None,
               on_evaluate: OnRound | None = None, on_reply: OnReply | None = None, on_join: OnRound | None = None) -> ArrayRecord:
    """Run rounds ``plan.done + 1 .. plan.rounds`` and return the final arrays.

    ``on_round`` is called after each round's training (checkpoint and report hang there), ``on_join`` when held-out clients
    have been asked to join, ``on_evaluate`` after an evaluation that sent messages.

    Raises
    ------
    RunFailed
        If ``max_void`` rounds in a row were void, or a simulation actor died.
    """
    void_in_a_row = 0
    for number in range(plan.done + 1, plan.rounds + 1):
        outcome = _train(grid, strategy, arrays, plan, number, on_reply)
        arrays, void_in_a_row = outcome.arrays, void_in_a_row + 1 if outcome.void else 0
        if on_round:
            on_round(outcome)
        if void_in_a_row >= plan.max_void:
            raise RunFailed(f"{void_in_a_row} rounds in a row were void (quorum {plan.quorum:g}); the last had {outcome.replied} "
                            f"good replies to {outcome.asked} messages. The reasons are in the log above; nothing was changed by them. "
                            "(FH-023)")
        if outcome.void and not outcome.asked:
            time.sleep(min(plan.pause, plan.deadline))
        if number < plan.rounds:
            _evaluate(grid, strategy, arrays, plan, number, on_reply, on_evaluate)
    _join(grid, strategy, arrays, plan, on_reply, on_join)
    _evaluate(grid, strategy, arrays, plan, plan.rounds, on_reply, on_evaluate)
    strategy.summary()
    return arrays


def _train(grid: Grid, strategy: Strategy, arrays: ArrayRecord, plan: Plan, number: int, on_reply: OnReply | None) -> Outcome:
    outcome, start = Outcome(number, arrays), time.monotonic()
    messages = strategy.configure_train(number, arrays, ConfigRecord(), grid)
    replies = exchange(grid, messages, plan, outcome, on_reply)
    merged, _ = strategy.aggregate_train(number, replies)
    for _ in replies:  # a strategy may stop early; the clients' replies are still due
        pass
    outcome.void = merged is None or outcome.replied < max(1, math.ceil(plan.quorum * outcome.asked - 1e-9))
    if outcome.void:
        log.warning("round %d is void: %d good replies to %d messages", number, outcome.replied, outcome.asked)
    else:
        outcome.arrays = merged if merged is not None else arrays
    outcome.seconds = time.monotonic() - start
    return outcome


def _evaluate(grid: Grid, strategy: Strategy, arrays: ArrayRecord, plan: Plan, number: int, on_reply: OnReply | None,
              on_evaluate: OnRound | None) -> None:
    messages = strategy.configure_evaluate(number, arrays, ConfigRecord(), grid)
    outcome = _ask(grid, messages, strategy.aggregate_evaluate, Outcome(number, arrays), plan, on_reply)
    if on_evaluate and outcome.asked:
        on_evaluate(outcome)


def _join(grid: Grid, strategy: Strategy, arrays: ArrayRecord, plan: Plan, on_reply: OnReply | None, on_join: OnRound | None) -> None:
    """Take in the clients that were held out, if the strategy knows of such."""
    configure, aggregate = getattr(strategy, "configure_join", None), getattr(strategy, "aggregate_join", None)
    if configure is None or aggregate is None:
        return
    messages = configure(plan.rounds, arrays, ConfigRecord(), grid)
    if not messages:
        return
    outcome = _ask(grid, messages, aggregate, Outcome(plan.rounds, arrays), plan, on_reply)
    if on_join:
        on_join(outcome)


def _ask(grid: Grid, messages: Iterable[Message], fold: Fold, outcome: Outcome, plan: Plan, on_reply: OnReply | None) -> Outcome:
    """One exchange that is no round of training: no quorum, nothing void."""
    start = time.monotonic()
    replies = exchange(grid, messages, plan, outcome, on_reply)
    fold(outcome.number, replies)
    for _ in replies:  # whoever folds may stop early; the clients' replies are still due
        pass
    outcome.seconds = time.monotonic() - start
    return outcome


def exchange(grid: Grid, messages: Iterable[Message], plan: Plan, outcome: Outcome, on_reply: OnReply | None = None) -> Iterator[Message]:
    """Send ``messages`` and yield the replies in the order of the messages, error replies included.

    Messages are taken lazily. A grid that has a ``window`` works on at most that many at once, and its ``pull_messages``
    waits by itself; any other grid gets them as fast as it takes them.
    """
    source, window, end = iter(messages), getattr(grid, "window", 0), time.monotonic() + plan.deadline
    waiting: dict[str, None] = {}  # message ids in sending order
    early, more = Spool(), True
    try:
        while more or waiting:
            room = window - len(waiting) + len(early) if window else BATCH
            if more and room > 0:
                more = _push(grid, source, waiting, room, outcome)
            arrived = False
            for reply in _pull(grid, [i for i in waiting if i not in early], outcome):
                key = reply.metadata.reply_to_message_id
                if key not in waiting or key in early:
                    continue  # a second one, or to a message of a round that is over
                arrived = True
                outcome.replied += not reply.has_error()
                if on_reply:
                    on_reply(outcome.number, outcome.replied, outcome.asked)
                if key == next(iter(waiting)):
                    del waiting[key]
                    yield reply
                else:
                    early.put(key, reply)
                del reply  # it may be a whole model, and the next one is made before this name is bound again
                while waiting and (key := next(iter(waiting))) in early:
                    del waiting[key]
                    yield early.pop(key)
            if time.monotonic() > end:
                outcome.asked += length_hint(source)  # what was not even sent counts for the quorum
                yield from (early.pop(key) for key in waiting if key in early)
                return
            if waiting and not (arrived or more or window):
                time.sleep(plan.poll)
    finally:
        early.close()
        if isinstance(source, Generator):
            source.close()


def _push(grid: Grid, source: Iterator[Message], waiting: dict[str, None], count: int, outcome: Outcome) -> bool:
    """Send the next ``count`` messages; False when there are none left."""
    chunk = list(islice(source, count))
    if not chunk:
        return False
    outcome.asked += len(chunk)
    outcome.largest = max(outcome.largest, *(_size(m) for m in chunk))
    sent = {i for i in grid.push_messages(chunk) if i}
    waiting.update((m.metadata.message_id, None) for m in chunk if m.metadata.message_id in sent)
    return True


def _pull(grid: Grid, ids: list[str], outcome: Outcome) -> Iterator[Message]:
    """What has arrived, asked for in portions of about ``PULL_BYTES``, judging by the largest message so far."""
    start = 0
    while start < len(ids):
        count = min(PULL_MOST, max(1, PULL_BYTES // (outcome.largest + 1)))
        replies = deque(grid.pull_messages(ids[start:start + count]))
        start += count
        while replies:
            if replies[0].has_error() and replies[0].error.code == DEAD_ACTOR:
                raise RunFailed("a simulation worker died (most likely killed for memory); the run stops here instead of going "
                                "on with fewer clients. Use fewer workers or smaller batches, then --resume.")
            outcome.largest = max(outcome.largest, _size(replies[0]))
            yield replies.popleft()


def _size(message: Message) -> int:
    return sum(bytes_of(message.content).values()) if message.has_content() else 0


class Spool:
    """Replies that came out of turn: ``SPOOL_BYTES`` of them as they are, the others in one file, so that memory stays flat."""

    def __init__(self) -> None:
        self._kept: dict[str, Message] = {}
        self._bytes = 0
        self._file: IO[bytes] | None = None
        self._places: dict[str, tuple[int, int]] = {}

    def __len__(self) -> int:
        return len(self._kept) + len(self._places)

    def __contains__(self, key: str) -> bool:
        return key in self._kept or key in self._places

    def put(self, key: str, message: Message) -> None:
        if self._bytes + _size(message) <= SPOOL_BYTES:
            self._bytes += _size(message)
            self._kept[key] = message
            return
        file = self._file = self._file or tempfile.TemporaryFile()  # noqa: SIM115
        if not self._places:
            file.truncate(0)  # else the room of what was read would never be used again
        start = file.seek(0, io.SEEK_END)
        self._places[key] = start, file.write(message_to_proto(message).SerializeToString())

    def pop(self, key: str) -> Message:
        if key in self._kept:
            message = self._kept.pop(key)
            self._bytes -= _size(message)
            return message
        assert self._file is not None
        start, length = self._places.pop(key)
        self._file.seek(start)
        return message_from_proto(MessageProto.FromString(self._file.read(length)))

    def close(self) -> None:
        self._kept.clear()
        if self._file is not None:
            self._file.close()
