"""What a client's private head says about its data: a short vector, made without averaging any head.

Source: HDC-FL, "projects heads into a descriptor space". Our own choices: the difference from the common
initial head (independent random heads would differ mostly by their start), removal of the class-common
row (softmax cannot see it), and, in descriptor mode, that the client itself normalises and projects
(Johnson-Lindenstrauss, sparse form of Li, Hastie and Church 2006), so the head never leaves it.

Runs on the client in descriptor mode and on the server in head mode. Degenerate case: a head that has
not moved has an all-zero signal, and its descriptor is zero.

Errors may be raised on a client and so name shapes only, never a value.
"""

from __future__ import annotations

import warnings
from functools import lru_cache
from typing import TYPE_CHECKING

import numpy as np

from strategies.types import Tensors

if TYPE_CHECKING:
    from scipy.sparse import csr_matrix

EPS = 1e-12


def head_difference(head: Tensors, initial: Tensors) -> np.ndarray:
    """[W - W0 | b - b0] minus its mean over the classes, (C, D+1) float64.

    Parameters
    ----------
    head, initial : linear heads with exactly the tensors "weight" (C, D) and "bias" (C,).

    Raises
    ------
    ValueError : the two are not linear heads of one shape, or a value is not finite.
    """
    now, start = _augmented(head, "head"), _augmented(initial, "initial head")
    if now.shape != start.shape:
        raise ValueError(f"expected heads of one shape (C, D+1), got {now.shape} and {start.shape}")
    moved = now - start
    return moved - moved.mean(axis=0, keepdims=True)


def flat_signal(head: Tensors, initial: Tensors) -> np.ndarray:
    """``head_difference`` as one row, (C*(D+1),) float64, class by class."""
    return head_difference(head, initial).reshape(-1)


def project(signal: np.ndarray, width: int, seed: int) -> np.ndarray:
    """The descriptor of a flat signal (P,): L2-normalised, then projected to (Q,) float16.

    The Q rows of the projection hold +-1/sqrt(density*Q) with density 1/sqrt(P) and zero elsewhere
    (scikit-learn's scaling), so squared lengths and inner products are kept in expectation, with an
    error of the order 1/sqrt(Q). All clients of a run must use one ``seed`` and one scikit-learn
    version, or their descriptors are not comparable. float16 makes a descriptor cost 2*Q bytes on
    the wire (our choice; an entry is about 1/sqrt(Q), far above its resolution).

    Parameters
    ----------
    width : Q, at least 1. seed : any non-negative integer; its low 32 bits are used.

    Raises
    ------
    ValueError : the signal is not one finite, non-empty row, or ``width`` is below 1.
    """
    if signal.ndim != 1 or signal.size == 0:
        raise ValueError(f"expected a non-empty signal (P,), got shape {signal.shape}: flatten the head")
    if width < 1:
        raise ValueError(f"expected a descriptor width of at least 1, got {width}: set it to 512 or so")
    row = signal.astype(np.float64)
    if not np.isfinite(row).all():
        raise ValueError("expected a finite head signal, got NaN or infinity: lower the learning rate")
    unit = row / max(float(np.linalg.norm(row)), EPS)
    return np.asarray(_components(row.size, width, seed % 2**32) @ unit).astype(np.float16)


@lru_cache(maxsize=4)
def _components(size: int, width: int, seed: int) -> csr_matrix:
    """The (Q, P) projection. It depends on shape and seed only, so a lost memo costs time, nothing else."""
    from sklearn.exceptions import DataDimensionalityWarning
    from sklearn.random_projection import SparseRandomProjection

    # the checker infers str from the default "auto"
    projection = SparseRandomProjection(width, random_state=seed)  # pyright: ignore[reportArgumentType]
    with warnings.catch_warnings():
        # a tiny head may be narrower than Q; the projection then only repeats itself, which is harmless
        warnings.simplefilter("ignore", DataDimensionalityWarning)
        projection.fit(np.zeros((1, size)))
    return projection.components_


def _augmented(head: Tensors, what: str) -> np.ndarray:
    """[weight | bias], (C, D+1) float64."""
    if set(head) != {"weight", "bias"}:
        raise ValueError(f"expected a linear {what} with weight (C, D) and bias (C,), got {sorted(head)}")
    weight, bias = head["weight"], head["bias"]
    if weight.ndim != 2 or bias.shape != weight.shape[:1]:
        raise ValueError(
            f"expected a linear {what} with weight (C, D) and bias (C,), "
            f"got shapes {weight.shape} and {bias.shape}"
        )
    rows = np.concatenate([weight, bias[:, None]], axis=1, dtype=np.float64)
    if not np.isfinite(rows).all():
        raise ValueError(f"expected a finite {what}, got NaN or infinity: lower the learning rate")
    return rows
