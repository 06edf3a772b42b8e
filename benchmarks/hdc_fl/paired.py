"""The statistics of the tables, on plain arrays: tails, paired bootstrap over seeds and clients, ranks, win / tie / loss.

Figures as in METHODS.md 1.4: of each run over its clients, then the mean over seeds, then over configurations with equal weight. Our own
choices: percentile bootstrap that first draws seeds and then, within each, clients, in pairs (clients of two seeds are different people,
since every seed divides the data anew); configurations are drawn from separately and never resampled, since they are not a sample of
anything. The bootstrap of a minimum is narrow by nature: no draw can be below the worst client that was seen.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np

DRAWS, LEVEL, MARGIN = 2000, 0.95, 0.005


def mean(values: np.ndarray) -> np.ndarray:
    """Over the clients of (..., N)."""
    return values.mean(-1)


def worst(values: np.ndarray) -> np.ndarray:
    """The smallest of (..., N)."""
    return values.min(-1)


def bottom20(values: np.ndarray) -> np.ndarray:
    """Mean of the ceil(N / 5) smallest of (..., N)."""
    count = -(-values.shape[-1] // 5)
    return np.partition(values, count - 1, axis=-1)[..., :count].mean(-1)


FIGURES: Mapping[str, Callable[[np.ndarray], np.ndarray]] = {"mean": mean, "worst": worst, "bottom20": bottom20}


@dataclass(frozen=True)
class Difference:
    """Ours less theirs, with its interval; ``draws`` (D,) are what the interval is of."""

    value: float
    low: float
    high: float
    draws: np.ndarray

    @property
    def clear(self) -> bool:
        """Whether the interval leaves 0 out."""
        return self.low > 0 or self.high < 0


def over_seeds(runs: np.ndarray, figure: str) -> tuple[float, float | None]:
    """Mean and sample deviation over seeds of a figure of ``runs`` (S, N); no deviation of one seed."""
    values = FIGURES[figure](runs)
    return float(values.mean()), float(values.std(ddof=1)) if len(values) > 1 else None


def difference(ours: np.ndarray, theirs: np.ndarray, figure: str, seed: int = 0, seeds: Sequence[int] = (),
               draws: int = DRAWS) -> Difference:
    """``ours`` less ``theirs``, both (S, N) with the same seeds and clients in the same order.

    Clients are drawn by ``seed`` and by the number of their run's seed (``seeds``, 0 to S - 1 by default) alone, so that the same clients
    are drawn together wherever they occur, however many seeds there are beside theirs.

    Raises
    ------
    ValueError
        If the shapes differ, or a value is not finite (a client that was not scored must not vanish in silence).
    """
    if ours.shape != theirs.shape or ours.ndim != 2 or not ours.size:
        raise ValueError(f"expected two arrays (seeds, clients) of one shape, got {ours.shape} and {theirs.shape}")
    if not (np.isfinite(ours).all() and np.isfinite(theirs).all()):
        raise ValueError("expected finite scores: a client without one must be left out on both sides first")
    of, picked = FIGURES[figure], _drawn(seed, tuple(seeds) or tuple(range(len(ours))), ours.shape[1], draws)
    drawn = (of(ours[picked]) - of(theirs[picked])).mean(-1)
    return _with_interval(float((of(ours) - of(theirs)).mean()), drawn)


@lru_cache(maxsize=8)  # all methods and figures of a configuration share their draws
def _drawn(seed: int, seeds: tuple[int, ...], clients: int, draws: int) -> tuple[np.ndarray, np.ndarray]:
    """Rows (D, S, 1) and columns (D, S, N) that pick seeds, and clients within each."""
    count = len(seeds)
    rows = np.random.default_rng([seed, count]).integers(count, size=(draws, count))
    # (S, D, S, N): of every seed, for every place in a draw
    columns = np.array([[np.random.default_rng([seed, number, place]).integers(clients, size=(draws, clients)) for place in range(count)]
                        for number in seeds]).transpose(0, 2, 1, 3)
    return rows[..., None], columns[rows, np.arange(draws)[:, None], np.arange(count)]


def macro(differences: Sequence[Difference]) -> Difference:
    """The mean over configurations, each of which was drawn from by itself."""
    return _with_interval(float(np.mean([d.value for d in differences])), np.mean([d.draws for d in differences], axis=0))


def _with_interval(value: float, drawn: np.ndarray) -> Difference:
    low, high = np.percentile(drawn, [50 * (1 - LEVEL), 50 * (1 + LEVEL)])
    return Difference(value, float(low), float(high), drawn)


def ranks(values: Mapping[str, float]) -> dict[str, float]:
    """1 for the largest; equal ones share the mean of their ranks."""
    from scipy.stats import rankdata

    # rounded, so that a tie of counts is one in floats too
    found = rankdata([-round(value, 9) for value in values.values()])
    return dict(zip(values, map(float, found), strict=True))


def average_ranks(tables: Sequence[Mapping[str, float]]) -> dict[str, float]:
    """The mean over configurations of each method's rank.

    Raises ``ValueError`` unless all configurations have the same methods: a rank among fewer is better for nothing.
    """
    if any(table.keys() != tables[0].keys() for table in tables):
        raise ValueError("expected the same methods in every configuration")
    of = [ranks(table) for table in tables]
    return {name: float(np.mean([rank[name] for rank in of])) for name in (of[0] if of else {})}


def win_tie_loss(differences: Sequence[float], margin: float = MARGIN) -> tuple[int, int, int]:
    """How often a difference is above ``margin``, within it, and below its negative (to 9 digits)."""
    rounded = [round(d, 9) for d in differences]
    won, lost = sum(d > margin for d in rounded), sum(d < -margin for d in rounded)
    return won, len(rounded) - won - lost, lost
