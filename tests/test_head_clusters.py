"""Grouping of clients: planted groups, parity with loops, every rank rule, degenerate cases, order."""

from __future__ import annotations

import time
from dataclasses import replace

import numpy as np
import pytest

from strategies.head_clusters import (
    ClusterSettings,
    adjusted_rand,
    cluster,
    low_rank,
    permute,
)
from strategies.head_descriptor import flat_signal, project
from strategies.mixture import mixture_weights
from tests.naive import clusters as naive

TRUTH = np.repeat(np.arange(4), 5)
QUICK = ClusterSettings(restarts=10, max_clusters=6)


def _planted_heads(seed=0, noise=1.0, classes=10, width=64):
    """20 heads of 4 groups on one common initial head; noise is relative to the group's movement."""
    rng = np.random.default_rng(seed)
    initial = {
        "weight": rng.normal(size=(classes, width)).astype(np.float32),
        "bias": np.zeros(classes, np.float32),
    }
    common = rng.normal(size=(classes, width))
    groups = rng.normal(size=(4, classes, width))
    heads = []
    for group in TRUTH:
        moved = common + groups[group] + noise * rng.normal(size=(classes, width))
        heads.append(
            {
                "weight": (initial["weight"] + 0.1 * moved).astype(np.float32),
                "bias": (0.01 * rng.normal(size=classes)).astype(np.float32),
            }
        )
    return heads, initial


def _signals(**kwargs):
    heads, initial = _planted_heads(**kwargs)
    return np.stack([flat_signal(head, initial) for head in heads])


@pytest.mark.parametrize("rank", ["ratio", "parallel"])
@pytest.mark.parametrize("seed", [0, 1, 2])
def test_planted_groups_are_found_in_head_mode(rank, seed):
    found = cluster(_signals(seed=seed), replace(QUICK, rank=rank), seed=seed)
    assert adjusted_rand(found.assignment, TRUTH) == 1.0
    assert found.rank == 3 and found.silhouette > 0.8
    # numbered by first member, and the groups were planted in that order
    assert found.assignment.tolist() == TRUTH.tolist()


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_planted_groups_are_found_in_descriptor_mode(seed):
    descriptors = np.stack([project(signal, 512, seed=99) for signal in _signals(seed=seed)])
    found = cluster(descriptors, QUICK, seed=seed)
    assert found.assignment.tolist() == TRUTH.tolist()
    assert found.rank == 3


def test_float16_descriptors_give_the_clusters_of_float64():
    wide = _signals(seed=4)
    wide /= np.linalg.norm(wide, axis=1, keepdims=True)
    a, b = cluster(wide, QUICK, seed=0), cluster(wide.astype(np.float16), QUICK, seed=0)
    assert a.assignment.tolist() == b.assignment.tolist() == TRUTH.tolist()
    np.testing.assert_allclose(a.embedding @ a.embedding.T, b.embedding @ b.embedding.T, atol=2e-3)


def test_energy_takes_more_dimensions_than_there_are_groups():
    space = low_rank(_signals(noise=1.5), ClusterSettings(rank="energy"), seed=0)
    # 90 % of the trace always meets the cap of 8, where 3 dimensions are signal
    assert space.rank == 8 and low_rank(_signals(noise=1.5), ClusterSettings(), seed=0).rank == 3


def test_embedding_has_the_cosines_of_the_normalised_gram_matrix():
    signals = np.random.default_rng(5).normal(size=(6, 9))
    reference = np.array(naive.gram(signals))
    space = low_rank(signals, ClusterSettings(rank="energy", energy=1.0, max_rank=8), seed=0)
    # at full rank nothing is lost: rows already are unit, so Z Z^T is the Gram matrix
    assert space.rank == 5
    np.testing.assert_allclose(space.embedding @ space.embedding.T, reference, atol=1e-10)
    np.testing.assert_allclose(space.eigenvalues, np.linalg.eigvalsh(reference)[::-1].clip(0), atol=1e-10)
    assert abs(space.eigenvalues.sum() - 6) < 1e-10  # trace: six unit rows


def test_blocks_of_columns_do_not_change_the_gram_matrix(monkeypatch):
    signals = np.random.default_rng(6).normal(size=(7, 50))
    whole = low_rank(signals, ClusterSettings(), seed=0).eigenvalues
    monkeypatch.setattr("strategies.head_space._BLOCK", 8)
    np.testing.assert_allclose(low_rank(signals, ClusterSettings(), seed=0).eigenvalues, whole, atol=1e-12)


