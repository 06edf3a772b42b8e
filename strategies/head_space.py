"""The descriptor space that a refresh spans, kept so that a client who comes later finds its place in it.

Clients are embedded by the eigenvectors of their Gram matrix (``strategies.head_clusters``); a newcomer has no row in
it. Its place is the same linear map in another form: centre by the clients' column mean, normalise, multiply with the
right singular vectors H' U / sqrt(lambda) (the usual out-of-sample extension of a principal component analysis). For
a signal that was there at the refresh it gives that client's own embedding, up to rounding. Our own choice: a newcomer
moves neither mean, basis nor centroids.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from strategies.head_descriptor import EPS

_BLOCK = 8_192  # columns of the signals held in float64 at a time


@dataclass(frozen=True)
class HeadSpace:
    """Where signals (P,) lie.

    Attributes
    ----------
    mean (P,) : of the signals at the refresh. basis (P, R) : right singular vectors; a zero column for a dimension that
        is rounding noise.
    floor : a centred signal not longer than this is noise and lies at the origin.
    """

    mean: np.ndarray
    basis: np.ndarray
    floor: float

    def place(self, signals: np.ndarray) -> np.ndarray:
        """Unit rows (M, R) of signals (M, P), or a zero row for one at the mean of all.

        Raises
        ------
        ValueError : the signals are not finite or of another width.
        """
        if signals.ndim != 2 or signals.shape[1:] != self.mean.shape:
            raise ValueError(f"expected signals (M, {len(self.mean)}), got shape {signals.shape}")
        if not np.isfinite(signals).all():
            raise ValueError("expected finite signals, got NaN or infinity: leave them out")
        moved = signals.astype(np.float64) - self.mean
        moved[np.linalg.norm(moved, axis=1) <= self.floor] = 0.0
        return unit_rows(unit_rows(moved) @ self.basis)


def space_of(signals: np.ndarray, scale: np.ndarray, directions: np.ndarray) -> HeadSpace:
    """The space of signals (N, P), whose centred rows are normalised by ``scale`` (N,).

    ``directions`` (N, R) : eigenvectors of the normalised Gram matrix, each divided by the root of its eigenvalue.
    """
    basis = np.concatenate([rows.T @ directions for rows in centred(signals, scale)])
    mean = np.concatenate([block.mean(axis=0) for block in _blocks(signals)])
    return HeadSpace(mean, basis, noise_floor(signals))


def centred(signals: np.ndarray, scale: np.ndarray) -> Iterator[np.ndarray]:
    """Blocks of columns (N, <=_BLOCK) float64, centred over clients, row i times scale[i]."""
    for block in _blocks(signals):
        yield (block - block.mean(axis=0)) * scale[:, None]


def inverse_lengths(signals: np.ndarray) -> np.ndarray:
    """1/length (N,) of the centred rows; 0 for a row that is rounding noise, which must not be blown up."""
    squares = np.zeros(len(signals))
    for rows in centred(signals, np.ones(len(signals))):
        squares += (rows**2).sum(axis=1)
    lengths = np.sqrt(squares)
    noise = lengths <= noise_floor(signals)
    return np.where(noise, 0.0, 1.0 / np.where(noise, 1.0, lengths))


def noise_floor(signals: np.ndarray) -> float:
    """The length up to which a centred row of (N, P) is rounding noise, judged by the longest signal."""
    largest = max(float(np.linalg.norm(row.astype(np.float64))) for row in signals)
    return max(1e-9 * largest, EPS)


def unit_rows(rows: np.ndarray, width: int | None = None) -> np.ndarray:
    """The first ``width`` columns of (N, R) with rows of length 1; rows shorter than 1e-12 become zero."""
    kept = rows[:, :width]
    lengths = np.linalg.norm(kept, axis=1, keepdims=True)
    return np.where(lengths < EPS, 0.0, kept / np.maximum(lengths, EPS))


def _blocks(signals: np.ndarray) -> Iterator[np.ndarray]:
    for start in range(0, signals.shape[1], _BLOCK):
        yield signals[:, start : start + _BLOCK].astype(np.float64)
