"""A folder of image features made beforehand, so that many runs on the same images encode them once; read-only and memory-mapped.

Features are found by the image itself, its pixels and shape, so splits, clients and sample ids may differ from run to run. One folder
can hold those of many towers, each under its version::

    write(folder, version, images, features)        # once
    ready = Precomputed.open(folder, version, with_patches=True)

Our own choice, for benchmarks and searches on one machine: ``keys.npy`` (n,) sorted, ``cls.npy`` (n, D) and ``patches.npy`` (n, M, D) in
float16.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path

import numpy as np

Arrays = dict[str, np.ndarray]


@dataclass(frozen=True, eq=False)
class Precomputed:
    """Features of n images."""

    keys: np.ndarray
    held: Arrays

    @classmethod
    def open(cls, folder: Path, version: int, with_patches: bool) -> Precomputed | None:
        """What ``folder`` holds under ``version``; None if it is nothing usable."""
        place = folder / f"{version:016x}"
        try:
            keys = np.load(place / "keys.npy")
            held = {kind: np.load(place / f"{kind}.npy", mmap_mode="r") for kind in ("cls", *(["patches"] if with_patches else []))}
        except (OSError, ValueError):
            return None
        return cls(keys, held) if all(len(array) == len(keys) for array in held.values()) else None

    def rows(self, images: np.ndarray) -> np.ndarray | None:
        """Where each of ``images`` (b, channels, height, width) is, (b,); None unless all are there."""
        if not len(self.keys):
            return None
        keys = keys_of(images)
        found = np.minimum(np.searchsorted(self.keys, keys), len(self.keys) - 1)
        return found if (self.keys[found] == keys).all() else None

    def cls(self, rows: np.ndarray) -> np.ndarray:
        """CLS features (b, D) float32."""
        return self.held["cls"][rows].astype(np.float32)

    def patches(self, rows: np.ndarray) -> np.ndarray:
        """Patch features (b, M, D) float32."""
        return self.held["patches"][rows].astype(np.float32)


def keys_of(images: np.ndarray) -> np.ndarray:
    """A number an image, (n,) uint64: a digest of pixels, dtype and shape."""
    note = f"{images.dtype.str} {images.shape[1:]}".encode()
    digests = [hashlib.blake2b(note + np.ascontiguousarray(image).tobytes(), digest_size=8).digest() for image in images]
    return np.frombuffer(b"".join(digests), "<u8")


def write(folder: Path, version: int, images: np.ndarray, encoded: Callable[[np.ndarray], Arrays], chunk: int = 64) -> int:
    """Fill ``folder`` with the features of ``images``, equal ones once, ``chunk`` at a time; returns how many.

    ``encoded(images)`` gives ``cls`` (b, D) and ``patches`` (b, M, D). Nothing is done where they are there already.
    """
    place = folder / f"{version:016x}"
    keys, first = np.unique(keys_of(images), return_index=True)
    ready = Precomputed.open(folder, version, True)
    if ready is not None and np.isin(keys, ready.keys).all():
        return 0
    place.mkdir(parents=True, exist_ok=True)
    held: Arrays = {}
    for start, found in _parts(images[first], encoded, chunk):
        for kind, array in found.items():
            if kind not in held:
                held[kind] = np.lib.format.open_memmap(place / f"{kind}.npy.part", "w+", np.float16, (len(keys), *array.shape[1:]))
            held[kind][start:start + len(array)] = array
    for kind, array in held.items():
        array.flush()  # type: ignore[attr-defined]
        (place / f"{kind}.npy.part").replace(place / f"{kind}.npy")
    # last, since it is what says that the others are whole
    np.save(place / "keys.npy", keys)
    return len(keys)


def _parts(images: np.ndarray, encoded: Callable[[np.ndarray], Arrays], chunk: int) -> Iterable[tuple[int, Arrays]]:
    return ((start, encoded(images[start:start + chunk])) for start in range(0, len(images), chunk))
