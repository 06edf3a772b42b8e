"""RuleStrategy: good replies are folded in, bad ones counted and forgotten."""

from __future__ import annotations

import logging
import weakref
from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from flwr.app import ArrayRecord, ConfigRecord, Error, Message, RecordDict

from strategies.adapter import RuleStrategy
from strategies.wire import bytes_of, pack, unpack_round
from tests.flower_cases import METRICS, PARTS, SKETCH, START, WIRE, Club, SumRule, run_config, spoilt, three

NO_GRID: Any = None


def strategy(club: Club | None = None, mixtures: bool = False, **run: Any) -> RuleStrategy:
    return RuleStrategy(SumRule([], mixtures), WIRE, START, PARTS, club or Club(), run_config(**run))


def send(made: RuleStrategy, number: int = 1) -> list[Message]:
    """The round's messages, each with an id as the grid would give it, one at a time."""
    out = []
    for message in made.configure_train(number, ArrayRecord(), ConfigRecord(), NO_GRID):
        message.metadata.__dict__["_message_id"] = f"{number}-{len(out)}"
        out.append(message)
    return out


def reply(message: Message, *numbers: float, count: int = 1, **more: float) -> Message:
    return Message(pack(three(*numbers), {"num-examples": count, **more}), reply_to=message)


def weights(made: RuleStrategy) -> list[float]:
    return made.state["encoder"]["w"].tolist()


def test_valid_replies_are_folded_by_weight_in_order() -> None:
    made = strategy()
    a, b, c = send(made)
    replies = [reply(a, 1, 0, 0, count=1, served=0.5), reply(b, 0, 4, 0, count=3), reply(c, 0, 0, 8, served=1.0)]
    arrays, metrics = made.aggregate_train(1, replies)
    assert weights(made) == [pytest.approx(0.2), pytest.approx(2.4), pytest.approx(1.6)]
    assert made.rule.seen == ["a", "b", "c"] and made.acked == {"a": 1, "b": 1, "c": 1}
    assert arrays is not None and dict(metrics or {}) == {"served": 0.75}
    record = made.tally.record()
    assert record["asked"] == record["accepted"] == ["a", "b", "c"] and record["dropped"] == {} and not record["void"]
    assert record["n_train"] == {"a": 1, "b": 3, "c": 1} and record["served"] == {"a": 0.5, "c": 1.0}


def test_uniform_weights_need_no_counts() -> None:
    made = strategy(weighting="uniform")
    made.aggregate_train(1, [Message(pack(three(n, 0, 0), {}), reply_to=m) for n, m in zip((1, 2, 6), send(made), strict=True)])
    assert weights(made) == [3.0, 0.0, 0.0]


def test_what_goes_down() -> None:
    made = strategy(mixtures=True)
    made.acked = {"b": 1}
    messages = send(made, 2)
    assert [m.metadata.dst_node_id for m in messages] == [1000, 1001, 1002]
    assert {(m.metadata.message_type, m.metadata.ttl, m.metadata.group_id) for m in messages} == {("train", 3600.0, "2")}
    positions = [unpack_round(m.content) for m in messages]
    assert [p.acked for p in positions] == [0, 1, 0] and all(p.number == 2 and p.score_served and p.score_adapted for p in positions)
    # one record for what is the same for all, so that Flower sends it once; the mixtures are each client's own
    assert len({id(m.content["encoder"]) for m in messages}) == 1 and len({id(m.content["mixture"]) for m in messages}) == 3


def test_scores_are_asked_for_as_often_as_the_run_says() -> None:
    made = strategy(rounds=5, score_every=2)
    asked = [unpack_round(send(made, n)[0].content) for n in range(1, 6)]
    assert [p.score_served for p in asked] == [True, False, True, False, True]
    assert [p.score_adapted for p in asked] == [False] * 4 + [True]
    assert unpack_round(send(strategy(rounds=5, score_every=9, mixtures=True), 4)[0].content).score_served


