"""The client halves, one message at a time: what is scored, what is sent, what is kept, and that the three stay apart."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import client_app.learner as learner_module
from client_app.data.client_data import ClientData
from client_app.learner import Trainer
from client_app.local.store import LocalStore
from client_app.loop import FitStats, LoopSettings, TrainingDiverged, fit, recompute_batchnorm, score
from models import SplitModel, build_model
from strategies.config import RunConfig
from strategies.registry import METHODS, SPLIT_MODEL
from strategies.scalars import COMMON_METRICS
from strategies.seeds import derive_seed
from strategies.types import Round, Slots
from strategies.wire import pack, unpack
from tests.running import TRAIN, client_of, digits_of, slot_of

SETTINGS = LoopSettings(epochs=3, batch=8, lr=0.1, device="cpu")
SCORED = Round(1, 2, seed=0, score_served=True, score_adapted=True)


def data_of(index: int = 0) -> ClientData:
    return client_of(*digits_of(index, count=40))


def fresh(seed: int = 0) -> SplitModel:
    return build_model("cnn", 10, (1, 8, 8), width=4, seed=seed)


def start_of(seed: int = 0) -> dict[str, dict[str, np.ndarray]]:
    model = fresh(seed)
    return {part: {name: t.copy() for name, t in model.tensors(part).items()} for part in ("encoder", "head")}


def learner_of(method: str, settings: LoopSettings = SETTINGS) -> Any:
    found = METHODS[method]
    return found.learner_class()(Trainer(fresh(9), settings), found.config_class()())


def down(method: str, seed: int = 0) -> Slots:
    """What a client gets in its first round."""
    start = start_of(seed)
    rule = METHODS[method].rule_class()(METHODS[method].config_class()(), RunConfig(), None)
    return rule.downlink(rule.init(start), "site", Round(1, 2, seed=0))


# who trains or answers otherwise than by the plain loop and the head: test_rivals.py has what holds for them in its place
IN_ITS_OWN_WAY = {"fedrep", "fedbabu", "ditto", "ifca", "fedamp", "fedproto", "knn-per"}


# those with prompts: test_prompt_rivals.py
@pytest.fixture(params=[name for name, found in METHODS.items() if found.model == SPLIT_MODEL and name not in IN_ITS_OWN_WAY])
def method(request: pytest.FixtureRequest) -> str:
    return request.param


def common(metrics: Any, method: str) -> dict[str, float]:
    """``metrics`` without those that only this method's contract allows."""
    own = METHODS[method].config_class()().wire.metrics - COMMON_METRICS
    return {name: value for name, value in metrics.items() if name not in own}


def by_hand(recompute: bool) -> dict[str, float]:
    """Served and adapted scores of one client's first round, step by step."""
    data, model = data_of(), fresh(0)
    served = score(model, data.test.images, data.test.labels, SETTINGS)
    if recompute:
        recompute_batchnorm(model.encoder, data.train.images, SETTINGS)
        served = score(model, data.test.images, data.test.labels, SETTINGS)
    model = fresh(0)
    loss = fit(model, data.train.images, data.train.labels, SETTINGS, derive_seed(0, "site", 1, "fit")).loss
    if recompute:
        recompute_batchnorm(model.encoder, data.train.images, SETTINGS)
    adapted = score(model, data.test.images, data.test.labels, SETTINGS)
    assert served is not None and adapted is not None
    return {"served": served, "adapted": adapted, "loss": loss}


def test_served_is_before_training_and_adapted_after_it(method: str, tmp_path: Path) -> None:
    """Each label's figure equals the one worked out step by step; all four differ here, so none can stand for another."""
    with LocalStore(tmp_path, "run", "site") as store:
        metrics = learner_of(method).train(down(method), data_of(), store, SCORED).metrics
    again, raw = by_hand(recompute=True), by_hand(recompute=False)
    assert common(metrics, method) == {"num-examples": TRAIN, "num-test": 16, "served": again["served"], "served-raw": raw["served"],
                                       "adapted": again["adapted"], "adapted-raw": raw["adapted"], "loss": raw["loss"]}
    assert again["served"] != again["adapted"] and raw["served"] != raw["adapted"]


