"""RuleStrategy: the only subclass of Flower's ``Strategy``, which drives any ``ServerRule``.

A rule knows no Flower; this file knows no algorithm. It turns a rule's slots into messages, checks every reply
against the contract, and folds the good ones into the rule. A bad reply is counted by reason and never touches the
state. State, acknowledged rounds and the tally of the round are plain data, so that a checkpoint is all there is.
"""

from __future__ import annotations

import logging
import math
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import fields, is_dataclass, replace
from itertools import islice
from typing import Any

import numpy as np
from flwr.app import ArrayRecord, ConfigRecord, Message, MessageType, Metadata, MetricRecord, RecordDict
from flwr.serverapp import Grid
from flwr.serverapp.strategy import Strategy

from strategies.config import RunConfig
from strategies.donor_swap import DONOR
from strategies.registry import Settings
from strategies.scalars import SCORES
from strategies.sent_bases import bases_of
from strategies.tally import OWN_ERROR, Tally, word_of
from strategies.types import Layout, Members, Round, ServerRule, Slots, Tensors, Update, layout_of
from strategies.wire import METRICS, ROUND, Direction, Wire, WireViolation, bytes_of, pack_round, pack_slot, sent_views, unpack

log = logging.getLogger(__name__)
JOIN, SWAP = "train.join", "evaluate.donor"

REFUSED = "refused"