def test_messages_are_made_one_at_a_time() -> None:
    made = strategy()
    source = iter(made.configure_train(1, ArrayRecord(), ConfigRecord(), NO_GRID))
    assert made.tally.down["encoder"] == 0
    next(source)
    assert made.tally.down["encoder"] == 140 and made.tally.asked == ["a", "b", "c"]


BAD: dict[str, tuple[Callable[[Message], Message], str]] = {
    "names": (lambda m: Message(spoilt(lambda c: c.__setitem__("encoder", ArrayRecord())), reply_to=m), "names"),
    "shape": (lambda m: Message(pack(three(1, 2), METRICS), reply_to=m), "shape"),
    "NaN": (lambda m: reply(m, 1, np.nan, 3), "non-finite"),
    "planted head": (lambda m: Message(pack({**three(1, 2, 3), "head": START["head"]}, METRICS), reply_to=m), "unknown-slot"),
    "planted text": (lambda m: Message(spoilt(lambda c: c.__setitem__("x", ConfigRecord({"a": ""}))), reply_to=m), "text"),
    "nothing": (lambda m: Message(RecordDict(), reply_to=m), "missing-slot"),
    "no counts": (lambda m: Message(pack(three(1, 2, 3)), reply_to=m), "metrics"),
    "zero weight": (lambda m: reply(m, 1, 2, 3, count=0), "metrics"),
    "score": (lambda m: reply(m, 1, 2, 3, served=1.5), "metrics"),
    "app raised": (lambda m: Message(Error(2, "/some/path"), reply_to=m), "client-raised"),
    "unknown code": (lambda m: Message(Error(77, ""), reply_to=m), "error-77"),
    "own error": (lambda m: Message(Error(2, "fedhearth:DataError: too few: 3"), reply_to=m), "DataError"),
    "half of an own error": (lambda m: Message(Error(2, "fedhearth:DataError"), reply_to=m), "client-raised"),
    "an own error of odd kind": (lambda m: Message(Error(2, "fedhearth:<b>x</b>: y"), reply_to=m), "client-raised"),
    "crashed": (lambda m: Message(Error(8), reply_to=m), "client-crashed"),
}


@pytest.mark.parametrize("case", BAD)
def test_a_bad_reply_is_counted_and_changes_nothing(case: str, caplog: pytest.LogCaptureFixture) -> None:
    bad, reason = BAD[case]
    made = strategy()
    a, b, c = send(made)
    with caplog.at_level(logging.WARNING):
        made.aggregate_train(1, [reply(a, 1, 2, 3), bad(b), reply(c, 3, 2, 1)])
    assert dict(made.tally.dropped) == {reason: 1} and made.tally.accepted == ["a", "c"]
    assert weights(made) == [2.0, 2.0, 2.0] and made.acked == {"a": 1, "c": 1} and "b" not in made.tally.metrics
    assert "dropped the reply of b" in caplog.text and "/some/path" not in caplog.text
    assert set(made.tally.up) <= {"encoder", "metrics", "refused"}


def test_second_and_unasked_replies_are_counted() -> None:
    made = strategy()
    a, b, c = send(made)
    stranger = Message(RecordDict(), 1000, "train")
    stranger.metadata.__dict__["_message_id"] = "of another round"
    made.aggregate_train(1, [reply(a, 1, 1, 1), reply(a, 9, 9, 9), reply(stranger, 9, 9, 9), reply(b, 1, 1, 1), reply(c, 1, 1, 1)])
    assert weights(made) == [1.0, 1.0, 1.0] and dict(made.tally.dropped) == {"unasked": 2}


def test_below_quorum_nothing_changes() -> None:
    made = strategy(quorum=0.67)
    made.acked = {"a": 1, "c": 1}
    a, b, c = send(made, 2)
    before = made.state
    arrays, metrics = made.aggregate_train(2, [reply(a, 9, 9, 9), reply(b, 9, 9, 9), Message(Error(8), reply_to=c)])
    assert (arrays, metrics) == (None, None) and made.tally.void
    assert made.state is before and made.acked == {"a": 1, "c": 1}
    made.aggregate_train(2, [reply(m, 9, 9, 9) for m in send(made, 2)])
    assert weights(made) == [9.0, 9.0, 9.0] and made.acked == {"a": 2, "b": 2, "c": 2}


