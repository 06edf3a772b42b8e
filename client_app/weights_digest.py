"""A digest of frozen weights, by which sites compare the backbones that they have loaded from files of their own.

Prompts, heads and class prototypes mean nothing to another backbone: two sites with different files would train at cross purposes,
and nobody would be told.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from typing import Any

import numpy as np
from torch import nn

# resampled to the images' size, whose last bits may differ between processors; everything else is as in the file
RESAMPLED = "pos_embed"


def frozen_parts(learner: object) -> tuple[nn.Module, ...]:
    """The modules of a learner that come from a file and never change; none of a method that trains all it has."""
    return getattr(getattr(learner, "trainer", None), "frozen", ())


def reads_names(learner: object) -> bool:
    """Whether a learner makes text prompts of the class names."""
    return bool(getattr(getattr(getattr(learner, "trainer", None), "model", None), "reads_text", False))


def weights_digest(modules: Iterable[nn.Module]) -> str:
    """16 hex digits of names, shapes and numbers; "" without a module."""
    digest, some = hashlib.sha256(), False
    for module in modules:
        for name, tensor in sorted(module.state_dict().items()):
            if RESAMPLED not in name:
                array: Any = np.ascontiguousarray(tensor.detach().float().cpu().numpy())
                digest.update(f"\0{name} {array.shape}\0".encode())
                digest.update(array.data)
                some = True
    return digest.hexdigest()[:16] if some else ""
