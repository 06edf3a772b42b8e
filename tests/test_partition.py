"""Even shares, label subsets and turned images: exact tiny cases, properties over random labels, every impossible split."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from client_app.data.partition import Partition, PartitionError, iid, label_subset
from client_app.data.rotation import angle_of, turned
from client_app.data.skewed import dirichlet, quantity
from tests.data_cases import labels_and_clients, rng, seeds

few = settings(max_examples=30)
PARTITIONS: dict[str, Partition] = {
    "iid": iid,
    "label-subset": partial(label_subset, classes_per_client=2),
    "dirichlet": partial(dirichlet, alpha=0.5),
    "quantity": partial(quantity, alpha=0.5),
}


def balanced(classes: int, each: int) -> np.ndarray:
    return np.repeat(np.arange(classes), each)


def assert_divides(parts: list[np.ndarray], samples: int) -> None:
    """The parts hold every sample once: disjoint and complete."""
    assert sorted(np.concatenate(parts).tolist()) == list(range(samples))


@few
@given(labels_and_clients(), seeds)
def test_iid_is_disjoint_complete_and_even(case: tuple[np.ndarray, int], seed: int) -> None:
    labels, clients = case
    parts = iid(labels, {}, clients, rng(seed))
    assert_divides(parts, len(labels))
    assert {len(part) for part in parts} <= {len(labels) // clients, -(-len(labels) // clients)}


@few
@given(st.integers(1, 10), st.integers(60, 90), st.integers(1, 60), st.integers(0, 9), seeds)
def test_label_subset_is_complete_when_all_classes_can_be_held(
    classes: int, each: int, clients: int, any_k: int, seed: int
) -> None:
    k = 1 + any_k % classes
    labels = 3 * balanced(classes, each)  # classes need not be numbered without gaps
    parts = label_subset(labels, {}, clients, rng(seed), classes_per_client=k)
    held = np.array([[np.sum(labels[part] == 3 * c) for c in range(classes)] for part in parts])
    assert ((held > 0).sum(axis=1) == k).all()
    holders = (held > 0).sum(axis=0)
    assert holders.max() - holders.min() <= 1
    for column in held.T[holders > 0]:
        assert np.ptp(column[column > 0]) <= 1
    if clients * k >= classes:
        assert_divides(parts, len(labels))
    else:
        chosen = np.concatenate(parts)
        assert len(np.unique(chosen)) == len(chosen) == clients * k * each


@few
@given(labels_and_clients(), st.integers(0, 9), seeds)
def test_label_subset_of_any_labels_divides_or_says_why(
    case: tuple[np.ndarray, int], any_k: int, seed: int
) -> None:
    labels, clients = case
    classes, counts = np.unique(labels, return_counts=True)
    k = 1 + any_k % len(classes)
    try:
        parts = label_subset(labels, {}, clients, rng(seed), classes_per_client=k)
    except PartitionError:
        # only where a class has fewer samples than it may have holders
        assert counts.min() < -(-clients * k // len(classes))
        return
    assert all(1 <= len(np.unique(labels[part])) <= k for part in parts)
    if clients * k >= len(classes):
        assert_divides(parts, len(labels))


def test_label_subset_deals_random_pairs_not_blocks() -> None:
    labels = balanced(10, 100)
    parts = label_subset(labels, {}, 20, rng(1), classes_per_client=2)
    pairs = {tuple(np.unique(labels[part])) for part in parts}
    assert len(pairs) > 10
    assert [len(part) for part in parts] == [50] * 20


@pytest.mark.parametrize("seed", range(8))
def test_label_subset_gives_the_odd_samples_to_who_has_least(seed: int) -> None:
    # both clients hold both classes of 5: whoever gets 3 of one gets 2 of the other
    assert [len(p) for p in label_subset(balanced(2, 5), {}, 2, rng(seed), classes_per_client=2)] == [5, 5]


def test_label_subset_with_fewer_holders_than_classes_leaves_classes_out() -> None:
    labels = balanced(5, 4)
    parts = label_subset(labels, {}, 2, rng(), classes_per_client=2)
    assert sorted(len(part) for part in parts) == [8, 8]
    assert len(np.unique(labels[np.concatenate(parts)])) == 4


def test_label_subset_one_class_each_gives_whole_classes() -> None:
    labels = np.array([0, 1, 2, 0, 1, 2, 0])
    parts = label_subset(labels, {}, 3, rng(), classes_per_client=1)
    assert sorted(sorted(part.tolist()) for part in parts) == [[0, 3, 6], [1, 4], [2, 5]]


@pytest.mark.parametrize("name", PARTITIONS)
def test_same_seed_same_indices_other_seed_others(name: str) -> None:
    labels = rng(7).integers(0, 10, 600)
    first, again, other = (PARTITIONS[name](labels, {}, 20, rng(seed)) for seed in (3, 3, 4))
    for a, b in zip(first, again, strict=True):
        np.testing.assert_array_equal(a, b)
    assert any(a.tolist() != b.tolist() for a, b in zip(first, other, strict=True))


@pytest.mark.parametrize("name", PARTITIONS)
def test_order_inside_a_part_mixes_classes(name: str) -> None:
    labels = balanced(10, 60)
    changes = [np.mean(np.diff(labels[part]) != 0) for part in PARTITIONS[name](labels, {}, 4, rng())]
    assert np.mean(changes) > 0.3  # sorted by class it would be about 0.01


@pytest.mark.parametrize("name", PARTITIONS)
def test_one_client_gets_everything_it_can_hold(name: str) -> None:
    labels = balanced(2, 5)
    assert_divides(PARTITIONS[name](labels, {}, 1, rng()), 10)


@pytest.mark.parametrize("name", PARTITIONS)
@pytest.mark.parametrize(("clients", "expected"), [
    (0, "at least 1 client"), (-1, "at least 1 client"), (7, "use fewer clients"),
])
def test_impossible_numbers_of_clients_are_refused(name: str, clients: int, expected: str) -> None:
    with pytest.raises(PartitionError, match=expected):
        PARTITIONS[name](balanced(3, 2), {}, clients, rng())


@pytest.mark.parametrize("name", PARTITIONS)
def test_no_samples_are_refused(name: str) -> None:
    with pytest.raises(PartitionError, match="use fewer clients"):
        PARTITIONS[name](np.empty(0, np.int64), {}, 1, rng())


@pytest.mark.parametrize("k", [0, -1, 4])
def test_more_or_fewer_classes_than_exist_are_refused(k: int) -> None:
    with pytest.raises(PartitionError, match=rf"classes-per-client in 1\.\.3, .* got {k}"):
        label_subset(balanced(3, 10), {}, 2, rng(), classes_per_client=k)


def test_angles_go_round_and_images_turn_counter_clockwise() -> None:
    assert [angle_of(client) for client in range(6)] == [0, 90, 180, 270, 0, 90]
    image = np.array([[[[1, 2], [3, 4]]]], np.uint8)
    expected = {0: [[1, 2], [3, 4]], 90: [[2, 4], [1, 3]], 180: [[4, 3], [2, 1]], 270: [[3, 1], [4, 2]]}
    for angle, pixels in expected.items():
        assert turned(image, angle)[0, 0].tolist() == pixels
    with pytest.raises(PartitionError, match="square"):
        turned(np.zeros((1, 1, 2, 3), np.uint8), 90)


def test_partitions_share_one_signature() -> None:
    checked: list[Callable[..., list[np.ndarray]]] = list(PARTITIONS.values())
    for partition in checked:
        parts = partition(balanced(4, 30), {"domain": np.zeros(120)}, 4, rng())
        assert all(part.dtype == np.int64 and part.ndim == 1 for part in parts)
