"""Partitions whose shares are drawn from a Dirichlet distribution: of each class, or of the samples as a whole.

Class shares follow Hsu et al. 2019 (arXiv:1909.06335), unequal sizes the quantity skew of Li et al. 2022
(arXiv:2102.02079). Our own choices: the minimum size, which is one sample to train on and one to test on; the number
of tries; and what is done when they all fail or a share is too small, so that a draw always ends in a partition.

Degenerate cases: a huge alpha tends to equal shares for all; a tiny one gives a class, or nearly all samples, to one.
"""

from __future__ import annotations

import logging
import math

import numpy as np

from client_app.data.holdout import largest_remainder
from client_app.data.partition import Meta, PartitionError, check_clients

log = logging.getLogger(__name__)
DIRICHLET_TRIES = 100


def dirichlet(
    labels: np.ndarray, meta: Meta, clients: int, rng: np.random.Generator, *, alpha: float, min_size: int = 2
) -> list[np.ndarray]:
    """Each class is divided in proportions drawn from a symmetric Dirichlet(alpha) over the clients.

    Drawn anew, up to ``DIRICHLET_TRIES`` times, until every client has ``min_size`` samples. The last draw is then
    repaired: whoever has less gets samples, one at a time, from the client that has most.

    Raises
    ------
    PartitionError
        If alpha is not a positive finite number, clients * min_size exceeds the samples, or as ``iid``.
    """
    _check_alpha(alpha)
    check_clients(labels, clients, min_size)
    by_class = [np.flatnonzero(labels == label) for label in np.unique(labels)]
    for _ in range(DIRICHLET_TRIES):
        samples, cuts, orders = _draw(by_class, clients, alpha, rng)
        if min(map(len, orders)) >= min_size:
            break
    pieces = [np.split(mixed, cut) for mixed, cut in zip(samples, cuts, strict=True)]
    parts = [np.concatenate(piece)[order] for piece, order in zip(zip(*pieces, strict=True), orders, strict=True)]
    return _repaired(parts, min_size)


def quantity(
    labels: np.ndarray, meta: Meta, clients: int, rng: np.random.Generator, *, alpha: float, min_size: int = 2
) -> list[np.ndarray]:
    """Clients of unequal size, drawn from a symmetric Dirichlet(alpha); labels are alike up to chance.

    Every client has ``min_size`` samples; the rest is divided by the shares drawn, rounded by largest remainder.

    Raises
    ------
    PartitionError
        As ``dirichlet``.
    """
    _check_alpha(alpha)
    check_clients(labels, clients, min_size)
    free = len(labels) - clients * min_size
    share = rng.dirichlet(np.full(clients, alpha))
    sizes = min_size + largest_remainder(share * free, free, np.full(clients, free), rng)
    return np.split(rng.permutation(len(labels)), np.cumsum(sizes)[:-1])


def _draw(
    by_class: list[np.ndarray], clients: int, alpha: float, rng: np.random.Generator
) -> tuple[list[np.ndarray], list[np.ndarray], list[np.ndarray]]:
    """For each class its samples, mixed, and the cuts between clients; for each client the order of its samples.

    Cutting is left to the caller: it takes far longer than drawing, and most draws may be thrown away.
    """
    samples: list[np.ndarray] = []
    cuts: list[np.ndarray] = []
    sizes = np.zeros(clients, np.int64)
    for members in by_class:
        shares = rng.dirichlet(np.full(clients, alpha))
        cuts.append((np.cumsum(shares)[:-1] * len(members)).astype(np.int64))
        samples.append(rng.permutation(members))
        sizes += np.diff(cuts[-1], prepend=0, append=len(members))
    return samples, cuts, [rng.permutation(size) for size in sizes]


def _repaired(parts: list[np.ndarray], min_size: int) -> list[np.ndarray]:
    """``parts`` after the largest have given their last samples to those below ``min_size``."""
    sizes = np.array([len(part) for part in parts])
    moved = 0
    for client in np.flatnonzero(sizes < min_size):
        while sizes[client] < min_size:
            giver = int(sizes.argmax())
            parts[client] = np.append(parts[client], parts[giver][-1])
            parts[giver] = parts[giver][:-1]
            sizes[client] += 1
            sizes[giver] -= 1
            moved += 1
    if moved:
        log.info("dirichlet: moved %d samples to clients that got fewer than %d in all %d draws", moved, min_size, DIRICHLET_TRIES)
    return parts


def _check_alpha(alpha: float) -> None:
    if not (alpha > 0 and math.isfinite(alpha)):
        raise PartitionError(f"expected a finite alpha above 0, got {alpha}")
