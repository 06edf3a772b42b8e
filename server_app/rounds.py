"""The round loop: it drives any Flower ``Strategy`` through its five public methods.

Flower's own ``Strategy.start`` keeps every reply of a round in memory, waits for ever, and cannot resume
(FLOWER.md 5, 6, 11.9). Here replies stream: they are handed to ``aggregate_*`` as a generator, *in the order of the
messages* whatever order they arrive in, so that a sum of floats does not depend on who was faster; a reply that is
early waits in a spool file, so memory stays flat. A round ends when every reply is in, or at its deadline. A dead
simulation actor (error code 0) ends the run, because Flower would hand it more and more of the work.
"""

from __future__ import annotations

import logging
import math
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from itertools import islice
from typing import IO

from flwr.app import ArrayRecord, ConfigRecord, Message
from flwr.proto.message_pb2 import Message as MessageProto
from flwr.common.serde import message_from_proto, message_to_proto
from flwr.serverapp import Grid
from flwr.serverapp.strategy import Strategy

log = logging.getLogger(__name__)
DEAD_ACTOR = 0
BATCH = 16
PULL_BATCH = 8
SPOOL_BYTES = 1 << 20


class RunFailed(RuntimeError):
    """The run cannot go on. The text says why and what to do."""


@dataclass(frozen=True)
class Plan:
    """How rounds run.

    Attributes
    ----------
    rounds : rounds of the whole run; ``done`` of them lie behind.
    deadline : seconds an exchange may take.
    quorum : share of the messages of a round that must come back without error.
    max_void : consecutive void rounds after which the run fails.
    """

    rounds: int
    deadline: float
    quorum: float
    max_void: int = 3
    done: int = 0
    poll: float = 0.2

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
    void_in_a_row: int = field(default=0, repr=False)


OnReply = Callable[[int, int, int], None]  # (round, replies so far, messages so far)
OnRound = Callable[[Outcome], None]


def run_rounds(grid: Grid, strategy: Strategy, arrays: ArrayRecord, plan: Plan, on_round: OnRound | None = None,
               on_evaluate: OnRound | None = None, on_reply: OnReply | None = None) -> ArrayRecord:
    """Run rounds ``plan.done + 1 .. plan.rounds`` and return the final arrays.

    ``on_round`` is called after each round's training (checkpoint and report hang there), ``on_evaluate`` after an
    evaluation that sent messages.

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
                            f"good replies to {outcome.asked} messages. The reasons are in the log above; nothing was changed by them.")
        evaluated = _evaluate(grid, strategy, arrays, plan, number, on_reply)
        if on_evaluate and evaluated.asked:
            on_evaluate(evaluated)
    if plan.done == plan.rounds:
        evaluated = _evaluate(grid, strategy, arrays, plan, plan.rounds, on_reply)
        if on_evaluate and evaluated.asked:
            on_evaluate(evaluated)
    strategy.summary()
    return arrays


def _train(grid: Grid, strategy: Strategy, arrays: ArrayRecord, plan: Plan, number: int, on_reply: OnReply | None) -> Outcome:
    outcome, start = Outcome(number, arrays), time.monotonic()
    messages = strategy.configure_train(number, arrays, ConfigRecord(), grid)
    replies = exchange(grid, messages, plan, outcome, on_reply)
    merged, _ = strategy.aggregate_train(number, replies)
    for _ in replies:  # a strategy may stop early; the clients' replies are still due
        pass
    outcome.void = merged is None or outcome.replied < max(1, math.ceil(plan.quorum * outcome.asked))
    if outcome.void:
        log.warning("round %d is void: %d good replies to %d messages", number, outcome.replied, outcome.asked)
    else:
        outcome.arrays = merged if merged is not None else arrays
    outcome.seconds = time.monotonic() - start
    return outcome


def _evaluate(grid: Grid, strategy: Strategy, arrays: ArrayRecord, plan: Plan, number: int, on_reply: OnReply | None) -> Outcome:
    outcome, start = Outcome(number, arrays), time.monotonic()
    messages = strategy.configure_evaluate(number, arrays, ConfigRecord(), grid)
    strategy.aggregate_evaluate(number, exchange(grid, messages, plan, outcome, on_reply))
    outcome.seconds = time.monotonic() - start
    return outcome


def exchange(grid: Grid, messages: Iterable[Message], plan: Plan, outcome: Outcome, on_reply: OnReply | None = None) -> Iterator[Message]:
    """Send ``messages`` and yield the replies in the order of the messages, error replies included.

    Messages are taken lazily: a grid that says so (``window``) holds at most that many at once.
    """
    source, window = iter(messages), getattr(grid, "window", 0)
    waiting: list[str] = []  # message ids in sending order; what is answered out of turn waits in the spool
    spool: dict[str, Spooled] = {}
    end, more = time.monotonic() + plan.deadline, True
    while more or waiting:
        if more and (not window or len(waiting) < window):
            more = _push(grid, source, waiting, window or BATCH, outcome)
        arrived = False
        for reply in _pull(grid, [i for i in waiting if i not in spool], outcome):
            arrived = True
            spool[reply.metadata.reply_to_message_id] = Spooled(reply, keep=reply.metadata.reply_to_message_id == waiting[0])
            del reply  # the spool lets go of it as soon as it is folded; so must this frame
            if on_reply:
                on_reply(outcome.number, outcome.replied, outcome.asked)
            while waiting and waiting[0] in spool:
                yield spool.pop(waiting.pop(0)).message()
        if time.monotonic() > end:
            yield from (spool.pop(i).message() for i in waiting if i in spool)
            return
        if not arrived and not more:
            time.sleep(plan.poll)


def _push(grid: Grid, source: Iterator[Message], waiting: list[str], batch: int, outcome: Outcome) -> bool:
    """Send the next messages; False when there are none left."""
    chunk = list(islice(source, batch))
    if not chunk:
        return False
    outcome.asked += len(chunk)
    sent = {i for i in grid.push_messages(chunk) if i}
    waiting += [m.metadata.message_id for m in chunk if m.metadata.message_id in sent]
    return True


def _pull(grid: Grid, ids: list[str], outcome: Outcome) -> Iterator[Message]:
    """What has arrived, a few replies at a time, so that no more than those are in memory at once."""
    for start in range(0, len(ids), PULL_BATCH):
        replies = list(grid.pull_messages(ids[start:start + PULL_BATCH]))
        while replies:
            reply = replies.pop(0)
            if reply.has_error() and reply.error.code == DEAD_ACTOR:
                raise RunFailed("a simulation worker died (most likely killed for memory); the run stops here instead of going "
                                "on with fewer clients. Use fewer workers or smaller batches, then --resume.")
            outcome.replied += not reply.has_error()
            yield reply
            del reply


class Spooled:
    """A reply that may be early: kept as it is if it is next, else small ones in memory, large ones in a temporary file."""

    def __init__(self, message: Message, keep: bool) -> None:
        self._message = message if keep else None
        self._file: IO[bytes] | None = None
        if not keep:
            self._file = tempfile.SpooledTemporaryFile(max_size=SPOOL_BYTES)  # noqa: SIM115
            self._file.write(message_to_proto(message).SerializeToString())

    def message(self) -> Message:
        """The message back; the file is gone afterwards."""
        if self._message is not None:
            return self._message
        assert self._file is not None
        with self._file as file:
            file.seek(0)
            return message_from_proto(MessageProto.FromString(file.read()))