def test_without_any_reply_the_round_is_void() -> None:
    made = strategy()
    send(made)
    assert made.aggregate_train(1, []) == (None, None)
    assert made.tally.void and dict(made.tally.dropped) == {"deadline": 3} and weights(made) == [1.0, 2.0, 3.0]


def test_clients_whose_message_was_never_made_count_for_the_quorum() -> None:
    made = strategy()
    source = iter(made.configure_train(1, ArrayRecord(), ConfigRecord(), NO_GRID))
    message = next(source)
    message.metadata.__dict__["_message_id"] = "1"
    assert made.aggregate_train(1, [reply(message, 1, 1, 1)]) == (None, None)
    assert made.tally.asked == ["a", "b", "c"] and dict(made.tally.dropped) == {"deadline": 2}


def test_a_client_that_lost_its_state_starts_again() -> None:
    made = strategy()
    made.acked = {"a": 1, "b": 1}
    a, b, c = send(made, 2)
    made.aggregate_train(2, [Message(Error(2, "fedhearth:StateLost: gone"), reply_to=a), reply(b, 1, 1, 1), reply(c, 1, 1, 1)])
    assert made.acked == {"b": 2, "c": 2} and dict(made.tally.dropped) == {"StateLost": 1}


def test_an_offline_client_is_asked_nothing_and_counts() -> None:
    made = strategy(Club(offline=("b",)))
    messages = send(made)
    assert [m.metadata.dst_node_id for m in messages] == [1000, 1002]
    made.aggregate_train(1, [reply(m, 1, 1, 1) for m in messages])
    assert made.tally.asked == ["a", "b", "c"] and dict(made.tally.dropped) == {"offline": 1} and not made.tally.void
    everyone = strategy(Club(offline=("a", "b", "c")))
    assert send(everyone) == [] and everyone.aggregate_train(1, []) == (None, None)


def test_bytes_are_those_of_the_messages() -> None:
    made = strategy(mixtures=True)
    messages = send(made)
    replies = [reply(m, 1, 2, 3) for m in messages]
    bad = Message(pack({**three(1, 2, 3), "head": START["head"]}, METRICS), reply_to=messages[2])
    made.aggregate_train(1, [*replies[:2], bad])
    down = made.tally.record()["bytes"]["down"]
    assert down == {slot: sum(bytes_of(m.content)[slot] for m in messages) for slot in ("encoder", "mixture", "round")}
    assert down["encoder"] == down["mixture"] == 3 * 140
    assert made.tally.record()["bytes"]["up"] == {"encoder": 2 * 140, "metrics": 2 * (8 + len("num-examples")),
                                                  "refused": sum(bytes_of(bad.content).values())}


def test_the_closing_evaluation_asks_everyone_once() -> None:
    made = strategy()
    assert list(made.configure_evaluate(1, ArrayRecord(), ConfigRecord(), NO_GRID)) == []
    messages = list(made.configure_evaluate(2, ArrayRecord(), ConfigRecord(), NO_GRID))
    assert all(unpack_round(m.content).closing and m.metadata.message_type == "evaluate" for m in messages)
    for index, message in enumerate(messages):
        message.metadata.__dict__["_message_id"] = str(index)
    scores = {"num-examples": 1, "served": 0.25}
    said = made.aggregate_evaluate(2, [Message(pack({}, scores), reply_to=messages[0]), reply(messages[1], 1, 2, 3)])
    assert dict(said or {}) == {"served": 0.25}
    assert dict(made.tally.dropped) == {"unknown-slot": 1, "deadline": 1}
    assert weights(made) == [1.0, 2.0, 3.0] and made.acked == {}


WIRE_OF_NEWCOMERS = replace(WIRE, join=(SKETCH,))


def joining(outside: tuple[str, ...], **settings: Any) -> RuleStrategy:
    return RuleStrategy(SumRule([]), WIRE_OF_NEWCOMERS, START, PARTS, Club(outside=outside), run_config(**settings))


