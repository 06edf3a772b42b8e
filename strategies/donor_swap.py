"""The donor swap: each client keeps its head and tries other clients' encoders (METHODS.md 1.4).

What is measured is whether those donors serve best whose heads are most alike. What it needs of a method is in ``Donors``, which
a rule gives by a method ``donors(state)``: whose encoders the server has, and how alike the heads are in the method's own eyes.
The untrained control (METHODS.md 1.4 ii) puts first heads that differ by their random start alone in the place of the trained
ones, through the same projection and the same space; what it then shows of association is chance.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from random import Random

import numpy as np

from strategies.contract import Slot
from strategies.head_clusters import ClusterSettings, low_rank
from strategies.head_descriptor import flat_signal, project
from strategies.seeds import derive_seed
from strategies.types import Tensors

DONOR = "donor-encoder"
DONOR_SLOT = Slot(DONOR, "encoder tensors", "**another client's encoder**, scored with the client's own head and not kept", like="encoder")
# a client's accuracy with a donor's encoder; "raw" has the donor's own BatchNorm statistics
ACCURACY, RAW = "donor", "donor-raw"
UNTRAINED_DRAWS = 20


@dataclass(frozen=True)
class Donors:
    """Who can swap.

    Attributes
    ----------
    clients : recipients and donors, N of them.
    rounds : of each one's encoder on the shelf; empty if the encoders are not there.
    similarity (N, N) : of their heads. untrained(draw) (N, N) : the same of heads that have not been trained.
    refresh : the round in which the similarity was taken.
    weights (N,) : training samples, or ones.
    """

    clients: tuple[str, ...]
    rounds: Mapping[str, int]
    similarity: np.ndarray
    untrained: Callable[[int], np.ndarray]
    refresh: int
    weights: np.ndarray

    def __post_init__(self) -> None:
        n = len(self.clients)
        if self.similarity.shape != (n, n) or self.weights.shape != (n,):
            raise ValueError(f"expected similarity (N, N) and weights (N,) of N = {n} clients, got {self.similarity.shape} and "
                             f"{self.weights.shape}")


def similarity_of(signals: np.ndarray, settings: ClusterSettings, seed: int) -> np.ndarray:
    """Inner products (N, N) of the unit descriptors of head signals (N, P), as HDC-FL's refresh takes them."""
    embedding = low_rank(signals.astype(np.float64), settings, seed).embedding
    return embedding @ embedding.T


def untrained_similarity(initial: Tensors, clients: Sequence[str], settings: ClusterSettings, seed: int, draw: int,
                         sketch: tuple[int, int] | None = None) -> np.ndarray:
    """Similarity (N, N) of fresh heads, one a client. ``sketch`` is width and seed of the projection, None where heads are compared whole.

    A fresh head is the common first one with the numbers of each tensor in another order: for weights drawn independently,
    another draw of the same distribution.
    """
    heads = (redrawn(initial, derive_seed(seed, "untrained", draw, client)) for client in clients)
    signals = (flat_signal(head, initial) for head in heads)
    rows = [signal if sketch is None else project(signal, *sketch) for signal in signals]
    return similarity_of(np.stack(rows), settings, derive_seed(seed, "untrained", draw) % 2**32)


def redrawn(head: Tensors, seed: int) -> dict[str, np.ndarray]:
    """``head`` with the numbers of every tensor in another order."""
    rng = np.random.default_rng(seed)
    return {name: rng.permutation(tensor.reshape(-1)).reshape(tensor.shape) for name, tensor in head.items()}


def donors_by_heads(heads: Mapping[str, Tensors], initial: Tensors, seed: int, refresh: int) -> Donors:
    """Donors whose heads are at hand, compared in the space that HDC-FL's defaults span; no encoder is on the shelf.

    Raises
    ------
    ValueError : the heads are not linear heads of one shape.
    """
    clients, settings = tuple(sorted(heads)), ClusterSettings()
    signals = np.stack([flat_signal(heads[client], initial) for client in clients])
    return Donors(clients, {}, similarity_of(signals, settings, derive_seed(seed, "donor-swap") % 2**32),
                  lambda draw: untrained_similarity(initial, clients, settings, seed, draw), refresh, np.ones(len(clients)))


def drawn_donors(clients: Sequence[str], most: int, seed: int) -> tuple[str, ...]:
    """At most ``most`` of ``clients``, sorted: the same ones for every recipient, whatever order the clients come in."""
    names = sorted(clients)
    return tuple(names if len(names) <= most else sorted(Random(derive_seed(seed, "donor-swap")).sample(names, most)))
