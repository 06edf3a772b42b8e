"""What the servers of HDC-FL's rivals compute: by hand on a few numbers, and against loops."""

from __future__ import annotations

import importlib
import json
import logging
import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from server_app.checkpoint import dump, restore, state_types
from strategies import cfl, fedamp, fedbn, fedproto, ifca, pfedsim
from strategies.client_models import Part, as_one, cosines, flat_weights, products, squared_distances
from strategies.config import ConfigError, RunConfig
from strategies.mixture import LazyBlend
from strategies.types import Round, Slots, Update
from tests.naive import rivals as naive
from tests.test_hdc_fl import DictShelf

LAST = Round(4, 4, seed=0)


def whole(*numbers: float, mean: float = 0.0) -> dict[str, dict[str, np.ndarray]]:
    """A model: all but the last number are the encoder's weights, the last is the head's; ``mean`` a BatchNorm statistic."""
    encoder = {"w": np.array(numbers[:-1], np.float32), "norm.running_mean": np.array([mean], np.float32),
               "norm.running_var": np.ones(1, np.float32)}
    return {"encoder": encoder, "head": {"weight": np.array([numbers[-1:]], np.float32)}}


def sent(client: str, *numbers: float, weight: float = 1.0, mean: float = 0.0) -> Update:
    return Update(client, dict(whole(*numbers, mean=mean)), weight)


def numbers_of(slots: Slots, encoder: str = "encoder", head: str = "head") -> list[float]:
    return [*np.asarray(slots[encoder]["w"], float), *np.asarray(slots[head]["weight"], float)[0]]


def survives(state: Any, kind: type) -> Any:
    """``state`` written to a checkpoint and read back."""
    arrays, tree = dump(state)
    return restore(json.loads(json.dumps(tree)), arrays, state_types(kind))


# --- models on the shelf


@settings(deadline=None, max_examples=30)
@given(st.integers(0, 10**6), st.integers(1, 6))
def test_products_distances_and_cosines_are_the_plain_ones(seed: int, count: int) -> None:
    """Whatever part of them was known before."""
    rows = np.random.default_rng(seed).normal(size=(count, 5))
    fresh = [i for i in range(count) if (seed >> i) % 2]
    gram = products(count, lambda i: rows[i], fresh, rows @ rows.T)
    np.testing.assert_allclose(gram, rows @ rows.T, atol=1e-12)
    np.testing.assert_allclose(products(count, lambda i: rows[i], range(count)), gram, atol=1e-12)
    np.testing.assert_allclose(squared_distances(gram), [[((a - b) ** 2).sum() for b in rows] for a in rows], atol=1e-9)
    unit = rows / np.linalg.norm(rows, axis=1, keepdims=True)
    np.testing.assert_allclose(cosines(gram), unit @ unit.T, atol=1e-9)
    assert cosines(np.zeros((2, 2))).tolist() == [[1, 0], [0, 1]]


def test_encoder_and_head_lie_on_the_shelf_as_one_and_come_back_apart() -> None:
    model = whole(1, 2, 3, mean=9)
    joined = as_one(model)
    assert flat_weights(joined).tolist() == [1, 2, 3], "a statistic is no weight"
    for part in ("encoder", "head"):
        back = Part(joined, part)
        assert list(back) == list(model[part]) and len(back) == len(model[part])
        assert all(np.array_equal(back[name], tensor) for name, tensor in model[part].items())


# --- FedAMP

AMP = fedamp.Config(alpha=0.5, sigma=2.0)


def amp(config: fedamp.Config = AMP) -> tuple[fedamp.FedAmpRule, fedamp.State]:
    rule = fedamp.FedAmpRule(config, RunConfig(clients=3), DictShelf())
    return rule, rule.init(whole(0, 0))


def cloud(rule: fedamp.FedAmpRule, state: fedamp.State, client: str, rnd: Round = LAST) -> list[float]:
    return numbers_of(rule.downlink(state, client, rnd), "cloud-encoder", "cloud-head")


