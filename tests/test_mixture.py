"""Mixtures: hand-worked softmax, parity with loops, limits of the temperature, and the reductions."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from strategies.head_clusters import unit_rows
from strategies.mixture import (
    LazyBlend,
    blend,
    client_combination,
    cluster_shares,
    member_weights,
    mixture_weights,
    shrink,
)
from strategies.reduce import WeightedMean
from tests.naive import mixture as naive


def _unit(n, r, seed):
    return unit_rows(np.random.default_rng(seed).normal(size=(n, r)))


def _encoder(seed, n=11):
    rng = np.random.default_rng(seed)
    weight, bias = rng.normal(size=(2, n)), rng.normal(size=3)
    return {"conv.weight": weight.astype(np.float32), "bn.bias": bias.astype(np.float32)}


def test_softmax_worked_by_hand():
    z, c = np.array([[1.0, 0.0]]), np.array([[1.0, 0.0], [0.0, 1.0]])
    # odds e^(1/0.5) : e^0 = 7.389 : 1
    np.testing.assert_allclose(mixture_weights(z, c, 0.5), [[0.880797, 0.119203]], atol=1e-6)


@pytest.mark.parametrize("temperature", [0.1, 0.3, 2.0])
def test_weights_equal_loops(temperature):
    z, c = _unit(7, 3, 0), _unit(4, 3, 1)
    reference = naive.mixture_weights(z, c, temperature)
    np.testing.assert_allclose(mixture_weights(z, c, temperature), reference, atol=1e-12)


def test_infinite_temperature_is_uniform_and_zero_is_hard():
    z, c = _unit(6, 3, 2), _unit(4, 3, 3)
    assert mixture_weights(z, c, float("inf")).tolist() == [[0.25] * 4] * 6
    hard = mixture_weights(z, c, 0.0)
    assert hard.argmax(axis=1).tolist() == (z @ c.T).argmax(axis=1).tolist()
    assert sorted(set(hard.ravel())) == [0.0, 1.0] and hard.sum(axis=1).tolist() == [1.0] * 6
    np.testing.assert_array_equal(mixture_weights(z, c, 1e-6), hard)
    np.testing.assert_array_equal(mixture_weights(z, c, 5e-324), hard)  # overflows without a warning
    # a tie goes to the first
    assert mixture_weights(np.array([[0.0, 0.0]]), np.eye(2), 0.0).tolist() == [[1.0, 0.0]]


@settings(deadline=None)
@given(st.integers(1, 9), st.integers(1, 6), st.floats(0, 1e6), st.integers(0, 99))
def test_rows_are_on_the_simplex(n, k, temperature, seed):
    weights = mixture_weights(_unit(n, 3, seed), _unit(k, 3, seed + 1), temperature)
    assert weights.shape == (n, k) and (weights >= 0).all()
    np.testing.assert_allclose(weights.sum(axis=1), 1, atol=1e-12)


def test_bad_mixture_arguments_are_refused():
    z, c = _unit(2, 3, 0), _unit(2, 3, 1)
    for bad in (-0.1, float("nan")):
        with pytest.raises(ValueError, match="temperature must be 0"):
            mixture_weights(z, c, bad)
    with pytest.raises(ValueError, match=r"got \(2, 3\) and \(2, 2\)"):
        mixture_weights(z, c[:, :2], 1.0)
    with pytest.raises(ValueError, match=r"got \(2, 3\) and \(0, 3\)"):
        mixture_weights(z, c[:0], 1.0)
    with pytest.raises(ValueError, match="finite embedding"):
        mixture_weights(z * np.nan, c, 1.0)


def test_member_weights_worked_by_hand():
    assignment, counts, ages = np.array([0, 0, 1]), np.array([30, 40, 7]), np.array([0, 1, 3])
    # cluster 0: 30 and 40 * 0.5 = 20; cluster 1: its only member, however old
    members = member_weights(assignment, counts, 0.5, ages)
    np.testing.assert_allclose(members, [[0.6, 0], [0.4, 0], [0, 1]], atol=1e-15)
    # omega 30, 20 and 7/8
    np.testing.assert_allclose(
        cluster_shares(assignment, counts, 0.5, ages), [50 / 50.875, 0.875 / 50.875], atol=1e-15
    )


def test_member_weights_equal_loops():
    rng = np.random.default_rng(4)
    assignment = np.array([0, 1, 2, 0, 1, 2, 0, 0, 1])
    counts, ages = rng.integers(1, 500, 9), rng.integers(0, 12, 9)
    members = member_weights(assignment, counts, 0.9, ages)
    np.testing.assert_allclose(members, naive.member_weights(assignment, counts, 0.9, ages), atol=1e-14)
    np.testing.assert_allclose(members.sum(axis=0), [1, 1, 1], atol=1e-14)


def test_very_old_encoders_do_not_underflow():
    members = member_weights(np.array([0, 0]), np.array([1, 1]), 0.5, np.array([100_000, 100_001]))
    np.testing.assert_allclose(members[:, 0], [2 / 3, 1 / 3], atol=1e-15)
    # the freshest has no weight: the others must still sum to one
    members = member_weights(np.array([0, 0]), np.array([0, 1]), 0.5, np.array([0, 5000]))
    assert members[:, 0].tolist() == [0.0, 1.0]


def test_bad_members_are_refused():
    one = np.array([0, 0])
    with pytest.raises(ValueError, match=r"none in clusters \[1\]"):
        member_weights(np.array([0, 1]), np.array([1, 0]), 0.9, one)
    with pytest.raises(ValueError, match="no cluster empty"):
        member_weights(np.array([0, 2]), one + 1, 0.9, one)
    with pytest.raises(ValueError, match="no cluster empty"):
        cluster_shares(np.array([0, 2]), one + 1, 0.9, one)
    with pytest.raises(ValueError, match="gamma"):
        member_weights(one, one + 1, 0.0, one)
    with pytest.raises(ValueError, match="counts of 0 or more"):
        member_weights(one, one - 1, 0.9, one)
    with pytest.raises(ValueError, match="ages of 0 rounds"):
        member_weights(one, one + 1, 0.9, one - 1)
    with pytest.raises(ValueError, match="of one length"):
        member_weights(one, np.array([1]), 0.9, one)


def test_shrink_is_a_convex_combination():
    weights, shares = np.array([[1.0, 0.0], [0.5, 0.5]]), np.array([0.25, 0.75])
    np.testing.assert_array_equal(shrink(weights, shares, 0.0), weights)
    np.testing.assert_array_equal(shrink(weights, shares, 1.0), [[0.25, 0.75]] * 2)
    np.testing.assert_allclose(shrink(weights, shares, 0.4), [[0.7, 0.3], [0.4, 0.6]], atol=1e-15)
    with pytest.raises(ValueError, match=r"shrinkage must be in \[0, 1\], got 1.5"):
        shrink(weights, shares, 1.5)
    with pytest.raises(ValueError, match=r"shares \(K,\)"):
        shrink(weights, shares[:1], 0.5)


def test_blend_equals_loops_and_keeps_dtypes():
    parts = [(0.2, _encoder(0)), (0.5, _encoder(1)), (0.3, _encoder(2))]
    mixed = blend(parts)
    for name in ("conv.weight", "bn.bias"):
        reference = naive.blend([(w, e[name].ravel()) for w, e in parts])
        np.testing.assert_allclose(mixed[name].ravel(), reference, rtol=1e-6)
        assert mixed[name].dtype == np.float32 and mixed[name].shape == parts[0][1][name].shape


def test_blend_of_one_whole_part_is_that_part_bit_for_bit():
    part = _encoder(3) | {"zeros": np.array([-0.0, 0.0, 1e-42, 3e38], np.float32)}
    poison = {name: np.full_like(t, np.nan) for name, t in part.items()}
    mixed = blend([(0.0, poison), (1.0, part), (0.0, poison)])
    assert {n: t.tobytes() for n, t in mixed.items()} == {n: t.tobytes() for n, t in part.items()}


def test_blend_streams():
    alive = []

    def parts():
        for i in range(5):
            alive.append(i)
            yield 0.2, {"w": np.full(3, i, np.float32)}

    assert blend(parts())["w"].tolist() == [2.0, 2.0, 2.0] and alive == [0, 1, 2, 3, 4]


def test_blend_pools_batchnorm_moments_when_asked():
    a = {"bn.running_mean": np.float32([0.0]), "bn.running_var": np.float32([1.0])}
    b = {"bn.running_mean": np.float32([4.0]), "bn.running_var": np.float32([3.0])}
    # mean of variances 2, variance of means 4
    assert blend([(0.5, a), (0.5, b)], bn="moments")["bn.running_var"].tolist() == [6.0]
    assert blend([(0.5, a), (0.5, b)])["bn.running_var"].tolist() == [2.0]


def test_bad_blends_are_refused():
    with pytest.raises(ValueError, match="sum to 1, got 0.5"):
        blend([(0.5, _encoder(0))])
    with pytest.raises(ValueError, match="sum to 1, got 0"):
        blend([])
    with pytest.raises(ValueError, match="finite weight of 0 or more, got -0.5"):
        blend([(1.5, _encoder(0)), (-0.5, _encoder(1))])
    with pytest.raises(TypeError, match="integer counters"):
        blend([(1.0, {"steps": np.array([3])})])


def _serve(weights, members, encoders):
    """Every client's mixture of prototypes, as the rule computes it."""
    prototypes = [blend(zip(column, encoders, strict=True)) for column in members.T]
    return [blend(zip(row, prototypes, strict=True)) for row in weights]