def test_scores_come_when_asked_for_and_never_for_an_empty_test_set(method: str, tmp_path: Path) -> None:
    silent = dataclasses.replace(SCORED, score_served=False, score_adapted=False)
    empty = client_of(*digits_of(0, count=TRAIN))
    with LocalStore(tmp_path, "run", "site") as store:
        learner = learner_of(method)
        assert common(learner.train(down(method), data_of(), store, silent).metrics, method).keys() == {"num-examples", "num-test", "loss"}
        metrics = common(learner.train(down(method), empty, store, SCORED).metrics, method)
        assert metrics.keys() == {"num-examples", "num-test", "loss"} and metrics["num-test"] == 0


@pytest.mark.parametrize("scored", [True, False])
def test_what_is_sent_and_kept_is_what_was_trained(method: str, scored: bool, tmp_path: Path) -> None:
    """Scoring re-estimates BatchNorm statistics, and these must not travel nor be trained from."""
    if method == "fedbn":
        pytest.skip("its encoder travels without BatchNorm: test_rivals.py")
    data, model = data_of(), fresh(0)
    fit(model, data.train.images, data.train.labels, SETTINGS, derive_seed(0, "site", 1, "fit"))
    with LocalStore(tmp_path, "run", "site") as store:
        rnd = dataclasses.replace(SCORED, score_served=scored, score_adapted=scored)
        sent = learner_of(method).train(down(method), data, store, rnd).slots
        kept = store.load(1) or {} if store.versions() else {}
    found = {part: slots[part] for slots in (sent, kept) for part in ("encoder", "head") if part in slots}
    assert found
    for part, tensors in found.items():
        assert_same(tensors, model.tensors(part))


def test_counters_are_neither_sent_nor_kept(method: str, tmp_path: Path) -> None:
    with LocalStore(tmp_path, "run", "site") as store:
        sent = learner_of(method).train(down(method), data_of(), store, SCORED).slots
        kept = store.load(1) or {} if store.versions() else {}
    # what a method keeps beside its model may be whole numbers
    slots = [*sent.values(), *(kept[part] for part in ("encoder", "head", "initial-head") if part in kept)]
    names = {name for tensors in slots for name in tensors}
    assert names and not any("num_batches_tracked" in name for name in names)
    assert {str(t.dtype) for tensors in slots for t in tensors.values()} <= {"float32", "float16"}


def test_the_next_client_changes_nothing_of_the_one_before(method: str, tmp_path: Path) -> None:
    """One skeleton serves many clients in turn; what one sent and kept stays as it was."""
    learner = learner_of(method)
    with LocalStore(tmp_path, "run", "one") as one:
        message = pack(learner.train(down(method), data_of(0), one, SCORED).slots)
        files = {path: path.read_bytes() for path in one.location.glob("*.safetensors")}
    before = {slot: {name: array.data for name, array in record.items()} for slot, record in message.array_records.items()}
    with LocalStore(tmp_path, "run", "two") as two:
        learner.train(down(method), data_of(1), two, SCORED)
    assert {slot: {name: array.data for name, array in record.items()} for slot, record in message.array_records.items()} == before
    assert {path: path.read_bytes() for path in one.location.glob("*.safetensors")} == files


def test_what_came_down_is_not_written_to(method: str, tmp_path: Path) -> None:
    """Neither the server's tensors, which are read-only views of the message, nor a client's own first head."""
    found = METHODS[method]
    parts = learner_of(method).parts
    message = pack(down(method), rnd=SCORED)
    inbound = unpack(found.config_class()().wire, "down", message, parts)
    before = {slot: {k: t.tobytes() for k, t in tensors.items()} for slot, tensors in inbound.items()}
    with LocalStore(tmp_path, "run", "site") as store:
        learner_of(method).train(inbound, data_of(), store, SCORED)
    assert {slot: {k: t.tobytes() for k, t in tensors.items()} for slot, tensors in inbound.items()} == before


