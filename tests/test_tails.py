"""Figures over clients: hand-worked numbers, the exact size of the bottom fifth, intervals, refusals."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from strategies.tails import PairedDifference, Spread, bootstrap_interval, bottom20, paired_difference, spread


def test_spread_worked_by_hand():
    values = {"a": 0.5, "b": 0.1, "c": 0.9, "d": 0.3, "e": 0.7, "f": 0.5}
    weights = {"f": 0, "a": 1, "b": 3, "c": 0, "d": 0, "e": 0, "unseen": 9}
    out = spread(values, weights)
    assert out.n == 6 and out.worst == 0.1
    assert math.isclose(out.mean, 0.5)
    # population: squares .16 + .16 + .04 + .04 = .4, over 6
    assert math.isclose(out.std, math.sqrt(0.4 / 6))
    # ceil(1.2) = 2 clients: .1 and .3
    assert math.isclose(out.bottom20, 0.2)
    assert math.isclose(out.weighted_mean, (0.5 * 1 + 0.1 * 3) / 4)


@pytest.mark.parametrize(
    ("n", "size"), [(1, 1), (4, 1), (5, 1), (6, 2), (10, 2), (11, 3), (15, 3), (20, 4), (35, 7), (1000, 200)]
)
def test_the_bottom_fifth_is_rounded_up_exactly(n, size):
    values = np.arange(n, dtype=float)[::-1]
    assert bottom20(values) == (size - 1) / 2


@settings(deadline=None)
@given(st.lists(st.floats(0, 1), min_size=1, max_size=40))
def test_the_figures_are_ordered(values):
    out = spread(values)
    assert out.worst <= out.bottom20 + 1e-12 <= out.mean + 2e-12
    assert math.isclose(out.weighted_mean, out.mean, abs_tol=1e-12)
    other = spread(values[::-1])
    assert math.isclose(out.bottom20, other.bottom20, abs_tol=1e-12) and out.worst == other.worst


def test_one_client():
    assert spread([0.4]) == Spread(mean=0.4, std=0.0, worst=0.4, bottom20=0.4, weighted_mean=0.4, n=1)


def test_broken_values_and_weights_are_refused():
    with pytest.raises(ValueError, match="at least one client"):
        spread([])
    with pytest.raises(ValueError, match="at least one client"):
        spread({})
    with pytest.raises(ValueError, match="1 of 3 NaN or infinite"):
        spread([0.1, float("nan"), 0.2])
    with pytest.raises(ValueError, match=r"missing for \['b'\]"):
        spread({"a": 1.0, "b": 2.0}, {"a": 1.0})
    with pytest.raises(ValueError, match="both mappings or both sequences"):
        spread({"a": 1.0}, [1.0])
    for bad in ([1.0], [1.0, -1.0], [0.0, 0.0]):
        with pytest.raises(ValueError, match="2 weights of 0 or more"):
            spread([0.1, 0.2], bad)


def test_interval_has_the_size_the_theory_gives():
    values = np.random.default_rng(0).normal(0.6, 0.1, size=400)
    low, high = bootstrap_interval(values, np.mean)
    half = 1.96 * values.std() / 20
    np.testing.assert_allclose([low, high], [values.mean() - half, values.mean() + half], atol=0.2 * half)
    assert (low, high) == bootstrap_interval(values, np.mean)
    assert (low, high) != bootstrap_interval(values, np.mean, seed=1)
    narrow = bootstrap_interval(values, np.mean, level=0.5)
    assert low < narrow[0] < narrow[1] < high


def test_interval_of_constant_clients_is_a_point():
    assert bootstrap_interval([0.5] * 7, bottom20) == (0.5, 0.5)
    assert bootstrap_interval([0.25], np.mean) == (0.25, 0.25)


def test_interval_worked_by_hand():
    # two clients 0 and 1: resamples have mean 0, .5, 1 with chances 1/4, 1/2, 1/4
    assert bootstrap_interval([0.0, 1.0], np.mean) == (0.0, 1.0)
    assert bootstrap_interval([0.0, 1.0], np.mean, level=0.4) == (0.5, 0.5)


def test_bad_intervals_are_refused():
    for level in (0.0, 1.0):
        with pytest.raises(ValueError, match=r"level in \(0, 1\)"):
            bootstrap_interval([1.0], np.mean, level=level)
    with pytest.raises(ValueError, match="at least 1 draw"):
        bootstrap_interval([1.0], np.mean, draws=0)
    with pytest.raises(ValueError, match="NaN or infinite"):
        bootstrap_interval([1.0, float("inf")], np.mean)


def test_paired_difference_is_over_common_clients():
    a = {"x": 0.9, "y": 0.5, "only-a": 0.0}
    b = {"y": 0.25, "x": 0.5, "only-b": 1.0}
    out = paired_difference(a, b)
    assert out.n == 2
    assert math.isclose(out.mean, (0.4 + 0.25) / 2)
    assert math.isclose(out.bottom20, 0.5 - 0.25)
    np.testing.assert_allclose(out.mean_interval, (0.25, 0.4))


def test_pairing_removes_what_the_clients_share():
    rng = np.random.default_rng(1)
    base = rng.uniform(0.2, 0.9, 20)
    a = {str(i): x + 0.02 for i, x in enumerate(base)}
    b = {str(i): x for i, x in enumerate(base)}
    out = paired_difference(a, b)
    # a constant gain is certain however much the clients differ
    np.testing.assert_allclose([*out.mean_interval, *out.bottom20_interval], 0.02, atol=1e-12)
    same = paired_difference(b, b)
    assert same == PairedDifference(0.0, (0.0, 0.0), 0.0, (0.0, 0.0), 20)


def test_no_common_client_is_refused():
    with pytest.raises(ValueError, match="common clients, got none among 1 and 2"):
        paired_difference({"a": 1.0}, {"b": 1.0, "c": 1.0})
