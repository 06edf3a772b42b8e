"""A client's test samples: held out of its own share, or dealt from the official test set.

Either way the test samples follow the client's training distribution, as personalised federated learning
is scored. Our own choices: largest-remainder rounding with random ties, and a class never loses its last
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
    classes = 1 + int(max(train_labels.max(initial=-1), test_labels.max(initial=-1)))
    held = np.stack([np.bincount(train_labels[part], minlength=classes) for part in train_parts])  # (N, C)
    mine: list[list[np.ndarray]] = [[] for _ in train_parts]
    for label in np.flatnonzero(held.sum(axis=0)):
        samples = rng.permutation(np.flatnonzero(test_labels == label))
        share = held[:, label] / held[:, label].sum()
        limit = np.where(share > 0, len(samples), 0)
        counts = largest_remainder(share * len(samples), len(samples), limit, rng)
        for pieces, piece in zip(mine, np.split(samples, np.cumsum(counts)[:-1]), strict=True):
            pieces.append(piece)
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
