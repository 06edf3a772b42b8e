"""HDC-FL: the shared trajectory is FedPer's, the mixture is what its settings say, heads are nobody else's business.

Whole runs for what no unit can show (bit-identity with FedPer); the rule alone, with encoders of three numbers and a
shelf that is a dict, for everything that can be worked out by hand.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from client_app.learner import Trainer
from client_app.learners.hdc_fl import HdcLearner
from client_app.local.store import LocalStore
from client_app.loop import LoopSettings
from client_app.personal import load_personal
from models import build_model
from server_app.checkpoint import Checkpoints
from strategies import fedper, hdc_fl
from strategies.config import ConfigError, RunConfig
from strategies.hdc_fl import Config, HdcRule
from strategies.head_clusters import adjusted_rand
from strategies.head_descriptor import flat_signal, project
from strategies.types import Round, Slots, Tensors, Update
from tests.running import Ran, client_of, digits_of, run, slot_of

# --- whole runs beside FedPer

ONE = {"hdc_fl__num_clusters": 1, "hdc_fl__staleness": 1.0}


@dataclass(frozen=True)
class Watching:
    """Keeps the encoder of every round's checkpoint."""

    folder: Path
    encoders: list[dict[str, bytes]] = field(default_factory=list)

    def __call__(self, record: Any) -> None:
        found = Checkpoints(self.folder / "checkpoints").latest(hdc_fl.State if record["diagnostics"] else fedper.State)
        assert found is not None
        self.encoders.append({name: t.tobytes() for name, t in found[1].encoder.items()})


def watched(folder: Path, method: str, **settings: Any) -> tuple[Ran, list[dict[str, bytes]]]:
    watching = Watching(folder)
    return run(folder, method, on_round=watching, rounds=3, **settings), watching.encoders


@pytest.fixture(scope="module")
def beside(tmp_path_factory: pytest.TempPathFactory) -> dict[str, tuple[Ran, list[dict[str, bytes]]]]:
    """FedPer, HDC-FL (which refreshes after every round of three) and HDC-FL with one cluster, of one seed."""
    folder = tmp_path_factory.mktemp("beside")
    return {"fedper": watched(folder / "fedper", "fedper"), "hdc": watched(folder / "hdc", "hdc-fl", hdc_fl__num_clusters=2),
            "one": watched(folder / "one", "hdc-fl", **ONE)}


def test_shared_encoder_is_fedpers_in_every_round(beside: dict[str, Any]) -> None:
    """D2: the mixture never enters training."""
    encoders = beside["fedper"][1]
    assert len(encoders) == 3 and encoders[0] != encoders[1]
    assert beside["hdc"][1] == beside["one"][1] == encoders
    assert [r["diagnostics"]["clusters"]["k"] for r in beside["hdc"][0].records] == [2, 2, 2]


def test_every_head_evolves_by_its_own_training_alone(beside: dict[str, Any]) -> None:
    """With HDC-FL and with FedPer the heads of a client are the same bits, and no two clients' are."""
    heads = {}
    for name in ("fedper", "hdc"):
        files = beside[name][0].folder.glob("clients/test/*/v*.safetensors")
        heads[name] = {f"{p.parent.name}/{p.name}": slot_of(p, "head")["weight"].tobytes() for p in files}
    assert len(heads["fedper"]) == 8 and heads["hdc"] == heads["fedper"]
    assert len(set(heads["hdc"].values())) == 8


def test_a_client_serves_its_mixture_with_its_own_head(beside: dict[str, Any]) -> None:
    hdc, alone = beside["hdc"][0], beside["fedper"][0]
    for client in hdc.served:
        mine, theirs = (ran.folder / "clients" / "test" / client for ran in (hdc, alone))
        assert same(slot_of(mine / "personal.safetensors", "head"), slot_of(mine / "v3.safetensors", "head"))
        assert not same(slot_of(mine / "personal.safetensors", "encoder"), slot_of(theirs / "personal.safetensors", "encoder"))


