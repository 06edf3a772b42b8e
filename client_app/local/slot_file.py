"""Slots in one safetensors file (no pickle), with one checksum over everything the file says.

The order of slots and tensors is kept too, since sums over a mapping depend on it and safetensors sorts.
"""

from __future__ import annotations

import json
import zlib
from collections.abc import Mapping
from pathlib import Path

import numpy as np
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save

from client_app.local.durable import errors_without_paths, replace_durably


class Damaged(Exception):
    """A file is there, but is not what was written."""


def write_slots(path: Path, slots: Mapping[str, Mapping[str, np.ndarray]], meta: Mapping[str, str], durable: bool = True) -> None:
    """Replace ``path``, as `replace_durably` does; ``meta`` is kept with the slots and is part of the checksum.

    Raises ``StoreFull`` or `StoreError`, and ``TypeError`` or ``ValueError`` for what such a file cannot hold.
    """
    arrays = {slot: {name: _plain(array) for name, array in tensors.items()} for slot, tensors in slots.items()}
    if any("/" in slot for slot in arrays):
        raise ValueError("a slot's name must not contain a slash")
    whole = {**meta, "index": json.dumps({slot: list(tensors) for slot, tensors in arrays.items()})}
    whole["crc32"] = str(_checksum(whole, arrays))
    flat = {f"{slot}/{name}": array for slot, named in arrays.items() for name, array in named.items()}
    with errors_without_paths():
        replace_durably(path, save(flat, metadata=whole), durable)


def read_slots(path: Path) -> tuple[dict[str, dict[str, np.ndarray]], dict[str, str]]:
    """Slots and metadata of one file, in their order; raises ``FileNotFoundError``, ``Damaged`` or `StoreError`."""
    with errors_without_paths(missing_is_own_case=True):
        try:
            with safe_open(path, framework="numpy") as file:
                meta: dict[str, str] = file.metadata() or {}
                index: dict[str, list[str]] = json.loads(meta["index"])
                arrays = {
                    slot: {name: file.get_tensor(f"{slot}/{name}") for name in names} for slot, names in index.items()
                }
            sound = meta.pop("crc32") == str(_checksum(meta, arrays))
        except (SafetensorError, KeyError, ValueError, TypeError, AttributeError):
            raise Damaged from None
    if not sound:
        raise Damaged
    return arrays, meta


def _plain(array: np.ndarray) -> np.ndarray:
    """``array`` as safetensors needs it, without a copy if it is so already.

    safetensors writes the memory as it lies: an array that is not contiguous would be saved wrongly,
    and without an error.
    """
    if not isinstance(array, np.ndarray) or array.dtype.kind not in "biuf" or array.dtype.itemsize > 8:
        raise TypeError("a slot holds numpy arrays of float, integer or boolean numbers of at most 64 bits")
    return np.asarray(array, dtype=array.dtype.newbyteorder("<"), order="C")


def _checksum(meta: Mapping[str, str], arrays: Mapping[str, Mapping[str, np.ndarray]]) -> int:
    """crc32 over the numbers and over what gives them their meaning: names, order, dtypes, shapes, round."""
    shapes = [[array.dtype.name, array.shape] for tensors in arrays.values() for array in tensors.values()]
    crc = zlib.crc32(json.dumps([sorted(meta.items()), shapes]).encode())
    for tensors in arrays.values():
        for array in tensors.values():
            crc = zlib.crc32(array.data, crc)
    return crc