@pytest.mark.parametrize("bn", ["recompute", "average"])
def test_the_exported_model_is_the_one_that_was_scored(method: str, bn: str, tmp_path: Path) -> None:
    """Loaded into a new model as it is, without any further step, it makes the reported score."""
    settings = dataclasses.replace(SETTINGS, bn=bn)
    data, learner = data_of(), learner_of(method, settings)
    closing = Round(1, 1, seed=0, closing=True, score_served=True)
    with LocalStore(tmp_path, "run", "site") as store:
        reply = learner.evaluate(down(method), data, store, closing)
        exported = store.exported("personal")
    assert exported is not None and reply.slots == {}
    model = fresh(5)
    for part, tensors in exported.items():
        model.load(part, tensors)
    assert score(model, data.test.images, data.test.labels, settings) == reply.metrics["served"]
    assert (reply.metrics["served"] == reply.metrics["served-raw"]) or bn == "recompute"


def test_a_client_without_a_test_set_gets_the_same_personal_model(method: str, tmp_path: Path) -> None:
    """Its statistics are re-estimated like everyone's, though there is nothing to score."""
    if method == "fedavg-ft":
        pytest.skip("the order of the samples it fine-tunes on goes by the client's name")
    closing = Round(1, 1, seed=0, closing=True, score_served=True)
    for site, data in (("with", data_of()), ("without", client_of(*digits_of(0, count=TRAIN)))):
        with LocalStore(tmp_path, "run", site) as store:
            learner_of(method).evaluate(down(method), data, store, closing)
    for part in ("encoder", "head"):
        assert_same(*(slot_of(tmp_path / "run" / site / "personal.safetensors", part) for site in ("with", "without")))


def test_a_lost_reply_is_trained_again_from_the_same_point(method: str, tmp_path: Path) -> None:
    """Round 2 once, and twice because the server never heard of it: the same bytes."""
    learner, second = learner_of(method), Round(2, 3, seed=0, acked=1)
    inbound = {**down(method), **({"encoder": start_of(3)["encoder"]} if "encoder" in down(method) else {})}
    with LocalStore(tmp_path, "run", "site") as store:
        learner.train(down(method), data_of(), store, Round(1, 3, seed=0))
        once, twice = (pack(learner.train(inbound, data_of(), store, second).slots) for _ in range(2))
    assert once.keys() == twice.keys()
    for slot, record in once.array_records.items():
        assert {name: array.data for name, array in record.items()} == {n: a.data for n, a in twice.array_records[slot].items()}


@pytest.mark.parametrize("case", ["loss", "last step"])
def test_a_diverged_model_is_neither_kept_nor_sent(method: str, case: str, tmp_path: Path) -> None:
    """Whether the loss shows it or only the weights after the last step do."""
    settings = dataclasses.replace(SETTINGS, lr=1e30, weight_decay=1e30, epochs=1, batch=8 if case == "loss" else 64)
    with LocalStore(tmp_path, "run", "site") as store:
        with pytest.raises(TrainingDiverged, match="lower lr"):
            learner_of(method, settings).train(down(method), data_of(), store, Round(1, 2, seed=0))
        assert store.versions() == ()


def test_a_finite_loss_does_not_excuse_infinite_weights(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(learner_module, "fit", lambda *a: FitStats(loss=1.0, steps=1, finite=False))
    with LocalStore(tmp_path, "run", "site") as store, pytest.raises(TrainingDiverged):
        learner_of("fedper").train(down("fedper"), data_of(), store, Round(1, 2, seed=0))


def assert_same(a: Any, b: Any) -> None:
    assert a.keys() == b.keys()
    for name in a:
        np.testing.assert_array_equal(a[name], b[name], err_msg=name)