def test_reduction_one_cluster_serves_the_weighted_mean_to_all():
    encoders, counts = [_encoder(i) for i in range(6)], np.array([10, 20, 30, 40, 50, 60])
    mean = WeightedMean()
    for encoder, count in zip(encoders, counts, strict=True):
        mean.add(encoder, count)
    expected = mean.result()
    members = member_weights(np.zeros(6, int), counts, 1.0, np.arange(6))
    weights = mixture_weights(_unit(6, 3, 5), np.zeros((1, 3)), 0.3)
    for served in _serve(weights, members, encoders):
        for name, tensor in expected.items():
            np.testing.assert_allclose(served[name], tensor, rtol=3e-7, atol=1e-7)


def test_reduction_full_shrinkage_serves_the_weighted_mean_to_all():
    encoders, counts, ages = [_encoder(i) for i in range(6)], np.arange(1, 7), np.array([0, 0, 1, 1, 2, 2])
    assignment = np.array([0, 1, 0, 1, 2, 2])
    members = member_weights(assignment, counts, 0.9, ages)
    shares = cluster_shares(assignment, counts, 0.9, ages)
    weights = shrink(mixture_weights(_unit(6, 3, 6), _unit(3, 3, 7), 0.3), shares, 1.0)
    omega = counts * 0.9**ages
    np.testing.assert_allclose(client_combination(weights, members), [omega / omega.sum()] * 6, atol=1e-14)
    stacked = np.stack([e["conv.weight"] for e in encoders]).astype(float)
    expected = np.tensordot(omega / omega.sum(), stacked, axes=1)
    np.testing.assert_allclose(_serve(weights, members, encoders)[3]["conv.weight"], expected, atol=1e-6)


