"""FedCache: its reductions, what travels and when, lazy upload, exact reuse in whole runs, and that nothing lost comes back.

What holds for every method alike is in test_every_method.py; routes and steps are in test_cached_fit.py, features in test_reuse.py.
"""

from __future__ import annotations

import math
import shutil
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from client_app.cache_clock import Clock
from client_app.learner import Trainer
from client_app.learners.fed_cache import FedCacheLearner, current_encoder
from client_app.local.store import LocalStore, StateLost
from client_app.loop import LoopSettings
from models import build_model
from server_app.html import page
from server_app.summary import findings
from strategies.config import ConfigError, RunConfig
from strategies.fed_cache import Config, FedCacheRule, State, change_of, repeated
from strategies.movement import is_statistic, movement
from strategies.registry import parse_run_config
from strategies.types import Round, Slots, Tensors, Update
from tests.kills import Moment, finish, start
from tests.running import Ran, about, client_of, digits_of, failing, run, slot_of, tensor_bytes

# routes that are used in runs as small as these
HITS: dict[str, Any] = {"epochs": 2, "fed_cache__confidence_low": 0.12, "fed_cache__warm_up": 0.0}
COSTS = ("forwards", "forwards_avoided", "cache_bytes", "bytes")


def models(ran: Ran) -> dict[str, bytes]:
    """The shared tensors of the final state and every client's personal model, by name."""
    shared = {k: t[2] for k, t in ran.state["tensors"].items()}
    personal = {f"{path}/{part}/{name}": t.tobytes() for path in sorted(p for p in ran.stores if p.endswith("personal.safetensors"))
                for part in ("encoder", "head") for name, t in slot_of(ran.folder / "clients" / "test" / path, part).items()}
    return shared | personal


def personal(ran: Ran) -> dict[str, bytes]:
    return {name: tensor for name, tensor in models(ran).items() if "/" in name}


def scores(ran: Ran) -> list[dict[str, Any]]:
    return [{k: r.get(k) for k in ("served", "served_raw", "adapted", "adapted_raw", "loss", "accepted")} for r in ran.records]


# --- reductions


@pytest.mark.parametrize(("heads", "plain"), [("private", "fedper"), ("shared", "fedavg")])
@pytest.mark.parametrize("fraction", [1.0, 0.5])
def test_without_routes_it_is_the_method_without_cache_bit_for_bit(heads: str, plain: str, fraction: float, tmp_path: Path) -> None:
    ours = run(tmp_path / "ours", "fed-cache", rounds=3, fraction=fraction, fed_cache__heads=heads, fed_cache__routes="off")
    theirs = run(tmp_path / "theirs", plain, rounds=3, fraction=fraction)
    assert personal(ours) == personal(theirs) and len(personal(ours)) > 20
    assert scores(ours) == scores(theirs) and ours.served == theirs.served


def test_when_nobody_is_sure_the_routes_are_no_routes(tmp_path: Path) -> None:
    """All MISS or FUSE without a gate: FedPer again, with everything else switched on."""
    ours = run(tmp_path / "ours", "fed-cache", rounds=3, epochs=2, fed_cache__confidence_low=1.0)
    theirs = run(tmp_path / "theirs", "fedper", rounds=3, epochs=2)
    assert personal(ours) == personal(theirs) and scores(ours) == scores(theirs)
    assert [set(r["hit"].values()) for r in ours.records] == [{0.0}] * 3
    last = ours.records[-1]
    assert all(last["fuse"][client] > 0.7 and miss > 0.1 for client, miss in last["miss"].items())  # a partial refresh marked some


def test_hdc_fl_without_routes_is_hdc_fl(tmp_path: Path) -> None:
    """The cache under HDC-FL, mixtures weighed by their training loss: the same clusters, models and scores."""
    off = {"hdc_fl__serve": "better", "rounds": 3}
    plain = run(tmp_path / "plain", "hdc-fl", **off)
    cached = run(tmp_path / "cached", "hdc-fl", hdc_fl__feature_cache=True, fed_cache__routes="off", **off)
    assert personal(cached) == personal(plain) and scores(cached) == scores(plain)
    assert [r["diagnostics"] for r in cached.records] == [r["diagnostics"] for r in plain.records]
    assert sum(sum(r["forwards_avoided"].values()) for r in cached.records) > 0


