"""Whole client models on the server's shelf: encoder and head as one entry, compared and mixed by streaming.

FedAMP, CFL and pFedSim need the models of single clients on the server. They lie on the shelf, one entry a client, and memory
holds one flat model and one tensor of another at a time. BatchNorm's running statistics are no weights: they are mixed, and
left out of distances and angles.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence

import numpy as np

from strategies.movement import is_statistic
from strategies.types import Slots, Tensors

PARTS = ("encoder", "head")


def as_one(slots: Slots) -> dict[str, np.ndarray]:
    """Encoder and head as one mapping of tensors, for the shelf."""
    return {f"{part}/{name}": tensor for part in PARTS for name, tensor in slots[part].items()}


class Part(Mapping[str, np.ndarray]):
    """One part of what ``as_one`` joined; a tensor is read when it is asked for."""

    def __init__(self, whole: Tensors, part: str) -> None:
        self._whole, self._prefix = whole, f"{part}/"
        self._names = tuple(name.removeprefix(self._prefix) for name in whole if name.startswith(self._prefix))

    def __getitem__(self, name: str) -> np.ndarray:
        return self._whole[self._prefix + name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._names)

    def __len__(self) -> int:
        return len(self._names)


def flat_weights(tensors: Tensors) -> np.ndarray:
    """All weights in one row (P,) of float64."""
    return np.concatenate([np.asarray(tensors[name], np.float64).reshape(-1) for name in tensors if not is_statistic(name)])


def products(count: int, weights_of: Callable[[int], np.ndarray], fresh: Sequence[int], known: np.ndarray | None = None) -> np.ndarray:
    """Inner products (count, count) of the weights of ``count`` models, float64.

    Only rows and columns in ``fresh`` are worked out; the others come from ``known``. Two models are in memory at a time.
    """
    out = np.zeros((count, count)) if known is None else np.array(known, np.float64)
    for place, i in enumerate(fresh):
        row = weights_of(i)
        others = [j for j in range(count) if j not in fresh[:place]]
        for j in others:
            out[i, j] = out[j, i] = row @ (row if i == j else weights_of(j))
    return out


def squared_distances(gram: np.ndarray) -> np.ndarray:
    """``||w_i - w_j||^2`` (N, N) from inner products (N, N); 0 or more, and 0 on the diagonal."""
    lengths = np.diag(gram)
    out = np.maximum(lengths[:, None] + lengths[None, :] - 2 * gram, 0.0)
    np.fill_diagonal(out, 0.0)
    return out


def cosines(gram: np.ndarray) -> np.ndarray:
    """Cosine similarities (N, N) from inner products (N, N); a row of length 0 is at right angles to all others."""
    lengths = np.sqrt(np.diag(gram))
    scale = np.outer(lengths, lengths)
    out = np.divide(gram, scale, out=np.zeros_like(gram), where=scale > 0)
    np.fill_diagonal(out, 1.0)
    return np.clip(out, -1.0, 1.0)
