"""What every method must do. A new line in ``METHODS`` is picked up here by itself.

The contract holds in both directions and a leak is refused; a seed says everything; the order of answers says nothing;
clients may be few, fail, diverge, or have hardly any data; those held out of training are served, and change nothing for the
others; a run that was stopped goes on as if it had not been.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from flwr.app import ArrayRecord, ConfigRecord, Error, Message, MetricRecord, RecordDict

import client_app.main as client_main
from client_app.data.client_data import ClientData
from client_app.data.sources import DataNode
from client_app.learner import Reply
from server_app.checkpoint import Checkpoints, dump, state_types
from strategies.held_out import held_out_names
from strategies.registry import METHODS, SPLIT_MODEL, find_method, parse_run_config
from strategies.wire import encode
from tests.running import (
    TRAIN,
    Ran,
    Shuffled,
    Spy,
    Watched,
    about,
    client_of,
    digits_of,
    failing,
    layouts,
    run,
    slot_of,
    small,
    tensor_bytes,
)
from tests.thorough import ALWAYS, EVERY, in_turn


@pytest.fixture(scope="module", params=EVERY)
def method(request: pytest.FixtureRequest) -> str:
    return request.param


@pytest.fixture(scope="module")
def watched(method: str, tmp_path_factory: pytest.TempPathFactory) -> tuple[Ran, Spy]:
    """One undisturbed run, with every message kept."""
    folder = tmp_path_factory.mktemp(method)
    spy = Spy(folder)
    return run(folder, method, spy), spy


def wire_of(method: str, **settings: Any) -> Any:
    return parse_run_config({**small(method), "method": method, **settings}).own.wire


class Stop(Exception):
    """Ends a run from within."""


# --- the contract


def test_every_message_of_a_run_fits_the_contract(method: str, watched: tuple[Ran, Spy]) -> None:
    """Both directions, message by message; and nobody was dropped on the way."""
    ran, spy = watched
    wire = wire_of(method)
    kinds = [about(message)[0] for message, _ in spy.seen]
    assert {k: kinds.count(k) for k in kinds} == {"query": 4, "train": 8, "evaluate": 4}
    for message, reply in spy.seen:
        kind, _, _ = about(message)
        if kind == "query":
            assert set(reply.content) == {"hello"}
            continue
        wire.check("down", message.content, layouts(method))
        wire.check("up" if kind == "train" else "closing", reply.content, layouts(method))
        assert not tensor_bytes(reply) or kind == "train"
    assert all(r["dropped"] == {} and len(r["accepted"]) == 4 for r in ran.records)


def test_bytes_reported_are_bytes_on_the_wire(watched: tuple[Ran, Spy]) -> None:
    """Tensors of both ways in all rounds (the closing evaluation is no round), counted here and in the summary."""
    ran, spy = watched
    rounds = [pair for pair in spy.seen if about(pair[0])[0] == "train"]
    for way, name in enumerate(("down", "up")):
        counted = sum(len(data) for pair in rounds for _, data in tensor_bytes(pair[way]).values())
        reported = ran.summary["bytes"]["by_slot"][name]
        assert sum(n for slot, n in reported.items() if slot not in ("metrics", "round")) == counted


def test_no_private_head_leaves_or_reaches_another_client(method: str, watched: tuple[Ran, Spy]) -> None:
    """No head-shaped array and no run of bytes of any client's head, in float32 or float16, whole or in part."""
    if "head" not in wire_of(method).local:
        pytest.skip("this method shares its head, and its contract says so")
    _, spy = watched
    assert {client for client, _ in spy.heads} == {f"client-00{i}" for i in range(4)}
    needles = [w.astype(dtype).tobytes()[:32] for head in spy.heads.values() for w in head.values() for dtype in (np.float32, np.float16)]
    shapes = {shape for shape, _ in layouts(method)["head"].values()}
    common = next(tensor_bytes(m) for m, _ in spy.seen if about(m)[0] == "train")
    for message, reply in spy.seen:
        for shape, data in tensor_bytes(reply).values():
            assert shape not in shapes and not any(needle in data for needle in needles)
        for (slot, name), (shape, data) in tensor_bytes(message).items():
            if shape in shapes:
                # the one head that travels is the common first one, and in round 1 only
                assert slot == "initial-head" and about(message)[2] == 1 and data == common[slot, name][1]
            assert not any(needle in data for needle in needles)