def test_fedamp_attention_by_hand() -> None:
    """Models (0, 0), (1, 0), (3, 0): squared distances 1, 4, 9, alpha / sigma = .25."""
    rule, state = amp()
    state = rule.merge(state, [sent("a", 0, 0), sent("b", 1, 0), sent("c", 3, 0, mean=5)], LAST)
    one, four, nine = (0.25 * math.exp(-d / 2) for d in (1, 4, 9))
    expected = [[1 - one - nine, one, nine], [one, 1 - one - four, four], [nine, four, 1 - nine - four]]
    np.testing.assert_allclose(state.attention, expected, rtol=1e-12)
    np.testing.assert_allclose(cloud(rule, state, "a"), [one + 3 * nine, 0], rtol=1e-6)
    np.testing.assert_allclose(cloud(rule, state, "c"), [four + 3 * (1 - nine - four), 0], rtol=1e-6)
    assert rule.downlink(state, "a", LAST)["cloud-encoder"]["norm.running_mean"] == pytest.approx([5 * nine], rel=1e-6)
    # before its first accepted update a client gets the common start, whoever else has sent something
    first = rule.downlink(state, "new", replace(LAST, acked=0))
    assert first.keys() == {"initial-encoder", "initial-head"}
    assert "initial-encoder" not in rule.downlink(state, "a", replace(LAST, acked=4))


def test_fedamp_of_equal_models_is_their_plain_mean_and_never_leaves_the_simplex() -> None:
    """A public library's own share is 1 - 19 = -18 for twenty equal models with alpha = sigma = 1."""
    rule, state = amp(fedamp.Config())
    state = rule.merge(state, [sent(f"{i:02}", 2, 1, mean=i) for i in range(20)], LAST)
    np.testing.assert_allclose(state.attention, np.full((20, 20), 0.05), atol=1e-12)
    slots = rule.downlink(state, "07", LAST)
    np.testing.assert_allclose(slots["cloud-encoder"]["norm.running_mean"], 9.5, rtol=1e-6)
    assert isinstance(slots["cloud-encoder"], LazyBlend)


@settings(deadline=None, max_examples=30)
@given(st.integers(0, 10**6), st.floats(0.05, 3), st.floats(0.05, 30))
def test_fedamp_equals_loops_whoever_takes_part(seed: int, alpha: float, sigma: float) -> None:
    """Three rounds with other participants each; models of all that were ever sent count."""
    rng = np.random.default_rng(seed)
    rule, state = amp(fedamp.Config(alpha=alpha, sigma=sigma))
    last: dict[str, np.ndarray] = {}
    for number in (1, 2, 3):
        names = [name for name in "abcde" if rng.random() < 0.6] or ["a"]
        last |= {name: rng.normal(size=3).astype(np.float32) for name in names}
        state = rule.merge(state, [sent(name, *last[name]) for name in names], Round(number, 3, seed=0))
    models = [last[name].astype(float) for name in sorted(last)]
    np.testing.assert_allclose(state.attention, naive.attention(models, alpha, sigma), atol=1e-9)
    assert state.attention.min() >= 0 and np.allclose(state.attention.sum(axis=1), 1)
    assert rule.shelved(state).keys() == last.keys()
    again = survives(state, fedamp.State)
    assert cloud(rule, again, state.clients[0]) == cloud(rule, state, state.clients[0])


def test_a_newcomer_of_fedamp_gets_the_plain_mean() -> None:
    rule, state = amp()
    assert rule.downlink(state, "new", replace(LAST, joining=True)).keys() == {"initial-encoder", "initial-head"}
    state = rule.merge(state, [sent("a", 0, 0), sent("b", 3, 6)], LAST)
    np.testing.assert_allclose(cloud(rule, state, "new", replace(LAST, joining=True)), [1.5, 3])


# --- CFL

PULLING = [sent("a", 2, 0), sent("b", 2, 0.1), sent("c", -2, 0), sent("d", -2, 0.1)]


def clustered(updates: list[Update] | None = None, start: Slots | None = None, rnd: Round = LAST,
              **config: Any) -> tuple[cfl.CflRule, cfl.State]:
    rule = cfl.CflRule(cfl.Config(**config), RunConfig(clients=4), DictShelf())
    return rule, rule.merge(rule.init(start or whole(0, 0)), PULLING if updates is None else updates, rnd)


