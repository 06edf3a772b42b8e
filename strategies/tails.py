"""How a number is spread over clients: mean, deviation, worst, bottom 20 %, and their uncertainty (D11).

Definitions as in METHODS 1.4: every figure is over clients, unweighted, so a client with few samples
counts as much as one with many; the weighted mean stands beside it. Our choices: population standard
deviation (ddof = 0: the clients are all there are, not a sample), percentile bootstrap over clients.

Degenerate case: with one client all figures are that client's value and the deviation is 0.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from statistics import stdev

import numpy as np

Statistic = Callable[[np.ndarray], float]


@dataclass(frozen=True)
class Spread:
    """One metric over n clients, in the metric's own unit; see the module's docstring."""

    mean: float
    std: float
    worst: float
    bottom20: float
    weighted_mean: float
    n: int


@dataclass(frozen=True)
class PairedDifference:
    """a - b over the n clients that both have: difference of the means and of the bottom-20 % means.

    The intervals (low, high) resample clients in pairs.
    """

    mean: float
    mean_interval: tuple[float, float]
    bottom20: float
    bottom20_interval: tuple[float, float]
    n: int


def spread(
    values: Mapping[str, float] | Sequence[float] | np.ndarray,
    weights: Mapping[str, float] | Sequence[float] | np.ndarray | None = None,
) -> Spread:
    """The spread of ``values``, larger being better.

    ``weights`` (for the weighted mean alone; default equal) is a mapping with at least the same clients
    when ``values`` is one, else a sequence of the same length.

    Raises ValueError for no value, a NaN or infinity (never dropped: it would hide a broken client),
    and for weights that do not match, are negative or sum to 0.
    """
    row = _finite(list(values.values()) if isinstance(values, Mapping) else values)
    share = np.ones(row.size) if weights is None else _matched(values, weights)
    if share.shape != row.shape or (share < 0).any() or not share.sum() > 0:
        raise ValueError(f"expected {row.size} weights of 0 or more, not all 0, got {share.size}")
    return Spread(
        mean=float(row.mean()),
        std=float(row.std()),
        worst=float(row.min()),
        bottom20=bottom20(row),
        weighted_mean=float(row @ share / share.sum()),
        n=row.size,
    )


def bottom20(values: np.ndarray) -> float:
    """Mean of the ceil(N/5) smallest of ``values`` (N,)."""
    # integers: in floats 0.2 * N can land just above a whole number, and ceil then takes one too many
    return float(np.sort(values)[: -(-values.size // 5)].mean())


def bootstrap_interval(
    values: Sequence[float] | np.ndarray,
    statistic: Statistic,
    level: float = 0.95,
    draws: int = 2000,
    seed: int = 0,
) -> tuple[float, float]:
    """(low, high) percentile-bootstrap interval of ``statistic``, resampling the N clients ``draws`` times.

    Raises ValueError for no value, a value that is not finite, a level outside (0, 1) or no draws.
    """
    row = _finite(values)
    picks = _resamples(row.size, level, draws, seed)
    return _percentiles([statistic(row[pick]) for pick in picks], level)


def paired_difference(
    a: Mapping[str, float],
    b: Mapping[str, float],
    level: float = 0.95,
    draws: int = 2000,
    seed: int = 0,
) -> PairedDifference:
    """a - b over their common clients, with intervals. Raises ValueError when there is no common client."""
    common = sorted(a.keys() & b.keys())
    if not common:
        raise ValueError(f"expected common clients, got none among {len(a)} and {len(b)}: same partition?")
    left, right = _finite([a[name] for name in common]), _finite([b[name] for name in common])
    picks = _resamples(len(common), level, draws, seed)
    means = [float((left - right)[pick].mean()) for pick in picks]
    tails = [bottom20(left[pick]) - bottom20(right[pick]) for pick in picks]
    return PairedDifference(
        mean=float((left - right).mean()),
        mean_interval=_percentiles(means, level),
        bottom20=bottom20(left) - bottom20(right),
        bottom20_interval=_percentiles(tails, level),
        n=len(common),
    )


def t_reach(values: Sequence[float]) -> float:
    """Half the length of Student's 95 % t-interval of the mean of ``values``, two of them at least, in their unit."""
    from scipy.stats import t

    return float(t.ppf(0.975, len(values) - 1)) * stdev(values) / len(values) ** 0.5


def _finite(values: Sequence[float] | np.ndarray) -> np.ndarray:
    row = np.asarray(values, dtype=np.float64)
    if row.ndim != 1 or row.size == 0:
        raise ValueError(f"expected the values of at least one client, got shape {row.shape}")
    if not np.isfinite(row).all():
        broken = int((~np.isfinite(row)).sum())
        raise ValueError(f"expected finite values, got {broken} of {row.size} NaN or infinite: find those")
    return row


def _matched(
    values: Mapping[str, float] | Sequence[float] | np.ndarray,
    weights: Mapping[str, float] | Sequence[float] | np.ndarray,
) -> np.ndarray:
    """``weights`` in the order of ``values``."""
    if isinstance(values, Mapping) != isinstance(weights, Mapping):
        raise ValueError("expected values and weights that are both mappings or both sequences")
    if isinstance(values, Mapping) and isinstance(weights, Mapping):
        missing = sorted(values.keys() - weights.keys())
        if missing:
            raise ValueError(f"expected a weight for every client, missing for {missing}")
        return _finite([weights[name] for name in values])
    return _finite(np.asarray(weights))


def _resamples(n: int, level: float, draws: int, seed: int) -> np.ndarray:
    """(draws, n) indices, with replacement."""
    if not 0 < level < 1 or draws < 1:
        raise ValueError(f"expected a level in (0, 1) and at least 1 draw, got {level} and {draws}")
    return np.random.default_rng(seed).integers(n, size=(draws, n))


def _percentiles(numbers: list[float], level: float) -> tuple[float, float]:
    low, high = np.percentile(numbers, [50 * (1 - level), 50 * (1 + level)])
    return float(low), float(high)
