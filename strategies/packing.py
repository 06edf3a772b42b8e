"""Many tensors as one: how a slot of a whole model part travels.

Flower moves every array of a message as an object of its own, with a request for each on every hop; a ResNet-18 has a
hundred. A slot of ``PACK_FROM`` tensors or more therefore travels as one flat array. Its key is a digest of all
names, shapes and dtypes in order, so two sides that disagree on any of them do not find each other's key.
"""

from __future__ import annotations

import hashlib
import math

import numpy as np

from strategies.types import Layout

PACK_FROM = 9


def packs(layout: Layout) -> bool:
    """Whether a slot of this layout travels as one array: it has many tensors, and they are of one dtype."""
    return len(layout) >= PACK_FROM and len({dtype for _, dtype in layout.values()}) == 1


def key_of(layout: Layout) -> str:
    """The packed array's name: a digest of what is in it, in order."""
    text = ";".join(f"{name}:{','.join(map(str, shape))}:{dtype}" for name, (shape, dtype) in layout.items())
    return f"packed-{hashlib.sha256(text.encode()).hexdigest()[:16]}"


def flat_of(layout: Layout) -> tuple[tuple[int], str]:
    """Shape and dtype of the packed array."""
    return (sum(math.prod(shape) for shape, _ in layout.values()),), next(iter(layout.values()))[1]


def split(flat: np.ndarray, layout: Layout) -> dict[str, np.ndarray]:
    """The tensors inside a packed array, as views of it."""
    out, start = {}, 0
    for name, (shape, _) in layout.items():
        end = start + math.prod(shape)
        out[name] = flat[start:end].reshape(shape)
        start = end
    return out
