"""Groups of clients from their head signals: low-rank embedding, spherical k-means, silhouette.

Source: HDC-FL, "normalised low-rank descriptor space" and its clustering; the paper's rank, clustering
and number of clusters are not known to us, so every rule below is our choice. Low rank by the
eigenvectors of the (N, N) Gram matrix, since N is far below P. Rank by the largest eigenvalue ratio
(Ahn and Horenstein 2013); "parallel" is Horn's analysis with a sign-flip null (Hong, Sheng and Dobriban
2020: it keeps the rows' lengths, which a permutation of columns would not); "energy" is a share of the
trace. k-means is scikit-learn's on unit rows, settled by spherical steps (assign by cosine,
centroid = normalised mean), so that every client is in the cluster whose centroid it is closest to.

Degenerate cases: fewer than four clients, identical signals and all-zero signals give one cluster, with
which HDC-FL serves what FedPer serves.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, get_args

import numpy as np

from strategies.head_descriptor import EPS
from strategies.head_space import HeadSpace, centred, inverse_lengths, space_of, unit_rows

Rank = Literal["ratio", "parallel", "energy"]

_FLOOR = 1e-10  # of the largest eigenvalue; below it an eigenvalue is rounding noise
_NULLS = 40  # sign-flipped copies for the parallel analysis; of 20 the 95th percentile is too low


@dataclass(frozen=True)
class ClusterSettings:
    """How clients are grouped. All defaults are this project's (a pilot on rotated CIFAR-10).

    Attributes
    ----------
    rank : rule for R. max_rank : upper limit of R. energy : share of the trace for rank="energy".
    max_clusters : largest K tried. num_clusters : fixed K, whatever its silhouette; 0 = by silhouette.
    min_cluster_size : a K with a smaller cluster is not a candidate.
    min_silhouette : below it, one cluster. restarts : k-means starts for each K.
    """

    rank: Rank = "ratio"
    max_rank: int = 8
    energy: float = 0.90
    max_clusters: int = 8
    num_clusters: int = 0
    min_cluster_size: int = 1
    min_silhouette: float = 0.05
    restarts: int = 50

    def __post_init__(self) -> None:
        if self.rank not in get_args(Rank):
            raise ValueError(f"rank must be one of {get_args(Rank)}, got {self.rank!r}")
        lows = {"max_rank": 2, "max_clusters": 1, "num_clusters": 0, "min_cluster_size": 1, "restarts": 1}
        for name, low in lows.items():
            if getattr(self, name) < low:
                raise ValueError(f"{name} must be at least {low}, got {getattr(self, name)}")
        if not 0 < self.energy <= 1:
            raise ValueError(f"energy must be in (0, 1], got {self.energy}")
        if not -1 <= self.min_silhouette <= 1:
            raise ValueError(f"min_silhouette must be in [-1, 1], got {self.min_silhouette}")


@dataclass(frozen=True)
class LowRank:
    """Clients in the descriptor space.

    ``embedding`` (N, R) has unit rows (a zero row for a client exactly at the mean of all);
    ``eigenvalues`` (N,) of the normalised Gram matrix, descending, none negative. ``space`` places others
    in the same dimensions.
    """

    embedding: np.ndarray
    eigenvalues: np.ndarray
    space: HeadSpace

    @property
    def rank(self) -> int:
        return self.embedding.shape[1]


@dataclass(frozen=True)
class Clusters:
    """A grouping of N clients into K clusters, numbered by their first member.

    ``assignment`` (N,) int; ``centroids`` (K, R), unit rows or zero where the members cancel out;
    ``embedding`` (N, R); ``silhouette``: mean cosine silhouette of the best candidate, also when it was
    too low and one cluster was kept; 0 when no K could be tried. ``eigenvalues`` (N,) as in ``LowRank``.
    """

    assignment: np.ndarray
    centroids: np.ndarray
    embedding: np.ndarray
    rank: int
    silhouette: float
    eigenvalues: np.ndarray
    space: HeadSpace


def low_rank(signals: np.ndarray, settings: ClusterSettings, seed: int) -> LowRank:
    """Embed N signals (N, P) in R dimensions: centre the columns, normalise the rows, U_r sqrt(lambda).

    ``seed`` is used by rank="parallel" alone. Raises ValueError unless ``signals`` is a finite (N, P).
    """
    if signals.ndim != 2 or 0 in signals.shape:
        raise ValueError(f"expected signals (N, P) of at least one client, got shape {signals.shape}")
    bad = [i for i, row in enumerate(signals) if not np.isfinite(row).all()]
    if bad:
        raise ValueError(f"expected finite signals, got NaN or infinity in rows {bad}: leave them out")
    scale = inverse_lengths(signals)
    gram = np.zeros((len(signals), len(signals)))
    for rows in centred(signals, scale):
        gram += rows @ rows.T
    values, vectors = np.linalg.eigh(gram)
    values, vectors = np.maximum(values[::-1], 0.0), vectors[:, ::-1]
    rank = _rank(values, signals, scale, settings, seed)
    # eigh leaves the signs open: make the largest entry of every eigenvector positive
    peak = np.abs(vectors).argmax(axis=0)
    vectors = vectors * np.where(vectors[peak, np.arange(len(peak))] < 0, -1.0, 1.0)
    weak = values <= _FLOOR * values[0]
    directions = vectors * np.where(weak, 0.0, 1.0 / np.sqrt(np.where(weak, 1.0, values)))
    return LowRank(unit_rows(vectors * np.where(weak, 0.0, np.sqrt(values)), rank), values,
                   space_of(signals, scale, directions[:, :rank]))


def cluster(signals: np.ndarray, settings: ClusterSettings, seed: int) -> Clusters:
    """Group N clients by their signals (N, P), either descriptors or flat heads.

    K runs over 2..min(max_clusters, N//2), and the best cosine silhouette wins (the smallest K on a
    tie). A fixed ``num_clusters`` is cut to the number of distinct embeddings. Nothing depends on the
    clients' order but the random starts. Raises ValueError as ``low_rank``.
    """
    space = low_rank(signals, settings, seed)
    points = space.embedding
    best, best_score = np.zeros(len(points), dtype=np.int64), -np.inf
    for k in _candidates(points, settings):
        labels = _spherical(points, k, settings.restarts, seed)
        if np.bincount(labels).min() < settings.min_cluster_size:
            continue
        score = _silhouette(points, labels)
        if score > best_score + 1e-12:
            best, best_score = labels, score
    if settings.num_clusters == 0 and best_score < settings.min_silhouette:
        best = np.zeros_like(best)
    score = best_score if np.isfinite(best_score) else 0.0
    return Clusters(best, _centroids(points, best), points, space.rank, score, space.eigenvalues, space.space)


def adjusted_rand(a: np.ndarray, b: np.ndarray) -> float:
    """Adjusted Rand index of two labellings (N,): 1 for equal partitions, about 0 for unrelated ones."""
    from sklearn.metrics import adjusted_rand_score

    return float(adjusted_rand_score(a, b))


def permute(n: int, seed: int) -> np.ndarray:
    """A random order (N,) of clients: the random-cluster control gives client i the row of client perm[i].

    Permuting whole rows keeps the clusters' sizes and the mixtures' softness, and removes the similarity.
    """
    return np.random.default_rng(seed).permutation(n)


def _rank(
    values: np.ndarray, signals: np.ndarray, scale: np.ndarray, settings: ClusterSettings, seed: int
) -> int:
    """R within 2..min(max_rank, N-1), or 1 where that is empty."""
    cap = min(settings.max_rank, len(values) - 1)
    if cap <= 2 or values[0] == 0:
        return max(1, min(2, cap))
    if settings.rank == "energy":
        share = np.cumsum(values) / values.sum()
        wanted = int(np.searchsorted(share, settings.energy - 1e-12)) + 1
    elif settings.rank == "parallel":
        above = values > _null_eigenvalues(signals, scale, seed)
        wanted = len(values) if above.all() else int(above.argmin())
    else:
        # centring makes the last eigenvalue zero, so a ratio to it would say nothing: stop at N-2
        floored = np.maximum(values, _FLOOR * values[0])
        last = min(cap, len(values) - 2)
        wanted = 2 + int(np.argmax(floored[1:last] / floored[2 : last + 1]))
    return min(max(wanted, 2), cap)


def _null_eigenvalues(signals: np.ndarray, scale: np.ndarray, seed: int) -> np.ndarray:
    """(N,) 95th percentile of each eigenvalue, descending, when the entries' signs are random.

    Flipped rows are centred and normalised again: a null with N free dimensions, against N-1 in the
    data, would have lower eigenvalues all along and let noise pass.
    """
    rng = np.random.default_rng(seed)
    grams = np.zeros((_NULLS, len(scale), len(scale)))
    for rows in centred(signals, scale):
        rows = rows.astype(np.float32)  # a null needs no more, and is the costly part
        for gram in grams:
            flipped = rows * (2 * rng.integers(0, 2, rows.shape, dtype=np.int8) - 1)
            flipped -= flipped.mean(axis=0)
            gram += flipped @ flipped.T
    lengths = np.sqrt(np.maximum(np.diagonal(grams, axis1=1, axis2=2), EPS))
    grams /= lengths[:, :, None] * lengths[:, None, :]
    return np.percentile(np.linalg.eigvalsh(grams), 95, axis=0)[::-1]


def _candidates(points: np.ndarray, settings: ClusterSettings) -> list[int]:
    """The K to try. k-means needs as many distinct points as clusters."""
    distinct = len(np.unique(np.round(points, 9), axis=0))
    if settings.num_clusters:
        fixed = min(settings.num_clusters, distinct)
        return [fixed] if fixed > 1 else []
    return list(range(2, min(settings.max_clusters, len(points) // 2, distinct) + 1))


def _spherical(points: np.ndarray, k: int, restarts: int, seed: int) -> np.ndarray:
    """k-means on (N, R) unit rows, labels (N,) in 0..k-1 in order of their first member."""
    from sklearn.cluster import KMeans

    # the checker infers str from the default "auto"
    kmeans = KMeans(k, n_init=restarts, random_state=seed % 2**32)  # pyright: ignore[reportArgumentType]
    labels = np.asarray(kmeans.fit_predict(points))
    for _ in range(100):
        moved = (points @ _centroids(points, labels).T).argmax(axis=1)
        # spherical steps may in principle empty a cluster; the last full labelling is then kept
        if (moved == labels).all() or len(np.unique(moved)) < k:
            break
        labels = moved
    _, first, inverse = np.unique(labels, return_index=True, return_inverse=True)
    return first.argsort().argsort()[inverse]


def _silhouette(points: np.ndarray, labels: np.ndarray) -> float:
    """Mean cosine silhouette; undefined, here 0, when every client is its own cluster."""
    from sklearn.metrics import silhouette_score

    if labels.max() + 1 >= len(labels):
        return 0.0
    return float(silhouette_score(points, labels, metric="cosine"))


def _centroids(points: np.ndarray, labels: np.ndarray) -> np.ndarray:
    """Normalised mean (K, R) of every cluster's points."""
    return unit_rows(np.stack([points[labels == k].mean(axis=0) for k in range(labels.max() + 1)]))
