"""How a float32 tensor travels: as it is, or as float16 or bfloat16, which halve its bytes.

NumPy has no bfloat16, so it is carried as the upper 16 bits of a float32 in uint16, rounded to nearest, ties to even.
Only float32 tensors change; whatever else a slot holds (a float16 sketch) travels as it is. Sums stay in float64 on
the server and weights in float32 on both sides: precision is lost on the wire alone.
"""

from __future__ import annotations

import numpy as np

# name of the travelling dtype -> NumPy dtype of the bytes
TRAVEL = {"float32": "float32", "float16": "float16", "bfloat16": "uint16"}


def to_travel(tensor: np.ndarray, travel: str) -> np.ndarray:
    """``tensor`` as it travels. A value too large for float16 becomes infinite, which the wire's check then refuses."""
    if travel == "float32" or tensor.dtype != np.float32:
        return tensor
    if travel == "float16":
        with np.errstate(over="ignore"):
            return tensor.astype(np.float16)
    bits = np.ascontiguousarray(tensor).view(np.uint32)
    rounded = (bits + np.uint32(0x7FFF) + ((bits >> np.uint32(16)) & np.uint32(1))) >> np.uint32(16)
    # rounding up would turn some NaNs into infinity or zero; keep them NaN
    return np.where(np.isnan(tensor), np.uint32(0x7FC0), rounded.reshape(tensor.shape)).astype(np.uint16)


def from_travel(tensor: np.ndarray, travel: str) -> np.ndarray:
    """The float32 tensor that ``to_travel`` made ``tensor`` from, up to rounding."""
    if travel == "float32":
        return tensor
    if travel == "float16":
        return tensor.astype(np.float32)
    return (tensor.astype(np.uint32) << np.uint32(16)).view(np.float32)