def test_ratio_takes_the_largest_drop():
    # orthogonal +-pairs: centred, and each pair of unit rows gives one eigenvalue 2 per multiplicity
    e = np.eye(5)
    rows = np.concatenate([e[0]] * 3 + [-e[0]] * 3 + [e[1]] * 2 + [-e[1]] * 2 + [e[2], -e[2]]).reshape(12, 5)
    space = low_rank(rows, ClusterSettings(), seed=0)
    np.testing.assert_allclose(space.eigenvalues[:4], [6, 4, 2, 0], atol=1e-12)
    # exactly three dimensions: lambda_3/lambda_4 is the guarded, largest ratio
    assert space.rank == 3


def test_parallel_analysis_of_pure_noise_keeps_the_least():
    ranks = []
    for seed in range(30):
        noise = np.random.default_rng(seed).normal(size=(20, 400))
        ranks.append(low_rank(noise, ClusterSettings(rank="parallel"), seed=seed).rank)
    # an eigenvalue of noise passes with a chance of 5 to 7 %, and a third dimension needs three in a row
    assert ranks.count(2) >= 28


def test_silhouette_equals_loops():
    found = cluster(_signals(noise=2.0), QUICK, seed=0)
    reference = naive.silhouette(found.embedding.tolist(), found.assignment.tolist())
    assert abs(found.silhouette - reference) < 1e-9


@pytest.mark.parametrize("seed", range(4))
def test_k_means_reaches_the_best_of_all_partitions(seed):
    rng = np.random.default_rng(seed)
    signals = rng.normal(size=(8, 30)) + 1.2 * rng.normal(size=(3, 30))[[0, 0, 0, 1, 1, 1, 2, 2]]
    found = cluster(signals, ClusterSettings(num_clusters=3), seed=0)
    best = naive.best_coherence(found.embedding.tolist(), 3)
    assert abs(naive.coherence(found.embedding.tolist(), found.assignment.tolist()) - best) < 1e-9


@pytest.mark.parametrize("noise", [0.5, 2.0, 6.0])
def test_every_client_is_closest_to_its_own_unit_centroid(noise):
    found = cluster(_signals(noise=noise), replace(QUICK, min_silhouette=-1), seed=0)
    np.testing.assert_allclose(np.linalg.norm(found.embedding, axis=1), 1, atol=1e-12)
    np.testing.assert_allclose(np.linalg.norm(found.centroids, axis=1), 1, atol=1e-12)
    hard = mixture_weights(found.embedding, found.centroids, 0.0)
    assert hard.argmax(axis=1).tolist() == found.assignment.tolist()


def test_the_partition_does_not_depend_on_the_order_of_clients():
    signals = _signals(noise=1.5)
    base = cluster(signals, QUICK, seed=0)
    for seed in range(4):
        order = permute(20, seed)
        other = cluster(signals[order], QUICK, seed=0)
        assert adjusted_rand(other.assignment, base.assignment[order]) == 1.0
        assert abs(other.silhouette - base.silhouette) < 1e-9
        # numbered by first member whatever k-means called them
        assert other.assignment[0] == 0
        _, first = np.unique(other.assignment, return_index=True)
        assert first.tolist() == sorted(first)


def test_the_same_seed_gives_the_same_result():
    signals = np.random.default_rng(8).normal(size=(20, 100))
    a, b = (cluster(signals, replace(QUICK, rank="parallel"), seed=2**62 + 5) for _ in range(2))
    assert a.assignment.tolist() == b.assignment.tolist() and a.embedding.tolist() == b.embedding.tolist()


@pytest.mark.parametrize("clients", [1, 2, 3])
def test_fewer_than_four_clients_are_one_cluster(clients):
    signals = np.random.default_rng(9).normal(size=(clients, 12))
    found = cluster(signals, ClusterSettings(), seed=0)
    assert found.assignment.tolist() == [0] * clients
    assert found.silhouette == 0.0
    assert found.centroids.shape == (1, found.rank) and found.embedding.shape == (clients, found.rank)
    weights = mixture_weights(found.embedding, found.centroids, 0.3)
    assert weights.tolist() == [[1.0]] * clients


@pytest.mark.parametrize(
    "row", [np.zeros(30), np.random.default_rng(10).normal(size=30)], ids=["all-zero", "identical"]
)
@pytest.mark.parametrize("rank", ["ratio", "parallel", "energy"])
def test_signals_that_do_not_differ_are_one_cluster(row, rank):
    found = cluster(np.tile(row, (10, 1)), ClusterSettings(rank=rank), seed=0)
    assert found.assignment.tolist() == [0] * 10
    assert not found.embedding.any() and not found.eigenvalues.any()