def test_hdc_fl_takes_the_routes_of_fed_caches_settings(tmp_path: Path) -> None:
    ran = run(tmp_path, "hdc-fl", hdc_fl__feature_cache=True, rounds=4, **HITS)
    assert all(share > 0.1 for share in ran.records[-1]["hit"].values()) and all(r["dropped"] == {} for r in ran.records)
    assert {"notes", "clock", "came", "head"} <= {name.partition("/")[0] for name in ran.stores["client-000/v4.safetensors"]["tensors"]}
    with pytest.raises(ConfigError, match="fed-cache.routes must be one of"):
        parse_run_config({"method": "hdc-fl", "hdc-fl.feature-cache": True, "fed-cache.routes": "of"})


# --- approximate reuse in whole runs


@pytest.mark.parametrize("settings", [
    {}, {"gate": "log"}, {"gate": "sigmoid"}, {"hit": "drop"}, {"routes": "random"}, {"packing": "split"},
    {"class_policy": False, "versioned": False, "payload": "float32"}, {"heads": "shared", "stage": "stable"},
], ids=lambda settings: "-".join(map(str, settings.values())) or "defaults")
def test_routes_save_forwards_and_the_figures_add_up(settings: dict[str, Any], tmp_path: Path) -> None:
    own = {f"fed_cache__{key}": value for key, value in settings.items()}
    ran = run(tmp_path, "fed-cache", rounds=3, score_every=99, score_adapted="never", **HITS, **own)
    assert all(r["dropped"] == {} for r in ran.records)
    last = ran.records[-1]
    for client, hit in last["hit"].items():
        assert hit + last["fuse"][client] + last["miss"][client] == pytest.approx(1, abs=0.011)
        assert last["forwards"][client] + last["forwards_avoided"][client] == 2 * 24
        assert last["forwards_avoided"][client] / 48 == pytest.approx(hit, abs=0.0051) and 0.1 < hit <= 0.75
    assert ("gate_weight" in last) == (settings.get("gate", "none") != "none")
    assert min(last["forwards"].values()) >= 2 * 6  # a quarter trains the encoder


def test_a_lost_reply_takes_nothing_from_the_cache_and_leaves_nothing_in_it(tmp_path: Path) -> None:
    """With HIT samples in every round: as if those rounds had not been, features included."""
    lost = (("client-001", 1), ("client-002", 2), ("client-002", 3), ("client-000", 3))
    without = run(tmp_path / "without", "fed-cache", failing(*lost), rounds=5, **HITS)
    after = run(tmp_path / "after", "fed-cache", failing(*lost, after=True), rounds=5, **HITS)
    assert after.everything() == without.everything()
    assert all(share > 0.1 for share in after.records[-1]["hit"].values())


KILLED: dict[str, Any] = {"method": "fed-cache", "epochs": 2, "rounds": 4, "fed-cache.confidence-low": 0.12, "fed-cache.warm-up": 0.0,
                          "fed-cache.head-epochs": 1}


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Ran:
    return finish(tmp_path_factory.mktemp("whole") / "run", **KILLED)


@pytest.mark.parametrize("moment", [
    Moment("client_app.local.sample_notes:TwoPlaces.save", 15), Moment("client_app.local.sample_notes:TwoPlaces.save", 15, after=True),
    Moment("client_app.local.feature_cache:FeatureCache.put", 60), Moment("client_app.local.store:LocalStore.commit", 15, after=True),
    Moment("os:replace", 9, about="statistics"),
], ids=["before features", "features, no state", "within", "state, no reply", "statistics"])
def test_killed_in_mid_round_it_goes_on_as_if_it_had_not(moment: Moment, whole: Ran, tmp_path: Path) -> None:
    process, _ = start(tmp_path, moment, **KILLED)
    process.join()
    assert process.exitcode == -9
    again = finish(tmp_path, **KILLED)
    assert again.everything() == whole.everything()
    assert all(share > 0.1 for share in again.records[-1]["hit"].values())


# --- exact reuse in whole runs


