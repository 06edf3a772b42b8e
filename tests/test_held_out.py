"""Held-out clients: drawn by seed, never trained with, served by each method's own cold-start rule, reported apart.

What holds for every method alike (nobody else's numbers change, odd data, faults, restarts) is in test_every_method.py.
"""

from __future__ import annotations

import csv
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from client_app.head_phase import encode, fit_head
from client_app.loop import LoopSettings, recompute_batchnorm
from models import build_model
from server_app.checkpoint import Checkpoints, dump, restore, state_types
from server_app.compare import compare
from server_app.compare_tables import render_text
from server_app.html import page
from server_app.roster import Roster
from server_app.summary import findings
from strategies import fedper, hdc_fl
from strategies.config import ConfigError, RunConfig
from strategies.hdc_fl import Config, HdcRule
from strategies.head_clusters import ClusterSettings, cluster
from strategies.head_descriptor import project
from strategies.held_out import asked_of, held_out_names
from strategies.seeds import derive_seed
from strategies.types import Round, Update
from tests.running import Ran, digits_of, run, slot_of
from tests.test_hdc_fl import TWO_PAIRS, DictShelf, mixture, rule_of, start
from tests.test_roster import Town, gathered, named

FOUR = tuple(f"client-00{i}" for i in range(4))
# the seed with which the last of four clients is held out
SEED = next(seed for seed in range(99) if held_out_names(FOUR, 1, seed) == ("client-003",))

# --- who is held out


@pytest.mark.parametrize(("clients", "share", "count"), [
    (10, 0.0, 0), (10, 0.01, 1), (10, 0.2, 2), (10, 0.24, 2), (10, 0.26, 3), (10, 0.94, 9), (2, 0.5, 1), (2, 0.1, 1), (500, 0.2, 100),
])
def test_a_share_is_so_many_whole_clients(clients: int, share: float, count: int) -> None:
    assert RunConfig(clients=clients, held_out=share).held_out_count == count


@pytest.mark.parametrize(("changed", "said"), [
    ({"held_out": 1.0}, "held-out must be at least 0 and below 1, got 1.0"),
    ({"held_out": -0.1}, "held-out must be at least 0"),
    ({"held_out": float("nan")}, "held-out must be at least 0"),
    ({"held_out": 0.99, "clients": 10}, "held-out must be a share that leaves at least one of clients = 10 in training, got 0.99"),
    ({"held_out": 0.1, "clients": 1}, "leaves at least one of clients = 1 in training"),
    ({"join_epochs": 0}, "join-epochs must be 1 or more, got 0"),
])
def test_what_leaves_nobody_in_training_is_refused(changed: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigError) as refused:
        RunConfig(**changed)
    assert said in str(refused.value)


