"""Scalars that a client's reply may carry: which every method may send, and which are named in a method's own contract."""

from __future__ import annotations

# Scalars every method may send (D9): sample counts and the client's own scores.
SCORES = frozenset({"served", "served-raw", "adapted", "adapted-raw"})
# Shares in 0..1, by method: of a client's training samples by route, of cached features in blends, of its training samples
# whose class gets the most of their mixture; of gate weights, how far they differ by image; of kept patches, those that classes share.
SHARES = frozenset({"hit", "fuse", "miss", "gate-weight", "mixture-accuracy", "gate-spread", "patch-overlap"})
# Totals that tell how many samples a client has; like the counts, they stay at home with ``weighting = uniform``.
TOTALS = frozenset({"forwards", "forwards-avoided", "cache-bytes"})
COMMON_METRICS = SCORES | {"num-examples", "num-test", "loss", "train-seconds", "score-seconds"}
