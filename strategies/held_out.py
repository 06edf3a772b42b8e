"""Which clients are kept out of training, drawn by the run's seed from the sorted names, on every engine alike; how many are asked."""

from __future__ import annotations

import math
from collections.abc import Iterable
from random import Random

from strategies.seeds import derive_seed


def held_out_names(names: Iterable[str], count: int, seed: int) -> tuple[str, ...]:
    """``count`` of ``names``, sorted; the same whatever order the names come in."""
    return tuple(sorted(Random(derive_seed(seed, "held-out")).sample(sorted(names), count)))


def asked_of(participants: int, fraction: float) -> int:
    """How many of ``participants`` a round asks: the share ``fraction``, rounded up, and one at least."""
    return max(1, math.ceil(fraction * participants - 1e-9))
