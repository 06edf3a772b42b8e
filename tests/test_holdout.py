"""Test samples of a client: exact tiny cases, and properties over random labels."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from client_app.data.holdout import largest_remainder, official_test, split_train_test, strata
from client_app.data.partition import PartitionError, iid
from tests.data_cases import label_vectors, labels_and_clients, rng, seeds

few = settings(max_examples=30)


@pytest.mark.parametrize(("quota", "total", "limit", "expected"), [
    ([1.5, 0.75, 0.75], 3, [5, 5, 5], [1, 1, 1]),
    ([2.6, 1.4], 4, [9, 9], [3, 1]),
    ([2.6, 1.4], 4, [2, 9], [2, 2]),      # the limit hands its unit to the other
    ([0.5, 0.5, 5.5], 6, [0, 0, 10], [0, 0, 6]),
    ([3.0, 0.0], 3, [3, 0], [3, 0]),
    ([0.5, 0.5], 9, [1, 0], [1, 0]),      # no more than the limits allow
    ([3 - 4e-16, 0.9, 0.1], 4, [9, 9, 9], [3, 1, 0]),
])
def test_largest_remainder_by_hand(
    quota: list[float], total: int, limit: list[int], expected: list[int]
) -> None:
    assert largest_remainder(np.array(quota), total, np.array(limit), rng()).tolist() == expected


def test_ties_of_remainders_are_not_always_the_first_class() -> None:
    ties, limit = np.full(3, 0.5), np.ones(3, int)
    winners = {tuple(largest_remainder(ties, 1, limit, rng(seed)).tolist()) for seed in range(20)}
    assert winners == {(1, 0, 0), (0, 1, 0), (0, 0, 1)}


def test_split_by_hand() -> None:
    labels = np.array([0, 0, 0, 0, 1, 1, 1, 1, 2])
    train, test = split_train_test(labels, np.array([8, 7, 6, 5, 4, 3, 2, 1, 0]), 0.25, rng())
    # quotas 1, 1, 0.25 sum to round(2.25) = 2
    assert np.bincount(labels[test], minlength=3).tolist() == [1, 1, 0]
    assert np.bincount(labels[train], minlength=3).tolist() == [3, 3, 1]
    assert (np.diff(train) < 0).all()  # the given order is kept


@pytest.mark.parametrize(("samples", "fraction", "tests"), [
    (600, 0.25, 150), (10, 0.25, 2), (14, 0.25, 4), (5, 0.0, 0),
])
def test_the_test_count_is_exact(samples: int, fraction: float, tests: int) -> None:
    labels = np.arange(samples) % 2
    train, test = split_train_test(labels, np.arange(samples), fraction, rng())
    assert (len(train), len(test)) == (samples - tests, tests)


def test_a_single_sample_or_singletons_are_trained_on() -> None:
    train, test = split_train_test(np.array([4, 2, 9]), np.array([1]), 0.9, rng())
    assert (train.tolist(), test.tolist()) == ([1], [])
    train, test = split_train_test(np.array([4, 2, 9]), np.arange(3), 0.9, rng())
    assert (train.tolist(), test.tolist()) == ([0, 1, 2], [])


@few
@given(label_vectors(), st.floats(0, 0.99), seeds)
def test_split_keeps_every_sample_and_every_test_class_in_train(
    labels: np.ndarray, fraction: float, seed: int
) -> None:
    indices = rng(seed).permutation(len(labels))[: (len(labels) + 1) // 2]
    train, test = split_train_test(labels, indices, fraction, rng(seed))
    assert sorted([*train, *test]) == sorted(indices)
    classes = np.unique(labels[indices])
    assert np.unique(labels[train]).tolist() == classes.tolist()
    assert len(test) == min(round(fraction * len(indices)), len(indices) - len(classes))
    again = split_train_test(labels, indices, fraction, rng(seed))
    np.testing.assert_array_equal(test, again[1])


@pytest.mark.parametrize("fraction", [-0.1, 1.0, float("nan")])
def test_fraction_out_of_range_is_refused(fraction: float) -> None:
    with pytest.raises(PartitionError, match="at least 0 and below 1"):
        split_train_test(np.zeros(4, int), np.arange(4), fraction, rng())


def test_official_test_by_hand() -> None:
    train_labels = np.array([0, 0, 0, 0, 1, 1, 1])
    parts = [np.array([0, 1, 2]), np.array([3, 4]), np.array([5, 6])]
    test_labels = np.array([1, 0, 1, 0, 1, 0, 1, 0, 2])
    first, second, third = official_test(train_labels, parts, test_labels, rng())
    # class 0: 4 images as 3:1 -> 3, 1; class 1: 4 images as 1:2 -> 1.33, 2.67 -> 1, 3; nobody holds class 2
    assert np.bincount(test_labels[first], minlength=3).tolist() == [3, 0, 0]
    assert np.bincount(test_labels[second], minlength=3).tolist() == [1, 1, 0]
    assert np.bincount(test_labels[third], minlength=3).tolist() == [0, 3, 0]


@few
@given(labels_and_clients(), label_vectors(), seeds)
def test_official_test_is_disjoint_complete_and_matched(
    case: tuple[np.ndarray, int], test_labels: np.ndarray, seed: int
) -> None:
    train_labels, clients = case
    parts = iid(train_labels, {}, clients, rng(seed))
    tests = official_test(train_labels, parts, test_labels, rng(seed))
    usable = np.flatnonzero(np.isin(test_labels, train_labels))
    assert sorted(np.concatenate(tests).tolist()) == usable.tolist()
    for part, test in zip(parts, tests, strict=True):
        assert np.isin(test_labels[test], train_labels[part]).all()
        for label in np.unique(train_labels):
            exact = (np.sum(test_labels == label) * np.sum(train_labels[part] == label)
                     / np.sum(train_labels == label))
            assert abs(np.sum(test_labels[test] == label) - exact) < 1


def test_no_official_test_images_give_empty_tests() -> None:
    tests = official_test(np.array([0, 1]), [np.array([0]), np.array([1])], np.empty(0, int), rng())
    assert [test.tolist() for test in tests] == [[], []]
    assert all(test.dtype == np.int64 for test in tests)


def test_strata_tell_classes_apart_by_column() -> None:
    labels = np.array([0, 1, 0, 2])
    assert strata(labels, None) is labels
    # two values of three possible classes: b's classes follow a's
    assert strata(labels, np.array(["b", "a", "a", "b"])).tolist() == [3, 1, 0, 5]


def test_official_tests_go_to_clients_of_their_domain() -> None:
    column = np.array(["a", "a", "b", "b", "b", "b"])
    matched = strata(np.zeros(10, int), np.concatenate([column, np.array(["a", "b", "b", "c"])]))
    first, second, third = official_test(matched[:6], [np.array([0, 1]), np.array([2, 3]), np.array([4, 5])], matched[6:], rng())
    assert first.tolist() == [0] and sorted([*second, *third]) == [1, 2] and len(second) == len(third) == 1
