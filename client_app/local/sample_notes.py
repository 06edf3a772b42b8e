"""What a client notes of each of its samples beside the cached feature, for one round; and where the feature lies.

The notes are part of the client's committed state, in two versions; the features are not, they are too many. So that both
stay in step whatever is lost or killed, a sample's feature has two places (views 0 and 1 of the feature cache). The
committed note says which one holds it, and a round writes into the other: until the server has accepted that round, what the
round began from is untouched. A feature that is not there as noted counts as not cached.

Our own choices: the version of an entry is the round that made it and the part of that round's steps that was done, since the
encoder moves within a round too; age in drift is told by an odometer (`client_app.cache_clock`), whose reading is noted.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass, fields
from pathlib import Path

import numpy as np

from client_app.local.durable import StoreError
from client_app.local.feature_cache import LARGEST_HALF, FeatureCache

log = logging.getLogger(__name__)

NONE = -1
BUCKETS = 16
LAYER = "penultimate"
_DTYPES = {"ids": np.int64, "version": np.int64, "round": np.int32, "reading": np.float64, "uses": np.int32,
           "confidence": np.float32, "marked": np.uint8, "place": np.uint8}


def entry_version(number: int, done: float) -> int:
    """The version of a feature made in round ``number`` when the part ``done``, 0 to 1, of its steps was over."""
    return BUCKETS * number + min(BUCKETS - 1, int(BUCKETS * done))


@dataclass
class SampleNotes:
    """One row a sample of n, in the order of the client's training samples; the arrays are changed in place.

    Attributes
    ----------
    ids : sample ids.
    version : of the cached feature, `NONE` where none is cached.
    round : in which it was made.
    reading : of the odometer then.
    uses : since then.
    confidence : running mean of the head's largest softmax on the sample, 0 before the first.
    marked : 1 where it is to be computed anew.
    place : the view that holds it.
    """

    ids: np.ndarray
    version: np.ndarray
    round: np.ndarray
    reading: np.ndarray
    uses: np.ndarray
    confidence: np.ndarray
    marked: np.ndarray
    place: np.ndarray

    @classmethod
    def of(cls, ids: np.ndarray, kept: Mapping[str, np.ndarray] | None = None) -> SampleNotes:
        """The ``kept`` notes for the samples ``ids`` (n,), and empty ones for those that have none."""
        new = cls(**{name: np.zeros(len(ids), dtype) for name, dtype in _DTYPES.items()})
        new.ids[:], new.version[:] = ids, NONE
        if kept is not None:
            order = np.argsort(kept["ids"], kind="stable")
            at = np.searchsorted(kept["ids"][order], ids)
            there = at < len(order)
            there[there] = kept["ids"][order[at[there]]] == ids[there]
            rows = order[at[there]]
            for field in fields(cls):
                getattr(new, field.name)[there] = kept[field.name][rows]
        return new

    def tensors(self) -> dict[str, np.ndarray]:
        """As the local store keeps them."""
        return {field.name: getattr(self, field.name) for field in fields(self)}

    @property
    def cached(self) -> np.ndarray:
        """(n,) bool: whose feature is cached."""
        return self.version != NONE

    def forget(self, rows: np.ndarray) -> None:
        """The features of ``rows`` (bool (n,) or positions) are cached no more."""
        self.version[rows] = NONE
        self.marked[rows] = self.uses[rows] = 0

    def made(self, rows: np.ndarray, number: int, done: float, reading: float) -> None:
        """The features of ``rows`` were made anew."""
        self.version[rows], self.round[rows], self.reading[rows] = entry_version(number, done), number, reading
        self.marked[rows] = self.uses[rows] = 0


class TwoPlaces:
    """The features of `SampleNotes` on disk, in two views of one layer. Without a disk that takes them, nothing is cached.

    Parameters
    ----------
    folder : of the feature cache.
    dim : D.
    payload : "float16" or "float32".
    max_bytes : bound of both places together; None for none.
    """

    def __init__(self, folder: Path, dim: int, payload: str, max_bytes: int | None = None) -> None:
        self.dim, self.payload = dim, payload
        self._caches: list[FeatureCache] = []
        try:
            self._caches = [FeatureCache(folder, LAYER, (dim,), view, payload, None if max_bytes is None else max_bytes // 2)
                            for view in (0, 1)]
        except (StoreError, ValueError) as refused:
            log.warning("this site keeps no features: %s", refused)

    @property
    def nbytes(self) -> int:
        """Bytes on disk of both places."""
        return sum(cache.nbytes for cache in self._caches)

    def load(self, notes: SampleNotes) -> np.ndarray:
        """(n, D) of the payload's dtype, zeros where nothing is cached; what is not there as noted is forgotten."""
        features = np.zeros((len(notes.ids), self.dim), self.payload)
        found = np.zeros(len(notes.ids), bool)
        for view, cache in enumerate(self._caches):
            rows = np.flatnonzero(notes.cached & (notes.place == view))
            hit = cache.get(notes.ids[rows])
            rows = rows[same := hit.found & (hit.entries["version"] == notes.version[rows])]
            features[rows], found[rows] = hit.features[same], True
        notes.forget(notes.cached & ~found)
        return features

    def save(self, notes: SampleNotes, features: np.ndarray, made: np.ndarray) -> None:
        """Put the features of ``made`` (n,) bool into the place that does not hold their last ones; notes say where."""
        made = made & notes.cached
        notes.place[made] ^= 1
        try:
            if not self._caches:
                raise StoreError("no cache could be opened")
            for view, cache in enumerate(self._caches):
                self._put(cache, notes, features, np.flatnonzero(made & (notes.place == view)))
        except StoreError as refused:
            notes.forget(made)
            log.warning("this site's features are not kept: %s", refused)

    def _put(self, cache: FeatureCache, notes: SampleNotes, features: np.ndarray, rows: np.ndarray) -> None:
        """A put is of one version, so there is one for each of the few that a round makes."""
        for version in np.unique(notes.version[rows]):
            now = rows[notes.version[rows] == version]
            cache.put(notes.ids[now], int(version), features[now].astype(np.float32), round_number=int(notes.round[now[0]]))


def as_payload(features: np.ndarray, payload: str) -> np.ndarray:
    """``features`` as the cache would give them back."""
    return (np.clip(features, -LARGEST_HALF, LARGEST_HALF) if payload == "float16" else features).astype(payload)
