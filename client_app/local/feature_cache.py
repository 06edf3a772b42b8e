"""A site's cache of features: what an encoder made of its samples, on its own disk and nowhere else.

The key is (sample id, view, layer, model version); METHODS 2.2 and 2.6. This is the client-local, gated feature cache of
FedHearth, not the server-side knowledge cache that was published under the name FedCache (arXiv:2308.07816).

Our own choices: one `FeatureCache` a (layer, view), one entry a sample in it, whose version is part of the key and
replaced with it; float16 for approximate reuse, float32 where reuse must be exact; the oldest entries make room.

Versions are the caller's: integers that grow, such as global version x step buckets, or a digest of the weights
(`client_app.local.exact_features.content_version`). So is drift between them.

Nothing here may import Flower, the wire or torch. Errors and log lines carry no path, no id and no value.
"""

from __future__ import annotations

import logging
import re
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from client_app.local.feature_file import RECORD, FeatureFile
from client_app.local.feature_index import FeatureIndex

log = logging.getLogger(__name__)

DTYPES = ("float16", "float32")
LARGEST_HALF = 65504.0
# what `get` and `entries` show of a record
ENTRY = np.dtype([(name, RECORD[name]) for name in ("id", "version", "round", "label", "layout", "uses", "confidence")]
                 + [("marked", "?")])
_LAYER = re.compile(r"[A-Za-z0-9_-]{1,64}")


@dataclass(frozen=True)
class Lookup:
    """What `FeatureCache.get` found of B samples.

    Attributes
    ----------
    features : (B, *shape) float32; zeros where nothing was found.
    found : (B,) bool.
    entries : (B,) of `ENTRY`: version, round stored, label, layout, uses, confidence, marked; zeros where nothing was found.
    """

    features: np.ndarray
    found: np.ndarray
    entries: np.ndarray


@dataclass(frozen=True)
class CacheCounts:
    """What went unlike it was asked for since the cache was opened.

    Attributes
    ----------
    torn : entries dropped because they were not what had been put.
    rebuilt : 1 if the files could not be used (damaged, or of other features) and the cache began empty.
    evicted : entries that made room for newer ones.
    left_out : entries not stored because all that is stored is as new.
    not_finite : entries not stored because a feature was NaN or infinite.
    """

    torn: int = 0
    rebuilt: int = 0
    evicted: int = 0
    left_out: int = 0
    not_finite: int = 0


