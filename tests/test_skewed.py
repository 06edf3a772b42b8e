"""Shares drawn from a Dirichlet distribution: old draws to the bit, the repair by hand, and sizes that add up."""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from client_app.data import skewed
from client_app.data.partition import PartitionError
from client_app.data.skewed import _repaired, dirichlet, quantity
from tests.data_cases import labels_and_clients, rng, seeds
from tests.naive.dirichlet import first_good_draw

few = settings(max_examples=30)
alphas = st.sampled_from([1e-300, 0.05, 0.5, 5.0, 1e9])


def balanced(classes: int, each: int) -> np.ndarray:
    return np.repeat(np.arange(classes), each)


@pytest.mark.parametrize("skew", [dirichlet, quantity])
@few
@given(labels_and_clients(each=2), alphas, seeds)
def test_every_draw_ends_disjoint_complete_and_with_a_minimum(
    skew: Callable[..., list[np.ndarray]], case: tuple[np.ndarray, int], alpha: float, seed: int
) -> None:
    labels, clients = case
    parts = skew(labels, {}, clients, rng(seed), alpha=alpha)
    assert sorted(np.concatenate(parts).tolist()) == list(range(len(labels)))
    assert len(parts) == clients and min(map(len, parts)) >= 2


@few
@given(labels_and_clients(each=2), alphas, seeds)
def test_draws_that_need_no_repair_are_those_of_the_slow_reference(case: tuple[np.ndarray, int], alpha: float, seed: int) -> None:
    labels, clients = case
    expected = first_good_draw(labels, clients, alpha, 2, skewed.DIRICHLET_TRIES, rng(seed))
    if expected is not None:
        for part, other in zip(dirichlet(labels, {}, clients, rng(seed), alpha=alpha), expected, strict=True):
            np.testing.assert_array_equal(part, other)


@pytest.mark.parametrize(("clients", "alpha", "expected"), [
    (20, 0.1, "be2bc9cb0670c6d8"), (20, 0.3, "9a66787e1b7039ab"), (60, 1.0, "e7fcde7dc731f5af"),
])
def test_draws_on_which_results_rest_stay_as_they_were(clients: int, alpha: float, expected: str) -> None:
    labels = np.random.default_rng(5).integers(0, 10, 1797)
    sha = hashlib.sha256()
    for part in dirichlet(labels, {}, clients, rng(1), alpha=alpha):
        sha.update(len(part).to_bytes(8, "little"))
        sha.update(part.astype("<i8").tobytes())
    assert sha.hexdigest()[:16] == expected


def test_the_largest_give_until_everyone_has_the_minimum() -> None:
    parts = [np.array([0]), np.array([], np.int64), np.array([1, 2, 3, 4, 5]), np.array([6, 7, 8, 9])]
    # client 0 takes 5 (of client 2, then of 4 as client 3); client 1 takes 4 (a tie: the first), then 9
    assert [part.tolist() for part in _repaired(parts, 2)] == [[0, 5], [4, 9], [1, 2, 3], [6, 7, 8]]


def test_a_repair_is_counted_in_the_log(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, logger="client_app.data.skewed"):
        parts = dirichlet(balanced(1, 10), {}, 5, rng(), alpha=1e-3)
    assert [len(part) for part in parts] == [2] * 5
    # one client got all 10 in every draw and gave 8 of them away
    assert [record.getMessage() for record in caplog.records] == [
        "dirichlet: moved 8 samples to clients that got fewer than 2 in all 100 draws"]


def test_dirichlet_tends_to_equal_shares_for_a_huge_alpha_and_to_few_classes_for_a_small_one() -> None:
    labels = balanced(10, 200)
    counts = [np.bincount(labels[p], minlength=10) for p in dirichlet(labels, {}, 20, rng(), alpha=1e9)]
    assert np.abs(np.array(counts) - 10).max() <= 1
    parts = dirichlet(labels, {}, 20, rng(), alpha=0.05)
    top_two = [np.sort(np.bincount(labels[p], minlength=10))[-2:].sum() / len(p) for p in parts]
    assert np.mean(top_two) > 0.8


def test_quantity_tends_to_equal_sizes_for_a_huge_alpha_and_to_one_big_client_for_a_small_one() -> None:
    labels = balanced(10, 200)
    assert {len(part) for part in quantity(labels, {}, 20, rng(), alpha=1e9)} == {100}
    sizes = sorted(len(part) for part in quantity(labels, {}, 20, rng(), alpha=1e-4))
    assert sizes == [2] * 19 + [2000 - 38]


def test_quantity_divides_what_is_above_the_minimum_by_the_drawn_shares() -> None:
    share = rng(3).dirichlet(np.full(4, 0.7))
    sizes = np.array([len(part) for part in quantity(balanced(2, 50), {}, 4, rng(3), alpha=0.7)])
    assert sizes.sum() == 100 and np.abs(sizes - 2 - 92 * share).max() < 1


def test_quantity_leaves_labels_alike() -> None:
    labels = balanced(2, 5000)
    for part in quantity(labels, {}, 20, rng(), alpha=1.0):
        assert abs(labels[part].mean() - 0.5) < 4 * 0.5 / len(part) ** 0.5  # four standard errors


@pytest.mark.parametrize("skew", [dirichlet, quantity])
@pytest.mark.parametrize("alpha", [0.0, -0.1, float("nan"), float("inf")])
def test_alpha_must_be_positive_and_finite(skew: Callable[..., list[np.ndarray]], alpha: float) -> None:
    with pytest.raises(PartitionError, match="alpha above 0"):
        skew(balanced(3, 10), {}, 2, rng(), alpha=alpha)


@pytest.mark.parametrize("skew", [dirichlet, quantity])
def test_a_minimum_that_cannot_be_met_is_refused_before_drawing(skew: Callable[..., list[np.ndarray]]) -> None:
    generator = rng()
    before = generator.bit_generator.state
    with pytest.raises(PartitionError, match="4 clients need 12 samples, 3 each, but the data has 10"):
        skew(balanced(2, 5), {}, 4, generator, alpha=1.0, min_size=3)
    assert generator.bit_generator.state == before