def test_cfl_parts_clients_that_pull_apart() -> None:
    """Changes (2, 0), (2, .1), (-2, 0), (-2, .1): the mean has length .05, the longest 2.0025."""
    rule, state = clustered()
    assert state.members == {"a": 0, "b": 0, "c": 1, "d": 1}
    for client in "abcd":
        np.testing.assert_allclose(numbers_of(rule.downlink(state, client, LAST)), [0, 0.05], rtol=1e-6)
    # from here on each half averages on its own
    state = rule.merge(state, [sent("a", 1, 0), sent("b", 3, 0, weight=3.0), sent("d", -5, 1)], LAST)
    assert numbers_of(rule.downlink(state, "a", LAST)) == [2.5, 0] and numbers_of(rule.downlink(state, "c", LAST)) == [-5, 1]
    assert numbers_of(rule.downlink(state, "unseen", LAST)) == [2.5, 0]


@pytest.mark.parametrize(("changed", "clusters"), [
    ({}, 2), ({"eps1": 0.04}, 1), ({"eps1": 0.051}, 2), ({"eps2": 2.01}, 1), ({"eps2": 2.0}, 2), ({"min_size": 4}, 1), ({"min_size": 3}, 2),
    ({"split_after": 4}, 1), ({"split_after": 3}, 2),
])
def test_cfl_splits_only_where_all_its_conditions_hold(changed: dict[str, Any], clusters: int) -> None:
    assert len(clustered(**changed)[1].models) == clusters


def test_cfl_splits_after_half_of_a_short_run_and_20_rounds_of_a_long_one() -> None:
    config = cfl.Config()
    assert [number for number in range(1, 8) if config.may_split(number, 7)] == [4, 5, 6, 7]
    assert config.may_split(21, 200) and not config.may_split(20, 200)


def test_cfl_leaves_batchnorm_statistics_out_of_lengths() -> None:
    assert len(clustered([sent(c, 0.1 * s, 0, mean=9 * s) for c, s in zip("abcd", (1, 1, -1, -1), strict=True)])[1].models) == 1


def test_cfl_counts_absent_members_with_their_last_change() -> None:
    """d is not asked in the round of the split, and goes where its change of the round before belongs."""
    rule, state = clustered(split_after=3, rnd=Round(3, 4, seed=0))
    assert len(state.models) == 1
    base = numbers_of(state.models[0])
    moved = [sent(c, base[0] + dx, base[1]) for c, dx in (("a", 2), ("b", 2.1), ("c", -4.05))]
    state = rule.merge(state, moved, LAST)
    assert state.members == {"a": 0, "b": 0, "c": 1, "d": 1}
    assert rule.shelved(state) == {"a": 4, "b": 4, "c": 4, "d": 3, **{f"_root-{n}": 4 for n in range(4)}}


@settings(deadline=None, max_examples=40)
@given(st.integers(0, 10**6), st.integers(2, 9))
def test_bipartition_is_complete_linkage(seed: int, count: int) -> None:
    rows = np.random.default_rng(seed).normal(size=(count, 3))
    similarity = cosines(rows @ rows.T)
    labels = cfl.bipartition(similarity)
    found = {frozenset(np.flatnonzero(labels == k).tolist()) for k in (0, 1)}
    assert found == {frozenset(cluster) for cluster in naive.bipartition(similarity)}


def test_the_smaller_half_leaves() -> None:
    assert cfl.smaller_half(np.array([1, 0, 0])).tolist() == [True, False, False]
    assert cfl.smaller_half(np.array([1, 0, 1])).tolist() == [False, True, False]
    assert cfl.smaller_half(np.array([1, 1, 0, 0])).tolist() == [False, False, True, True]


