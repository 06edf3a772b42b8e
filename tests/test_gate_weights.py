"""The gate's weights by age leave a client, those by class do not: by hand, against a loop over samples, and in what a client sends."""

from __future__ import annotations

import json
import logging
from collections import defaultdict
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from client_app.cache_clock import Clock
from client_app.cached_fit import Cached, CachedFit
from client_app.data.client_data import Split
from client_app.gate_weights import FILE, GateWeights
from client_app.learner import Reply, Trainer
from client_app.learners.fed_cache import FedCacheLearner
from client_app.local.sample_notes import SampleNotes
from client_app.local.store import LocalStore
from client_app.loop import LoopSettings
from models import build_model
from models.gate import Gated, Standing, build_gate
from server_app.cache_figures import WEIGHTS, cache_figures, weights_picture
from server_app.summary import Findings
from strategies.cache_config import CACHE_METRICS, LOCAL, Config
from strategies.scalars import BOUNDED, GATE_AGES
from strategies.types import Round
from tests.running import client_of, digits_of

SETTINGS = LoopSettings(epochs=2, batch=8, lr=0.05, device="cpu")
DATA = client_of(*digits_of(0))


# --- by hand


def seven() -> GateWeights:
    """Seven blends in two steps, with ages on both sides of every bound."""
    weights = GateWeights(3)
    weights.add(np.array([0.1, 0.2, 0.3], np.float32), np.array([0, 1, 2]), np.array([0, 0, 2]))
    weights.add(np.array([0.4, 0.5, 0.6, 0.7], np.float32), np.array([3, 5, 6, 40]), np.array([2, 2, 2, 0]))
    return weights


def test_buckets_of_seven_blends(tmp_path: Path) -> None:
    assert seven().shares() == {"gate-weight": 0.4, "gate-weight-1": 0.15, "gate-weight-2": 0.3, "gate-weight-3-5": 0.45,
                                "gate-weight-more": 0.65}
    seven().keep(tmp_path, ("ant", "bee", "käfer"), 9)
    told = json.loads((tmp_path / FILE).read_text(encoding="utf-8"))
    assert told["round"] == 9 and list(told["classes"]) == ["ant", "käfer"] and seven().count == 7
    assert told["classes"]["ant"] == {"mean": pytest.approx((0.1 + 0.2 + 0.7) / 3), "count": 3}
    assert told["classes"]["käfer"] == {"mean": pytest.approx(1.8 / 4), "count": 4}


def test_an_age_that_did_not_occur_is_not_sent_and_without_a_blend_nothing_is(tmp_path: Path) -> None:
    weights = GateWeights(3)
    weights.keep(tmp_path, ("ant", "bee", "cat"), 1)
    assert weights.shares() == {} and weights.count == 0 and not list(tmp_path.iterdir())
    weights.add(np.array([0.25]), np.array([4]), np.array([1]))
    assert weights.shares() == {"gate-weight": 0.25, "gate-weight-3-5": 0.25}


def test_the_contract_lets_ages_out_and_keeps_classes_in() -> None:
    assert set(GATE_AGES) <= CACHE_METRICS & BOUNDED and len(GATE_AGES) == 4 and "gate weights by class" in LOCAL
    assert [key for key, _, _ in WEIGHTS] == ["gate_weight", *(name.replace("-", "_") for name in GATE_AGES)]


# --- against a loop over samples


def test_a_clients_training_against_a_loop_over_its_blends(tmp_path: Path) -> None:
    """A hook on the gate sees every blend; confidences that no update moves say which sample it is of."""
    n, rng = 24, np.random.default_rng(0)
    split = Split(*digits_of(0, count=n), np.arange(n))
    notes = SampleNotes.of(split.ids)
    there = np.arange(n) % 6 != 0
    notes.version[there], notes.round[:] = 7, rng.choice([11, 10, 8, 7, 3], n)
    notes.confidence[:] = 0.1 + np.arange(n) / 100
    cached = Cached(notes, rng.normal(size=(n, 16)).astype(np.float16), np.zeros(10))
    gate = build_gate("log", 16, seed=1)
    assert gate is not None
    seen: list[tuple[int, int, float]] = []

    def note(_: object, given: tuple[Any, ...], answer: Gated) -> None:
        standing: Standing = given[2]
        rows = np.rint(100 * (standing.confidence.numpy() - 0.1)).astype(int)
        seen.extend(zip(rows.tolist(), standing.age.int().tolist(), answer.cached_weight.tolist(), strict=True))

    gate.register_forward_hook(note)
    config = Config(gate="log", confidence_memory=1.0, warm_up=0.0)
    trained = CachedFit(build_model("cnn", 10, (1, 8, 8), 2), split, SETTINGS, config, cached, Clock(), Round(12, 20, seed=0), 3, gate)
    trained.run()
    by_age, by_class = defaultdict(list), defaultdict(list)
    for row, age, weight in seen:
        name = "1" if age <= 1 else "2" if age == 2 else "3-5" if age <= 5 else "more"
        by_age[f"gate-weight-{name}"].append(weight)
        by_class[str(split.labels[row])].append(weight)
    told = trained.counts.shares()
    assert len(seen) == there.sum() + n and {age for _, age, _ in seen} == {0, 1, 2, 4, 5, 9}  # in the second epoch all are of this round
    assert {name: told[name] for name in GATE_AGES} == {name: round(float(np.mean(by_age[name])), 2) for name in GATE_AGES}
    assert told["gate-weight"] == round(float(np.mean([weight for _, _, weight in seen])), 2)
    trained.counts.weights.keep(tmp_path, DATA.classes, 12)
    kept = json.loads((tmp_path / FILE).read_text())["classes"]
    assert {name: row["count"] for name, row in kept.items()} == {name: len(weights) for name, weights in by_class.items()}
    for name, weights in by_class.items():
        assert kept[name]["mean"] == pytest.approx(np.mean(weights), rel=1e-6)