def test_one_cluster_serves_what_fedper_serves(beside: dict[str, Any]) -> None:
    one, alone = beside["one"][0], beside["fedper"][0]
    assert one.served == alone.served and one.summary["served_raw"] == alone.summary["served_raw"]
    for client in one.served:
        ours, theirs = (slot_of(ran.folder / "clients" / "test" / client / "personal.safetensors", "encoder") for ran in (one, alone))
        for name in ours:
            np.testing.assert_allclose(ours[name], theirs[name], rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("bn", ["average", "moments"])
def test_one_cluster_serves_fedpers_statistics_under_every_rule(bn: str, tmp_path: Path) -> None:
    """Variances too: prototypes and mixtures are made by the run's own BatchNorm rule."""
    one, alone = run(tmp_path / "one", "hdc-fl", bn=bn, rounds=1, **ONE), run(tmp_path / "alone", "fedper", bn=bn, rounds=1)
    ours, theirs = (slot_of(ran.folder / "clients/test/client-000/personal.safetensors", "encoder") for ran in (one, alone))
    for name in ours:
        np.testing.assert_allclose(ours[name], theirs[name], rtol=1e-5, atol=1e-6)


def test_infinite_temperature_runs_to_the_end(tmp_path: Path) -> None:
    """Infinity is a setting like any other, also where settings are written down."""
    ran = run(tmp_path, "hdc-fl", hdc_fl__temperature=math.inf, hdc_fl__num_clusters=2)
    weights = ran.records[-1]["diagnostics"]["clusters"]["weights"]
    assert weights == {f"client-00{i}": [0.5, 0.5] for i in range(4)}
    # the personal models say it of themselves
    assert ran.summary["served"]["n"] == 4 and ran.summary["dropped"] == {}
    assert load_personal(tmp_path / "clients/test/client-000").facts.settings["hdc-fl.temperature"] == math.inf


def test_the_shelf_keeps_what_a_checkpoint_needs_and_nothing_else(tmp_path: Path) -> None:
    """Half of the clients a round: encoders of the last two checkpoints stay, older ones go."""
    ran = run(tmp_path, "hdc-fl", rounds=4, fraction=0.5, hdc_fl__refresh_first=4, hdc_fl__num_clusters=2)
    last: dict[str, int] = {}
    needed = set()
    for record in ran.records:
        last |= dict.fromkeys(record["accepted"], record["round"])
        if record["round"] >= 3:
            needed |= set(last.items())
    needed |= {(f"_prototype-{k}", 4) for k in range(ran.summary["clusters"]["k"])}
    assert {(p.parent.name, int(p.stem[1:])) for p in (tmp_path / "shelf").glob("*/*")} == needed


# --- the rule alone

FIRST_HEAD = {"weight": np.zeros((2, 1), np.float32), "bias": np.zeros(2, np.float32)}
RUN = RunConfig(clients=4)


@dataclass
class DictShelf:
    """Encoders in a dict, as ``strategies.types.Shelf``."""

    kept: dict[tuple[str, int], dict[str, np.ndarray]] = field(default_factory=dict)

    def put(self, client: str, round_number: int, tensors: Tensors) -> None:
        self.kept[client, round_number] = {name: np.array(t) for name, t in tensors.items()}

    def get(self, client: str, round_number: int) -> Tensors:
        return self.kept[client, round_number]


def encoder(*numbers: float) -> dict[str, np.ndarray]:
    return {"w": np.array(numbers, np.float32)}


def update(client: str, numbers: tuple[float, float, float], signal: tuple[float, ...] = (1.0, 0.0), weight: float = 1.0) -> Update:
    return Update(client, {"encoder": encoder(*numbers), "descriptor": {"descriptor": np.array(signal, np.float16)}}, weight)


def rule_of(**settings: Any) -> HdcRule:
    return HdcRule(Config(projection_dim=2, **settings), RUN, DictShelf())


def start(rule: HdcRule) -> hdc_fl.State:
    return rule.init({"encoder": encoder(0, 0, 0), "head": FIRST_HEAD})


def mixture(rule: HdcRule, state: hdc_fl.State, client: str, rnd: Round) -> list[float] | None:
    """What ``client`` gets to serve after ``rnd``, as numbers."""
    slots = rule.downlink(state, client, replace(rnd, closing=rnd.number == rnd.total, number=min(rnd.number + 1, rnd.total), acked=1))
    return slots["mixture"]["w"].tolist() if "mixture" in slots else None


TWO_PAIRS = [update("a", (0, 0, 0), (1, 0)), update("b", (2, 0, 0), (1, 0)),
             update("c", (0, 4, 0), (-1, 0)), update("d", (0, 8, 0), (-1, 0))]


def test_a_hard_mixture_is_the_mean_of_ones_own_cluster() -> None:
    """Pairs (a, b) and (c, d) at opposite ends: prototypes (1,0,0) and (0,6,0), the shared encoder (0.5,3,0)."""
    rule, rnd = rule_of(temperature=0.0, num_clusters=2), Round(1, 1, seed=0)
    state = rule.merge(start(rule), TWO_PAIRS, rnd)
    assert state.encoder["w"].tolist() == [0.5, 3, 0]
    assert [mixture(rule, state, c, rnd) for c in "abcd"] == [[1, 0, 0], [1, 0, 0], [0, 6, 0], [0, 6, 0]]
    assert rule.diagnostics(state)["clusters"]["assignment"] == {"a": 0, "b": 0, "c": 1, "d": 1}


def test_the_softmax_of_the_mixture_worked_by_hand() -> None:
    """Cosines 1 and -1 at temperature 1: shares e/(e + 1/e) and its rest."""
    rule, rnd = rule_of(temperature=1.0, num_clusters=2), Round(1, 1, seed=0)
    state = rule.merge(start(rule), TWO_PAIRS, rnd)
    near = math.e / (math.e + 1 / math.e)
    np.testing.assert_allclose(mixture(rule, state, "a", rnd), [near * 1, (1 - near) * 6, 0], rtol=1e-6)
    np.testing.assert_allclose(mixture(rule, state, "d", rnd), [(1 - near) * 1, near * 6, 0], rtol=1e-6)


def test_infinite_temperature_serves_the_plain_mean_of_prototypes() -> None:
    """Not of clients: a cluster of three counts as much as a cluster of one."""
    three_and_one = [*TWO_PAIRS[:2], update("c", (4, 0, 0), (1, 0)), TWO_PAIRS[3]]
    rule, rnd = rule_of(temperature=math.inf, num_clusters=2), Round(1, 1, seed=0)
    state = rule.merge(start(rule), three_and_one, rnd)
    # prototypes (2,0,0) and (0,8,0)
    assert [mixture(rule, state, c, rnd) for c in "abcd"] == [[1, 4, 0]] * 4


def test_cached_encoders_age() -> None:
    """gamma 0.5, one cluster: a (n 2, fresh) weighs 2, b (n 4, a round old) 4/2 = 2, c (n 8, two old) 8/4 = 2."""
    rule = rule_of(staleness=0.5, num_clusters=1, refresh_first=3)
    state = rule.merge(start(rule), [update("b", (9, 9, 9), weight=1), update("c", (0, 0, 9), weight=8)], Round(1, 3, seed=0))
    assert state.groups is None and state.encoder["w"].tolist() == [1, 1, 9]
    state = rule.merge(state, [update("b", (1, 2, 0), weight=4)], Round(2, 3, seed=0))
    state = rule.merge(state, [update("a", (5, 1, 0), weight=2)], Round(3, 3, seed=0))
    assert state.encoder["w"].tolist() == [5, 1, 0]
    assert [mixture(rule, state, c, Round(3, 3, seed=0)) for c in "abc"] == [[2, 1, 3]] * 3
    assert rule.shelved(state) == {"c": 1, "b": 2, "a": 3, "_prototype-0": 3}


def test_a_client_that_never_replied_gets_no_mixture() -> None:
    rule, rnd = rule_of(num_clusters=1), Round(1, 2, seed=0)
    state = rule.merge(start(rule), TWO_PAIRS[:2], rnd)
    assert mixture(rule, state, "a", rnd) is not None and mixture(rule, state, "z", rnd) is None


def test_only_a_fresh_mixture_is_sent() -> None:
    """Refresh after rounds 1 and 3 of 3: a message of round 2 carries it, one of round 3 does not, the closing one does."""
    rule = rule_of(num_clusters=1, refresh_first=1, refresh_every=2)
    state = rule.merge(start(rule), TWO_PAIRS, Round(1, 3, seed=0))
    assert "mixture" in rule.downlink(state, "a", Round(2, 3, seed=0, acked=1))
    state = rule.merge(state, TWO_PAIRS, Round(2, 3, seed=0))
    assert "mixture" not in rule.downlink(state, "a", Round(3, 3, seed=0, acked=2))
    state = rule.merge(state, TWO_PAIRS, Round(3, 3, seed=0))
    assert "mixture" in rule.downlink(state, "a", Round(3, 3, seed=0, acked=3, closing=True))


def test_full_shrinkage_serves_the_weighted_mean_of_all_cached_encoders() -> None:
    """Signals without any structure: silhouette <= 0, so the mixture is drawn all the way to the aged mean of all."""
    rule = rule_of(shrink=True, num_clusters=2, staleness=0.5, refresh_first=2)
    state = rule.merge(start(rule), [update("d", (0, 0, 8), (0, 0), weight=2)], Round(1, 2, seed=0))
    corners = [update(c, n, s) for c, n, s in zip("abc", [(4, 0, 0), (0, 4, 0), (0, 0, 0)], [(1, 0), (-1, 0), (0, 1)], strict=True)]
    state = rule.merge(state, [*corners], Round(2, 2, seed=0))
    assert state.groups is not None
    by = 1.0 - min(1.0, max(0.0, state.groups.silhouette))
    assert 0 < by <= 1
    # weights 1, 1, 1 and 2 * 0.5 = 1: mean of all is (1, 1, 2)
    soft = rule_of(num_clusters=2, staleness=0.5, refresh_first=2)
    plain = soft.merge(start(soft), [update("d", (0, 0, 8), (0, 0), weight=2)], Round(1, 2, seed=0))
    plain = soft.merge(plain, [*corners], Round(2, 2, seed=0))
    for client in "abcd":
        unshrunk = np.array(mixture(soft, plain, client, Round(2, 2, seed=0)))
        expected = (1 - by) * unshrunk + by * np.array([1, 1, 2])
        np.testing.assert_allclose(mixture(rule, state, client, Round(2, 2, seed=0)), expected, rtol=1e-6)


def planted_heads(groups: int = 3, each: int = 4) -> dict[str, dict[str, np.ndarray]]:
    """Heads (5, 6) that moved in one direction a group, with little noise."""
    rng = np.random.default_rng(0)
    moves = rng.normal(size=(groups, 5, 7))
    heads = {}
    for index in range(groups * each):
        moved = (moves[index % groups] + 0.1 * rng.normal(size=(5, 7))).astype(np.float32)
        heads[f"client-{index:03d}"] = {"weight": moved[:, :6], "bias": moved[:, 6]}
    return heads


def grouped(**settings: Any) -> hdc_fl.Groups:
    """One refresh on the planted heads, whatever of them the settings let the clients send."""
    first = {"weight": np.zeros((5, 6), np.float32), "bias": np.zeros(5, np.float32)}
    rule = HdcRule(Config(projection_dim=256, **settings), RUN, DictShelf())
    updates = []
    for client, head in planted_heads().items():
        sketch = {"descriptor": {"descriptor": project(flat_signal(head, first), 256, seed=1)}}
        signal: Slots = {"head": head} if rule.config.signal == "head" else sketch
        updates.append(Update(client, {"encoder": encoder(1, 2, 3), **signal}, 1.0))
    state = rule.merge(rule.init({"encoder": encoder(0, 0, 0), "head": first}), updates, Round(1, 1, seed=0))
    assert state.groups is not None
    return state.groups


def test_both_signals_find_the_planted_groups() -> None:
    """D1: the sketch says as much as the head where there is something to say."""
    truth = np.arange(12) % 3
    for signal in ("head", "descriptor"):
        groups = grouped(signal=signal)
        assert adjusted_rand(groups.assignment, truth) == 1.0 and groups.weights.shape == (12, 3), signal


def test_random_grouping_keeps_sizes_and_weights_and_loses_the_groups() -> None:
    heads, dealt = grouped(), grouped(grouping="random")
    assert sorted(np.bincount(dealt.assignment)) == sorted(np.bincount(heads.assignment)) == [4, 4, 4]
    rows = [sorted(map(tuple, g.weights.tolist())) for g in (heads, dealt)]
    assert rows[0] == rows[1]
    assert (dealt.weights.argmax(axis=1) == dealt.assignment).all()
    assert adjusted_rand(dealt.assignment, np.arange(12) % 3) < 0.5


@pytest.mark.parametrize(("rounds", "settings", "expected"), [
    (15, {}, {7, 12, 15}),
    (100, {}, {20, 53, 86, 100}),
    (1, {}, {1}),
    (10, {"refresh_first": 2, "refresh_every": 4}, {2, 6, 10}),
    (5, {"refresh_first": 9}, {5}),
])
def test_refresh_rounds(rounds: int, settings: dict[str, int], expected: set[int]) -> None:
    """First at min(20, rounds/2), then every rounds/3; the last round always."""
    config = Config(**settings)
    assert {n for n in range(1, rounds + 1) if config.refreshes(n, rounds)} == expected


@pytest.mark.parametrize("settings", [{"signal": "haed"}, {"temperature": -1.0}, {"temperature": math.nan}, {"staleness": 0.0},
                                      {"serve": "best"}, {"projection_dim": 0}, {"grouping": "none"}])
def test_impossible_settings_are_refused(settings: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match=f"hdc-fl.{next(iter(settings)).replace('_', '-')}"):
        Config(**settings)


# --- the client's choice


def learner_of(serve: str, bn: str) -> HdcLearner:
    model = build_model("cnn", 10, (1, 8, 8), width=4, seed=0)
    return HdcLearner(Trainer(model, LoopSettings(epochs=8, batch=8, lr=0.1, bn=bn, device="cpu")), Config(serve=serve))


@pytest.mark.parametrize("bn", ["average", "recompute"])
def test_serve_better_picks_the_encoder_with_the_lower_training_loss(bn: str, tmp_path: Path) -> None:
    """One encoder is trained, the other is noise; whichever way round they come, the trained one is served."""
    data = client_of(*digits_of(0))
    learner = learner_of("better", bn)
    fresh = {part: {k: t.copy() for k, t in learner.trainer.model.tensors(part).items()} for part in ("encoder", "head")}
    with LocalStore(tmp_path, "test", "site") as store:
        down = {"encoder": fresh["encoder"], "initial-head": fresh["head"]}
        good = {k: t.copy() for k, t in learner.train(down, data, store, Round(1, 1, seed=0)).slots["encoder"].items()}
        rng = np.random.default_rng(0)
        noise = {k: np.abs(rng.normal(size=t.shape)).astype(np.float32) for k, t in good.items()}
        closing = Round(1, 1, seed=0, acked=1, closing=True, score_served=True)
        for shared, own, expected in ((good, noise, good), (noise, good, good)):
            learner.evaluate({"encoder": shared, "mixture": own}, data, store, closing)
            assert same_weights(slot_of(store.location / "personal.safetensors", "encoder"), expected)
        # without the setting, the mixture is served whatever it is worth
        learner_of("mixture", bn).evaluate({"encoder": good, "mixture": noise}, data, store, closing)
        assert same_weights(slot_of(store.location / "personal.safetensors", "encoder"), noise)


def same(a: Tensors, b: Tensors) -> bool:
    return a.keys() == b.keys() and all(np.array_equal(a[name], b[name]) for name in a)


def same_weights(a: Tensors, b: Tensors) -> bool:
    """Statistics aside, which the client may have re-estimated."""
    return all(np.array_equal(a[name], b[name]) for name in b if "running" not in name)