def test_a_newcomer_of_cfl_is_placed_by_how_it_moves_from_the_first_split() -> None:
    joining = replace(LAST, joining=True)
    rule, state = clustered()
    state = rule.merge(state, [sent("a", 7, 0), sent("c", -7, 0)], LAST)
    # it is sent the model of the round of the split, not what came of it
    assert numbers_of(rule.downlink(state, "new", joining)) == [0, 0]
    after = rule.newcomers(state, [sent("new", -1, 0.5), sent("other", 1, 0), sent("still", 0, 0)], joining)
    assert after.joined == {"new": 1, "other": 0, "still": 0} and after.members == state.members
    assert numbers_of(rule.downlink(after, "new", LAST)) == [-7, 0] and numbers_of(rule.downlink(after, "other", LAST)) == [7, 0]
    again = survives(after, cfl.State)
    assert again.joined == after.joined and rule.newcomers(again, [sent("late", -1, 0)], joining).joined["late"] == 1
    # without a split there is one model
    rule, state = clustered(eps2=9.0)
    assert rule.newcomers(state, [sent("new", 1, 1)], joining).joined == {"new": 0}


# --- IFCA


def test_ifca_averages_within_what_was_picked() -> None:
    rule = ifca.IfcaRule(ifca.Config(num_clusters=3), RunConfig())
    state = rule.init(whole(1, 2, 3))
    untouched = numbers_of(state.models[2])

    def picks(client: str, k: int, *numbers: float, weight: float = 1.0) -> Update:
        model = whole(*numbers)
        return Update(client, {ifca.slot_of(part, k): model[part] for part in ("encoder", "head")}, weight)

    broken = [Update("none", {}, 1.0), Update("half", {"encoder-1": whole(9, 9, 9)["encoder"]}, 1.0),
              Update("both", {**picks("", 0, 9, 9, 9).slots, **picks("", 1, 9, 9, 9).slots}, 1.0)]
    state = rule.merge(state, [picks("a", 0, 1, 1, 1), *broken, picks("b", 1, 5, 6, 7), picks("c", 0, 4, 1, 7, weight=2.0)], LAST)
    assert numbers_of(state.models[0]) == [3, 1, 5] and numbers_of(state.models[1]) == [5, 6, 7]
    assert numbers_of(state.models[2]) == untouched and state.picked == {"a": 0, "b": 1, "c": 0}
    down = rule.downlink(state, "anyone", LAST)
    assert len(down) == 6 and down["encoder-1"]["w"].tolist() == [5, 6]


def test_ifca_starts_from_models_that_differ_and_are_drawn_alike() -> None:
    start = {"encoder": {"w": np.random.default_rng(0).normal(size=(8, 4)).astype(np.float32), "gain": np.ones(4, np.float32)},
             "head": {"weight": np.arange(12, dtype=np.float32).reshape(3, 4)}}
    rule = ifca.IfcaRule(ifca.Config(num_clusters=3), RunConfig(seed=1))
    first, second, third = rule.init(start).models
    assert first["encoder"]["w"] is start["encoder"]["w"]
    assert len({model["encoder"]["w"].tobytes() for model in (first, second, third)}) == 3
    for model in (second, third):
        for part, tensors in start.items():
            for name, tensor in tensors.items():
                assert model[part][name].shape == tensor.shape and model[part][name].dtype == tensor.dtype
                assert sorted(model[part][name].reshape(-1)) == sorted(tensor.reshape(-1))
    assert np.array_equal(second["encoder"]["w"], rule.init(start).models[1]["encoder"]["w"])


# --- pFedSim


def heads() -> dict[str, np.ndarray]:
    """b shares one class's direction with a and is across in the other; c is a turned round; d is twice a."""
    a = np.array([[1, 0], [0, 1]], np.float32)
    return {"a": a, "b": np.array([[3, 0], [1, 0]], np.float32), "c": -a, "d": 2 * a}


def test_pfedsim_weights_by_hand() -> None:
    """Mean cosines with a: .5, below 0, and 1, which counts as .9999: -log(.5) = .693, 0, 9.210, and 9.210 for itself."""
    shares = pfedsim.mix(heads(), heads()["a"], "a")
    near, same = math.log(2), -math.log(1e-4)
    total = near + 2 * same
    assert shares == pytest.approx({"a": same / total, "b": near / total, "c": 0, "d": same / total}, rel=1e-9)
    assert pfedsim.mix(heads(), heads()["a"], "stranger")["a"] == pytest.approx(shares["a"])
    alone = pfedsim.mix({"c": heads()["c"]}, heads()["a"], "stranger")
    assert alone == {"c": 0.0}, "nobody is like it"


