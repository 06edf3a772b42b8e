"""Averages of encoders: folded one by one, in float64, in little memory.

Sources: FedAvg's weighted mean (McMahan et al. 2017); BatchNorm moments by the law of total variance
(METHODS 1.2). Our choices: float64 sums, so that the result depends on the order of clients by rounding
only; integer counters are refused, not averaged.

Degenerate case: the mean of one client is that client, bit for bit (for float32 and float16 tensors).
Memory: the sums, two float32 models' worth, and one chunk.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Protocol

import numpy as np

from strategies.types import Layout, Tensors, layout_of

_CHUNK = 65_536  # elements, half a MB of float64: stays in the cache


class Mean(Protocol):
    """A running average. Once ``result`` was called it is spent."""

    def add(self, tensors: Tensors, weight: float) -> None: ...
    def result(self) -> dict[str, np.ndarray]: ...


class WeightedMean:
    """sum_i w_i x_i / sum_i w_i over named floating tensors, each returned in its first dtype.

    ``add`` raises TypeError for integer tensors, and ValueError for a weight that is negative or not
    finite and for names or shapes unlike the first; a refused update leaves the sums as they were.
    """

    def __init__(self) -> None:
        self._layout: Layout | None = None
        self._sums: dict[str, np.ndarray] = {}
        self._scratch = np.empty(_CHUNK)
        self._total = 0.0
        self._spent = False

    def add(self, tensors: Tensors, weight: float) -> None:
        """Fold in one client's ``tensors``. A weight of 0 is allowed and adds nothing."""
        if self._spent:
            raise ValueError("this mean was already taken: start a new one for the next round")
        weight = _checked_weight(weight)
        self._layout = _checked_layout(self._layout, tensors)
        if weight == 0:
            return
        for name, tensor in tensors.items():
            self._fold(name, tensor.reshape(-1), weight)
        self._total += weight

    def result(self) -> dict[str, np.ndarray]:
        """The mean. The sums are freed on the way. Raises ValueError when there was nothing to average."""
        if self._spent:
            raise ValueError("this mean was already taken: start a new one for the next round")
        if self._layout is None:
            raise ValueError("expected at least one update to average, got none: was every reply refused?")
        if self._total == 0:
            raise ValueError("expected a positive total weight, got 0: every client's weight was 0")
        self._spent = True
        means: dict[str, np.ndarray] = {}
        for name, (shape, dtype) in self._layout.items():
            total = self._sums.pop(name)
            total /= self._total
            means[name] = total.astype(dtype, copy=False).reshape(shape)
        return means

    def _fold(self, name: str, flat: np.ndarray, weight: float) -> None:
        """sums[name] += weight * flat, a chunk at a time."""
        if name not in self._sums:
            # assigned, not added to zero, which would turn -0.0 into 0.0
            self._sums[name] = np.multiply(flat, weight, dtype=np.float64)
            return
        total = self._sums[name]
        for start in range(0, flat.size, _CHUNK):
            part = flat[start : start + _CHUNK]
            scaled = np.multiply(part, weight, out=self._scratch[: part.size], dtype=np.float64)
            total[start : start + _CHUNK] += scaled