@pytest.mark.parametrize("heads", ["private", "shared"])
def test_reuse_changes_costs_and_nothing_else(heads: str, tmp_path: Path) -> None:
    """Head phases, a frozen end and held-out clients, with and without reuse: all else is the same bits."""
    settings = {"rounds": 4, "held_out": 0.25, "fed_cache__heads": heads, "fed_cache__routes": "off", "fed_cache__head_epochs": 3,
                "fed_cache__freeze_after": 0.5}
    on, off = (run(tmp_path / str(reuse), "fed-cache", fed_cache__reuse=reuse, **settings) for reuse in (True, False))
    assert models(on) == models(off) and scores(on) == scores(off) and on.served == off.served
    assert on.summary["held_out"] == off.summary["held_out"]
    for ours, theirs in zip(on.records, off.records, strict=True):
        done = {client: n + ours["forwards_avoided"][client] for client, n in ours["forwards"].items()}
        assert done == theirs["forwards"] and set(theirs["forwards_avoided"].values()) == {0}
    # round 1 trains: scores 8 + 24 + 8, head phase 24 (+ 24 and 2 x 24 of three epochs avoided), joint training 24
    assert set(on.records[0]["forwards"].values()) == {88} and set(on.records[0]["forwards_avoided"].values()) == {72}
    # round 3 meets the standing encoder for the first time, round 4 computes nothing at all
    assert set(on.records[2]["forwards"].values()) == {64} and set(on.records[3]["forwards"].values()) == {0}


def test_a_frozen_encoder_neither_travels_nor_moves(tmp_path: Path) -> None:
    ran = run(tmp_path, "fed-cache", rounds=4, fed_cache__freeze_after=0.5)
    assert ["encoder" in r["bytes"]["up"] for r in ran.records] == [True, True, False, False]
    assert ["encoder" in r["bytes"]["down"] for r in ran.records] == [True, True, True, False]
    assert [r["diagnostics"]["cache"]["version"] for r in ran.records] == [1, 2, 2, 2]
    assert len({r["diagnostics"]["cache"]["drift"] for r in ran.records}) == 2
    kept = [{n: t for n, t in file["tensors"].items() if n.startswith("encoder/")} for path, file in ran.stores.items() if "/v" in path]
    assert len(kept) == 8 and all(encoder == kept[0] for encoder in kept)
    heads = [slot_of(ran.folder / "clients/test/client-000" / f"v{n}.safetensors", "head")["weight"] for n in (3, 4)]
    assert not np.array_equal(*heads)


def test_a_client_that_lost_the_frozen_encoder_gets_it_again(tmp_path: Path) -> None:
    def lose(record: Any) -> None:
        if record["round"] == 3:
            shutil.rmtree(tmp_path / "clients" / "test" / "client-002")

    ran = run(tmp_path, "fed-cache", on_round=lose, rounds=6, fed_cache__freeze_after=0.34)
    assert [r["dropped"] for r in ran.records] == [{}, {}, {}, {"StateLost": 1}, {}, {}]
    size = ran.records[0]["bytes"]["down"]["encoder"] / 4
    assert [round(r["bytes"]["down"].get("encoder", 0) / size) for r in ran.records] == [4, 4, 4, 0, 1, 0]
    assert all(ran.served.values())


# --- synchronisation


def test_half_the_synchronisation_is_half_the_bytes(tmp_path: Path) -> None:
    every, half = (run(tmp_path / str(k), "fed-cache", rounds=4, fed_cache__sync_every=k, fed_cache__routes="off") for k in (1, 2))
    for way in ("up", "down"):
        sent = [[r["bytes"][way].get("encoder", 0) for r in ran.records] for ran in (every, half)]
        assert sum(sent[1]) * 2 == sum(sent[0]) and [n > 0 for n in sent[1]] == ([False, True] * 2 if way == "up" else [True, False] * 2)
    assert [r["diagnostics"]["cache"]["version"] for r in half.records] == [0, 1, 1, 2]


def test_two_rounds_between_exchanges_are_one_client_training_on(tmp_path: Path) -> None:
    """A lone client that exchanges every second round trains exactly as one that exchanges every round."""
    off = {"clients": 1, "rounds": 4, "fed_cache__routes": "off"}
    every, half = (run(tmp_path / str(k), "fed-cache", fed_cache__sync_every=k, **off) for k in (1, 2))
    assert personal(every) == personal(half)