@settings(deadline=None, max_examples=40)
@given(st.integers(0, 10**6))
def test_pfedsim_weights_equal_loops(seed: int) -> None:
    rng = np.random.default_rng(seed)
    common = rng.normal(size=(4, 6))
    found = {name: (common + rng.normal(size=(4, 6))).astype(np.float32) for name in "abcde"}
    for client, head in found.items():
        assert pfedsim.mix(found, head, client) == pytest.approx(naive.similarity_shares(found, client), rel=1e-6, abs=1e-9)


def simulated(warm_up: float) -> tuple[pfedsim.PfedSimRule, pfedsim.State]:
    rule = pfedsim.PfedSimRule(pfedsim.Config(warm_up=warm_up), RunConfig(clients=4), DictShelf())
    return rule, rule.init(whole(0, 0))


def of(client: str, number: float) -> Update:
    return Update(client, {"encoder": {"w": np.array([number], np.float32)}, "head": {"weight": heads()[client]}}, 1.0)


def test_pfedsim_mixes_encoders_from_the_warm_ups_end_on() -> None:
    rule, state = simulated(0.5)
    assert [rule.config.warms_up(n, 4) for n in (1, 2, 3, 4)] == [True, True, False, False]
    state = rule.merge(state, [sent("a", 1, 2), sent("b", 3, 4)], Round(2, 4, seed=0))
    assert state.rounds == {} and numbers_of(rule.downlink(state, "a", replace(LAST, acked=2))) == [2, 3]
    state = rule.merge(state, [of("a", 1), of("b", 2), of("c", 100), of("d", 5)], Round(3, 4, seed=0))
    shares = pfedsim.mix(heads(), heads()["a"], "a")
    down = rule.downlink(state, "a", replace(LAST, acked=3))
    assert down.keys() == {"own-encoder"} and isinstance(down["own-encoder"], LazyBlend)
    np.testing.assert_allclose(down["own-encoder"]["w"], [shares["a"] + 2 * shares["b"] + 5 * shares["d"]], rtol=1e-6)
    # who has not trained since, or has lost its head, starts from the warm-up's model
    for client, acked in (("e", 2), ("a", 0)):
        assert numbers_of(rule.downlink(state, client, replace(LAST, acked=acked))) == [2, 3]
    assert rule.shelved(state) == dict.fromkeys("abcd", 3)


def test_a_newcomer_of_pfedsim_gets_a_mix_by_its_head() -> None:
    rule, state = simulated(0.0)
    state = rule.merge(state, [of("b", 2), of("c", 100), of("d", 5)], LAST)
    joining, closing = replace(LAST, joining=True), replace(LAST, acked=4, closing=True)
    assert rule.downlink(state, "new", joining).keys() == {"encoder", "head"}
    news = [Update(name, {"head": {"weight": heads()[like]}}, 1.0) for name, like in (("new", "a"), ("odd", "c"))]
    after = survives(rule.newcomers(state, news, joining), pfedsim.State)
    shares = pfedsim.mix(state.heads, heads()["a"], "new")
    np.testing.assert_allclose(rule.downlink(after, "new", closing)["own-encoder"]["w"], [2 * shares["b"] + 5 * shares["d"]], rtol=1e-6)
    assert rule.downlink(after, "odd", closing)["own-encoder"]["w"].tolist() == [100]
    assert after.rounds == state.rounds
    # like nobody: the shared encoder, under its own head
    lonely = rule.merge(simulated(0.0)[1], [of("c", 100)], LAST)
    lonely = rule.newcomers(lonely, news[:1], joining)
    assert rule.downlink(lonely, "new", closing)["own-encoder"]["w"].tolist() == [0]


# --- FedProto


def proto(counts: list[float], *rows: list[float]) -> Update:
    return Update("x", {"prototypes": {"prototypes": np.array([rows], np.float32), "counts": np.array([counts], np.float32)}}, 7.0)


