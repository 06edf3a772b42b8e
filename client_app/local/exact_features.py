"""Exact reuse: features of a standing encoder, from the cache or computed, the same bits either way (METHODS 2.6).

A convolution may give a sample other last bits in another batch, so the unit of reuse is the chunk: samples are computed
in fixed chunks of their order, each entry keeps a digest of the chunk it was computed in, and a chunk is taken from the
cache only whole and only as the same chunk. So results equal those without a cache, bit for bit, whoever filled it.

The encoder runs in eval mode. Versions are digests of all that features depend on (`content_version`), so that a run that
was resumed, or a lost reply, can never bring back another encoder's features under the same number.
"""

from __future__ import annotations

import hashlib
import logging
import zlib
from collections.abc import Callable, Mapping

import numpy as np

from client_app.local.durable import StoreError
from client_app.local.feature_cache import FeatureCache

log = logging.getLogger(__name__)

Compute = Callable[[np.ndarray], np.ndarray]


class ExactFeatures:
    """The one way by which a phase with a standing encoder takes its features::

        exact = ExactFeatures(cache, chunk=256)         # or ExactFeatures(None): no cache, the same results
        features = exact.of(ids, version, lambda positions: encode(images[positions]))

    Parameters
    ----------
    cache : of dtype float32, or None; with ``half`` of dtype float16.
    chunk : samples that `of` computes together, 1 or more.
    independent : the caller promises that a sample's features do not depend on what they are computed together with;
        then only missing samples are computed, whatever the chunk.
    half : features are rounded to float16 right after they are computed, with and without a cache; half the disk.

    Attributes
    ----------
    reused, computed : samples taken from the cache and computed since this was made.

    A disk that refuses to write costs the reuse and never the features.
    """

    def __init__(self, cache: FeatureCache | None, chunk: int = 256, independent: bool = False, half: bool = False) -> None:
        if chunk < 1 or (cache is not None and cache.dtype != ("float16" if half else "float32")):
            raise ValueError("exact reuse needs a chunk of 1 or more, and a cache of dtype float32, or float16 with half")
        self._cache, self._chunk, self._independent, self._half = cache, chunk, independent, half
        self._writable = True
        self.reused = self.computed = 0

    def of(self, ids: np.ndarray, version: int, compute: Compute, round_number: int = 0) -> np.ndarray:
        """Features (n, *shape) float32 of the samples ``ids`` (n,), n of 1 or more, no id twice.

        ``compute(positions)`` gives features (b, *shape) float32 of the samples at ``positions`` (b,) of ``ids``.

        Raises ``ValueError`` if ``compute`` gives something else.
        """
        ids = np.asarray(ids)
        if not len(ids):
            raise ValueError("exact features need one sample or more")
        cuts = range(self._chunk, len(ids), self._chunk)
        return np.concatenate([self._chunk_of(ids, part, version, compute, round_number) for part in np.split(np.arange(len(ids)), cuts)])

    def _chunk_of(self, ids: np.ndarray, part: np.ndarray, version: int, compute: Compute, round_number: int) -> np.ndarray:
        if self._cache is None:
            return self._computed(part, compute)
        # 0 means no chunk
        layout = 0 if self._independent else zlib.crc32(ids[part].astype("<i8").tobytes()) or 1
        hit = self._cache.get(ids[part], version)
        there = hit.found if self._independent else hit.found & (hit.entries["layout"] == layout)
        missing = np.flatnonzero(~there) if self._independent or there.all() else np.arange(len(part))
        self.reused += len(part) - len(missing)
        if len(missing):
            fresh = self._computed(part[missing], compute)
            if fresh.shape[1:] != self._cache.shape:
                raise ValueError(f"the cache holds features of shape (b, {', '.join(map(str, self._cache.shape))}) and these have another")
            hit.features[missing] = fresh
            self._keep(ids[part[missing]], version, fresh, round_number, layout)
        return hit.features

    def _computed(self, positions: np.ndarray, compute: Compute) -> np.ndarray:
        fresh = compute(positions)
        if not isinstance(fresh, np.ndarray) or fresh.dtype != np.float32 or fresh.ndim < 2 or len(fresh) != len(positions):
            raise ValueError("exact reuse needs features as a float32 numpy array, one row a position")
        self.computed += len(positions)
        return fresh.astype(np.float16).astype(np.float32) if self._half else fresh

    def _keep(self, ids: np.ndarray, version: int, features: np.ndarray, round_number: int, layout: int) -> None:
        if self._cache is None or not self._writable:
            return
        try:
            self._cache.put(ids, version, features, round_number=round_number, layout=layout)
        except StoreError as refused:
            self._writable = False
            log.warning("this site's features are not kept: %s", refused)


def content_version(tensors: Mapping[str, np.ndarray], note: str = "") -> int:
    """A version, 0 to 2**63 - 1, that is the same only for the same bits: names, shapes, dtypes and numbers of ``tensors``.

    ``note`` names what else features depend on, such as the precision and the device. BatchNorm's running statistics
    belong into ``tensors``.
    """
    digest = hashlib.blake2b(note.encode(), digest_size=8)
    for name, array in sorted(tensors.items()):
        digest.update(f"\0{name} {array.dtype.str} {array.shape}\0".encode())
        digest.update(np.ascontiguousarray(array).data)
    return int.from_bytes(digest.digest(), "little") >> 1