def test_between_exchanges_a_newcomer_of_the_round_gets_the_encoder(tmp_path: Path) -> None:
    """Half of the clients a round: whoever does not hold this version gets it, whoever does goes on alone."""
    sent: list[tuple[int, str, bool]] = []

    def note(message: Any, reply: Any) -> Any:
        kind, client, number = about(message)
        if kind == "train":
            sent.append((number, client, any(slot == "encoder" for slot, _ in tensor_bytes(message))))
        return reply()

    ran = run(tmp_path, "fed-cache", note, rounds=6, fraction=0.5, fed_cache__sync_every=2)
    assert all(r["dropped"] == {} for r in ran.records)
    last: dict[str, int] = {}
    for number, client, came in sent:
        assert came == (number % 2 == 1 or last.get(client) != number - 1), (number, client)
        last[client] = number


def test_an_own_encoder_ages_the_cache_by_its_own_steps(tmp_path: Path) -> None:
    ran = run(tmp_path, "fed-cache", rounds=2, clients=2, fed_cache__sync_every=2)
    clocks = {n: slot_of(ran.folder / f"clients/test/client-000/v{n}.safetensors", "clock") for n in (1, 2)}
    first, second = (slot_of(ran.folder / "clients/test/client-000/v1.safetensors", "encoder"), clocks[1]["reading"])
    start_encoder = build_model("cnn", 10, (1, 8, 8), 4, seed=0).tensors("encoder")
    assert float(second) == pytest.approx(movement(start_encoder, first)) and float(clocks[2]["reading"]) == float(second)


# --- the rule, by hand


def encoder(w: float, b: float = 0.0, mean: float = 0.0) -> dict[str, np.ndarray]:
    return {"w": np.array([w, b], np.float32), "norm.running_mean": np.array([mean], np.float32)}


@dataclass
class DictShelf:
    kept: dict[tuple[str, int], Tensors] = field(default_factory=dict)

    def put(self, client: str, round_number: int, tensors: Tensors) -> None:
        self.kept[client, round_number] = {name: tensor.copy() for name, tensor in tensors.items()}

    def get(self, client: str, round_number: int) -> Tensors:
        return self.kept[client, round_number]


def rule_of(**settings: Any) -> FedCacheRule:
    return FedCacheRule(Config(**settings), RunConfig(), DictShelf())


HEAD = {"weight": np.zeros((2, 2), np.float32), "bias": np.zeros(2, np.float32)}


def merged(rule: FedCacheRule, state: State, number: int, **sent: Tensors | None) -> State:
    updates = [Update(client, {} if tensors is None else {"encoder": tensors}, 1.0) for client, tensors in sent.items()]
    return rule.merge(state, iter(updates), Round(number, 9, seed=0))


def test_movement_counts_weights_and_not_statistics() -> None:
    """From (3, 4) by (0, 5) is one length."""
    assert movement(encoder(3, 4, mean=1), encoder(3, 9, mean=99)) == pytest.approx(1.0)
    assert movement(encoder(0, 0), encoder(0, 0)) == 0.0 and math.isfinite(movement(encoder(0, 0), encoder(1, 0)))
    assert is_statistic("stage1.norm.running_var") and not is_statistic("stage1.norm.weight")


def test_versions_and_paths_by_hand() -> None:
    rule = rule_of()
    state = rule.init({"encoder": encoder(3, 4), "head": HEAD})
    assert state.version == 0 and rule.downlink(state, "a", Round(1, 9, seed=0)).keys() == {"version", "encoder", "initial-head"}
    state = merged(rule, state, 1, a=encoder(3, 9), b=encoder(3, 9))
    assert state.clock["version"].tolist() == pytest.approx([1, 1]) and state.held == {"a": 0, "b": 0}
    state = merged(rule, state, 2, a=encoder(3, 9, mean=5))
    assert state.clock["version"].tolist() == pytest.approx([2, 1]) and state.moved == 0.0 and state.held == {"a": 1, "b": 0}
    assert rule.downlink(state, "a", Round(3, 9, seed=0, acked=2)).keys() == {"version", "encoder"}
    assert rule.diagnostics(state)["cache"] == {"version": 2, "drift": pytest.approx(1), "moved": 0.0, "encoder_bytes": 12}