def test_fedproto_averages_a_class_over_those_who_have_it() -> None:
    """Class 0 by counts 1 and 3, class 1 from one client, class 2 from nobody; the weight of a client in an average has no say."""
    rule = fedproto.FedProtoRule(fedproto.Config(), RunConfig())
    state = rule.init({"encoder": {}, "head": {"weight": np.zeros((3, 2), np.float32)}})
    assert state.prototypes["known"].tolist() == [[0, 0, 0]]
    state = rule.merge(state, [proto([1, 2, 0], [4, 0], [1, 1], [9, 9]), proto([3, 0, 0], [0, 4], [9, 9], [9, 9])], LAST)
    assert state.prototypes["prototypes"].tolist() == [[[1, 3], [1, 1], [0, 0]]] and state.prototypes["known"].tolist() == [[1, 1, 0]]
    # a class nobody sends keeps its prototype; a negative count counts for nothing
    state = rule.merge(state, [proto([0, -5, 1], [9, 9], [9, 9], [2, 2])], LAST)
    assert state.prototypes["prototypes"].tolist() == [[[1, 3], [1, 1], [2, 2]]] and state.prototypes["known"].tolist() == [[1, 1, 1]]
    down = rule.downlink(state, "a", replace(LAST, acked=1))
    assert down["prototypes"] is state.prototypes and "initial-head" not in down


# --- FedBN


def test_fedbn_parts_the_encoder_by_its_running_means(caplog: pytest.LogCaptureFixture) -> None:
    encoder = {name: np.ones(2, np.float32) for name in ("conv.weight", "norm.weight", "norm.bias", "norm.running_mean",
                                                         "norm.running_var", "deep.norm2.running_mean", "deep.norm2.weight", "deep.weight")}
    shared, norm = fedbn.parted(encoder)
    assert set(shared) == {"conv.weight", "deep.weight"} and len(norm) == 6
    parts = {"encoder": {name: ((2,), "float32") for name in encoder}, "head": {"weight": ((1, 2), "float32")}}
    assert set(fedbn.WIRE.up[0].expected(parts)) == set(shared) and set(fedbn.WIRE.down[2].expected(parts)) == set(norm)
    rule = fedbn.FedBnRule(fedbn.Config(), RunConfig())
    state = rule.init({"encoder": encoder, "head": {}})
    assert rule.downlink(state, "a", LAST).keys() == {"encoder", "head", "initial-norm"} and not caplog.records
    assert rule.downlink(state, "a", replace(LAST, acked=1)).keys() == {"encoder", "head"} and rule.diagnostics(state) == {}


def test_fedbn_says_when_there_is_nothing_to_personalise(caplog: pytest.LogCaptureFixture) -> None:
    rule = fedbn.FedBnRule(fedbn.Config(), RunConfig())
    with caplog.at_level(logging.WARNING):
        state = rule.init({"encoder": {"conv.weight": np.ones(2, np.float32)}, "head": {}})
    assert "no BatchNorm, so fedbn has nothing to personalise and is fedavg here" in caplog.text
    assert "nothing to personalise" in rule.diagnostics(state)["note"]
    assert rule.downlink(state, "a", LAST).keys() == {"encoder", "head"}


# --- settings


@pytest.mark.parametrize(("method", "field", "bad"), [
    ("fedrep", "head_epochs", 0), ("fedrep", "body_epochs", -1), ("fedbabu", "part", "body"), ("fedbabu", "tune_epochs", 0),
    ("fedavg_ft", "part", "haed"), ("fedavg_ft", "tune_epochs", -1), ("ditto", "pull", -1.0), ("ditto", "epochs", -1),
    ("ditto", "pull", math.inf), ("ifca", "num_clusters", 0), ("cfl", "eps1", math.nan), ("cfl", "min_size", 0), ("cfl", "split_after", -1),
    ("fedamp", "sigma", 0.0), ("fedamp", "alpha", math.inf), ("fedamp", "pull", -0.1), ("fedproto", "weighting", "counts"),
    ("fedproto", "pull", -1.0), ("pfedsim", "warm_up", 1.1), ("knn_per", "weight", 2.0), ("knn_per", "neighbours", 0),
    ("knn_per", "scale", 0.0), ("knn_per", "capacity", -1),
])
def test_what_cannot_be_is_refused(method: str, field: str, bad: Any) -> None:
    with pytest.raises(ConfigError, match=f"{method.replace('_', '-')}.{field.replace('_', '-')} must be"):
        importlib.import_module(f"strategies.{method}").Config(**{field: bad})