def test_held_out_members_are_asked_to_join_after_the_last_round_and_scored_if_they_did() -> None:
    """b and c are outside: only a trains; both are asked to join with its last round's number; b's reply is refused, c's accepted."""
    made = joining(("b", "c"))
    trained = send(made, 2)
    made.aggregate_train(2, [reply(trained[0], 4, 5, 6)])
    assert len(trained) == 1 and made.acked == {"a": 2}
    messages = list(made.configure_join(2, ArrayRecord(), ConfigRecord(), NO_GRID))
    assert [(m.metadata.message_type, m.metadata.dst_node_id) for m in messages] == [("train.join", 1001), ("train.join", 1002)]
    positions = [unpack_round(m.content) for m in messages]
    assert all(p.joining and not p.closing and (p.number, p.acked, p.completed) == (2, 0, 2) for p in positions)
    for index, message in enumerate(messages):
        message.metadata.__dict__["_message_id"] = f"join-{index}"
    sketch = {"descriptor": {"descriptor": np.ones(2, np.float16)}}
    made.aggregate_join(2, [reply(messages[0], 1, 2, 3), Message(pack(sketch, METRICS), reply_to=messages[1])])
    assert dict(made.tally.dropped) == {"unknown-slot": 1} and made.tally.accepted == ["c"]
    assert made.acked == {"a": 2, "c": 2} and weights(made) == [4.0, 5.0, 6.0]
    last = list(made.configure_evaluate(2, ArrayRecord(), ConfigRecord(), NO_GRID))
    assert [(m.metadata.dst_node_id, unpack_round(m.content).acked) for m in last] == [(1000, 2), (1002, 2)]


def test_nobody_held_out_nobody_asked_to_join() -> None:
    assert list(joining(()).configure_join(2, ArrayRecord(), ConfigRecord(), NO_GRID)) == []


def test_a_rule_folds_newcomers_lazily_and_only_if_it_wants_to() -> None:
    seen: list[str] = []

    class Welcoming(SumRule):
        def newcomers(self, state: Any, updates: Any, rnd: Any) -> Any:
            for update in updates:
                seen.append(f"{update.client} {sorted(update.slots)} {rnd.joining}")
            return {**state, "extra": {"n": np.array([len(seen)], np.float32)}}

    made = RuleStrategy(Welcoming([]), WIRE_OF_NEWCOMERS, START, PARTS, Club(outside=("a", "b")), run_config())
    messages = list(made.configure_join(2, ArrayRecord(), ConfigRecord(), NO_GRID))
    for index, message in enumerate(messages):
        message.metadata.__dict__["_message_id"] = f"join-{index}"
    sketch = {"descriptor": {"descriptor": np.ones(2, np.float16)}}
    made.aggregate_join(2, (Message(pack(sketch, METRICS), reply_to=m) for m in messages))
    assert seen == ["a ['descriptor'] True", "b ['descriptor'] True"] and made.state["extra"]["n"] == [2.0]
    assert made.acked == {"a": 2, "b": 2}


def test_no_reply_is_kept_alive_once_it_is_folded() -> None:
    made = strategy()
    messages = send(made)
    alive: list[weakref.ref[Message]] = []
    most = 0

    def stream() -> Iterable[Message]:
        nonlocal most
        for message in messages:
            answer = reply(message, 1, 2, 3)
            alive.append(weakref.ref(answer))
            yield answer
            del answer
            most = max(most, sum(ref() is not None for ref in alive))

    made.aggregate_train(1, stream())
    assert most == 0 and made.tally.accepted == ["a", "b", "c"]


def test_a_quorum_met_exactly_is_met() -> None:
    made = strategy(Club(10), quorum=0.7)
    made.aggregate_train(1, [reply(m, 1, 1, 1) for m in send(made)[:7]])
    assert not made.tally.void and dict(made.tally.dropped) == {"deadline": 3}
    made.aggregate_train(1, [reply(m, 1, 1, 1) for m in send(made)[:6]])
    assert made.tally.void
