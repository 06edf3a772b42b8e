"""The head a newcomer begins with: nearest class mean, as a linear layer over its cached features.

With equal spherical covariance, a class's log-probability is linear in the feature f: ``s (m_c . f - |m_c|^2 / 2) + log p_c``
for class mean m_c and ``s = 1 / variance`` (linear discriminant analysis; as a head that needs no training it is the
prototype classifier of Snell et al. 2017, arXiv:1703.05175). Our own choices: one variance for all classes and directions, no
smaller than a twentieth of the mean square of a feature, so that a client with a sample a class is not infinitely sure; the
share p_c smoothed by half a sample a class; a class without samples gets the mean of all.
"""

from __future__ import annotations

import numpy as np

LEAST_VARIANCE = 0.05
SMOOTHING = 0.5
_TINY = 1e-12


def nearest_mean_head(features: np.ndarray, labels: np.ndarray, classes: int) -> dict[str, np.ndarray]:
    """``weight`` (C, D) and ``bias`` (C,) float32, from features (n, D) with labels (n,), n of 1 or more."""
    x = features.astype(np.float64)
    means = np.tile(x.mean(axis=0), (classes, 1))
    for label in np.unique(labels):
        means[label] = x[labels == label].mean(axis=0)
    variance = max(np.square(x - means[labels]).mean(), LEAST_VARIANCE * np.square(x).mean(), _TINY)
    counts = np.bincount(labels, minlength=classes) + SMOOTHING
    bias = np.log(counts / counts.sum()) - np.square(means).sum(axis=1) / (2 * variance)
    return {"weight": (means / variance).astype(np.float32), "bias": bias.astype(np.float32)}
