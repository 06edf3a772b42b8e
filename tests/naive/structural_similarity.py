"""Structural similarity, window by window and pixel by pixel (Wang et al. 2004, equations 13 to 16)."""

from __future__ import annotations

import math

WINDOW, SPREAD, C1, C2 = 11, 1.5, 0.01**2, 0.03**2


def similarity(x, y):
    """Mean over all windows within two grey images, lists of lists of numbers in 0..1."""
    down, across = range(len(x) - WINDOW + 1), range(len(x[0]) - WINDOW + 1)
    values = [of_window([(x[i + di][j + dj], y[i + di][j + dj], weight(di, dj)) for di in range(WINDOW) for dj in range(WINDOW)])
              for i in down for j in across]
    return sum(values) / len(values)


def weight(di, dj):
    """Not normalised."""
    return math.exp(-((di - 5) ** 2 + (dj - 5) ** 2) / (2 * SPREAD**2))


def of_window(pixels):
    """Of one window's (x, y, weight)."""
    whole = sum(w for _, _, w in pixels)
    mean_x, mean_y = (sum(p[k] * p[2] for p in pixels) / whole for k in (0, 1))
    variance_x, variance_y = (sum((p[k] - mean) ** 2 * p[2] for p in pixels) / whole for k, mean in ((0, mean_x), (1, mean_y)))
    covariance = sum((a - mean_x) * (b - mean_y) * w for a, b, w in pixels) / whole
    return (2 * mean_x * mean_y + C1) * (2 * covariance + C2) / ((mean_x**2 + mean_y**2 + C1) * (variance_x + variance_y + C2))
