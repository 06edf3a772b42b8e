"""Soft mixtures of cluster encoders: how much of which cluster, and therefore of which client, one is served.

Source: HDC-FL, "one encoder prototype per cluster" and "a soft mixture of prototypes". The softmax over
cosines, the staleness weights n_i * gamma^age and the shrinkage are our choices.

Degenerate cases: temperature infinity mixes all prototypes equally; temperature 0 gives a client its own
cluster's prototype; with one cluster and gamma = 1 every mixture is the weighted mean of the cached
encoders.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence

import numpy as np

from strategies.reduce import make_mean
from strategies.types import Tensors


def mixture_weights(embedding: np.ndarray, centroids: np.ndarray, temperature: float) -> np.ndarray:
    """A (N, K) = softmax over clusters of <z_i, c_k> / temperature; every row sums to 1.

    Parameters
    ----------
    embedding : (N, R) unit rows. centroids : (K, R) unit rows.
    temperature : 0 (hard: the closest centroid, the first on a tie) up to infinity (uniform).

    Raises
    ------
    ValueError : widths differ, a value is not finite, or the temperature is negative or NaN.
    """
    matrices = embedding.ndim == centroids.ndim == 2 and len(centroids) > 0
    if not matrices or embedding.shape[1] != centroids.shape[1]:
        raise ValueError(f"expected (N, R) and (K, R), got {embedding.shape} and {centroids.shape}")
    if not temperature >= 0:
        raise ValueError(f"temperature must be 0 (hard) or above, got {temperature}")
    closeness = embedding.astype(np.float64) @ centroids.T.astype(np.float64)
    if not np.isfinite(closeness).all():
        raise ValueError("expected finite embedding and centroids, got NaN or infinity")
    if temperature == 0:
        return np.eye(len(centroids))[closeness.argmax(axis=1)]
    # the largest logit is 0, so a tiny temperature can only overflow towards exp(-inf) = 0
    with np.errstate(over="ignore"):
        odds = np.exp((closeness - closeness.max(axis=1, keepdims=True)) / temperature)
    return odds / odds.sum(axis=1, keepdims=True)


def member_weights(assignment: np.ndarray, counts: np.ndarray, gamma: float, ages: np.ndarray) -> np.ndarray:
    """M (N, K): share of client i's cached encoder in prototype k; zero outside, every column sums to 1.

    Parameters
    ----------
    assignment : (N,) cluster of each client, 0..K-1, no cluster empty.
    counts : (N,) weights n_i >= 0 (training samples, or ones).
    gamma : staleness factor in (0, 1], for each round of age. ages : (N,) rounds since the upload, >= 0.

    Raises
    ------
    ValueError : lengths differ, a range is left, or a cluster has no positive weight.
    """
    _check_members(assignment, counts, gamma, ages)
    inside = assignment[:, None] == np.arange(assignment.max() + 1)
    # only ages relative to the cluster's freshest member matter, and they do not underflow together
    freshest = np.where(inside & (counts[:, None] > 0), ages[:, None], np.inf).min(axis=0)
    if not np.isfinite(freshest).all():
        bad = np.flatnonzero(~np.isfinite(freshest)).tolist()
        raise ValueError(f"expected a positive count in every cluster, found none in clusters {bad}")
    behind = np.maximum(ages - freshest[assignment], 0.0)
    omega = inside * (counts * gamma**behind)[:, None]
    return omega / omega.sum(axis=0)


def cluster_shares(assignment: np.ndarray, counts: np.ndarray, gamma: float, ages: np.ndarray) -> np.ndarray:
    """(K,) share of each cluster in the weight of all clients; arguments and errors as ``member_weights``.

    The prototypes mixed by these shares are the weighted mean of all cached encoders.
    """
    _check_members(assignment, counts, gamma, ages)
    everyone = member_weights(np.zeros_like(assignment), counts, gamma, ages)[:, 0]
    return np.bincount(assignment, weights=everyone)


def shrink(weights: np.ndarray, shares: np.ndarray, by: float) -> np.ndarray:
    """Mixture rows (N, K) drawn towards the all-client mixture (K,): by = 0 leaves them, 1 replaces them."""
    if not 0 <= by <= 1:
        raise ValueError(f"shrinkage must be in [0, 1], got {by}")
    if weights.ndim != 2 or shares.shape != weights.shape[1:]:
        raise ValueError(f"expected weights (N, K) and shares (K,), got {weights.shape} and {shares.shape}")
    return (1.0 - by) * weights + by * shares


def client_combination(weights: np.ndarray, members: np.ndarray) -> np.ndarray:
    """(N, N) share of donor j's encoder in what client i is served: A (N, K) times M (N, K) transposed."""
    return weights @ members.T