class RuleStrategy(Strategy):
    """A ``ServerRule`` as a Flower strategy.

    Parameters
    ----------
    rule : the method's server half.
    wire : the method's contract.
    start : the initial model's parts ("encoder", "head").
    members : the clients by name.
    run : the run's settings.
    """

    def __init__(self, rule: ServerRule[Any], wire: Wire, start: Slots, parts: Mapping[str, Layout], members: Members,
                 run: RunConfig) -> None:
        self.rule, self.wire, self.parts, self.members, self.run = rule, wire, parts, members, run
        self._records: dict[int, tuple[Tensors, ArrayRecord]] = {}
        self.state = rule.init(start)
        self.acked: dict[str, int] = {}
        self.tally = Tally()
        self._left: dict[str, None] = {}  # asked, and nothing known of them yet
        self._sent: deque[tuple[str, Metadata]] = deque()
        self._by_id: dict[str, str] = {}
        self._packed: dict[int, tuple[Tensors, ArrayRecord]] = {}
        self._bases = bases_of(wire, parts)

    @property
    def state(self) -> Any:
        """The rule's state: all there is to a checkpoint, beside ``acked``."""
        return self._state

    @state.setter
    def state(self, state: Any) -> None:
        # its tensors become views of the records that are sent, so that a model is in memory once and not twice
        records: dict[int, tuple[Tensors, ArrayRecord]] = {}
        if is_dataclass(state) and not isinstance(state, type):
            held = {field.name: getattr(state, field.name) for field in fields(state)}
            state = replace(state, **{name: self._as_sent(value, records) for name, value in held.items() if _is_tensors(value)})
        self._state, self._records = state, records

    def configure_train(self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid) -> Iterable[Message]:
        """This round's messages, made one at a time so that no two clients' mixtures need be in memory at once."""
        adapted = {"always": True, "never": False, "last": server_round == self.run.rounds}[self.run.score_adapted]
        rnd = Round(server_round, self.run.rounds, self.run.seed, score_served=(server_round - 1) % self.run.score_every == 0,
                    score_adapted=adapted)
        return self._messages(self.members.sample(server_round), rnd, MessageType.TRAIN)

    def configure_evaluate(self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid) -> Iterable[Message]:
        """Nothing between rounds (training messages score); all clients once after the last round.

        A held-out client is asked if its joining was accepted: before that it has no model to be scored with.
        """
        if server_round < self.run.rounds:
            return []
        rnd = Round(server_round, self.run.rounds, self.run.seed, score_served=True, closing=True)
        outside = set(self.members.held_out()) - self.acked.keys()
        return self._messages([name for name in self.members.names() if name not in outside], rnd, MessageType.EVALUATE)

    def configure_join(self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid) -> Iterable[Message]:
        """After the last round: one message to every held-out client, which takes it in. Not of Flower's interface."""
        waiting = self.members.held_out() if getattr(self.rule, "serves_newcomers", True) else ()
        rnd = Round(server_round, self.run.rounds, self.run.seed, joining=True)
        return self._messages(waiting, rnd, JOIN) if waiting else []

    def configure_swap(self, server_round: int, recipients: Iterable[str], encoder_of: Callable[[str], Tensors]) -> Iterable[Message]:
        """After the closing evaluation: a donor's encoder to every recipient, by its name. Not of Flower's interface."""
        rnd = Round(server_round, self.run.rounds, self.run.seed, score_served=True, closing=True)
        return self._messages(recipients, rnd, SWAP, lambda name: {DONOR: encoder_of(name)})

    def aggregate_train(self, server_round: int, replies: Iterable[Message]) -> tuple[ArrayRecord | None, MetricRecord | None]:
        """Fold the valid replies in; below quorum the round is void and the state stays as it was (None)."""
        rnd = Round(server_round, self.run.rounds, self.run.seed)
        valid = self._valid(replies, "up")
        first = deque(islice(valid, 1))
        merged = self.rule.merge(self.state, _again(first, valid), rnd) if first else self.state
        self._count_missing()
        self.tally.void = len(self.tally.accepted) < max(1, math.ceil(self.run.quorum * len(self.tally.asked) - 1e-9))
        if self.tally.void:
            return None, None
        self.state = merged
        self.acked.update(dict.fromkeys(self.tally.accepted, server_round))
        return ArrayRecord(), self._means()

    def aggregate_join(self, server_round: int, replies: Iterable[Message]) -> None:
        """Let the rule fold the newcomers' replies in, if it wants to; whoever fails stays outside and changes nothing."""
        rnd = Round(server_round, self.run.rounds, self.run.seed, joining=True)
        valid = self._valid(replies, "join")
        first = deque(islice(valid, 1))
        newcomers = getattr(self.rule, "newcomers", None)
        if first and newcomers is not None:
            self.state = newcomers(self.state, _again(first, valid), rnd)
        for _ in valid:
            pass
        self._count_missing()
        self.acked.update(dict.fromkeys(self.tally.accepted, server_round))

    def aggregate_evaluate(self, server_round: int, replies: Iterable[Message]) -> MetricRecord | None:
        for _ in self._valid(replies, "closing"):
            pass
        self._count_missing()
        return self._means()

    def aggregate_swap(self, server_round: int, replies: Iterable[Message]) -> Tally:
        """What the recipients said of it."""
        for _ in self._valid(replies, "swap-up"):
            pass
        self._count_missing()
        return self.tally

    def summary(self) -> None:
        log.info("%d clients, %s participation, quorum %s", len(self.members.names()), self.run.fraction, self.run.quorum)

    def _messages(self, names: Iterable[str], rnd: Round, kind: str, slots_of: Callable[[str], Slots] | None = None) -> Iterator[Message]:
        asked = list(names)
        self.tally, self._left, self._by_id = Tally(asked=asked, delta=self._bases.turn(self._state)), dict.fromkeys(asked), {}
        self._sent.clear()
        self._asks = rnd
        try:
            for name in asked:
                node = self.members.node_id(name)
                if node is None:
                    self._drop(name, "offline", "no node speaks for it now")
                else:
                    # not bound to a name: while this waits for its next turn, nothing here keeps the message alive
                    yield self._message(name, node, rnd, kind, slots_of)
        finally:
            self._packed.clear()

    def _message(self, name: str, node: int, rnd: Round, kind: str, slots_of: Callable[[str], Slots] | None) -> Message:
        rnd = replace(rnd, acked=self.acked.get(name, 0))
        content = self._content(name, slots_of(name) if slots_of else self.rule.downlink(self.state, name, rnd), rnd)
        self.tally.down.update(bytes_of(content))
        message = Message(content, node, kind, ttl=self.run.deadline, group_id=str(rnd.number))
        # only the metadata is kept: Flower writes the message id into it, and the content may be a whole model
        self._sent.append((name, message.metadata))
        return message

    def _content(self, name: str, slots: Slots, rnd: Round) -> RecordDict:
        private = {slot.name for slot in self.wire.down if slot.serves}
        if private & slots.keys():
            rnd = replace(rnd, score_served=True)
        # what is no plain dict is made as it is read, for this client alone: keeping its record would keep a model a client
        shared = frozenset(slot for slot, tensors in slots.items() if slot not in private and isinstance(tensors, dict))
        content = RecordDict({slot: self._pack_once(tensors) if slot in shared else pack_slot(tensors, self.wire.travel)
                              for slot, tensors in slots.items()})
        content[ROUND] = pack_round(rnd)
        return self._bases.down(name, content, shared)

    def _whole(self, client: str, content: RecordDict) -> RecordDict:
        """A reply's content, whatever travelled as a difference made whole; the state is what it was when the client was asked."""
        rnd = replace(self._asks, acked=self.acked.get(client, 0))
        return self._bases.up(client, content, lambda slot: pack_slot(self.rule.downlink(self.state, client, rnd)[slot], self.wire.travel))

    def _pack_once(self, tensors: Tensors) -> ArrayRecord:
        """One record for tensors that are the same object for all clients: Flower then uploads it once."""
        key = id(tensors)  # the tensors stay beside their record, so that the id stays theirs for the round
        known = self._records.get(key) or self._packed.get(key)
        if known is None:
            known = self._packed[key] = (tensors, pack_slot(tensors, self.wire.travel))
        return known[1]

    def _as_sent(self, tensors: Tensors, records: dict[int, tuple[Tensors, ArrayRecord]]) -> Tensors:
        if self.wire.travel != "float32":
            return tensors
        known = self._records.get(id(tensors))
        if known is None:
            record = pack_slot(tensors)
            known = (sent_views(record, layout_of(tensors)), record)
        records[id(known[0])] = known
        return known[0]

    def _valid(self, replies: Iterable[Message], direction: Direction) -> Iterator[Update]:
        """The replies that fit the contract, as updates; everything else is counted and left behind."""
        for reply in replies:
            client = self._sender(reply)
            try:
                update = self._update(client, reply, direction)
            except WireViolation as wrong:
                self._drop(client, wrong.kind, str(wrong))
                continue
            finally:
                del reply  # it may be a whole model, and the next one arrives before this name is bound again
            yield update
            # the rule may still hold the update while it asks for the next one, and it may be a whole model
            update.slots.clear()
            del update

    def _sender(self, reply: Message) -> str:
        """Whose reply it is, "?" if nobody's who still owes one. Messages are sent lazily and get their ids only then."""
        while self._sent and self._sent[0][1].message_id:
            name, metadata = self._sent.popleft()
            self._by_id[metadata.message_id] = name
        return self._by_id.pop(reply.metadata.reply_to_message_id, "?")

    def _update(self, client: str, reply: Message, direction: Direction) -> Update:
        if client == "?":
            raise WireViolation("unasked", "a reply to no message of this round, or a second one to the same")
        if not reply.has_content():
            raise self._fault(client, reply)
        sizes = bytes_of(reply.content)
        try:
            slots = unpack(self.wire, direction, self._whole(client, reply.content), self.parts)
        except WireViolation:
            # it did travel, but what it calls its slots must not become keys of the report
            self.tally.up[REFUSED] += sum(sizes.values())
            raise
        self.tally.up.update(sizes)
        metrics: dict[str, float] = dict(reply.content.get(METRICS, {}))  # type: ignore[arg-type]  # single numbers, as just checked
        weight = 1.0
        if self.run.weighting == "examples" and direction != "swap-up":
            weight = metrics.get("num-examples", 0)
            if weight < 1:
                raise WireViolation("metrics", "num-examples must be 1 or more")
        self._left.pop(client)
        self.tally.accepted.append(client)
        self._bases.answered(client)
        self.tally.metrics[client] = metrics
        return Update(client, {name: tensors for name, tensors in slots.items()}, float(weight), metrics)

    def _fault(self, client: str, reply: Message) -> WireViolation:
        own = OWN_ERROR.fullmatch(reply.error.reason or "")
        if own is None:
            return WireViolation(word_of(reply.error.code), "Flower reported it; the client's own log has the details")
        kind, text = own.groups()
        if kind in ("StateLost", "BaseLost"):
            self._bases.lost(client)
        if kind == "StateLost":
            # nothing of the acknowledged round is left there: let it start again instead of failing for ever
            self.acked.pop(client, None)
        return WireViolation(kind, text.strip())

    def _drop(self, client: str, reason: str, text: str) -> None:
        self._left.pop(client, None)
        self.tally.dropped[reason] += 1
        self.tally.lost[client] = reason
        log.warning("dropped the reply of %s (%s): %s (FH-024)", client, reason, text)

    def _count_missing(self) -> None:
        for client in list(self._left):
            self._drop(client, "deadline", "no reply came before the round's deadline")

    def _means(self) -> MetricRecord:
        """Unweighted means over the clients that sent a score."""
        values = {label: [m[label] for m in self.tally.metrics.values() if label in m] for label in sorted(SCORES)}
        return MetricRecord({label: sum(v) / len(v) for label, v in values.items() if v})


def _is_tensors(value: object) -> bool:
    return isinstance(value, dict) and bool(value) and all(isinstance(tensor, np.ndarray) for tensor in value.values())


def _again(first: deque[Update], rest: Iterator[Update]) -> Iterator[Update]:
    """``first``, then ``rest``, without holding on to any of them as ``itertools.chain`` would."""
    yield first.popleft()
    yield from rest


def strategy_of(settings: Settings, start: Slots, shelf: Any, members: Members) -> RuleStrategy:
    """The strategy of a run with ``settings``, from its initial model; ``shelf`` is where its rule keeps encoders."""
    rule = settings.method.rule_class()(settings.own, settings.run, shelf)
    return RuleStrategy(rule, settings.wire, start, {part: layout_of(tensors) for part, tensors in start.items()}, members, settings.run)
