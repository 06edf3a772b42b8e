"""Clients that cost next to nothing, by the thousand: what the scale benchmarks train on.

``tiny:load`` makes a client's data, a few small images of two of ten classes, from its number alone; ``tiny:encoder`` is a
network of 26,120 weights (0.1 MiB), so that a copy of it a client would be a gigabyte with 10,000 clients, and show.
"""

from __future__ import annotations

import numpy as np
from torch import nn

from client_app.data import ClientData, Split

CLASSES, SIDE, TRAIN, TEST, WIDTH = 10, 8, 12, 4, 40


def load(node, seed):  # type: ignore[no-untyped-def]
    """12 training and 4 test images, uint8 (1, 8, 8): a class is a bright row, in noise."""
    rng = np.random.default_rng([seed, node.index])
    labels = rng.choice(rng.choice(CLASSES, 2, replace=False), TRAIN + TEST)
    images = rng.integers(0, 200, (TRAIN + TEST, 1, SIDE, SIDE), dtype=np.uint8)
    images[np.arange(TRAIN + TEST), 0, labels % SIDE] += 55
    ids = np.arange(TRAIN + TEST)
    return ClientData(Split(images[:TRAIN], labels[:TRAIN], ids[:TRAIN]), Split(images[TRAIN:], labels[TRAIN:], ids[TRAIN:]),
                      classes=tuple(map(str, range(CLASSES))))


def encoder(in_shape, width):  # type: ignore[no-untyped-def]
    """Two dense layers, and the width of their features."""
    hidden = 248
    return nn.Sequential(nn.Flatten(), nn.Linear(SIDE * SIDE, hidden), nn.ReLU(), nn.Linear(hidden, WIDTH), nn.ReLU()), WIDTH