@given(st.integers(2, 60), st.integers(0, 2**40), st.randoms())
def test_the_draw_depends_on_seed_and_names_alone(clients: int, seed: int, shuffled: Any) -> None:
    names = [f"site-{i}" for i in range(clients)]
    drawn = held_out_names(names, clients // 2, seed)
    shuffled.shuffle(names)
    assert held_out_names(names, clients // 2, seed) == drawn == tuple(sorted(set(drawn))) and len(drawn) == clients // 2


def test_other_seeds_hold_out_others() -> None:
    assert len({held_out_names(FOUR, 1, seed) for seed in range(40)}) == 4


def test_rounds_ask_participants_alone_and_who_comes_late_is_one() -> None:
    town = Town(range(10), named())
    made = gathered(town, 10, fraction=0.5)
    outside = made.hold_out(3)
    assert outside == made.held_out() == held_out_names([f"site-{i}" for i in range(10)], 3, 0)
    assert set(made.participants()) | set(outside) == set(made.names()) and len(made.participants()) == 7
    draws = [made.sample(n) for n in range(1, 30)]
    assert all(len(d) == 4 == asked_of(7, 0.5) for d in draws) and set().union(*draws) == set(made.participants())
    town.nodes.append(11)
    made.refresh(town, 5.0)
    assert "site-11" in made.participants() and made.held_out() == outside


def test_a_resumed_run_holds_the_same_ones_out_whoever_is_there() -> None:
    made = gathered(Town(range(6), named()), 6)
    assert made.hold_out(2, before=("site-9", "site-1")) == ("site-1", "site-9")
    assert made.participants() == ("site-0", "site-2", "site-3", "site-4", "site-5")


def test_one_stays_in_training_where_fewer_came_than_the_run_counts_on() -> None:
    made = gathered(Town(range(2), named()), 2)
    assert len(made.hold_out(5)) == 1 and len(made.participants()) == 1
    assert Roster(0, 1.0).held_out() == ()


# --- what each method serves them


def held(folder: Path, method: str, **changed: Any) -> Ran:
    """Three participants and client-003, held out."""
    return run(folder, method, held_out=0.25, seed=SEED, **changed)


def personal(ran: Ran, part: str) -> dict[str, np.ndarray]:
    return slot_of(ran.folder / "clients" / "test" / "client-003" / "personal.safetensors", part)


def shared(ran: Ran, kind: type) -> Any:
    found = Checkpoints(ran.folder / "checkpoints").latest(kind)
    assert found is not None
    return found[1]


def fitted_by_hand(encoder: Any, first: Any, bn: str) -> dict[str, np.ndarray]:
    """The head of client-003 after five epochs on the frozen encoder."""
    loop = LoopSettings(batch=8, lr=0.05, device="cpu", bn=bn)
    images, labels = digits_of(3)
    model = build_model("cnn", 10, (1, 8, 8), 4)
    model.load("encoder", encoder)
    model.load("head", first)
    if bn == "recompute":
        recompute_batchnorm(model.encoder, images[:24], loop)
    fit_head(model, encode(model, images[:24], loop), labels[:24], loop, derive_seed(SEED, "client-003", "join", "fit"), 5)
    return model.tensors("head")


@pytest.mark.parametrize("bn", ["recompute", "average"])
def test_fedper_fits_a_head_on_the_frozen_shared_encoder(bn: str, tmp_path: Path) -> None:
    ran = held(tmp_path, "fedper", bn=bn)
    state = shared(ran, fedper.State)
    head, encoder = personal(ran, "head"), personal(ran, "encoder")
    by_hand = fitted_by_hand(state.encoder, state.initial_head, bn)
    assert all(np.array_equal(head[name], by_hand[name]) for name in head)
    weights = [name for name in encoder if "running" not in name]
    assert all(np.array_equal(encoder[name], state.encoder[name]) for name in weights)
    statistics = [np.array_equal(encoder[name], state.encoder[name]) for name in encoder if "running" in name]
    assert statistics == [bn == "average"] * len(statistics) and statistics


def test_hdc_fl_serves_a_mixture_with_that_head(tmp_path: Path) -> None:
    """The mixture is the blend of the prototypes by the row in the summary; the head is fitted on the shared encoder."""
    ran = held(tmp_path, "hdc-fl", hdc_fl__num_clusters=2, bn="average")
    state = shared(ran, hdc_fl.State)
    row = ran.summary["held_out"]["mixtures"]["client-003"]
    head, encoder = personal(ran, "head"), personal(ran, "encoder")
    by_hand = fitted_by_hand(state.encoder, state.initial_head, "average")
    assert all(np.array_equal(head[name], by_hand[name]) for name in head)
    assert len(row) == 2 and sum(row) == pytest.approx(1)
    prototypes = [slot_of_shelf(ran, f"_prototype-{k}") for k in range(2)]
    for name, tensor in encoder.items():
        np.testing.assert_allclose(tensor, sum(a * p[name] for a, p in zip(row, prototypes, strict=True)), rtol=1e-5, atol=1e-6)
    assert any((encoder[name] != state.encoder[name]).any() for name in encoder)


def slot_of_shelf(ran: Ran, name: str) -> dict[str, np.ndarray]:
    from safetensors.numpy import load_file

    return load_file(ran.folder / "shelf" / name / "r2.safetensors")


def test_fedavg_serves_the_global_model_as_it_is(tmp_path: Path) -> None:
    from strategies import fedavg

    ran = held(tmp_path, "fedavg", bn="average")
    state = shared(ran, fedavg.State)
    for part, tensors in (("encoder", state.encoder), ("head", state.head)):
        found = personal(ran, part)
        assert found.keys() == tensors.keys() and all(np.array_equal(found[name], tensors[name]) for name in tensors)


def test_local_only_ends_where_it_would_have_ended_among_the_others(tmp_path: Path) -> None:
    """Reduction: held out or not, a client that trains alone gets the same model, bit for bit."""
    alone = held(tmp_path / "held", "local-only", rounds=3)
    among = run(tmp_path / "among", "local-only", seed=SEED, rounds=3)
    assert alone.served == among.served and alone.summary["held_out"]["clients"] == ["client-003"]
    for part in ("encoder", "head"):
        ours, theirs = personal(alone, part), personal(among, part)
        assert all(np.array_equal(ours[name], theirs[name]) for name in theirs)


# --- HDC-FL: a newcomer's place among the clusters

RULES = [{}, {"rank": "energy"}, {"rank": "parallel"}, {"shrink": True}, {"temperature": 0.0}, {"temperature": float("inf")},
         {"num_clusters": 3}, {"signal": "head"}]


def planted(seed: int, clients: int = 9, groups: int = 3, width: int = 40) -> np.ndarray:
    """Signals (N, P) in ``groups`` directions, with noise."""
    rng = np.random.default_rng(seed)
    centres = rng.normal(size=(groups, width))
    return centres[np.arange(clients) % groups] + 0.3 * rng.normal(size=(clients, width))


def refreshed(rule_settings: dict[str, Any], signals: np.ndarray) -> tuple[HdcRule, hdc_fl.State]:
    """The rule after its one round with clients whose signals are ``signals``; encoders of three numbers."""
    rule = HdcRule(Config(**{"projection_dim": signals.shape[1], **rule_settings}), RunConfig(clients=len(signals)), DictShelf())
    head = {"weight": np.zeros((4, signals.shape[1] // 4 - 1), np.float32), "bias": np.zeros(4, np.float32)}
    state = rule.init({"encoder": {"w": np.zeros(3, np.float32)}, "head": head})
    updates = [sent(rule, f"c{i:02d}", row, i) for i, row in enumerate(signals)]
    return rule, rule.merge(state, updates, Round(1, 1, seed=0))


def sent(rule: HdcRule, client: str, signal: np.ndarray, number: int = 0) -> Update:
    """What ``client`` sends: its encoder, and its signal in the form the settings ask for."""
    slots: dict[str, Any] = {"encoder": {"w": np.array([number, number**2, 1.0], np.float32)}}
    if rule.config.signal == "head":
        rows = signal.reshape(4, -1).astype(np.float32)
        slots["head"] = {"weight": rows[:, :-1], "bias": rows[:, -1]}
    else:
        slots["descriptor"] = {"descriptor": project(signal, rule.config.projection_dim, seed=1)}
    return Update(client, slots, float(number + 1))


JOINING = Round(1, 1, seed=0, joining=True)
CLOSING = Round(1, 1, seed=0, acked=1, closing=True)


@pytest.mark.parametrize("rule_settings", RULES, ids=str)
def test_a_newcomer_equal_to_a_client_gets_that_clients_mixture(rule_settings: dict[str, Any]) -> None:
    """All nine in turn: to 1e-9 in the weights, to rounding in the encoder it serves."""
    signals = planted(0)
    rule, state = refreshed(rule_settings, signals)
    assert state.groups is not None and state.groups.weights.shape[1] == 3
    joined = rule.newcomers(state, (sent(rule, f"new-{i}", row) for i, row in enumerate(signals)), JOINING)
    for i in range(len(signals)):
        np.testing.assert_allclose(joined.joined[f"new-{i}"], state.groups.weights[i], atol=1e-9)
        ours, theirs = (rule.downlink(joined, name, CLOSING)["mixture"]["w"] for name in (f"new-{i}", f"c{i:02d}"))
        np.testing.assert_allclose(ours, theirs, rtol=1e-6)


def test_a_newcomer_near_a_group_gets_nearly_that_groups_mixture() -> None:
    """Fresh noise around a centre: within .05 of the group's own rows, .5 and more from any other's."""
    signals = planted(1, clients=15)
    rule, state = refreshed({}, signals[:12])
    assert state.groups is not None
    joined = rule.newcomers(state, [sent(rule, f"new-{i}", signals[i]) for i in (12, 13, 14)], JOINING).joined
    for i, row in enumerate(joined.values()):
        gaps = np.abs(row - state.groups.weights).max(axis=1)
        assert gaps[i::3].max() < 0.05 and min(gaps[j::3].min() for j in range(3) if j != i) > 0.5


def test_a_newcomers_mixture_worked_by_hand() -> None:
    """Signals (1, 0), (1, 0), (-1, 0), (-1, 0): mean 0, one dimension, centroids +1 and -1, temperature .5.

    (3, 0) is normalised to +1: odds e^2 to e^-2, so 1 / (1 + e^-4). (0, 2) lies across the one dimension, (0, 0) at the mean:
    both see the two clusters alike.
    """
    rule, rnd = rule_of(temperature=0.5, num_clusters=2), Round(1, 1, seed=0)
    state = rule.merge(start(rule), TWO_PAIRS, rnd)
    news = {"right": (3, 0), "left": (-0.5, 0), "across": (0, 2), "mean": (0, 0)}
    updates = [Update(name, {"descriptor": {"descriptor": np.array(signal, np.float16)}}, 1.0) for name, signal in news.items()]
    joined = rule.newcomers(state, updates, replace(rnd, joining=True))
    near = 1 / (1 + np.exp(-4))
    expected = {"right": [near, 1 - near], "left": [1 - near, near], "across": [0.5, 0.5], "mean": [0.5, 0.5]}
    for name, row in expected.items():
        np.testing.assert_allclose(joined.joined[name], row, atol=1e-12)
    # prototypes (1, 0, 0) and (0, 6, 0)
    np.testing.assert_allclose(mixture(rule, joined, "right", rnd) or [], [near, 6 * (1 - near), 0], rtol=1e-6)
    assert mixture(rule, joined, "across", rnd) == [0.5, 3, 0]
    assert rule.diagnostics(joined)["newcomers"]["across"] == [0.5, 0.5]


@settings(deadline=None, max_examples=25)
@given(st.integers(0, 10**6), st.integers(1, 12), st.integers(1, 5))
def test_newcomers_move_nobody(seed: int, clients: int, news: int) -> None:
    """Any signals, from one client on: same groups, same shared encoder, same downlink for all others; simplex rows for the new."""
    rng = np.random.default_rng(seed)
    rule, state = refreshed({}, rng.normal(size=(clients, 8)))
    before = [{n: np.array(t) for n, t in rule.downlink(state, f"c{i:02d}", CLOSING)["mixture"].items()} for i in range(clients)]
    after = rule.newcomers(state, [sent(rule, f"new-{i}", rng.normal(size=8)) for i in range(news)], JOINING)
    assert after.groups is state.groups and after.encoder is state.encoder and after.cache is state.cache
    for i, tensors in enumerate(before):
        assert all(np.array_equal(t, tensors[n]) for n, t in rule.downlink(after, f"c{i:02d}", CLOSING)["mixture"].items())
    for row in after.joined.values():
        assert row.min() >= 0 and row.sum() == pytest.approx(1)


def test_the_random_control_deals_a_newcomer_somebodys_mixture() -> None:
    signals = planted(2)
    rule, state = refreshed({"grouping": "random"}, signals)
    assert state.groups is not None
    news = [f"new-{i}" for i in range(30)]
    joined = rule.newcomers(state, [sent(rule, name, signals[0]) for name in news], JOINING).joined
    dealt = [int(np.abs(state.groups.weights - joined[name]).max(axis=1).argmin()) for name in news]
    assert all(np.array_equal(joined[name], state.groups.weights[row]) for name, row in zip(news, dealt, strict=True))
    # though all thirty sent the same signal
    assert len(set(dealt)) > 4


def test_without_a_refresh_there_is_no_place_to_be_given() -> None:
    rule = rule_of()
    state = rule.newcomers(start(rule), [sent(rule, "new", np.ones(2))], JOINING)
    assert state.joined == {} and "mixture" not in rule.downlink(state, "new", CLOSING)


def test_a_stale_refresh_serves_a_newcomer_nothing_either() -> None:
    """As for all others: after a last round that was void the mixtures are older than the shared encoder."""
    rule, state = refreshed({}, planted(0))
    assert state.groups is not None
    state = replace(state, groups=replace(state.groups, round=0))
    state = rule.newcomers(state, [sent(rule, "new", planted(0)[0])], JOINING)
    assert len(state.joined) == 1 and "mixture" not in rule.downlink(state, "new", CLOSING)


def test_the_state_with_its_space_and_newcomers_survives_a_checkpoint() -> None:
    rule, state = refreshed({}, planted(0))
    state = rule.newcomers(state, [sent(rule, "new", planted(0)[1])], JOINING)
    arrays, tree = dump(state)
    again = restore(json.loads(json.dumps(tree)), arrays, state_types(hdc_fl.State))
    one, two = (rule.newcomers(s, [sent(rule, "later", planted(3)[0])], JOINING).joined for s in (state, again))
    assert one.keys() == two.keys() == {"new", "later"} and all(np.array_equal(one[name], two[name]) for name in one)


@pytest.mark.parametrize("blocks", [8_192, 7])
def test_the_space_is_that_of_a_plain_decomposition(blocks: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Against NumPy's singular value decomposition of the centred, normalised signals, up to the signs of directions."""
    monkeypatch.setattr("strategies.head_space._BLOCK", blocks)
    signals = planted(4, clients=10)
    found = cluster(signals, ClusterSettings(), seed=0)
    rows = signals - signals.mean(axis=0)
    rows /= np.linalg.norm(rows, axis=1, keepdims=True)
    right = np.linalg.svd(rows, full_matrices=False)[2][: found.rank].T
    assert np.abs(found.space.basis * np.sign((found.space.basis * right).sum(axis=0)) - right).max() < 1e-9
    np.testing.assert_allclose(found.space.mean, signals.mean(axis=0), atol=1e-12)
    np.testing.assert_allclose(found.space.place(signals), found.embedding, atol=1e-9)
    with pytest.raises(ValueError, match=r"expected signals \(M, 40\), got shape \(2, 39\)"):
        found.space.place(signals[:2, 1:])
    with pytest.raises(ValueError, match="finite"):
        found.space.place(np.full((1, 40), np.nan))


# --- how they are reported


def reported(**final: Any) -> Any:
    """Clients a (.5) and b (.9) trained, x (.1), y (.3) and z (no score) were held out."""
    records = [{"round": 1, "seconds": 1.0, "asked": ["a", "b"], "accepted": ["a", "b"], "dropped": {"deadline": 1}, "void": False,
                "bytes": {"up": {"encoder": 8}, "down": {}}, "adapted": {"a": 0.6, "b": 0.8}, "loss": {"a": 1.0, "b": 1.0}}]
    told = {"served": {"a": 0.5, "b": 0.9, "x": 0.1, "y": 0.3}, "served_raw": {"a": 0.4, "b": 0.4, "x": 0.0, "y": 0.2},
            "n_test": {"a": 10, "b": 10, "x": 30, "y": 10}, "bytes": {"up": {"metrics": 4}, "down": {}}, "held_out": ["x", "y", "z"],
            "joined": {"mixtures": {"x": [1.0]}, "record": {"n_train": {"x": 7, "y": 8, "z": 9}, "dropped": {"DataError": 1},
                                                            "bytes": {"up": {"m": 3}, "down": {"e": 5}}}}}
    config = {"method": "fedper", "dataset": "digits", "partition": "iid", "seed": 0, "held-out": 0.6}
    return findings(config, "inprocess", records, {**told, **final}, None)


def test_their_figures_stand_beside_the_others_and_in_none_of_them() -> None:
    found = reported()
    s = found.summary
    assert s["clients"] == 2
    assert [s["served"][k] for k in ("mean", "worst", "bottom20", "n")] == [pytest.approx(0.7), 0.5, 0.5, 2]
    assert s["served_raw"]["mean"] == pytest.approx(0.4) and s["adapted"]["mean"] == pytest.approx(0.7)
    out = s["held_out"]
    assert out["clients"] == ["x", "y", "z"] and out["served"] == {"x": 0.1, "y": 0.3} and out["unscored"] == ["z"]
    assert [out["tails"][k] for k in ("mean", "worst", "bottom20", "n")] == [pytest.approx(0.2), 0.1, 0.1, 2]
    assert out["tails"]["weighted_mean"] == pytest.approx(0.15) and out["tails_raw"]["mean"] == pytest.approx(0.1)
    assert out["mixtures"] == {"x": [1.0]}
    assert s["dropped"] == {"DataError": 1, "deadline": 1} and s["bytes"]["joining"] == {"up": 3, "down": 5}
    assert s["bytes"]["up"] == 8 and s["bytes"]["closing"] == {"up": 4, "down": 0}
    assert [(r.client, r.n_train, r.held_out) for r in found.rows] == [
        ("a", None, False), ("b", None, False), ("x", 7, True), ("y", 8, True), ("z", 9, True)]
    assert [r.served_raw for r in found.rows] == [0.4, 0.4, 0.0, 0.2, None]


def test_a_run_without_them_says_nothing_of_them() -> None:
    s = reported(held_out=(), joined={}, served={"a": 0.5, "b": 0.9}, served_raw={}, n_test={}).summary
    assert "held_out" not in s and "joining" not in s["bytes"] and s["dropped"] == {"deadline": 1}


def test_the_page_has_a_section_of_their_own() -> None:
    text = page(reported())
    lead, _, rest = text.partition("<h3>Held-out clients</h3>")
    section = rest.partition("</section>")[0]
    assert "Worst client <b>a</b>" in lead and "50.0" in lead and "2 clients" in lead
    assert all(shown in section for shown in ("3 clients took no part", "20.0", "10.0", ">x<", ">y<", ">z<", "1 of them have no score"))
    assert ">x<" not in lead and ">x<" not in rest.partition("</section>")[2]
    assert "Held-out" not in page(reported(held_out=(), joined={}, served={"a": 0.5}, served_raw={}, n_test={}))


def test_nobody_scored_among_them_is_no_error() -> None:
    found = reported(served={"a": 0.5, "b": 0.9}, served_raw={})
    assert found.summary["held_out"]["tails"] is None and found.summary["held_out"]["unscored"] == ["x", "y", "z"]
    assert "3 of them have no score" in page(found)


def test_files_and_comparison_of_whole_runs(tmp_path: Path) -> None:
    """run.json, summary.json and clients.csv name client-003; compare has columns of its own for it, and a dash without one."""
    one, other = held(tmp_path / "one", "fedper"), held(tmp_path / "other", "fedavg")
    for ran in (one, other):
        assert json.loads((ran.folder / "run.json").read_text())["held-out-clients"] == ["client-003"]
        with (ran.folder / "clients.csv").open(newline="") as file:
            assert {row["client"]: row["held_out"] for row in csv.DictReader(file)} == dict.fromkeys(FOUR[:3], "no") | {FOUR[3]: "yes"}
        assert ran.summary["served"]["n"] == 3 == ran.summary["clients"] and ran.summary["held_out"]["tails"]["n"] == 1
    found = compare([one.folder, other.folder])
    means = [ran.summary["held_out"]["tails"]["mean"] for ran in (one, other)]
    assert [row.held_out["mean"].value for row in found.tables["served"]] == means
    difference = found.tables["served"][1].differences.get("bottom20")
    assert difference is not None and found.tables["served"][1].clients == (3,)
    assert "held-out clients, mean" in render_text(found) and render_text(found).count("held-out clients") == 3
    plain = run(tmp_path / "plain", "fedper", seed=SEED)
    mixed = compare([one.folder, plain.folder], allow_different_splits=True)
    assert mixed.tables["served"][1].held_out == {} and "–" in render_text(mixed).splitlines()[5]
    assert "held-out clients" not in render_text(compare([plain.folder]))


def test_uniform_weighting_keeps_a_newcomers_counts_home(tmp_path: Path) -> None:
    ran = held(tmp_path, "fedper", weighting="uniform")
    assert ran.summary["dropped"] == {} and ran.summary["held_out"]["tails"]["n"] == 1
    assert ran.summary["bytes"]["joining"]["up"] == 8 + len("loss")