def test_a_client_at_the_mean_of_all_is_served_a_uniform_mixture():
    group = np.random.default_rng(11).normal(size=(1, 40))
    signals = np.concatenate([np.tile(group, (4, 1)), np.tile(-group, (4, 1)), np.zeros((1, 40))])
    found = cluster(signals, ClusterSettings(num_clusters=2), seed=0)
    assert adjusted_rand(found.assignment[:8], np.repeat([0, 1], 4)) == 1.0
    assert not found.embedding[8].any()
    np.testing.assert_allclose(mixture_weights(found.embedding, found.centroids, 0.1)[8], [0.5, 0.5])


def test_weak_structure_falls_back_to_one_cluster():
    noise = np.random.default_rng(12).normal(size=(20, 60))
    settings = replace(QUICK, rank="energy", min_silhouette=0.9)
    found = cluster(noise, settings, seed=0)
    assert found.assignment.max() == 0
    assert 0 < found.silhouette < 0.9  # of the rejected candidate


def test_small_clusters_are_no_candidates():
    signals = _signals()[:17]  # groups of 5, 5, 5 and 2
    free = cluster(signals, QUICK, seed=0)
    assert np.bincount(free.assignment).tolist() == [5, 5, 5, 2]
    limited = cluster(signals, replace(QUICK, min_cluster_size=4), seed=0)
    assert limited.assignment.max() > 0 and np.bincount(limited.assignment).min() >= 4
    assert cluster(signals, replace(QUICK, min_cluster_size=9), seed=0).assignment.max() == 0


def test_a_fixed_number_of_clusters():
    signals = _signals()
    for k in (1, 2, 5):
        settings = ClusterSettings(num_clusters=k, min_silhouette=1.0)
        assert cluster(signals, settings, seed=0).assignment.max() + 1 == k
    # cut to the distinct embeddings: two kinds of client, five clusters wanted
    pairs = np.repeat(np.random.default_rng(13).normal(size=(2, 9)), 4, axis=0)
    assert cluster(pairs, ClusterSettings(num_clusters=5), seed=0).assignment.tolist() == [0] * 4 + [1] * 4
    each = cluster(signals[:3], ClusterSettings(num_clusters=3), seed=0)
    assert each.assignment.tolist() == [0, 1, 2] and each.silhouette == 0.0


def test_adjusted_rand_of_renamed_labels():
    assert adjusted_rand(np.array([0, 0, 1, 1]), np.array([5, 5, 2, 2])) == 1.0
    assert adjusted_rand(np.array([0, 0, 1, 1]), np.array([0, 1, 0, 1])) == -0.5


def test_permute_keeps_sizes_and_softness():
    order = permute(20, seed=3)
    assert sorted(order.tolist()) == list(range(20)) and order.tolist() != list(range(20))
    assert order.tolist() == permute(20, seed=3).tolist()
    assert np.bincount(TRUTH[order]).tolist() == [5, 5, 5, 5]


def test_200_clients_take_seconds():
    signals = np.random.default_rng(14).normal(size=(200, 512)).astype(np.float16)
    started = time.process_time()
    found = cluster(signals, ClusterSettings(rank="energy"), seed=0)
    assert time.process_time() - started < 8  # 2 s expected; the margin is for shared machines
    assert found.embedding.shape == (200, 8)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("rank", "best"),
        ("max_rank", 1),
        ("energy", 0.0),
        ("energy", 1.1),
        ("max_clusters", 0),
        ("num_clusters", -1),
        ("min_cluster_size", 0),
        ("min_silhouette", 2.0),
        ("restarts", 0),
    ],
)
def test_settings_are_validated(field, value):
    with pytest.raises(ValueError, match=f"{field} must be"):
        ClusterSettings(**{field: value})


def test_bad_signals_are_refused():
    with pytest.raises(ValueError, match=r"rows \[1\]"):
        cluster(np.array([[0.0, 1.0], [np.inf, 0.0], [1.0, 1.0]]), ClusterSettings(), seed=0)
    with pytest.raises(ValueError, match=r"got shape \(3,\)"):
        cluster(np.zeros(3), ClusterSettings(), seed=0)
    with pytest.raises(ValueError, match="at least one client"):
        cluster(np.zeros((0, 3)), ClusterSettings(), seed=0)
