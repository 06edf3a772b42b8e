"""How a simulated data set is divided among clients: four ways, one signature.

A partition is ``(labels (n,), meta, clients, rng) -> [indices of client 0, of client 1, ...]``, int64
arrays that never share a sample. ``meta`` holds further per-sample columns for partitions that need them
(none here does). Other settings are keyword arguments; bind them with ``functools.partial``. The order
*inside* a part is random, so that batches taken in order mix classes.

Dirichlet follows Hsu et al. 2019 (arXiv:1909.06335); label subsets are common to many benchmarks, dealt
here in our own way (below). Also our own choices: the minimum size and the number of tries of Dirichlet,
and that rotation goes round-robin over the clients.

Degenerate cases: one class a client with as many classes as clients gives each client one whole class;
Dirichlet with a huge alpha tends to equal class shares for all.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import TypeAlias

import numpy as np

Meta: TypeAlias = Mapping[str, np.ndarray]
Partition: TypeAlias = Callable[[np.ndarray, Meta, int, np.random.Generator], list[np.ndarray]]

ANGLES = (0, 90, 180, 270)
DIRICHLET_TRIES = 100


class PartitionError(ValueError):
    """The samples cannot be divided as asked."""


def iid(labels: np.ndarray, meta: Meta, clients: int, rng: np.random.Generator) -> list[np.ndarray]:
    """A random permutation cut into ``clients`` parts whose sizes differ by at most one.

    Raises
    ------
    PartitionError
        If there are fewer than one client, or more clients than samples.
    """
    _check_clients(labels, clients)
    return np.array_split(rng.permutation(len(labels)), clients)


def rotation(labels: np.ndarray, meta: Meta, clients: int, rng: np.random.Generator) -> list[np.ndarray]:
    """``iid`` parts; client i then sees its train and test images turned by ``angle_of(i)``.

    Raises
    ------
    PartitionError
        As ``iid``.
    """
    return iid(labels, meta, clients, rng)


def angle_of(client: int) -> int:
    """Degrees, counter-clockwise, by which client's images are turned: 0, 90, 180, 270, 0, ..."""
    return ANGLES[client % len(ANGLES)]


def turned(images: np.ndarray, angle: int) -> np.ndarray:
    """(n, C, H, H) images turned counter-clockwise by ``angle`` degrees, a multiple of 90.

    Raises
    ------
    PartitionError
        If the images are not square, since turned ones would have another shape than the rest.
    """
    check_square(images)
    return np.ascontiguousarray(np.rot90(images, angle // 90, axes=(2, 3)))


def check_square(images: np.ndarray) -> None:
    """Raise ``PartitionError`` unless the (n, C, H, W) images are square."""
    if images.shape[2] != images.shape[3]:
        raise PartitionError("the rotation partition needs square images; use another partition or crop them")


def label_subset(
    labels: np.ndarray, meta: Meta, clients: int, rng: np.random.Generator, *, classes_per_client: int
) -> list[np.ndarray]:
    """Each client holds ``classes_per_client`` random classes; a class is divided evenly among its holders.

    Classes are dealt so that any two differ by at most one holder: each client in turn takes the classes
    with the fewest holders, ties drawn at random. So all samples are used whenever clients *
    classes_per_client is at least the number of classes; with fewer, the samples of the classes nobody
    holds stay unused. A class with fewer samples than holders leaves some holders without it.

    Raises
    ------
    PartitionError
        If classes_per_client is below 1 or above the number of classes present, a client would be empty, or
        as ``iid``.
    """
    _check_clients(labels, clients)
    present = np.unique(labels)
    if not 1 <= classes_per_client <= len(present):
        raise PartitionError(f"expected classes-per-client in 1..{len(present)}, the number of classes "
                             f"in the data, got {classes_per_client}")
    holders = _deal(len(present), clients, classes_per_client, rng)
    parts: list[list[np.ndarray]] = [[] for _ in range(clients)]
    sizes = np.zeros(clients, np.int64)
    for label, held_by in zip(present, holders, strict=True):
        samples = rng.permutation(np.flatnonzero(labels == label))
        # array_split gives its longer pieces first: they go to the clients that have least so far
        smallest_first = held_by[np.lexsort((rng.random(len(held_by)), sizes[held_by]))]
        for client, piece in zip(smallest_first, _cut(samples, len(held_by)), strict=True):
            parts[int(client)].append(piece)
            sizes[client] += len(piece)
    if not sizes.all():
        raise PartitionError(f"with classes-per-client={classes_per_client}, some of the {clients} clients "
                             "would get no sample, since a class has fewer samples than holders; use fewer "
                             "clients or more classes a client")
    return [rng.permutation(np.concatenate(pieces)) for pieces in parts]


def dirichlet(
    labels: np.ndarray, meta: Meta, clients: int, rng: np.random.Generator, *, alpha: float, min_size: int = 2
) -> list[np.ndarray]:
    """Each class is divided in proportions drawn from a symmetric Dirichlet(alpha) over the clients.

    Drawn anew, up to ``DIRICHLET_TRIES`` times, until every client has ``min_size`` samples (one to train
    on and one to test on).

    Raises
    ------
    PartitionError
        If alpha is not a positive finite number, clients * min_size exceeds the samples, no draw was good
        enough, or as ``iid``.
    """
    _check_clients(labels, clients)
    if not (alpha > 0 and math.isfinite(alpha)):
        raise PartitionError(f"expected a finite alpha above 0, got {alpha}")
    if clients * min_size > len(labels):
        raise PartitionError(f"{clients} clients need {clients * min_size} samples, {min_size} each, but the "
                             f"data has {len(labels)}; use fewer clients")
    by_class = [np.flatnonzero(labels == label) for label in np.unique(labels)]
    for _ in range(DIRICHLET_TRIES):
        parts = _draw_dirichlet(by_class, clients, alpha, rng)
        if min(len(part) for part in parts) >= min_size:
            return parts
    raise PartitionError(f"in {DIRICHLET_TRIES} draws with alpha={alpha}, never did all {clients} clients "
                         f"get the minimum of {min_size} samples; use a larger alpha or fewer clients")


def _draw_dirichlet(
    by_class: list[np.ndarray], clients: int, alpha: float, rng: np.random.Generator
) -> list[np.ndarray]:
    parts: list[list[np.ndarray]] = [[] for _ in range(clients)]
    for samples in by_class:
        shares = rng.dirichlet(np.full(clients, alpha))
        cuts = (np.cumsum(shares)[:-1] * len(samples)).astype(np.int64)
        for pieces, piece in zip(parts, np.split(rng.permutation(samples), cuts), strict=True):
            pieces.append(piece)
    return [rng.permutation(np.concatenate(pieces)) for pieces in parts]


def _deal(classes: int, clients: int, each: int, rng: np.random.Generator) -> list[np.ndarray]:
    """For each class, the clients that hold it."""
    holds = np.zeros((classes, clients), bool)
    for client in range(clients):
        fewest_first = np.lexsort((rng.random(classes), holds.sum(axis=1)))
        holds[fewest_first[:each], client] = True
    return [np.flatnonzero(row) for row in holds]


def _cut(samples: np.ndarray, pieces: int) -> list[np.ndarray]:
    # a class that nobody holds is cut into no pieces, which array_split refuses
    return np.array_split(samples, pieces) if pieces else []


def _check_clients(labels: np.ndarray, clients: int) -> None:
    if clients < 1:
        raise PartitionError(f"expected at least 1 client, got {clients}")
    if clients > len(labels):
        raise PartitionError(f"{clients} clients need at least as many samples, but the data has "
                             f"{len(labels)}; use fewer clients")
