"""The head signal and its projection, entry by entry; the matrix itself is scikit-learn's."""

from __future__ import annotations

import numpy as np


def head_difference(weight, bias, weight0, bias0):
    """(C, D+1) nested lists: [W - W0 | b - b0] minus the mean over classes of every column."""
    classes, width = len(weight), len(weight[0])
    moved = []
    for c in range(classes):
        row = [float(weight[c][d]) - float(weight0[c][d]) for d in range(width)]
        row.append(float(bias[c]) - float(bias0[c]))
        moved.append(row)
    for d in range(width + 1):
        common = sum(moved[c][d] for c in range(classes)) / classes
        for c in range(classes):
            moved[c][d] -= common
    return moved


def project(signal, components):
    """(Q,) list: components (Q, P) dense times the signal divided by its length."""
    length = max(sum(float(x) ** 2 for x in signal) ** 0.5, 1e-12)
    projected = []
    for row in components:
        projected.append(sum(float(r) * float(x) / length for r, x in zip(row, signal, strict=True)))
    return [np.float16(x) for x in projected]
