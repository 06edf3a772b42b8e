"""One way to derive a random seed, so that runs agree on every engine.

A seed depends on the run's seed and on *names* (client, round, purpose), never on a worker, a node id
or an order of arrival.
"""

from __future__ import annotations

import hashlib


def derive_seed(seed: int, *names: str | int) -> int:
    """A 63-bit seed for the purpose that ``names`` spell out.

    >>> derive_seed(0, "client-000", 1) == derive_seed(0, "client-000", 1)
    True
    >>> derive_seed(0, "client-000", 1) == derive_seed(0, "client-001", 1)
    False
    """
    # repr keeps 1 and "1" apart, and the separator cannot occur inside a repr of either
    text = "\x1f".join(repr(part) for part in (seed, *names))
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "big") >> 1