def blend(parts: Iterable[tuple[float, Tensors]], bn: str = "recompute") -> dict[str, np.ndarray]:
    """The weighted sum of encoders, one part in memory at a time; each tensor keeps its dtype.

    Builds prototypes from cached encoders and mixtures from prototypes. Sums in float64. Parts of weight
    0 are not looked at; a single part of weight 1 comes back bit for bit. ``bn`` as in ``make_mean``.

    Raises
    ------
    ValueError : a weight is negative or NaN, the weights do not sum to 1 (within 1e-6), there is no
        part, or the parts' names and shapes differ. TypeError : a tensor holds integers.
    """
    mean, total = make_mean(bn), 0.0
    for weight, tensors in parts:
        if weight == 0:
            continue
        mean.add(tensors, weight)
        total += weight
    if abs(total - 1.0) > 1e-6:
        raise ValueError(f"expected blend weights that sum to 1, got {total}: normalise them first")
    return mean.result()


class LazyBlend(Mapping[str, np.ndarray]):
    """``blend`` of parts that are themselves read from disk, one tensor at a time, whenever a tensor is asked for.

    A mixture is made for every client while a round is being folded: this way it costs no accumulator of a
    whole model. The numbers are those of ``blend``. Errors as there; names are the first part's.
    """

    def __init__(self, parts: Sequence[tuple[float, Tensors]], bn: str = "recompute") -> None:
        self._parts = [(weight, tensors) for weight, tensors in parts if weight != 0]
        if not self._parts:
            raise ValueError("expected at least one part of positive weight, got none")
        self._names, self._bn = tuple(self._parts[0][1]), bn

    def __getitem__(self, name: str) -> np.ndarray:
        if name not in self._names:
            raise KeyError(name)
        # a variance is pooled with its mean (``moments``), so they are read together
        layer, _, kind = name.rpartition(".")
        pair = (f"{layer}.running_mean", f"{layer}.running_var")
        names = pair if kind in ("running_mean", "running_var") and all(n in self._names for n in pair) else (name,)
        return blend(((weight, {n: tensors[n] for n in names}) for weight, tensors in self._parts), self._bn)[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._names)

    def __len__(self) -> int:
        return len(self._names)


def _check_members(assignment: np.ndarray, counts: np.ndarray, gamma: float, ages: np.ndarray) -> None:
    if assignment.ndim != 1 or not len(assignment) or not assignment.shape == counts.shape == ages.shape:
        shapes = (assignment.shape, counts.shape, ages.shape)
        raise ValueError(f"expected assignment, counts and ages (N,) of one length, got shapes {shapes}")
    if assignment.min() < 0 or len(np.unique(assignment)) != assignment.max() + 1:
        raise ValueError("expected clusters numbered 0..K-1 with no cluster empty")
    if not 0 < gamma <= 1:
        raise ValueError(f"staleness factor gamma must be in (0, 1], got {gamma}")
    if not (np.isfinite(counts).all() and (counts >= 0).all()):
        raise ValueError("expected finite counts of 0 or more")
    if not (np.isfinite(ages).all() and (ages >= 0).all()):
        raise ValueError("expected finite ages of 0 rounds or more")
