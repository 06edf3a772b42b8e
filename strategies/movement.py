"""How far an encoder moves: the relative length of the change of its weights, BatchNorm statistics left out.

METHODS 2.2: ``||after - before|| / (||before|| + 1e-12)``, over all weights together. A sum of such steps is the length of a
path, so it never understates how far the encoder has come; that is what features age by.
"""

from __future__ import annotations

import math

import numpy as np

from strategies.types import Tensors

_TINY = 1e-12


def is_statistic(name: str) -> bool:
    """Whether the tensor called ``name`` is a running statistic of BatchNorm, and no weight."""
    return name.rpartition(".")[2] in ("running_mean", "running_var")


def movement(before: Tensors, after: Tensors) -> float:
    """Relative length of the step from ``before`` to ``after``, which have the same names and shapes; 0 or more."""
    weights = [name for name in before if not is_statistic(name)]
    step = sum(_square(np.subtract(after[name], before[name], dtype=np.float64)) for name in weights)
    length = sum(_square(before[name].astype(np.float64)) for name in weights)
    return math.sqrt(step) / (math.sqrt(length) + _TINY)


def _square(values: np.ndarray) -> float:
    flat = values.reshape(-1)
    return float(flat @ flat)
