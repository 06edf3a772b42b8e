"""Scikit-learn's embedded handwritten digits: 1,797 grey images of 8x8, 10 classes, no download.

Source: UCI ML "Optical recognition of handwritten digits" (test part), by ``sklearn.datasets.load_digits``.
Pixels 0..16 are scaled to 0..255 (our choice), so that models treat them like any other uint8 image.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from client_app.data.sources import Source


def load(where: str = "") -> Source:
    """The 1,797 digits as (1797, 1, 8, 8) uint8; there is no official test set."""
    from sklearn.datasets import load_digits

    bunch: Any = load_digits()
    images = np.rint(bunch["images"] * (255 / 16)).astype(np.uint8)[:, None]
    return Source(images, bunch["target"], tuple(str(name) for name in bunch["target_names"]), len(images))