class FeatureCache:
    """The cached features of one layer under one view (one fixed augmentation of the samples)::

        cache = FeatureCache(store.location / "features", "penultimate", (512,))
        cache.put(ids, version, features, round_number=rnd.number)
        hit = cache.get(ids, version)            # hit.features[hit.found]

    The caller holds the site's lock while this exists. Killed at any moment, it opens again with every entry whole or
    gone. A crash of the machine may lose what was done since `flush`, so what was invalidated may be back then, under its
    own version.

    Parameters
    ----------
    folder : made if absent; only this class writes into it.
    layer : 1 to 64 of ``A-Z a-z 0-9 _ -``.
    shape : of one sample's features, such as ``(512,)``.
    view : 0 or more.
    dtype : "float32" keeps every bit; "float16" halves the size, and clips at 65504.
    max_bytes : bound of both files; None for none. A cache that is opened with a lower bound than its size begins empty.

    Raises ``ValueError`` for other arguments, `StoreFull` or `StoreError` when the disk refuses; the caller may then go on
    without a cache.
    """

    def __init__(self, folder: Path | str, layer: str, shape: tuple[int, ...], view: int = 0, dtype: str = "float16",
                 max_bytes: int | None = None) -> None:
        if not _LAYER.fullmatch(layer) or view < 0 or dtype not in DTYPES or not shape or min(shape) < 1:
            raise ValueError("a feature cache needs a layer of 1 to 64 of A-Z a-z 0-9 _ -, a view of 0 or more, sizes of 1 or more "
                             f"and one of the dtypes {', '.join(DTYPES)}; got {layer!r}, {view}, {shape} and {dtype!r}")
        self.shape, self.dtype = tuple(shape), dtype
        row = RECORD.itemsize + int(np.prod(shape)) * np.dtype(dtype).itemsize
        max_rows = 2**40 if max_bytes is None else (max_bytes - 64) // row
        if max_rows < 1:
            raise ValueError(f"max_bytes must have room for one sample's features, {row + 64} bytes; got {max_bytes}")
        self._file = FeatureFile(Path(folder), f"{layer}.{view}.{dtype}", self.shape, dtype, max_rows)
        self.counts = CacheCounts(rebuilt=int(self._file.rebuilt))
        if self._file.rebuilt:
            log.warning("this site's feature cache was damaged or held other features; it begins empty")
        self._of = FeatureIndex(self._file.records)
        self._file.free(np.array(self._of.free, np.int64))
        self._checked = np.zeros(len(self._file.records), bool)

    def __len__(self) -> int:
        return len(self._of)

    @property
    def nbytes(self) -> int:
        """Bytes on disk, metadata included."""
        return self._file.nbytes

    def put(self, ids: np.ndarray, version: int, features: np.ndarray, *, round_number: int = 0, labels: np.ndarray | None = None,
            confidence: np.ndarray | None = None, layout: int = 0) -> int:
        """Store features (B, *shape) of the samples ``ids`` (B,), replacing what is stored of them; the number stored.

        A new entry has no uses and no mark. ``labels`` (B,) and ``confidence`` (B,), 0 if absent, are for policies;
        ``layout`` says what the features were computed together with (`ExactFeatures`). Where ``max_bytes`` is reached,
        entries of the oldest round, then version, give way, but none that is as new as these: then these are left out,
        because a sweep over more samples than fit would otherwise throw out just what it asks for next.

        Raises ``ValueError`` if a shape is wrong, an id repeats or the version is negative; `StoreFull` or `StoreError`
        when the disk refuses, and then nothing was changed.
        """
        ids, features = _whole(ids), np.asarray(features)
        if features.shape != (len(ids), *self.shape) or features.dtype.kind != "f":
            raise ValueError(f"features must be floats of shape (B, {', '.join(map(str, self.shape))}), one row an id; "
                             f"got {features.dtype} with {features.ndim} axes")
        if version < 0 or len(np.unique(ids)) != len(ids):
            raise ValueError("a put needs a version of 0 or more, and no id twice")
        records = np.zeros(len(ids), RECORD)
        records["id"], records["version"], records["round"], records["layout"] = ids, version, round_number, layout
        records["label"] = 0 if labels is None else labels
        records["confidence"] = 0 if confidence is None else confidence
        finite = np.isfinite(features).all(axis=tuple(range(1, features.ndim)))
        return self._store(records[finite], self._as_stored(features[finite]), int((~finite).sum()))

    def get(self, ids: np.ndarray, version: int | None = None) -> Lookup:
        """What is stored of the samples ``ids`` (B,): at exactly ``version``, or at any if None. Counts no use."""
        ids = _whole(ids)
        rows = self._of.rows(ids)
        known = rows >= 0
        if version is not None:
            known[known] = self._file.records["version"][rows[known]] == version
        known[known] = self._sound(rows[known])
        features, entries = np.zeros((len(ids), *self.shape), np.float32), np.zeros(len(ids), ENTRY)
        features[known] = self._file.payload[rows[known]]
        entries[known] = self._entries(rows[known])
        return Lookup(features, known, entries)

    def entries(self) -> np.ndarray:
        """(len,) of `ENTRY`, a copy in ascending order of id: what policies rank."""
        return self._entries(self._of.rows(self._of.ids()))

    def touch(self, ids: np.ndarray, confidence: np.ndarray | None = None) -> None:
        """One use more of each of ``ids`` (B,), and their ``confidence`` (B,) if given; absent ones are passed over."""
        rows = self._of.rows(_whole(ids))
        np.add.at(self._file.records["uses"], rows[rows >= 0], 1)
        if confidence is not None:
            self._file.records["confidence"][rows[rows >= 0]] = np.asarray(confidence)[rows >= 0]

    def mark(self, ids: np.ndarray) -> None:
        """Mark ``ids`` (B,) for refresh, which `put` ends; absent ones are passed over. A marked entry is still found."""
        rows = self._of.rows(_whole(ids))
        self._file.records["marked"][rows[rows >= 0]] = 1

    def invalidate(self, before_version: int) -> int:
        """Drop every entry of a version below ``before_version``; returns how many."""
        entries = self.entries()
        return self.drop(entries["id"][entries["version"] < before_version])

    def drop(self, ids: np.ndarray) -> int:
        """Drop the entries of ``ids`` (B,); returns how many there were."""
        rows = self._of.release(_whole(ids))
        self._file.free(rows)
        return len(rows)

    def flush(self) -> None:
        """Returns when everything stored would survive a crash of the machine. Raises `StoreFull` or `StoreError`."""
        self._file.flush()

    def _entries(self, rows: np.ndarray) -> np.ndarray:
        entries, records = np.empty(len(rows), ENTRY), self._file.records[rows]
        for name in ENTRY.names or ():
            entries[name] = records[name]
        return entries

    def _as_stored(self, features: np.ndarray) -> np.ndarray:
        if self.dtype == "float16":
            features = np.clip(features, -LARGEST_HALF, LARGEST_HALF)
        return features.astype(self.dtype)

    def _sound(self, rows: np.ndarray) -> np.ndarray:
        """Whether ``rows`` (B,) hold what was put; those that do not are dropped. Each is checked once an opening."""
        unchecked = np.unique(rows[~self._checked[rows]])
        sound = self._file.sound(unchecked)
        self._checked[unchecked[sound]] = True
        torn = unchecked[~sound]
        if len(torn):
            log.warning("dropped torn entries of this site's feature cache")
            self.drop(self._file.records["id"][torn])
            self._count(torn=len(torn))
        return ~np.isin(rows, torn)

    def _store(self, records: np.ndarray, features: np.ndarray, not_finite: int) -> int:
        rows = self._of.rows(records["id"])
        new = np.flatnonzero(rows < 0)
        if len(new):
            given = self._take(len(new), records[0], rows[rows >= 0])
            rows[new[: len(given)]] = given
        kept = rows >= 0
        self._file.write(rows[kept], records[kept], features[kept])
        self._of.bind(records["id"][kept], rows[kept])
        self._checked[rows[kept]] = True
        self._count(left_out=int((~kept).sum()), not_finite=not_finite)
        return int(kept.sum())

    def _take(self, count: int, newcomer: np.void, busy: np.ndarray) -> np.ndarray:
        """Up to ``count`` rows for entries like ``newcomer``: free ones, new ones, then those of older entries not in ``busy``."""
        before = len(self._file.records)
        added = self._file.grow(count - len(self._of.free))
        self._of.add(before, added)
        self._checked = np.append(self._checked, np.zeros(added, bool))
        short = count - len(self._of.free)
        if short > 0:
            entries = self.entries()
            age = np.stack([entries["round"], entries["version"]])
            older = (age[0] < newcomer["round"]) | ((age[0] == newcomer["round"]) & (age[1] < newcomer["version"]))
            older &= ~np.isin(self._of.rows(entries["id"]), busy)
            oldest_first = np.lexsort((age[1], age[0]))
            self._count(evicted=self.drop(entries["id"][oldest_first[older[oldest_first]][:short]]))
        return self._of.take(count)

    def _count(self, **more: int) -> None:
        self.counts = replace(self.counts, **{name: getattr(self.counts, name) + n for name, n in more.items()})


def _whole(ids: np.ndarray) -> np.ndarray:
    ids = np.asarray(ids)
    if ids.ndim != 1 or ids.dtype.kind not in "iu":
        raise ValueError(f"sample ids must be whole numbers of shape (B,), got {ids.dtype} with {ids.ndim} axes")
    return ids.astype(np.int64, copy=False)
