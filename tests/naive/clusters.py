"""Normalised Gram matrix, cosine silhouette and the best partition by exhaustion, in loops."""

from __future__ import annotations

import itertools
import math


def _dot(a, b):
    return sum(float(x) * float(y) for x, y in zip(a, b, strict=True))


def unit(row):
    length = math.sqrt(_dot(row, row))
    return [float(x) / length if length > 1e-12 else 0.0 for x in row]


def gram(signals):
    """(N, N): cosines between rows after the mean over clients was taken off."""
    count, width = len(signals), len(signals[0])
    mean = [sum(float(row[p]) for row in signals) / count for p in range(width)]
    rows = [unit([float(row[p]) - mean[p] for p in range(width)]) for row in signals]
    return [[_dot(a, b) for b in rows] for a in rows]


def silhouette(points, labels):
    """Mean over points of (b - a) / max(a, b) with cosine distances; 0 for a point alone in its cluster."""
    rows = [unit(p) for p in points]
    scores = []
    for i, own in enumerate(labels):
        distances = {}
        for j, other in enumerate(labels):
            if j != i:
                distances.setdefault(other, []).append(1 - _dot(rows[i], rows[j]))
        if own not in distances:
            scores.append(0.0)
            continue
        a = sum(distances[own]) / len(distances[own])
        b = min(sum(d) / len(d) for k, d in distances.items() if k != own)
        scores.append((b - a) / max(a, b))
    return sum(scores) / len(scores)


def coherence(points, labels):
    """What spherical k-means maximises: the summed lengths of the clusters' vector sums."""
    total = 0.0
    for k in set(labels):
        members = [p for p, label in zip(points, labels, strict=True) if label == k]
        total += math.sqrt(sum(sum(float(m[d]) for m in members) ** 2 for d in range(len(members[0]))))
    return total


def best_coherence(points, k):
    """The largest coherence over all partitions of a few points into exactly k clusters."""
    labellings = itertools.product(range(k), repeat=len(points))
    return max(coherence(points, labels) for labels in labellings if len(set(labels)) == k)
