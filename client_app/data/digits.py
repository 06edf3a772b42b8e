"""Scikit-learn's embedded handwritten digits: 1,797 grey images of 8x8, 10 classes, no download.

Source: UCI ML "Optical recognition of handwritten digits" (test part), by ``sklearn.datasets.load_digits``.
Pixels 0..16 are scaled to 0..255 (our choice), so that models treat them like any other uint8 image.
"""

from __future__ import annotations

from functools import cache
from importlib.util import find_spec
from pathlib import Path

import numpy as np

from client_app.data.source import Source


def load(where: str = "") -> Source:
    """The 1,797 digits as (1797, 1, 8, 8) uint8; there is no official test set."""
    images, labels = _read()
    return Source(images, labels, tuple("0123456789"), len(images))


@cache
def _read() -> tuple[np.ndarray, np.ndarray]:
    """Images and labels, read once a process and not to be written to: 130 kB.

    Reads scikit-learn's file itself: a site's process may live for one message only, and importing scikit-learn costs
    it more time than a round of training on these images.
    """
    spec = find_spec("sklearn")
    assert spec is not None and spec.origin is not None
    table = np.loadtxt(Path(spec.origin).parent / "datasets" / "data" / "digits.csv.gz", delimiter=",", dtype=np.float64)
    images = np.rint(table[:, :-1].reshape(-1, 1, 8, 8) * (255 / 16)).astype(np.uint8)
    labels = table[:, -1].astype(np.int64)
    images.flags.writeable = labels.flags.writeable = False
    return images, labels
