"""Dirichlet shares drawn one class and one client at a time, every draw carried out in full."""

from __future__ import annotations

import numpy as np


def first_good_draw(
    labels: np.ndarray, clients: int, alpha: float, min_size: int, tries: int, rng: np.random.Generator
) -> list[np.ndarray] | None:
    """The first of ``tries`` draws in which every client has ``min_size`` samples, or None."""
    for _ in range(tries):
        parts: list[list[int]] = [[] for _ in range(clients)]
        for label in sorted(set(labels.tolist())):
            members = np.array([i for i, own in enumerate(labels) if own == label])
            shares = rng.dirichlet([alpha] * clients)
            mixed, begin, total = rng.permutation(members), 0, np.cumsum(shares)
            for client in range(clients):
                end = int(total[client] * len(members)) if client + 1 < clients else len(members)
                parts[client] += mixed[begin:end].tolist()
                begin = end
        mixed_parts = [rng.permutation(np.array(part, np.int64)) for part in parts]
        if min(map(len, mixed_parts)) >= min_size:
            return mixed_parts
    return None