def test_a_current_client_gets_nothing_but_the_version() -> None:
    rule = rule_of(sync_every=2)
    state = merged(rule, rule.init({"encoder": encoder(3, 4), "head": HEAD}), 1, a=None)
    assert state.version == 0 and state.encoder["w"].tolist() == [3, 4]
    known = Round(2, 9, seed=0, acked=1)
    assert rule.downlink(state, "a", known).keys() == {"version"}
    assert rule.downlink(state, "b", known).keys() == {"version", "encoder"}
    # it has lost its state: everything, as in round 1
    assert rule.downlink(state, "a", replace(known, acked=0)).keys() == {"version", "encoder", "initial-head"}
    # an older version is not this one
    state = merged(rule, state, 2, b=encoder(4, 4))
    assert rule.downlink(state, "a", replace(known, number=3)).keys() == {"version", "encoder"}


def test_a_client_that_is_wrongly_thought_current_says_so() -> None:
    clock, version = Clock(version=3), {"version": {"version": np.array([3, 0.5])}}
    kept = {"encoder": encoder(1)}
    assert current_encoder(version, kept, clock) == (kept["encoder"], clock)
    for lost, its in ((None, clock), ({"head": HEAD}, clock), (kept, Clock(version=2))):
        with pytest.raises(StateLost, match="starts again from the initial state"):
            current_encoder(version, lost, its)
    came, told = current_encoder(version | {"encoder": encoder(2)}, None, Clock())
    assert came["w"][0] == 2 and (told.version, told.path, told.reading) == (3, 0.5, 0.0)


# --- lazy upload


def test_a_silent_clients_last_change_counts_again_and_fades() -> None:
    """a moved by (+2, 0) in round 1 and is silent then: the average gets 0.9 and 0.81 of it; its statistics stay as sent."""
    rule = rule_of(lazy_upload=True)
    state = merged(rule, rule.init({"encoder": encoder(1, 1), "head": HEAD}), 1, a=encoder(3, 1, mean=4), b=encoder(1, 1, mean=0))
    assert state.encoder["w"].tolist() == [2, 1] and rule.shelved(state) == {"a": 1, "b": 1}
    state = merged(rule, state, 2, a=None, b=encoder(2, 1, mean=2))
    assert state.encoder["w"].tolist() == pytest.approx([(2 + 0.9 * 2 + 2) / 2, 1]) and state.encoder["norm.running_mean"].tolist() == [3]
    state = merged(rule, state, 3, a=None)
    assert state.encoder["w"][0] == pytest.approx(2.9 + 0.81 * 2) and state.encoder["norm.running_mean"].tolist() == [4]
    assert rule.shelved(state) == {"a": 1, "b": 2} and state.version == 3
    assert rule.diagnostics(state)["cache"]["silent"] == {"a": 2, "b": 0}
    # one that was never heard adds nothing
    assert merged(rule, state, 4, c=None).version == 3


@given(st.floats(-1e3, 1e3, width=32), st.floats(-1e3, 1e3, width=32), st.floats(0, 1))
def test_a_change_repeated_at_once_is_the_update(before: float, after: float, decay: float) -> None:
    change = change_of(encoder(after, mean=7), encoder(before, mean=3))
    assert repeated(encoder(before, mean=9), change, 1.0)["w"][0] == pytest.approx(after, abs=1e-3, rel=1e-5)
    assert repeated(encoder(before), change, decay)["norm.running_mean"][0] == 7
    assert repeated(encoder(before), change, 0.0)["w"][0] == np.float32(before)


def test_who_keeps_an_update_is_judged_by_its_own_past() -> None:
    """A client with large updates and one with updates of a thousandth keep the same ones: every threshold is its own."""
    kept = []
    for scale in (1.0, 1e-3):
        clock, told = Clock(), []
        for norm in (5.0, 4.0, 6.0, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0):
            told.append(clock.keeps_update(scale * norm, 1.0, 5))
            clock = clock.updated(scale * norm, told[-1])
        kept.append(told)
    # medians of the last five: -, 5, 4.5, 5, 4.5, 4 (silent twice), 1: as large as usual again
    assert kept[0] == kept[1] == [False, True, False, True, True, True, False, False, False, False]


