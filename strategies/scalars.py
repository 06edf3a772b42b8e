"""Scalars that a client's reply may carry: which every method may send, and which are named in a method's own contract."""

from __future__ import annotations

import math

# Scalars every method may send (D9): sample counts and the client's own scores.
SCORES = frozenset({"served", "served-raw", "adapted", "adapted-raw"})
# Mean weight of cached features in blends by their age: the most rounds since they were made, earlier in the same round included.
GATE_AGES = {"gate-weight-1": 1, "gate-weight-2": 2, "gate-weight-3-5": 5, "gate-weight-more": math.inf}
# Shares in 0..1, by method: of a client's training samples by route, of cached features in blends, of its training samples
# whose class gets the most of their mixture; of gate weights, how far they differ by image; of kept patches, those that classes share.
SHARES = frozenset({"hit", "fuse", "miss", "gate-weight", *GATE_AGES, "mixture-accuracy", "gate-spread", "patch-overlap"})
# the share "mixture-accuracy" at one layer: this and the layer's name, such as "layer5"
LAYER_SHARE = "mixture-accuracy-"
COUNTS = frozenset({"num-examples", "num-test"})
# How long a client worked in a round, which tells its samples too.
SECONDS = frozenset({"train-seconds", "score-seconds"})
# Totals that tell how many samples a client has; like the counts, they stay at home with ``weighting = uniform``.
TOTALS = frozenset({"forwards", "forwards-avoided", "cache-bytes"})
# What a client says of a donor's encoder in a donor swap (``strategies.donor_swap``), and nothing else.
DONOR_SCORES = frozenset({"donor", "donor-raw"})
BOUNDED = SCORES | SHARES | DONOR_SCORES
COMMON_METRICS = SCORES | COUNTS | SECONDS | {"loss"}


def fault_of(key: str, value: object) -> str:
    """What is wrong with the scalar ``key``, in words after its name; "" if nothing."""
    if not isinstance(value, int | float) or not math.isfinite(value):
        return "must be one finite number"
    if (key in BOUNDED or key.startswith(LAYER_SHARE)) and not 0.0 <= value <= 1.0:
        return "must lie in 0..1"
    if key in COUNTS and (not isinstance(value, int) or value < 0):
        return "must be a whole number, 0 or more"
    if key in SECONDS and value < 0:
        return "must be 0 or more"
    return ""
