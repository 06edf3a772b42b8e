"""How much weight a gate gave to cached features in one round: by their age, which may leave, and by class, which may not.

Weights by class would tell which labels a client has, so they go into a file in the client's own folder and nowhere else. Buckets
of age, and that what was made earlier in the same round counts to the youngest, are our own choice.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from client_app.local.durable import StoreError, errors_without_paths, replace_durably
from strategies.scalars import GATE_AGES

log = logging.getLogger(__name__)

FILE = "gate_weights.json"


class GateWeights:
    """Sums over blends; ``classes`` is C.

    Attributes
    ----------
    by_age : (2, 4) sum of weights, and number of blends, by the buckets of `strategies.scalars.GATE_AGES`.
    by_class : (2, C) the same by label.
    """

    def __init__(self, classes: int = 0) -> None:
        self.by_age, self.by_class = np.zeros((2, len(GATE_AGES))), np.zeros((2, classes))

    @property
    def count(self) -> int:
        """Blends so far."""
        return int(self.by_age[1].sum())

    def add(self, weights: np.ndarray, ages: np.ndarray, labels: np.ndarray) -> None:
        """Blends in which cached features had ``weights`` (b,), whole ``ages`` (b,) in rounds since they were made, and ``labels`` (b,)."""
        for sums, places in ((self.by_age, np.searchsorted([*GATE_AGES.values()], ages)), (self.by_class, labels)):
            sums += [np.bincount(places, worth, sums.shape[1]) for worth in (weights, None)]

    def shares(self) -> dict[str, float]:
        """Mean weights, of all blends and by age where there were any; to a hundredth, so that they do not tell how many there are."""
        parts = {"gate-weight": self.by_age.sum(axis=1), **dict(zip(GATE_AGES, self.by_age.T, strict=True))}
        return {name: round(float(total / count), 2) for name, (total, count) in parts.items() if count}

    def keep(self, folder: Path, classes: Sequence[str], number: int) -> None:
        """Write ``folder / FILE``, strictly local: round ``number``, and the mean and count of every class that had a blend.

        Nothing without a blend: the file is of the last round that had one. For a person's eyes alone, so a disk that refuses
        costs the file and not the round, and a crash of the machine may cost it too.
        """
        if not self.count:
            return
        told: dict[str, Any] = {name: {"mean": float(total / count), "count": int(count)}
                                for name, (total, count) in zip(classes, self.by_class.T, strict=False) if count}
        content = json.dumps({"round": number, "classes": told}, ensure_ascii=False, indent=1).encode()
        try:
            with errors_without_paths():
                replace_durably(folder / FILE, content, durable=False)
        except StoreError as refused:
            log.warning("this site's gate weights by class are not kept: %s", refused)
