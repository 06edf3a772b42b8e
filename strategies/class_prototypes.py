"""Global class prototypes from the clients' class means: one row a class and layer, folded with momentum (METHODS 4.2, D4).

A client sends, for every class it holds, its class mean in some form, and for every other class exactly the row it received.
So a row that came back unchanged says "no such class here" and is left out. That such a copy can be recognised, by the
server and by whoever reads its messages, is stated in the contract.
"""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from strategies.precision import from_travel, to_travel
from strategies.types import Tensors


class RowMeans:
    """Weighted means a row over clients, of prototypes ``{layer: (C, D)}``; float64 sums."""

    def __init__(self, received: Tensors, travel: str) -> None:
        """``received`` : what clients were sent; ``travel`` : in which precision, since rows come back as they arrived."""
        self._sent = {layer: from_travel(to_travel(rows, travel), travel) for layer, rows in received.items()}
        self._sums = {layer: np.zeros(rows.shape) for layer, rows in received.items()}
        self._weights = {layer: np.zeros(len(rows)) for layer, rows in received.items()}

    def add(self, prototypes: Tensors, weights: np.ndarray | None = None) -> None:
        """Fold in one client's rows; ``weights`` (C,) of 0 or more, by default 1 for each class it holds."""
        for layer, rows in prototypes.items():
            held = np.any(rows != self._sent[layer], axis=1).astype(np.float64)
            share: np.ndarray = held if weights is None else held * np.maximum(weights, 0)
            self._sums[layer] += share[:, None] * rows
            self._weights[layer] += share

    def merged(self, old: Tensors, rho: float) -> dict[str, np.ndarray]:
        """``rho * old + (1 - rho) * mean`` in float32; a class nobody sent stays, one that is new is copied."""
        out = {}
        for layer, rows in old.items():
            weight = self._weights[layer]
            seen = weight > 0
            mean = self._sums[layer][seen] / weight[seen][:, None]
            known = np.any(rows[seen], axis=1)[:, None]
            merged = np.array(rows, np.float32)
            merged[seen] = np.where(known, rho * rows[seen] + (1 - rho) * mean, mean)
            out[layer] = merged
        return out


def drift(old: Tensors, new: Tensors) -> list[float]:
    """How far the prototypes known before have moved, a layer: ``||new - old|| / ||old||``; 0 while none is known."""
    moved = []
    for layer, before in old.items():
        known = before.any(axis=1)
        length = float(np.linalg.norm(before[known]))
        moved.append(float(np.linalg.norm(new[layer][known] - before[known])) / length if length else 0.0)
    return moved


def mixture_map(prototypes: Iterable[np.ndarray], tau: float) -> np.ndarray:
    """(C, C) mixture weights of a sample that lies at its class's prototype, prior flat, mean over the layers (C, D).

    Row c: the sample's class; column: the class prompt. Centred cosines over the classes that have a prototype; the row and the
    column of any other class are 0. It follows from the global prototypes alone, so it says nothing of any client.
    """
    maps = []
    for rows in prototypes:
        known = rows.any(axis=1)
        centred = rows[known] - rows[known].mean(axis=0)
        unit = centred / np.maximum(np.linalg.norm(centred, axis=1, keepdims=True), 1e-12)
        evidence = np.exp((unit @ unit.T - 1) / tau)
        full = np.zeros((len(rows), len(rows)))
        full[np.ix_(known, known)] = evidence / evidence.sum(axis=1, keepdims=True)
        maps.append(full)
    return np.mean(maps, axis=0)