# --- what leaves and what stays


def inbound() -> dict[str, Any]:
    start = build_model("cnn", 10, (1, 8, 8), 4, seed=1)
    return {"encoder": start.tensors("encoder"), "initial-head": start.tensors("head"), "version": {"version": np.zeros(2)}}


def train(store: LocalStore, rounds: int = 2, **settings: Any) -> Reply:
    """The reply of the last of ``rounds`` of one client."""
    learner = FedCacheLearner(Trainer(build_model("cnn", 10, (1, 8, 8), 4), SETTINGS), Config(warm_up=0.0, **settings))
    reply = Reply()
    for number in range(1, rounds + 1):
        reply = learner.train(inbound(), DATA, store, Round(number, 9, seed=0, acked=number - 1))
    return reply


def gate_numbers(metrics: Mapping[str, float]) -> set[str]:
    return {name for name in metrics if "gate" in name}


def test_classes_stay_in_the_clients_own_folder(tmp_path: Path) -> None:
    with LocalStore(tmp_path, "run", "site") as store:
        reply = train(store, gate="fixed")
        told = json.loads((store.location / FILE).read_text())
    assert gate_numbers(reply.metrics) == {"gate-weight", "gate-weight-1"} and reply.metrics["gate-weight-1"] == 0.5
    assert reply.metrics.keys() <= Config(gate="fixed").wire.metrics and reply.slots.keys() == {"encoder"}
    assert told["round"] == 2 and {row["mean"] for row in told["classes"].values()} == {0.5}
    assert set(told["classes"]) == {DATA.classes[label] for label in np.unique(DATA.train.labels)}
    # nobody was sure enough to be skipped: what was not computed for want of an entry, or marked, is all that was not blended
    assert sum(row["count"] for row in told["classes"].values()) == round(reply.metrics["fuse"] * 2 * len(DATA.train))


def test_what_is_sent_is_the_same_whatever_the_labels() -> None:
    weights, ages = np.array([0.2, 0.4, 0.9]), np.array([1, 3, 7])
    told = []
    for labels in ([0, 0, 0], [0, 1, 2], [2, 2, 1]):
        found = GateWeights(3)
        found.add(weights, ages, np.array(labels))
        told.append(found.shares())
    assert told[0] == told[1] == told[2]


def test_without_a_gate_there_is_no_file_and_no_number_and_a_newcomer_has_none(tmp_path: Path) -> None:
    with LocalStore(tmp_path, "run", "plain") as store:
        assert gate_numbers(train(store).metrics) == set() and not (store.location / FILE).exists()
    with LocalStore(tmp_path, "run", "new") as store:
        learner = FedCacheLearner(Trainer(build_model("cnn", 10, (1, 8, 8), 4), SETTINGS), Config(gate="log"))
        reply = learner.join(inbound(), DATA, store, Round(1, 9, seed=0))
        assert gate_numbers(reply.metrics) == set() and not (store.location / FILE).exists()


def test_a_disk_that_refuses_costs_the_file_and_not_the_round(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    told = []
    for refuses in (False, True):
        with LocalStore(tmp_path, "run", f"site-{refuses}") as opened:
            if refuses:
                (opened.location / FILE).mkdir()
            with caplog.at_level(logging.WARNING):
                told.append(train(opened, gate="fixed"))
            assert opened.versions() == (1, 2) and not list(opened.location.glob(".tmp*"))
    assert gate_numbers(told[1].metrics) == gate_numbers(told[0].metrics) and told[1].metrics["gate-weight"] == 0.5
    assert "gate weights by class are not kept" in caplog.text and str(tmp_path) not in caplog.text


# --- the report


def test_the_report_draws_weights_by_age_over_rounds() -> None:
    records = [{"round": 1, "hit": {"a": 0.0}, "gate_weight": {}},
               {"round": 2, "hit": {"a": 0.1}, "gate_weight": {"a": 0.1, "b": 0.3}, "gate_weight_1": {"a": 0.1, "b": 0.3}},
               {"round": 3, "hit": {"a": 0.1}, "gate_weight": {"a": 0.4}, "gate_weight_1": {"a": 0.5}, "gate_weight_3_5": {"a": 0.25}}]
    drawn = weights_picture(records)
    assert drawn.drawing["x"] == [2, 3]
    assert {line["name"]: line["y"] for line in drawn.drawing["lines"]} == {
        "all ages": [0.2, 0.4], "1 or less": [0.2, 0.5], "3 to 5": [None, 0.25]}
    assert "all ages 0.40, 1 or less 0.50, 3 to 5 0.25" in drawn.alt
    assert "by age" in cache_figures(Findings({}, records, [], None))
    assert "by age" not in cache_figures(Findings({}, [{"round": 1, "hit": {"a": 0.5}}], [], None))
