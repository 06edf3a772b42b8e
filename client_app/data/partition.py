"""How a simulated data set is divided among clients: one signature for every way.

A partition is ``(labels (n,), meta, clients, rng) -> [indices of client 0, of client 1, ...]``, int64
arrays that never share a sample. ``meta`` holds further per-sample columns (n,) as text, such as "domain" and
"client", for partitions that need them. Other settings are keyword arguments; bind them with
``functools.partial``. The order *inside* a part is random, so that batches taken in order mix classes.

Here are even shares and label subsets; ``skewed`` draws unequal ones, ``domains`` goes by columns, ``rotation``
turns images, ``library_partition`` borrows those of flwr-datasets. Label subsets are common to many benchmarks,
dealt here in our own way (below).

Degenerate case: one class a client with as many classes as clients gives each client one whole class.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TypeAlias

import numpy as np

Meta: TypeAlias = Mapping[str, np.ndarray]
Partition: TypeAlias = Callable[[np.ndarray, Meta, int, np.random.Generator], list[np.ndarray]]


class PartitionError(ValueError):
    """The samples cannot be divided as asked."""


def iid(labels: np.ndarray, meta: Meta, clients: int, rng: np.random.Generator) -> list[np.ndarray]:
    """A random permutation cut into ``clients`` parts whose sizes differ by at most one.

    Raises
    ------
    PartitionError
        If there are fewer than one client, or more clients than samples.
    """
    check_clients(labels, clients)
    return np.array_split(rng.permutation(len(labels)), clients)


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
    check_clients(labels, clients)
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


def check_clients(labels: np.ndarray, clients: int, each: int = 1) -> None:
    """Raise ``PartitionError`` unless there is a client, and ``each`` samples for every one."""
    if clients < 1:
        raise PartitionError(f"expected at least 1 client, got {clients}")
    if each == 1 and clients > len(labels):
        raise PartitionError(f"{clients} clients need at least as many samples, but the data has "
                             f"{len(labels)}; use fewer clients")
    if clients * each > len(labels):
        raise PartitionError(f"{clients} clients need {clients * each} samples, {each} each, but the "
                             f"data has {len(labels)}; use fewer clients")


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
