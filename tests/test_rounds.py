"""The round loop: any Flower strategy, replies in the order of the messages, deadlines, void rounds, flat memory."""

from __future__ import annotations

import logging
import tracemalloc
import weakref
from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np
import pytest
from flwr.app import ArrayRecord, ConfigRecord, Context, Error, Message, MetricRecord, RecordDict
from flwr.serverapp.strategy import FedAvg, Strategy

import server_app.rounds as rounds
from deploy.inprocess import InProcessGrid
from deploy.virtual_nodes import FIRST_NODE
from server_app.rounds import Outcome, Plan, RunFailed, Spool, exchange, run_rounds
from strategies.adapter import RuleStrategy
from strategies.wire import pack, pack_slot
from tests.flower_cases import METRICS, PARTS, START, WIRE, Club, Scripted, SumRule, app_of, good, one_number, run_config, tell, three

PLAN = Plan(rounds=1, deadline=30.0, quorum=0.5, poll=0.001)


def add_one(message: Message, context: Context) -> Message:
    """Flower's FedAvg: client k sends the model plus k, with k + 1 examples."""
    index = int(context.node_config["partition-id"])
    model = message.content["arrays"].to_numpy_ndarrays()[0]  # type: ignore[union-attr]
    metrics = MetricRecord({"num-examples": index + 1})
    return Message(RecordDict({"arrays": ArrayRecord([model + index]), "metrics": metrics}), reply_to=message)


def first_number(message: Message, context: Context) -> Message:
    model = message.content["arrays"].to_numpy_ndarrays()[0]  # type: ignore[union-attr]
    return Message(RecordDict({"metrics": MetricRecord({"num-examples": 1, "x": float(model[0])})}), reply_to=message)


def test_flowers_own_fedavg_over_two_rounds() -> None:
    seen: list[Any] = []

    class Watched(FedAvg):
        def aggregate_evaluate(self, server_round: int, replies: Iterable[Message]) -> MetricRecord | None:
            found = super().aggregate_evaluate(server_round, replies)
            seen.append((server_round, dict(found or {})))
            return found

    grid = InProcessGrid({}, 3, app=app_of(train=add_one, evaluate=first_number))
    outcomes: list[Outcome] = []
    start, plan = ArrayRecord([np.array([1.0, 2.0, 3.0])]), Plan(2, 30.0, 0.5, poll=0.001)
    final = run_rounds(grid, Watched(), start, plan, outcomes.append, outcomes.append)
    # a round adds (0*1 + 1*2 + 2*3) / 6 = 4/3 to every number
    assert np.allclose(final.to_numpy_ndarrays()[0], np.array([1.0, 2.0, 3.0]) + 8 / 3, rtol=0, atol=1e-12)
    assert seen == [(1, {"x": pytest.approx(1 + 4 / 3)}), (2, {"x": pytest.approx(1 + 8 / 3)})]
    assert [(o.number, o.asked, o.replied, o.void) for o in outcomes] == [(1, 3, 3, False)] * 2 + [(2, 3, 3, False)] * 2


def test_a_strategy_that_ignores_replies_still_has_its_messages_answered() -> None:
    asked: list[int] = []

    def train(message: Message, context: Context) -> Message:
        asked.append(message.metadata.dst_node_id)
        return add_one(message, context)

    class Deaf(FedAvg):
        def aggregate_train(self, server_round: int, replies: Iterable[Message]) -> Any:
            return ArrayRecord(), None

        def aggregate_evaluate(self, server_round: int, replies: Iterable[Message]) -> Any:
            return None

    grid = InProcessGrid({}, 3, app=app_of(train=train, evaluate=train))
    run_rounds(grid, Deaf(), ArrayRecord([np.zeros(3)]), PLAN)
    assert len(asked) == 6


def messages(count: int) -> list[Message]:
    return [Message(pack(three(1, 2, 3)), FIRST_NODE + i, "train", ttl=60.0) for i in range(count)]


def index_of(reply: Message) -> int:
    return reply.metadata.src_node_id - FIRST_NODE


