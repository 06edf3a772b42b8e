"""Do recipients rank donors as their heads do? Rank correlations a recipient, and what can be said of their mean.

METHODS.md 1.4: Spearman's rho and Kendall's tau-b (ties are common) between similarity and accuracy over a recipient's
donors, their means over recipients, a percentile bootstrap over recipients, and a null that permutes donors within each
recipient. Where a row is constant there is no rank to correlate: such a recipient is undefined, counted, and in no mean;
it never counts as 0. Our own choices: permutations may repeat, ranks of ties are averaged, and the p value is one-sided,
for the mean rho, (1 + how many permuted means reach the observed one) / (1 + permutations).

An association, not a cause. Recipients share donors, so their rows are not independent: the interval and p say how far
recipients agree over these donors, not what other donors would have given.

Degenerate cases: one donor is no ranking (undefined); without a defined recipient every figure is None.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from strategies.seeds import derive_seed
from strategies.tails import bootstrap_interval

PERMUTATIONS = 10_000
DRAWS = 2_000
_LEAST = 1e-9  # of a row's length: residuals below it are rounding noise
_SLACK = 1e-12  # a permuted mean that is the observed one must not be below it by rounding


@dataclass(frozen=True)
class Mean:
    """The mean of what is defined in ``values`` (R,), its 95 % interval over recipients (low, high), and the share above 0."""

    values: tuple[float | None, ...]
    mean: float | None
    interval: tuple[float, float] | None
    positive: float | None
    undefined: int


@dataclass(frozen=True)
class Association:
    """Spearman and Kendall over recipients, and the permutation null's p for the mean rho."""

    rho: Mean
    tau: Mean
    p: float | None


def associate(similarity: np.ndarray, accuracy: np.ndarray, seed: int, permutations: int = PERMUTATIONS) -> Association:
    """Rank association of similarity (R, M) with accuracy (R, M), R recipients in rows; NaN where there is no such pair."""
    pairs = list(rows(similarity, accuracy))
    rho, tau = mean_of([spearman(x, y) for x, y in pairs], seed), mean_of([kendall(x, y) for x, y in pairs], seed)
    return Association(rho, tau, permutation_p(pairs, permutations, seed))


def rows(similarity: np.ndarray, accuracy: np.ndarray) -> Iterable[tuple[np.ndarray, np.ndarray]]:
    """Each recipient's (m,) similarities and accuracies, without the pairs that are not there."""
    if similarity.shape != accuracy.shape or similarity.ndim != 2:
        raise ValueError(f"expected similarity and accuracy of one shape (R, M), got {similarity.shape} and {accuracy.shape}")
    for x, y in zip(similarity, accuracy, strict=True):
        there = np.isfinite(x) & np.isfinite(y)
        yield x[there], y[there]


def spearman(x: np.ndarray, y: np.ndarray) -> float | None:
    """Spearman's rho of x and y (m,), None where it is undefined."""
    from scipy.stats import spearmanr  # scipy.stats takes a second to import

    return float(spearmanr(x, y).statistic) if ranks(x, y) else None  # pyright: ignore[reportAttributeAccessIssue]


def kendall(x: np.ndarray, y: np.ndarray) -> float | None:
    """Kendall's tau-b of x and y (m,), None where it is undefined."""
    from scipy.stats import kendalltau

    return float(kendalltau(x, y, variant="b").statistic) if ranks(x, y) else None  # pyright: ignore[reportAttributeAccessIssue]


def ranks(x: np.ndarray, y: np.ndarray) -> bool:
    """Whether both rank the same two things or more, and neither puts all on one place."""
    return len(x) >= 2 and bool(np.ptp(x) > 0) and bool(np.ptp(y) > 0)


def mean_of(values: Sequence[float | None], seed: int) -> Mean:
    """The mean over recipients, with a percentile bootstrap that resamples them."""
    known = [value for value in values if value is not None]
    if not known:
        return Mean(tuple(values), None, None, None, len(values))
    interval = bootstrap_interval(known, lambda row: float(row.mean()), draws=DRAWS, seed=derive_seed(seed, "recipients"))
    return Mean(tuple(values), float(np.mean(known)), interval, float(np.mean(np.array(known) > 0)), len(values) - len(known))


def permutation_p(pairs: Iterable[tuple[np.ndarray, np.ndarray]], permutations: int, seed: int) -> float | None:
    """One-sided p of the mean rho when donors are permuted within each recipient; None without a defined one."""
    rng = np.random.default_rng(derive_seed(seed, "permutations"))
    observed, null, defined = 0.0, np.zeros(permutations), 0
    for x, y in pairs:
        if not ranks(x, y):
            continue
        a, b = unit_ranks(x), unit_ranks(y)
        observed += float(a @ b)
        null += rng.permuted(np.tile(b, (permutations, 1)), axis=1) @ a
        defined += 1
    if not defined:
        return None
    return float((1 + np.count_nonzero(null >= observed - _SLACK * defined)) / (1 + permutations))


def partial(similarity: np.ndarray, accuracy: np.ndarray, given: np.ndarray, seed: int) -> Mean:
    """Spearman of similarity and accuracy (R, M) given covariates (R, M, c): of what is left of the ranks when each row's are
    regressed on those of the covariates. Undefined where nothing is left, or of fewer than c + 3 donors, which would leave +-1.
    """
    values: list[float | None] = []
    for x, y, z in zip(similarity, accuracy, given, strict=True):
        there = np.isfinite(x) & np.isfinite(y) & np.isfinite(z).all(axis=1)
        values.append(partial_spearman(x[there], y[there], z[there]))
    return mean_of(values, seed)


def partial_spearman(x: np.ndarray, y: np.ndarray, given: np.ndarray) -> float | None:
    """Partial rank correlation of x and y (m,) given (m, c), None where it is undefined; a constant covariate changes nothing."""
    if not ranks(x, y):
        return None
    constant = np.ones((len(x), 1))
    design = np.hstack([constant, *(centred_ranks(column)[:, None] for column in given.T if np.ptp(column) > 0)])
    left = []
    for row in (centred_ranks(x), centred_ranks(y)):
        fit, _, rank, _ = np.linalg.lstsq(design, row, rcond=None)
        residual = row - design @ fit
        if len(row) - rank < 2 or np.linalg.norm(residual) <= _LEAST * np.linalg.norm(row):
            return None
        left.append(residual / np.linalg.norm(residual))
    return float(left[0] @ left[1])


def centred_ranks(row: np.ndarray) -> np.ndarray:
    """Ranks (m,), ties averaged, minus their mean."""
    from scipy.stats import rankdata

    found = rankdata(row)
    return found - found.mean()


def unit_ranks(row: np.ndarray) -> np.ndarray:
    """Centred ranks of length 1: the inner product of two of them is Spearman's rho."""
    found = centred_ranks(row)
    return found / np.linalg.norm(found)