class MomentMean:
    """As ``WeightedMean``, but BatchNorm statistics are those of the pooled activations.

    For ``<p>.running_mean`` mu and ``<p>.running_var`` s2: s2~ = sum_i a_i (s2_i + mu_i^2) - mu~^2 with
    a_i = w_i / sum w. Computed on mu_i minus the first client's mu, which is the same number without
    the cancellation. A mean without its variance, or the reverse, is averaged plainly.
    """

    def __init__(self) -> None:
        self._mean = WeightedMean()
        self._layout: Layout | None = None
        self._origin: dict[str, np.ndarray] = {}

    def add(self, tensors: Tensors, weight: float) -> None:
        """As ``WeightedMean.add``, with the same errors."""
        weight = _checked_weight(weight)
        layout = _checked_layout(self._layout, tensors)
        moments: dict[str, np.ndarray] = {}
        for mean_name, var_name in _statistics(tensors):
            mean = tensors[mean_name].astype(np.float64)
            shift = mean - self._origin.setdefault(mean_name, mean)
            moments |= {mean_name: mean, var_name: tensors[var_name].astype(np.float64) + shift**2}
        self._mean.add({**tensors, **moments}, weight)
        self._layout = layout

    def result(self) -> dict[str, np.ndarray]:
        """As ``WeightedMean.result``, with the same errors."""
        means = self._mean.result()
        for mean_name, var_name in _statistics(means):
            mean = means[mean_name]
            spread = means[var_name] - (mean - self._origin[mean_name]) ** 2
            # the law gives no negative variance; rounding may, by one ulp
            means |= {mean_name: mean, var_name: np.maximum(spread, 0.0)}
        layout = self._layout or {}
        return {name: tensor.astype(layout[name][1], copy=False) for name, tensor in means.items()}


def make_mean(bn: str) -> Mean:
    """The average for a run's ``bn`` setting: "moments" pools variances, the others average plainly."""
    if bn not in ("recompute", "average", "moments"):
        raise ValueError(f"bn must be recompute, average or moments, got {bn!r}")
    return MomentMean() if bn == "moments" else WeightedMean()


def simplex(weights: Iterable[float]) -> np.ndarray:
    """Weights divided by their sum, float64. Raises ValueError unless finite, >= 0 and not all 0."""
    values = np.array(list(weights), dtype=np.float64)
    if values.ndim != 1 or not (np.isfinite(values).all() and (values >= 0).all()):
        raise ValueError("expected one row of finite weights of 0 or more")
    if not values.sum() > 0:
        raise ValueError(f"expected a positive total weight over {values.size} weights, got 0")
    return values / values.sum()


def momentum(old: Tensors, new: Tensors, rho: float) -> dict[str, np.ndarray]:
    """rho * old + (1 - rho) * new, tensor by tensor: rho = 0 gives ``new``, rho = 1 gives ``old``.

    Computed in float64, returned in the dtype of ``old``. Raises ValueError when rho is outside [0, 1]
    or names or shapes differ, TypeError for integers.
    """
    if not 0 <= rho <= 1:
        raise ValueError(f"momentum rho must be in [0, 1], got {rho}")
    mean = WeightedMean()
    mean.add(old, rho)
    mean.add(new, 1.0 - rho)
    return mean.result()


def _checked_weight(weight: float) -> float:
    if not (np.isfinite(weight) and weight >= 0):
        raise ValueError(f"expected a finite weight of 0 or more, got {weight}")
    return float(weight)


def _checked_layout(expected: Layout | None, tensors: Tensors) -> Layout:
    """The layout of ``tensors``, all floating and with the expected names and shapes."""
    layout = layout_of(tensors)
    for name, tensor in tensors.items():
        if tensor.dtype.kind != "f":
            raise TypeError(
                f"{name} is {tensor.dtype}: integer counters are never averaged, send floating tensors only"
            )
    if expected is None:
        return layout
    if layout.keys() != expected.keys():
        missing, extra = sorted(expected.keys() - layout.keys()), sorted(layout.keys() - expected.keys())
        raise ValueError(f"expected the first update's tensors; missing {missing}, unexpected {extra}")
    for name, (shape, _) in layout.items():
        if shape != expected[name][0]:
            raise ValueError(f"expected {name} of shape {expected[name][0]}, got {shape}: same model?")
    return expected


def _statistics(tensors: Tensors) -> list[tuple[str, str]]:
    """The (running_mean, running_var) pairs among ``tensors``."""
    pairs = [
        (name, name.removesuffix("running_mean") + "running_var")
        for name in tensors
        if name.rpartition(".")[2] == "running_mean"
    ]
    return [pair for pair in pairs if pair[1] in tensors]