def test_the_combination_matrix_is_what_is_served():
    encoders = [_encoder(i) for i in range(5)]
    counts, ages = np.array([3, 1, 2, 5, 4]), np.array([0, 2, 1, 0, 3])
    members = member_weights(np.array([0, 1, 0, 1, 1]), counts, 0.9, ages)
    weights = mixture_weights(_unit(5, 2, 8), _unit(2, 2, 9), 0.3)
    combination = client_combination(weights, members)
    assert combination.shape == (5, 5)
    np.testing.assert_allclose(combination.sum(axis=1), np.ones(5), atol=1e-14)
    stacked = np.stack([e["conv.weight"].ravel() for e in encoders]).astype(float)
    served = np.stack([s["conv.weight"].ravel() for s in _serve(weights, members, encoders)])
    np.testing.assert_allclose(served, combination @ stacked, atol=1e-6)


def test_the_combination_follows_the_order_of_clients():
    z, c = _unit(6, 3, 10), _unit(3, 3, 11)
    assignment, counts, ages = np.array([0, 1, 2, 0, 1, 2]), np.arange(1, 7), np.arange(6)
    order = np.array([3, 5, 1, 0, 4, 2])
    base = client_combination(mixture_weights(z, c, 0.3), member_weights(assignment, counts, 0.9, ages))
    moved = client_combination(
        mixture_weights(z[order], c, 0.3), member_weights(assignment[order], counts[order], 0.9, ages[order])
    )
    np.testing.assert_allclose(moved, base[np.ix_(order, order)], atol=1e-14)


@pytest.mark.parametrize("bn", ["recompute", "moments"])
def test_a_lazy_blend_is_the_blend_bit_for_bit(bn: str) -> None:
    rng = np.random.default_rng(3)
    names = ("conv.weight", "bn.running_mean", "bn.running_var", "other.running_mean")
    parts = [(share, {n: rng.random((2, 3), dtype=np.float32) for n in names}) for share in (0.25, 0.0, 0.75)]
    lazy, eager = LazyBlend(parts, bn), blend(parts, bn)
    assert list(lazy) == list(eager) and len(lazy) == 4
    for name, tensor in lazy.items():
        assert tensor.dtype == np.float32
        np.testing.assert_array_equal(tensor, eager[name])
    with pytest.raises(KeyError):
        lazy["absent"]
