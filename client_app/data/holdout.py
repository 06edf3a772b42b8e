"""A client's test samples: held out of its own share, or dealt from the official test set.

Either way the test samples follow the client's training distribution, as personalised federated learning
is scored. Where clients are told apart by a column of the data, ``strata`` says by what they are matched: class
and column together. Our own choices: largest-remainder rounding with random ties, and a class never loses its last
training sample to the test set.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from client_app.data.partition import PartitionError


def split_train_test(
    labels: np.ndarray, indices: np.ndarray, fraction: float, rng: np.random.Generator
) -> tuple[np.ndarray, np.ndarray]:
    """Divide ``indices`` (into ``labels``) into train and test, stratified by class.

    The test part has ``round(fraction * n)`` samples (Python's rounding: ties to even), shared among the
    classes by largest remainder, but each class keeps at least one training sample; so it is smaller where
    many classes have a single sample, and every class in it is also in the training part. The order of
    ``indices`` is kept.

    Raises
    ------
    PartitionError
        If ``fraction`` is not in [0, 1).
    """
    if not 0 <= fraction < 1:
        raise PartitionError(f"expected test-fraction at least 0 and below 1, got {fraction}")
    _, class_of, sizes = np.unique(labels[indices], return_inverse=True, return_counts=True)
    counts = largest_remainder(fraction * sizes, round(fraction * len(indices)), sizes - 1, rng)
    is_test = np.zeros(len(indices), bool)
    for label, count in enumerate(counts):
        is_test[rng.permutation(np.flatnonzero(class_of == label))[:count]] = True
    return indices[~is_test], indices[is_test]


def official_test(
    train_labels: np.ndarray,
    train_parts: Sequence[np.ndarray],
    test_labels: np.ndarray,
    rng: np.random.Generator,
) -> list[np.ndarray]:
    """For each client, disjoint indices into ``test_labels``, in proportion to its training samples a class.

    Rounded by largest remainder. All official test samples are used, but for the classes no client trains on.
    """
    members = np.concatenate(train_parts)
    owners = np.repeat(np.arange(len(train_parts)), [len(part) for part in train_parts])
    # how many samples of which class who trains on; sparse, since classes may be many where they are told apart by domain
    pairs, held = np.unique(train_labels[members] * len(train_parts) + owners, return_counts=True)
    classes, starts = np.unique(pairs // len(train_parts), return_index=True)
    order = np.argsort(test_labels, kind="stable")
    begins, ends = (np.searchsorted(test_labels[order], classes, side) for side in ("left", "right"))
    mine: list[list[np.ndarray]] = [[np.empty(0, np.int64)] for _ in train_parts]
    by_class = zip(np.split(pairs % len(train_parts), starts)[1:], np.split(held, starts)[1:], begins, ends, strict=True)
    for holders, counts, begin, end in by_class:
        samples = rng.permutation(order[begin:end])
        quota = counts / counts.sum() * len(samples)
        dealt = largest_remainder(quota, len(samples), np.full(len(holders), len(samples)), rng)
        for client, piece in zip(holders, np.split(samples, np.cumsum(dealt)[:-1]), strict=True):
            mine[client].append(piece)
    return [rng.permutation(np.concatenate(pieces)) for pieces in mine]


def largest_remainder(
    quota: np.ndarray, total: int, limit: np.ndarray, rng: np.random.Generator
) -> np.ndarray:
    """Whole numbers (k,) near ``quota`` (k,) that sum to ``total`` and do not exceed ``limit`` (k,).

    Every entry gets its floor; what is left goes, one each, to the largest remainders, ties drawn at
    random, and round again while limits keep some from taking theirs. Sums to the sum of ``limit`` if that
    is below ``total``.
    """
    counts = np.minimum(np.floor(quota).astype(np.int64), limit)
    total = min(total, int(limit.sum()))
    while (left := total - int(counts.sum())) > 0:
        room = np.flatnonzero(counts < limit)
        # rounded: ties that floating point broke stay ties, and a 2.9999999999 is the first to get its 3
        remainder = np.round(quota[room] - counts[room], 9)
        largest_first = np.lexsort((rng.random(len(room)), -remainder))
        counts[room[largest_first[:left]]] += 1
    return counts


def strata(labels: np.ndarray, column: np.ndarray | None) -> np.ndarray:
    """``labels`` (n,) themselves, or with a ``column`` (n,) one number for each pair of a column's value and a label."""
    if column is None:
        return labels
    _, codes = np.unique(column, return_inverse=True)
    return codes * (1 + labels.max(initial=0)) + labels
