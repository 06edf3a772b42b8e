"""Mixture weights, prototype weights and blended encoders, one number at a time."""

from __future__ import annotations

import math


def mixture_weights(embedding, centroids, temperature):
    rows = []
    for z in embedding:
        odds = []
        for c in centroids:
            closeness = sum(float(a) * float(b) for a, b in zip(z, c, strict=True))
            odds.append(math.exp(closeness / temperature))
        rows.append([o / sum(odds) for o in odds])
    return rows


def member_weights(assignment, counts, gamma, ages):
    clusters = max(assignment) + 1
    table = [[0.0] * clusters for _ in assignment]
    for k in range(clusters):
        members = [i for i, a in enumerate(assignment) if a == k]
        total = sum(counts[i] * gamma ** ages[i] for i in members)
        for i in members:
            table[i][k] = counts[i] * gamma ** ages[i] / total
    return table


def blend(parts):
    """Weighted sum of lists of numbers."""
    total = [0.0] * len(parts[0][1])
    for weight, numbers in parts:
        for p, x in enumerate(numbers):
            total[p] += weight * float(x)
    return total