@pytest.mark.parametrize("size", [3, 700_000])
def test_replies_that_come_in_reverse_are_folded_in_order_and_bit_equal(size: int) -> None:
    def noise(message: Message, context: Context) -> Message:
        slots = {"encoder": {"w": np.random.default_rng(message.metadata.dst_node_id).standard_normal(size)}}
        return Message(pack(slots, METRICS), reply_to=message)

    grid = Scripted(app_of(train=noise), 4, order=lambda ready: ready[-1:])  # the last first, one at a time
    outcome = Outcome(1, ArrayRecord())
    heard: list[tuple[int, int, int]] = []
    got = list(exchange(grid, messages(4), PLAN, outcome, lambda *said: heard.append(said)))
    assert [index_of(r) for r in got] == [0, 1, 2, 3]
    for reply in got:
        wanted = np.random.default_rng(reply.metadata.src_node_id).standard_normal(size)
        assert reply.content["encoder"]["w"].numpy().tobytes() == wanted.tobytes()  # type: ignore[index]
        assert dict(reply.content["metrics"]) == METRICS and reply.metadata.message_type == "train"
    assert heard == [(1, 1, 4), (1, 2, 4), (1, 3, 4), (1, 4, 4)]
    assert outcome.largest >= 8 * size


@pytest.mark.parametrize("held", [0, 3, 21])
def test_the_spool_gives_back_what_it_got_and_one_file_serves_what_memory_may_not_hold(held: int, monkeypatch: pytest.MonkeyPatch) -> None:
    spool = Spool()
    kept = [Message(one_number(i / 3, i), reply_to=tell(RecordDict())) for i in range(20)]
    kept.append(Message(Error(2, "why"), reply_to=tell(RecordDict())))
    monkeypatch.setattr(rounds, "SPOOL_BYTES", held * rounds._size(kept[0]))
    ends = []
    for _ in range(2):
        for i, message in enumerate(kept):
            spool.put(str(i), message)
        ends.append(spool._file.tell() if spool._file else 0)
        assert len(spool._places) == max(0, 20 - held)
        assert len(spool) == 21 and "3" in spool and "21" not in spool
        for i in (5, 20, *(j for j in range(20) if j != 5)):
            back = spool.pop(str(i))
            assert back.metadata.reply_to_message_id == kept[i].metadata.reply_to_message_id
            if i < 20:
                assert back.content["arrays"]["0"].data == kept[i].content["arrays"]["0"].data  # type: ignore[index]
            else:
                assert (back.error.code, back.error.reason) == (2, "why")
        assert len(spool) == 0
    spool.close()
    assert ends[0] == ends[1] and (ends[0] > 0) == (held < 20)


def test_a_round_ends_at_its_deadline_with_those_that_came() -> None:
    grid = Scripted(app_of(train=good), 3, silent=[1])
    outcome = Outcome(1, ArrayRecord())
    got = list(exchange(grid, messages(3), Plan(1, 0.3, 0.5, poll=0.01), outcome))
    assert [index_of(r) for r in got] == [0, 2] and (outcome.asked, outcome.replied) == (3, 2)


def test_the_rule_gets_the_others_at_the_deadline() -> None:
    made = RuleStrategy(SumRule([]), WIRE, START, PARTS, Club(), run_config(rounds=1))
    grid = Scripted(app_of(train=good, evaluate=good), 3, silent=[0])
    outcomes: list[Outcome] = []
    run_rounds(grid, made, ArrayRecord(), Plan(1, 0.3, 0.5, poll=0.01), outcomes.append)
    assert made.rule.seen == ["b", "c"] and made.acked == {"b": 1, "c": 1}
    # (2 * (2, 4, 6) + 3 * (3, 6, 9)) / 5
    assert made.state["encoder"]["w"].tolist() == pytest.approx([2.6, 5.2, 7.8])
    assert not outcomes[0].void and (outcomes[0].asked, outcomes[0].replied) == (3, 2)