# what goes wrong behind a method's back: the same code checks all of them
BEHIND = ("a leak in the learner", "a leak after the check", "a tampered reply", "too few replies")


class Leaking:
    """Four clients try one leak each; the other four are honest."""

    def __init__(self, honest: Callable[..., Reply]) -> None:
        self.honest = honest

    def __call__(self, learner: Any, inbound: Any, data: Any, store: Any, rnd: Any) -> Reply:
        reply = self.honest(learner, inbound, data, store, rnd)
        secret = {"weight": np.full((10, 32), 7, np.float32)}
        match store.site:
            case "client-001":
                return replace(reply, slots={**reply.slots, "head-of-mine": secret})
            case "client-002":
                first = next(iter(reply.slots), "encoder")
                return replace(reply, slots={**reply.slots, first: {**reply.slots.get(first, {}), "extra": secret["weight"]}})
            case "client-003":
                return replace(reply, metrics={**reply.metrics, "share-of-class-3": 0.25})
            case "client-004":
                return replace(reply, metrics={**reply.metrics, "served": 7.0})
        return reply


def test_a_leak_planted_in_a_learner_is_refused(method: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An extra slot, an extra tensor, an extra scalar, a scalar used as a letter box: none goes out."""
    in_turn(method, "a leak in the learner", BEHIND)
    learner = find_method(method).learner_class()
    leak = Leaking(learner.train)
    monkeypatch.setattr(learner, "train", lambda *arguments: leak(*arguments))
    spy = Spy(tmp_path)
    ran = run(tmp_path, method, spy, clients=8, rounds=1)
    assert ran.records[0]["dropped"] == {"WireViolation": 4}
    assert ran.records[0]["accepted"] == ["client-000", "client-005", "client-006", "client-007"]
    assert not any(np.full(32, 7, np.float32).tobytes() in data for _, reply in spy.seen for _, data in tensor_bytes(reply).values())


def test_a_leak_planted_after_the_check_is_refused(method: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The guard looks at the finished message: a string, a head and a scalar added behind the seal go nowhere."""
    in_turn(method, "a leak after the check", BEHIND)
    seal = client_main.seal
    extras = [("note", ConfigRecord({"label": "seven"})), ("mine", ArrayRecord({"w": encode(np.ones(3, np.float32))})),
              ("more", MetricRecord({"n": 1}))]

    def leaky(*arguments: Any) -> RecordDict:
        content = seal(*arguments)
        if extras and len(arguments) < 4:
            name, record = extras.pop()
            content[name] = record
        return content

    monkeypatch.setattr(client_main, "seal", leaky)
    ran = run(tmp_path, method, clients=8, rounds=1)
    assert ran.records[0]["dropped"] == {"WireViolation": 3} and not extras
    assert len(ran.records[0]["accepted"]) == 5


def test_what_a_tampered_client_sends_is_dropped_on_arrival(method: str, watched: tuple[Ran, Spy], tmp_path: Path) -> None:
    """The server checks for itself, and counts by reason; NaN is no number to average."""
    in_turn(method, "a tampered reply", BEHIND)
    sends = bool(wire_of(method).up)

    def tamper(message: Message, reply: Callable[[], Message]) -> Message:
        answer, (kind, client, _) = reply(), about(message)
        if kind != "train":
            return answer
        match client:
            case "client-001":
                answer.content["head-of-mine"] = ArrayRecord({"w": encode(np.ones(3, np.float32))})
            case "client-002":
                answer.content["note"] = ConfigRecord({"label": "seven"})
            case "client-003" if sends:
                slot, record = next((s, r) for s, r in answer.content.items() if isinstance(r, ArrayRecord))
                name = next(iter(record))
                record[name] = encode(np.full(record[name].shape, np.nan, record[name].dtype))
            case "client-004":
                answer.content["metrics"] = MetricRecord({"num-examples": 0})
        return answer

    ran = run(tmp_path, method, tamper, clients=8, rounds=1)
    expected = {"unknown-slot": 1, "text": 1, "non-finite": 1, "metrics": 1}
    if not sends:
        del expected["non-finite"]
    assert ran.records[0]["dropped"] == expected
    assert all_finite(ran)


# --- determinism


def test_same_seed_same_bytes_and_another_seed_another_run(method: str, watched: tuple[Ran, Spy], tmp_path: Path) -> None:
    again = run(tmp_path / "again", method)
    assert again.everything() == watched[0].everything()
    other = run(tmp_path / "other", method, seed=1)
    if again.state["tensors"]:
        assert other.state["tensors"] != again.state["tensors"]
    if any("loss" in record for record in again.records):
        # what is not trained by steps has no use for a seed
        assert not set(map(str, other.stores.values())) & set(map(str, again.stores.values()))


def test_the_order_of_answers_is_irrelevant(method: str, watched: tuple[Ran, Spy], tmp_path: Path) -> None:
    order: list[str] = []

    def note(message: Message, reply: Callable[[], Message]) -> Message:
        order.append(about(message)[1])
        return reply()

    assert run(tmp_path, method, note, grid=Shuffled).everything() == watched[0].everything()
    assert order[4:8] != sorted(order[4:8])


# --- who takes part, and with what


def test_a_third_of_the_clients_takes_part(method: str, tmp_path: Path) -> None:
    """ceil(0.3 * 4) = 2 clients a round; all four are scored at the end."""
    ran = run(tmp_path, method, rounds=3, fraction=0.3, seed=3)
    assert [len(r["asked"]) for r in ran.records] == [2, 2, 2]
    assert len({client for r in ran.records for client in r["asked"]}) >= 3
    assert all(ran.served.values()) and all_finite(ran)


FAILURES = (("client-001", 1), ("client-002", 2), ("client-003", 2))


@pytest.fixture(scope="module")
def failed(method: str, tmp_path_factory: pytest.TempPathFactory) -> Ran:
    """Three clients do not train in one round each."""
    return run(tmp_path_factory.mktemp(method), method, failing(*FAILURES), rounds=3)


def test_clients_that_fail_are_counted_and_the_others_go_on(failed: Ran) -> None:
    assert [r["dropped"] for r in failed.records] == [{"reply-lost": 1}, {"reply-lost": 2}, {}]
    assert failed.records[1]["accepted"] == ["client-000", "client-001"]
    assert all(failed.served.values()) and all_finite(failed)


def test_a_client_whose_replies_are_lost_goes_on_from_what_was_accepted(method: str, failed: Ran, tmp_path: Path) -> None:
    """They trained and committed, but the server never heard of it: the run is as if they had not trained."""
    assert run(tmp_path, method, failing(*FAILURES, after=True), rounds=3).everything() == failed.everything()


def test_too_few_replies_void_the_round_and_change_nothing(method: str, tmp_path: Path) -> None:
    in_turn(method, "too few replies", BEHIND)
    ran = run(tmp_path, method, failing(*((f"client-00{i}", 2) for i in range(3))), max_void_rounds=2)
    assert [r["void"] for r in ran.records] == [False, True]
    (before, extra_before), (after, extra_after) = (state_after(ran, number) for number in (1, 2))
    assert extra_before["acked"] == extra_after["acked"] == {f"client-00{i}": 1 for i in range(4)}
    assert extra_before["split"] == extra_after["split"]
    assert dumped(before) == dumped(after)


def odd_clients(node: DataNode, seed: int) -> ClientData:
    """A client with one class, one with one sample, one without a test set, and an ordinary one."""
    images, labels = digits_of(node.index)
    match node.index:
        case 0:
            return client_of(images, np.full_like(labels, 3))
        case 1:
            return client_of(images[:3], labels[:3], train=1)
        case 2:
            return client_of(images[:TRAIN], labels[:TRAIN])
    return client_of(images, labels)


def test_a_client_with_one_class_one_sample_or_no_test_set_takes_part(method: str, tmp_path: Path) -> None:
    ran = run(tmp_path, method, dataset="tests.test_every_method:odd_clients")
    assert [r["dropped"] for r in ran.records] == [{}, {}]
    assert [bool(score) for score in ran.served.values()] == [True, True, False, True]
    assert ran.summary["served"]["n"] == 3 and all_finite(ran)
    assert all(f"client-00{i}/personal.safetensors" in ran.stores for i in range(4))


def one_explodes(node: DataNode, seed: int) -> ClientData:
    """Float images; those of client 1 are too large for float32 arithmetic."""
    images, labels = digits_of(node.index)
    return client_of(images.astype(np.float32) * (1e36 if node.index == 1 else 1 / 255), labels)


def test_a_client_that_diverges_is_dropped_and_counted(method: str, tmp_path: Path) -> None:
    """Its NaN goes nowhere: not to the server, not into its own store."""
    ran = run(tmp_path, method, dataset="tests.test_every_method:one_explodes")
    assert [r["dropped"] for r in ran.records] == [{"TrainingDiverged": 1}] * 2
    assert all_finite(ran)
    assert not [name for name in ran.stores if name.startswith("client-001/v")]


# --- clients held out of training

# the seed with which client-003 of four is held out
OUTSIDE = next(seed for seed in range(99) if held_out_names([f"client-00{i}" for i in range(4)], 1, seed) == ("client-003",))


@pytest.fixture(scope="module")
def serving(method: str) -> str:
    """``method``, if it has something for a client that it has not trained with."""
    if not getattr(find_method(method).rule_class(), "serves_newcomers", True):
        pytest.skip("this method cannot serve newcomers, and says so")
    return method


@pytest.fixture(scope="module")
def outside(serving: str, tmp_path_factory: pytest.TempPathFactory) -> tuple[Ran, Spy]:
    """Three participants and client-003, held out, with every message kept."""
    method = serving
    folder = tmp_path_factory.mktemp(method)
    spy = Spy(folder)
    return run(folder, method, spy, held_out=0.25, seed=OUTSIDE), spy


def test_a_held_out_client_changes_nothing_for_the_others(method: str, outside: tuple[Ran, Spy], tmp_path: Path) -> None:
    """Bit for bit what three clients compute among themselves: state, their files, their scores, the round records."""
    ran, alone = outside[0], run(tmp_path, method, clients=3, seed=OUTSIDE)
    assert ran.state["tensors"] == alone.state["tensors"] and ran.rounds == alone.rounds
    theirs = {name: kept for name, kept in ran.stores.items() if not name.startswith("client-003/")}
    assert theirs == alone.stores and len(ran.stores) > len(theirs)
    assert {client: score for client, score in ran.served.items() if client != "client-003"} == alone.served
    for key in ("served", "served_raw", "adapted", "clients", "dropped"):
        assert ran.summary[key] == alone.summary[key]
    assert ran.summary.get("clusters") == alone.summary.get("clusters")


def test_a_held_out_client_is_asked_to_join_and_scored_and_nothing_else(method: str, outside: tuple[Ran, Spy]) -> None:
    ran, spy = outside
    kinds = {client: [about(m)[0] for m, _ in spy.seen if about(m)[1] == client] for client in ran.served}
    assert kinds["client-003"] == ["query", "join", "evaluate"]
    assert all(kinds[f"client-00{i}"] == ["query", "train", "train", "evaluate"] for i in range(3))
    wire = wire_of(method)
    for message, reply in spy.seen:
        if about(message)[0] == "join":
            wire.check("down", message.content, layouts(method))
            wire.check("join", reply.content, layouts(method))
            assert {slot for slot, _ in tensor_bytes(reply)} == {slot.name for slot in wire.join}
    assert ran.summary["held_out"]["clients"] == ["client-003"] and ran.summary["held_out"]["served"].keys() == {"client-003"}
    _, extra = state_after(ran, 2)
    assert extra["acked"].keys() == {"client-000", "client-001", "client-002"}


def test_no_head_of_a_held_out_client_leaves(method: str, outside: tuple[Ran, Spy]) -> None:
    if "head" not in wire_of(method).local:
        pytest.skip("this method shares its head, and its contract says so")
    _, spy = outside
    needles = [w.astype(dtype).tobytes()[:32] for (client, _), head in spy.heads.items() if client == "client-003" for w in head.values()
               for dtype in (np.float32, np.float16)]
    assert len(needles) == 4
    assert not any(needle in data for pair in spy.seen for part in pair for _, data in tensor_bytes(part).values() for needle in needles)


def test_a_method_that_cannot_serve_newcomers_leaves_them_out_and_says_so(method: str, tmp_path: Path) -> None:
    if getattr(find_method(method).rule_class(), "serves_newcomers", True):
        pytest.skip("this method serves newcomers")
    spy = Spy(tmp_path)
    ran, alone = run(tmp_path / "a", method, spy, held_out=0.25, seed=OUTSIDE), run(tmp_path / "b", method, clients=3, seed=OUTSIDE)
    assert [about(m)[0] for m, _ in spy.seen if about(m)[1] == "client-003"] == ["query"]
    assert ran.state["tensors"] == alone.state["tensors"] and ran.stores == alone.stores
    out = ran.summary["held_out"]
    assert out["cannot_serve"] and out["unscored"] == ["client-003"] and out["tails"] is None


ODD = ("one class", "one sample", "no test set")
NEWCOMERS = ("odd", "out of order")


def odd_newcomers(node: DataNode, seed: int) -> ClientData:
    """Of six clients the three held out are odd, the participants are ordinary."""
    images, labels = digits_of(node.index)
    names = held_out_names([f"client-{i:03d}" for i in range(6)], 3, seed)
    match ODD[names.index(node.name)] if node.name in names else "":
        case "one class":
            return client_of(images, np.full_like(labels, 3))
        case "one sample":
            return client_of(images[:3], labels[:3], train=1)
        case "no test set":
            return client_of(images[:TRAIN], labels[:TRAIN])
    return client_of(images, labels)


def test_a_held_out_client_with_one_class_one_sample_or_no_test_set_is_served(method: str, serving: str, tmp_path: Path) -> None:
    in_turn(method, "odd", NEWCOMERS)
    ran = run(tmp_path, method, dataset="tests.test_every_method:odd_newcomers", clients=6, held_out=0.5)
    names = held_out_names([f"client-{i:03d}" for i in range(6)], 3, 0)
    out = ran.summary["held_out"]
    assert out["clients"] == list(names) and out["unscored"] == [names[2]] and out["tails"]["n"] == 2
    assert ran.summary["dropped"] == {} and ran.summary["served"]["n"] == 3
    for name in names:
        kept = {f"{part}/{n}": t for part in layouts(method) for n, t in slot_of(
            tmp_path / "clients" / "test" / name / "personal.safetensors", part).items()}
        assert len(kept) == sum(map(len, layouts(method).values())) and all(np.isfinite(t).all() for t in kept.values())


FAULTS = ("lost", "crashed", "NaN", "leak", "unasked slot", "offline at the end")
AT_JOINING = (*FAULTS, "a leak in the learner")


@pytest.mark.parametrize("fault", FAULTS)
def test_a_held_out_client_that_fails_is_counted_and_the_run_ends_well(method: str, fault: str, outside: tuple[Ran, Spy],
                                                                        tmp_path: Path) -> None:
    in_turn(method, fault, AT_JOINING)
    sends = bool(wire_of(method).join)
    if fault == "NaN" and not sends:
        pytest.skip("a newcomer sends no tensor in this method")

    def break_it(message: Message, reply: Callable[[], Message]) -> Message:
        kind, client, _ = about(message)
        if client != "client-003" or kind != ("evaluate" if fault == "offline at the end" else "join"):
            return reply()
        if fault in ("lost", "offline at the end"):
            return Message(Error(4, "lost"), reply_to=message)
        if fault == "crashed":
            return Message(Error(8, "/secret"), reply_to=message)
        answer = reply()
        if fault == "NaN":
            slot, record = next((s, r) for s, r in answer.content.items() if isinstance(r, ArrayRecord))
            name = next(iter(record))
            record[name] = encode(np.full(record[name].shape, np.nan, record[name].dtype))
        elif fault == "leak":
            answer.content["encoder"] = ArrayRecord({"w": encode(np.ones(3, np.float32))})
        else:
            answer.content["note"] = ConfigRecord({"label": "seven"})
        return answer

    ran = run(tmp_path, method, break_it, held_out=0.25, seed=OUTSIDE)
    reason = {"lost": "reply-lost", "offline at the end": "reply-lost", "crashed": "client-crashed", "NaN": "non-finite",
              "leak": "names" if "encoder" in wire_of(method).slots("join") else "unknown-slot", "unasked slot": "text"}[fault]
    assert ran.summary["dropped"] == {reason: 1} and ran.summary["held_out"]["unscored"] == ["client-003"]
    assert ran.summary["held_out"]["tails"] is None
    assert {k: v for k, v in ran.served.items() if v} == {k: v for k, v in outside[0].served.items() if k != "client-003"}
    assert ran.state["tensors"] == outside[0].state["tensors"]


def test_a_leak_planted_in_joining_is_refused_at_home(method: str, serving: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An extra slot never leaves the client: its own check refuses the reply."""
    in_turn(method, "a leak in the learner", AT_JOINING)
    learner = find_method(method).learner_class()
    honest = learner.join

    def leaking(*arguments: Any) -> Reply:
        reply = honest(*arguments)
        return replace(reply, slots={**reply.slots, "head-of-mine": {"weight": np.full((10, 32), 7, np.float32)}})

    monkeypatch.setattr(learner, "join", leaking)
    spy = Spy(tmp_path)
    ran = run(tmp_path, method, spy, held_out=0.25, seed=OUTSIDE, rounds=1)
    assert ran.summary["dropped"] == {"WireViolation": 1} and ran.summary["held_out"]["unscored"] == ["client-003"]
    assert not any(np.full(32, 7, np.float32).tobytes() in data for _, reply in spy.seen for _, data in tensor_bytes(reply).values())


AROUND_JOINING = ("before the joining", "after the joining", "within the evaluation")


@pytest.mark.parametrize("moment", AROUND_JOINING)
def test_a_run_stopped_around_the_joining_goes_on_as_if_it_had_not(method: str, moment: str, outside: tuple[Ran, Spy],
                                                                  tmp_path: Path) -> None:
    in_turn(method, moment, AROUND_JOINING, of=2 * len(AROUND_JOINING))
    last = {"after the joining": ("join", "client-003", 2), "within the evaluation": ("evaluate", "client-001", 2)}.get(moment)

    def stop_between(record: Mapping[str, Any]) -> None:
        if moment == "before the joining" and record["round"] == 2:
            raise Stop

    def stop_within(message: Message, reply: Callable[[], Message]) -> Message:
        answer = reply()
        if about(message) == last:
            raise Stop
        return answer

    with pytest.raises(Stop):
        run(tmp_path, method, stop_within, on_round=stop_between, held_out=0.25, seed=OUTSIDE)
    again = run(tmp_path, method, held_out=0.25, seed=OUTSIDE, resume=True)
    assert again.everything() == outside[0].everything()
    assert again.summary["held_out"] == outside[0].summary["held_out"]


def test_the_order_of_answers_does_not_matter_to_newcomers(method: str, serving: str, tmp_path: Path) -> None:
    in_turn(method, "out of order", NEWCOMERS)
    one, other = (run(tmp_path / grid.__name__, method, grid=grid, clients=6, held_out=0.5) for grid in (Watched, Shuffled))
    assert one.everything() == other.everything() and one.summary["held_out"] == other.summary["held_out"]


# --- restart


MOMENTS = ("after round 1", "in round 2")


@pytest.mark.parametrize("moment", MOMENTS)
def test_a_stopped_run_goes_on_as_if_it_had_not_stopped(method: str, moment: str, watched: tuple[Ran, Spy], tmp_path: Path) -> None:
    """Bit for bit: state, acknowledged rounds, every client's files, scores, round records."""
    in_turn(method, moment, MOMENTS)

    def stop_between(record: Mapping[str, Any]) -> None:
        if moment == "after round 1":
            raise Stop

    def stop_within(message: Message, reply: Callable[[], Message]) -> Message:
        answer = reply()
        if moment == "in round 2" and about(message) == ("train", "client-002", 2):
            raise Stop
        return answer

    with pytest.raises(Stop):
        run(tmp_path, method, stop_within, on_round=stop_between)
    assert run(tmp_path, method, resume=True).everything() == watched[0].everything()


# --- settings all methods share


def test_uniform_weighting_sends_no_count(method: str, tmp_path: Path) -> None:
    spy = Spy(tmp_path)
    ran = run(tmp_path, method, spy, weighting="uniform", rounds=1)
    for message, reply in spy.seen:
        names = {key for record in reply.content.values() for key in record}
        assert not {"num-examples", "num-test"} & names, about(message)
    assert ran.records[0]["dropped"] == {} and not {"n_train", "n_test"} & ran.records[0].keys()


def test_batchnorm_rules_differ_where_they_must_and_nowhere_else(method: str, watched: tuple[Ran, Spy], tmp_path: Path) -> None:
    """No rule touches a weight or a running mean. ``recompute`` only scores otherwise; ``moments`` only pools variances."""
    if method not in ALWAYS and find_method(method).model != SPLIT_MODEL:
        pytest.skip("a frozen transformer has no BatchNorm: two methods say it for all; FEDHEARTH_THOROUGH=1 runs it with every one")
    recompute = watched[0]
    average = run(tmp_path / "average", method, bn="average")
    moments = run(tmp_path / "moments", method, bn="moments")
    assert averaged(average) == averaged(recompute)
    assert average.summary["served"] == average.summary["served_raw"]
    # what is fine-tuned on the features of the statistics it will be served with depends on the rule
    assert method == "fedbabu" or average.summary["served_raw"] == recompute.summary["served_raw"]
    a, m = averaged(average), averaged(moments)
    differing = {name for name in a if a[name] != m[name]}
    assert all(name.endswith("running_var") for name in differing)
    # a Vision Transformer has no BatchNorm, and there the rules say nothing
    averages = any(name.endswith("running_var") for name in a) and bool(wire_of(method).up)
    assert bool(differing) == averages and (averages or method not in ("fedavg", "fedper", "hdc-fl"))


@pytest.mark.parametrize(("model", "width"), [("resnet18", 4), ("mobilenetv2", 8), ("clip-tiny-random", 0)])
def test_the_larger_models_run(method: str, model: str, width: int, tmp_path: Path) -> None:
    if (find_method(method).model == SPLIT_MODEL) != (width > 0):
        pytest.skip("a model of the other kind")
    if width:
        in_turn(method, model, ("resnet18", "mobilenetv2"), of=4)
    ran = run(tmp_path, method, model=model, width=width, clients=2, rounds=1)
    assert ran.records[0]["dropped"] == {} and all(ran.served.values()) and all_finite(ran)


# --- looking into what a run left


def all_finite(ran: Ran) -> bool:
    """Whether every tensor of the final state is."""
    return all(np.isfinite(np.frombuffer(data, dtype)).all() for _, dtype, data in ran.state["tensors"].values() if dtype.startswith("f"))


def state_after(ran: Ran, number: int) -> tuple[Any, dict[str, Any]]:
    """State and extra of round ``number``'s checkpoint."""
    module = METHODS[ran.summary["method"]].rule_class().__module__
    return Checkpoints(ran.folder / "checkpoints")._load(number, state_types(importlib.import_module(module).State))


def dumped(state: Any) -> Any:
    """``state`` as something that ``==`` compares bit for bit."""
    arrays, tree = dump(state)
    return tree, {name: array.tobytes() for name, array in arrays.items()}


def averaged(ran: Ran) -> dict[str, bytes]:
    """The shared tensors of the final state, by part and name."""
    state, _ = state_after(ran, ran.summary["rounds"])
    return {f"{part}.{name}": tensor.tobytes() for part in ("encoder", "head", "prompts", "prototypes")
            for name, tensor in getattr(state, part, {}).items()}
