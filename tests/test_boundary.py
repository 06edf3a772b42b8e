"""The door out of a client: what may leave, and that nothing else does, even when it is added at the last moment."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from flwr.app import ArrayRecord, ConfigRecord, Context, Error, Message, MetricRecord, RecordDict
from flwr.common.serde import message_to_proto

from client_app.boundary import REASON_LIMIT, SAFE_ERRORS, describe, inbound, make_guard, seal, seal_hello
from client_app.data import DataError
from client_app.learner import Reply
from client_app.local.store import StateLost, StoreBusy, StoreError, StoreFull
from client_app.node import NodeError
from deploy.inprocess import answer
from strategies.config import ConfigError
from strategies.wire import WireViolation, pack
from tests.flower_cases import METRICS, PARTS, START, WIRE, app_of, hello, rnd, tell, three

SECRET = "patient-4711"
GUARD = make_guard(lambda context: (WIRE, PARTS))


def ask(handler: Callable[[Message, Context], Message], kind: str = "train") -> Message:
    """What comes out of a guarded client."""
    app = app_of(**{{"train": "train", "evaluate": "evaluate", "query.hello": "greet"}[kind]: handler}, mods=[GUARD])
    return answer(app, tell(pack(three(1, 2, 3), rnd=rnd()), kind=kind), {}, 1)


def leaking(change: Callable[[Message], None], metrics: Any = METRICS) -> Callable[[Message, Context], Message]:
    """A handler that seals a good reply, and then adds to it."""

    def handler(message: Message, context: Context) -> Message:
        reply = Message(seal(Reply(three(1, 2, 3), metrics), WIRE, PARTS), reply_to=message)
        change(reply)
        return reply

    return handler


def refused(reply: Message, kind: str) -> bool:
    """Whether only an error of ``kind`` leaves, with nothing planted in any of its bytes."""
    return (not reply.has_content() and reply.error.code == 2 and reply.error.reason.startswith(f"fedhearth:{kind}:")
            and SECRET.encode() not in message_to_proto(reply).SerializeToString())


def add(name: str, record: Any) -> Callable[[Message], None]:
    return lambda reply: reply.content.__setitem__(name, record)


def test_what_the_contract_allows_leaves_unchanged() -> None:
    reply = ask(leaking(lambda reply: None))
    assert reply.content["encoder"]["w"].numpy().tolist() == [1.0, 2.0, 3.0]  # type: ignore[index]
    assert dict(reply.content["metrics"]) == METRICS


@pytest.mark.parametrize("leak", [
    add("head", ArrayRecord({"bias": pack(START)["head"]["bias"]})),
    add(SECRET, ArrayRecord([np.zeros(3)])),
    add("note", ConfigRecord({"name": SECRET})),
    add("round", ConfigRecord({"name": SECRET})),
    add("metrics", MetricRecord({**METRICS, SECRET: 1.0})),
    add("metrics", MetricRecord({"num-examples": [4711, 4711]})),
    add(SECRET, MetricRecord({"loss": 1.0})),
    lambda reply: reply.content["encoder"].__setitem__(SECRET, reply.content["encoder"]["w"]),
    lambda reply: setattr(reply.content["encoder"]["w"], "stype", SECRET),
    lambda reply: setattr(reply.content["encoder"]["w"], "dtype", SECRET),
    lambda reply: setattr(reply.content["encoder"]["w"], "data", reply.content["encoder"]["w"].data + SECRET.encode()),
    lambda reply: reply.content.__delitem__("encoder"),
], ids=["head", "slot", "text", "text as round", "scalar", "list", "scalars", "tensor", "stype", "dtype", "tail", "too little"])
def test_what_is_added_after_seal_does_not_leave(leak: Callable[[Message], None]) -> None:
    assert refused(ask(leaking(leak)), "WireViolation")


def test_metadata_come_from_the_question() -> None:
    def rename(reply: Message) -> None:
        reply.metadata.__dict__["_group_id"] = SECRET

    reply = ask(leaking(rename))
    assert reply.has_content() and reply.metadata.group_id == "1"
    assert SECRET.encode() not in message_to_proto(reply).SerializeToString()


def test_an_error_made_by_hand_does_not_leave() -> None:
    assert refused(ask(lambda message, context: Message(Error(1, SECRET), reply_to=message)), "WireViolation")


def test_tensors_do_not_leave_with_the_closing_reply() -> None:
    assert refused(ask(leaking(lambda reply: None), "evaluate"), "WireViolation")
    scalars = ask(lambda message, context: Message(seal(Reply(metrics=METRICS), WIRE, PARTS, "closing"), reply_to=message), "evaluate")
    assert dict(scalars.content["metrics"]) == METRICS


@pytest.mark.parametrize("slots", [
    {**three(1, 2, 3), "head": START["head"]}, {}, {"encoder": {**three(1, 2, 3)["encoder"], "b": np.zeros(1)}},
])
def test_seal_refuses_what_is_not_in_the_contract(slots: Any) -> None:
    with pytest.raises(WireViolation):
        seal(Reply(slots, METRICS), WIRE, PARTS)


def test_only_complete_facts_make_a_hello() -> None:
    facts: Any = dict(hello("a")["hello"])
    assert ask(lambda message, context: Message(seal_hello(facts), reply_to=message), "query.hello").content["hello"]["site"] == "a"
    for wrong in ({**facts, "label": SECRET}, {**facts, "class-digest": SECRET}, {"site": "a"}):
        with pytest.raises(WireViolation) as caught:
            seal_hello(wrong)
        assert SECRET not in str(caught.value)


@pytest.mark.parametrize("content", [hello("a", label=SECRET), hello(f"{SECRET} "), pack(three(1, 2, 3)), RecordDict()])
def test_nothing_else_leaves_as_a_hello(content: RecordDict) -> None:
    assert refused(ask(lambda message, context: Message(content, reply_to=message), "query.hello"), "WireViolation")


class DataErrorOfAnother(ValueError):
    """Not ours, under one of our names."""


DataErrorOfAnother.__name__ = "DataError"


@pytest.mark.parametrize("fault", [
    FileNotFoundError(2, "No such file", f"/data/{SECRET}.npz"), ValueError(f"label {SECRET}"), KeyError(SECRET),
    DataErrorOfAnother(SECRET),
    RuntimeError(SECRET), MemoryError(SECRET), StopIteration(SECRET), RecursionError(SECRET),
])
def test_of_other_exceptions_only_the_type_leaves(fault: Exception) -> None:
    def handler(message: Message, context: Context) -> Message:
        raise fault

    reply = ask(handler)
    assert refused(reply, type(fault).__name__)
    assert reply.error.reason.endswith("the client's own log has the details")


@pytest.mark.parametrize("fault", [
    DataError("too few samples"), NodeError("no site"), StoreError("disk gone"), StoreBusy("busy"), StoreFull("full"), StateLost("lost"),
    ConfigError("lr must be above 0"), WireViolation("size", "too long"),
])
def test_our_own_errors_keep_their_text(fault: Exception) -> None:
    assert type(fault).__name__ in SAFE_ERRORS
    assert describe(fault) == f"fedhearth:{type(fault).__name__}: {fault}"


def test_an_error_is_short() -> None:
    assert len(describe(DataError("x" * 10_000))) == REASON_LIMIT


def test_a_message_outside_the_contract_is_not_trained_on() -> None:
    def handler(message: Message, context: Context) -> Message:
        slots, _ = inbound(message, WIRE, PARTS)
        return Message(seal(Reply(slots, METRICS), WIRE, PARTS), reply_to=message)

    app = app_of(train=handler, mods=[GUARD])
    good = answer(app, tell(pack(three(4, 5, 6), rnd=rnd())), {}, 1)
    assert good.content["encoder"]["w"].numpy().tolist() == [4.0, 5.0, 6.0]  # type: ignore[index]
    for content in (pack(three(1, np.nan, 3), rnd=rnd()), pack(three(1, 2, 3)), pack({}, rnd=rnd()), pack({**START}, rnd=rnd())):
        assert refused(answer(app, tell(content), {}, 1), "WireViolation")


def test_an_error_says_which_client_it_is() -> None:
    def fails(message: Message, context: Context) -> Message:
        raise DataError("training labels must be whole numbers")

    named = make_guard(lambda context: (WIRE, PARTS), lambda context: f"clinic-{context.node_config['partition-id']}")
    reply = answer(app_of(train=fails, mods=[named]), tell(pack(three(1, 2, 3), rnd=rnd())), {}, 1)
    assert reply.error.reason == "fedhearth:DataError: clinic-0: training labels must be whole numbers"