def test_what_the_deadline_left_unsent_counts_for_the_quorum(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [0.0]
    monkeypatch.setattr(rounds.time, "monotonic", lambda: now[0])

    def slow(message: Message, context: Context) -> Message:
        now[0] += 10.0
        return good(message, context)

    grid, outcome = InProcessGrid({}, 10, app=app_of(train=slow)), Outcome(1, ArrayRecord())
    assert len(list(exchange(grid, messages(10), Plan(1, 25.0, 0.5), outcome))) == 3
    assert (outcome.asked, outcome.replied) == (10, 3)


def test_replies_of_a_round_that_is_over_are_left_alone() -> None:
    grid = Scripted(app_of(train=good), 2)
    late = tell(pack(three(1, 2, 3)))
    real = grid.pull_messages
    grid.pull_messages = lambda ids: [good(late, Context(1, 1, {"partition-id": 0}, RecordDict(), {})), *real(ids)]  # type: ignore[method-assign]
    outcome = Outcome(1, ArrayRecord())
    assert [index_of(r) for r in exchange(grid, messages(2), PLAN, outcome)] == [0, 1]
    assert outcome.replied == 2


def test_a_second_reply_to_one_message_is_left_alone() -> None:
    grid = Scripted(app_of(train=good), 3, order=lambda ready: [r for r in reversed(ready) for _ in range(2)])
    outcome = Outcome(1, ArrayRecord())
    assert [index_of(r) for r in exchange(grid, messages(3), PLAN, outcome)] == [0, 1, 2]
    assert outcome.replied == 3


def test_refused_messages_are_not_waited_for() -> None:
    grid = Scripted(app_of(train=good), 3)
    real = grid.push_messages
    grid.push_messages = lambda sent: [None if n == 1 else i for n, i in enumerate(real(sent))]  # type: ignore[method-assign,misc]
    outcome = Outcome(1, ArrayRecord())
    assert [index_of(r) for r in exchange(grid, messages(3), PLAN, outcome)] == [0, 2]
    assert (outcome.asked, outcome.replied) == (3, 2)


def broken(message: Message, context: Context) -> Message:
    raise ValueError("no")


def test_void_rounds_keep_the_arrays_and_end_the_run() -> None:
    outcomes: list[Outcome] = []
    start = ArrayRecord([np.array([1.0])])
    with pytest.raises(RunFailed, match=r"2 rounds in a row were void \(quorum 0.5\); the last had 0 good replies to 3 messages"):
        run_rounds(InProcessGrid({}, 3, app=app_of(train=broken, evaluate=broken)), FedAvg(), start, Plan(9, 30.0, 0.5, 2, poll=0.001),
                   outcomes.append)
    assert [(o.number, o.void, o.arrays is start) for o in outcomes] == [(1, True, True), (2, True, True)]


def test_one_good_round_forgives_void_ones() -> None:
    calls: list[int] = []

    def every_third(message: Message, context: Context) -> Message:
        calls.append(1)
        return add_one(message, context) if len(calls) > 4 and len(calls) <= 6 else broken(message, context)

    outcomes: list[Outcome] = []
    grid, plan = InProcessGrid({}, 2, app=app_of(train=every_third)), Plan(5, 30.0, 1.0, 3, poll=0.001)
    run_rounds(grid, FedAvg(fraction_evaluate=0.0), ArrayRecord([np.zeros(1)]), plan, outcomes.append)
    assert [o.void for o in outcomes] == [True, True, False, True, True]


def test_a_round_nobody_can_be_asked_in_waits_for_the_network(monkeypatch: pytest.MonkeyPatch) -> None:
    waits: list[float] = []
    monkeypatch.setattr(rounds.time, "sleep", waits.append)
    made = RuleStrategy(SumRule([]), WIRE, START, PARTS, Club(offline=("a", "b", "c")), run_config(rounds=9))
    with pytest.raises(RunFailed, match="3 rounds in a row"):
        run_rounds(InProcessGrid({}, 3, app=app_of(train=good)), made, ArrayRecord(), Plan(9, 30.0, 0.5, 3))
    assert waits == [10.0, 10.0]


def test_a_dead_actor_ends_the_run() -> None:
    def dead(message: Message, context: Context) -> Message:
        return Message(Error(0, "ActorDiedError"), reply_to=message)

    with pytest.raises(RunFailed, match="a simulation worker died"):
        run_rounds(InProcessGrid({}, 3, app=app_of(train=dead)), FedAvg(), ArrayRecord([np.zeros(1)]), PLAN)


def test_a_run_goes_on_where_it_stopped() -> None:
    numbers: list[int] = []

    class Counting(FedAvg):
        def configure_train(self, server_round: int, *rest: Any) -> Iterable[Message]:
            numbers.append(server_round)
            return super().configure_train(server_round, *rest)

    def go(done: int) -> list[Outcome]:
        evaluated: list[Outcome] = []
        grid = InProcessGrid({}, 2, app=app_of(train=add_one, evaluate=first_number))
        run_rounds(grid, Counting(), ArrayRecord([np.zeros(1)]), Plan(4, 30.0, 0.5, done=done, poll=0.001), None, evaluated.append)
        return evaluated

    assert [o.number for o in go(2)] == [3, 4] and numbers == [3, 4]
    # killed between the last round and its evaluation
    assert [o.number for o in go(4)] == [4] and numbers == [3, 4]


@pytest.mark.parametrize("wrong", [{"done": 2}, {"deadline": 0.0}, {"quorum": 0.0}, {"quorum": 1.1}, {"max_void": 0}, {"done": -1}])
def test_a_plan_that_cannot_be(wrong: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="expected 0 <= done"):
        Plan(**{"rounds": 1, "deadline": 1.0, "quorum": 0.5, **wrong})


class Sized(RecordDict):
    """Contents whose life can be watched."""


def test_with_a_window_of_one_only_one_message_is_alive() -> None:
    alive: list[weakref.ref[Sized]] = []
    most: list[int] = []

    def make() -> Iterator[Message]:
        for i in range(6):
            most.append(sum(ref() is not None for ref in alive))
            content = Sized(pack(three(1, 2, 3)))
            alive.append(weakref.ref(content))
            made = [Message(content, FIRST_NODE + i, "train", ttl=60.0)]
            del content
            yield made.pop()

    assert len(list(exchange(InProcessGrid({}, 6, app=app_of(train=good)), make(), PLAN, Outcome(1, ArrayRecord())))) == 6
    assert max(most) == 0


def test_a_window_bounds_what_is_under_way() -> None:
    grid = Scripted(app_of(train=good), 10)
    grid.window = 3
    made: list[int] = []

    def make() -> Iterator[Message]:
        for i, message in enumerate(messages(10)):
            made.append(i)
            yield message

    gaps = [len(made) - n for n, _ in enumerate(exchange(grid, make(), PLAN, Outcome(1, ArrayRecord())))]
    assert max(gaps) <= 3 and len(made) == 10


@pytest.mark.parametrize("order", ["as sent", "reversed"])
def test_memory_stays_flat(order: str) -> None:
    """50 replies of 1 MB: never more than a few of them in memory, in whatever order they come."""
    big = 1_000_000

    def large(message: Message, context: Context) -> Message:
        return Message(pack({"encoder": {"w": np.zeros(big // 4, dtype=np.float32)}}, METRICS), reply_to=message)

    class Lazy(Scripted):
        """Makes a reply when it is asked for."""

        def push_messages(self, sent: Iterable[Message]) -> Iterable[str]:
            return list(InProcessGrid.push_messages(self, sent))

        def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Message]:
            ids = set(message_ids)
            ready = [m for m in self._queue if m.metadata.message_id in ids]
            if order == "reversed":
                last = max((m.metadata.dst_node_id for m in self._queue), default=0)
                ready = [m for m in ready if m.metadata.dst_node_id == last]
            for message in ready:
                self._queue.remove(message)
            return [self._answer(message) for message in ready]

    grid, outcome = Lazy(app_of(train=large), 50), Outcome(1, ArrayRecord())
    sent = [Message(pack({"encoder": {"w": np.zeros(big // 4, dtype=np.float32)}}), FIRST_NODE + i, "train", ttl=60.0) for i in range(50)]
    tracemalloc.start()
    try:
        count = sum(r.has_content() for r in exchange(grid, sent, PLAN, outcome))
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert count == 50 and peak < 16 * big


def test_large_replies_are_asked_for_one_by_one() -> None:
    portions: list[int] = []

    class Portions(Scripted):
        def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Message]:
            ids = list(message_ids)
            portions.append(len(ids))
            return super().pull_messages(ids)

    def ask(size: int) -> list[int]:
        portions.clear()
        record = pack_slot({"w": np.zeros(size, dtype=np.float32)})
        sent = [Message(RecordDict({"encoder": record}), FIRST_NODE + i, "train", ttl=60.0) for i in range(16)]
        echo = app_of(train=lambda message, context: Message(message.content, reply_to=message))
        list(exchange(Portions(echo, 16), sent, PLAN, Outcome(1, ArrayRecord())))
        return portions

    assert max(ask(3_000_000)) == 1
    assert ask(3) == [16]


def test_the_contract_is_five_methods() -> None:
    assert {"configure_train", "aggregate_train", "configure_evaluate", "aggregate_evaluate", "summary"} == Strategy.__abstractmethods__


def test_void_rounds_are_logged(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING), pytest.raises(RunFailed):
        run_rounds(InProcessGrid({}, 2, app=app_of(train=broken)), FedAvg(), ArrayRecord([np.zeros(1)]), Plan(1, 30.0, 0.5, 1, poll=0.001))
    assert "round 1 is void: 0 good replies to 2 messages" in caplog.text


def test_config_records_reach_the_clients() -> None:
    got: list[Any] = []

    def train(message: Message, context: Context) -> Message:
        config = message.content["config"]
        assert isinstance(config, ConfigRecord)
        got.append(config["server-round"])
        return add_one(message, context)

    run_rounds(InProcessGrid({}, 2, app=app_of(train=train)), FedAvg(fraction_evaluate=0.0), ArrayRecord([np.zeros(1)]), Plan(2, 30.0, 0.5))
    assert got == [1, 1, 2, 2]