@given(st.lists(st.floats(1e-6, 10), min_size=1, max_size=60), st.integers(1, 5))
def test_nobody_is_silent_longer_than_allowed(norms: list[float], most: int) -> None:
    clock, row, longest = Clock(), 0, 0
    for norm in norms:
        keeps = clock.keeps_update(norm, 1e9, most)  # everything is small
        clock = clock.updated(norm, keeps)
        row = row + 1 if keeps else 0
        longest = max(longest, row)
    assert longest <= most and (len(norms) <= most or longest == most)


def test_lazy_upload_in_a_run_is_bounded_fair_and_resumable(tmp_path: Path) -> None:
    settings = {"rounds": 9, "score_every": 99, "fed_cache__lazy_upload": True, "fed_cache__lazy_rounds": 2, "fed_cache__lazy_share": 1.2}
    ran = run(tmp_path / "lazy", "fed-cache", **settings)
    size = ran.records[0]["bytes"]["up"]["encoder"] / 4
    sent = [round(r["bytes"]["up"].get("encoder", 0) / size) for r in ran.records]
    silent = ran.records[-1]["diagnostics"]["cache"]["silent"]
    assert sent[0] == 4 and sum(sent) < 0.75 * 36 and sum(silent.values()) == 36 - sum(sent)
    # at most two rounds in a row of eight, and nobody twice as often as the median client
    assert max(silent.values()) <= 6 and max(silent.values()) <= 2 * np.median(list(silent.values()))
    assert all(r["dropped"] == {} and r["diagnostics"]["cache"]["version"] == r["round"] for r in ran.records)

    class Stop(Exception):
        pass

    def stop(record: Any) -> None:
        if record["round"] == 5:
            raise Stop

    with pytest.raises(Stop):
        run(tmp_path / "stopped", "fed-cache", on_round=stop, **settings)
    assert run(tmp_path / "stopped", "fed-cache", resume=True, **settings).everything() == ran.everything()


# --- contract and settings


def test_what_tells_how_many_samples_there_are_stays_with_uniform_weighting(tmp_path: Path) -> None:
    ran = run(tmp_path, "fed-cache", weighting="uniform", rounds=1)
    assert ran.records[0]["dropped"] == {} and "hit" in ran.records[0] and not set(COSTS[:3]) & ran.records[0].keys()
    wire = parse_run_config({"method": "fed-cache", "weighting": "uniform"}).wire
    assert not {"forwards", "forwards-avoided", "cache-bytes", "num-examples"} & wire.metrics and {"hit", "gate-weight"} <= wire.metrics


def test_the_contract_is_as_tight_as_the_settings() -> None:
    def optional(**settings: Any) -> tuple[bool, bool]:
        wire = Config(**settings).wire
        return wire.slots("down")["encoder"].optional, wire.slots("up")["encoder"].optional

    assert optional() == (False, False) and optional(lazy_upload=True) == (False, True)
    assert optional(sync_every=2) == optional(freeze_after=0.9) == (True, True)
    assert Config().wire.local == ("head", "features", "gate", "gate weights by class", "confidences", "use counts", "data",
                                   "optimiser state")
    assert "head" in Config(heads="shared").wire.slots("up") and "head" not in Config(heads="shared").wire.local


def test_the_schedule_of_a_run() -> None:
    config = Config(freeze_after=0.75, sync_every=2, warm_up=0.2)
    assert [config.uploads(n, 10) for n in range(1, 11)] == [False, True, False, True, False, True, True, False, False, False]
    assert [config.frozen(n, 10) for n in (7, 8)] == [False, True] and [config.warming(n, 10) for n in (2, 3)] == [True, False]
    assert Config(freeze_after=0.01).last_trained(10) == 1 and Config().last_trained(10) == 10
    assert Config(warm_up=0.0).warming(1, 10) is False and Config().warming(1, 2) is True


