"""A client's class prior: how frequent each class is among its own samples. It stays here; no message carries it.

Our own choice: half a sample is added to every class, (n_c + .5) / (n + .5 C), since with the plain frequencies a test image of a
class that the client has not met yet is lost for certain (METHODS 4.7). A client without labels has a flat prior.
"""

from __future__ import annotations

import numpy as np

SMOOTHING = 0.5


def class_prior(labels: np.ndarray | None, classes: int) -> np.ndarray:
    """(C,) float64, above 0 everywhere, with sum 1, from labels (n,) in 0..C-1; flat for none.

    Raises ``ValueError``, without a label, if one is outside.
    """
    if labels is None or not len(labels):
        return np.full(classes, 1 / classes)
    counts = np.bincount(labels, minlength=classes)
    if len(counts) > classes:
        raise ValueError("a class prior needs labels in 0..C-1; the data loader must list every class")
    return (counts + SMOOTHING) / (len(labels) + SMOOTHING * classes)