@pytest.mark.parametrize(("wrong", "said"), [
    ({"routes": "offf"}, "fed-cache.routes must be one of off, confidence, random; got 'offf'; did you mean 'off'?"),
    ({"confidence_low": -0.5}, "fed-cache.confidence-low must be in 0..1, or -1 for the stage's, got -0.5"),
    ({"max_uses": 0}, "fed-cache.max-uses must be 1 or more, or -1"), ({"least_fresh": 0.0}, "must train on something, got 0.0"),
    ({"drift_low": 7.0}, "fed-cache.drift-low must be at most drift-high, 6, got 7.0"), ({"freeze_after": 0.0}, "fed-cache.freeze-after"),
    ({"warm_up": float("nan")}, "fed-cache.warm-up must be in 0..1"), ({"max_megabytes": float("inf")}, "fed-cache.max-megabytes"),
    ({"sync_every": 2, "lazy_upload": True}, "together no update could be measured"), ({"head_epochs": -1}, "fed-cache.head-epochs"),
])
def test_settings_that_cannot_be_run_are_refused(wrong: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigError) as refused:
        Config(**wrong)
    assert said in str(refused.value)


def test_the_stage_gives_what_is_not_said() -> None:
    assert Config(max_uses=3).thresholds == replace(Config().thresholds, uses=3)
    assert Config(drift="fixed", drift_high=0.5).drift_limits(()) == (0.02, 0.5)
    assert Config(stage="stable").drift_limits((0.01,)) == pytest.approx((0.03, 0.12))
    assert Config(confidence_low=0.0).thresholds.confidence == 0.0


# --- the report


def test_the_report_says_what_was_saved(tmp_path: Path) -> None:
    """Figures of the summary against the round records, and as the page tells them."""
    ran = run(tmp_path, "fed-cache", rounds=4, fed_cache__gate="log", fed_cache__sync_every=2, held_out=0.25, **HITS)
    cache, records = ran.summary["cache"], ran.records
    hits = [np.mean(list(r["hit"].values())) for r in records]
    assert cache["avoided_training"] == pytest.approx(np.mean(hits)) and cache["avoided_last_quarter"] == pytest.approx(hits[-1])
    assert cache["hit_share"] + cache["fuse_share"] + cache["miss_share"] == pytest.approx(1, abs=0.01)
    in_rounds = sum(sum(r["forwards"].values()) for r in records)
    assert cache["forwards"] > in_rounds and cache["forwards_avoided"] >= sum(sum(r["forwards_avoided"].values()) for r in records)
    for way, moved in cache["encoder_bytes"].items():
        assert moved["sent"] == sum(r["bytes"][way].get("encoder", 0) for r in records)
        assert moved["sent"] / moved["every"] == pytest.approx(0.5, abs=0.01)
    assert cache["version"] == 2 and cache["disk_bytes"]["total"] >= 4 * cache["disk_bytes"]["largest"] * 0.5
    found = findings(dict(ran.summary["run_config"]), "inprocess", records, {"served": {}}, None)
    told = page(found)
    for words in ("Feature cache", "Routes", "Drift", f"{100 * np.mean(hits):.1f}", "mean weight of a cached feature", "every round"):
        assert words in told, words
    plain = findings({"method": "fedper"}, "inprocess", [{"round": 1, "seconds": 1.0, "loss": {"a": 1.0}}], {"served": {}}, None)
    assert "cache" not in plain.summary and "Feature cache" not in page(plain)


# --- one client


def test_a_full_disk_costs_the_cache_and_not_the_round(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """``max-megabytes`` too small for one sample: the same model as if nobody had ever been cached."""
    settings = LoopSettings(epochs=2, batch=8, lr=0.05, device="cpu")
    told: list[Slots] = []
    for megabytes in (0.0, 1e-6):
        learner = FedCacheLearner(Trainer(build_model("cnn", 10, (1, 8, 8), 4), settings), Config(max_megabytes=megabytes))
        start_model = build_model("cnn", 10, (1, 8, 8), 4, seed=1)
        inbound = {"encoder": start_model.tensors("encoder"), "initial-head": start_model.tensors("head"),
                   "version": {"version": np.zeros(2)}}
        with LocalStore(tmp_path / str(megabytes), "run", "site") as store:
            reply = learner.train(inbound, client_of(*digits_of(0)), store, Round(1, 9, seed=0, score_served=True))
            kept = store.load(1)
        assert kept is not None and (kept["notes"]["version"] == -1).all() == (megabytes > 0)
        told.append({"encoder": {name: t.copy() for name, t in reply.slots["encoder"].items()}})
    assert all(np.array_equal(told[0]["encoder"][name], t) for name, t in told[1]["encoder"].items())
    assert "keeps no features" in caplog.text and str(tmp_path) not in caplog.text
