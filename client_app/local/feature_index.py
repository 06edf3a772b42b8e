"""Which row of a feature file holds which sample, and which rows are free. Built anew at every opening, never stored."""

from __future__ import annotations

import numpy as np


class FeatureIndex:
    """Sample ids to rows, read from ``records`` (rows,) of a feature file.

    Should a crash of the machine have left an id twice, its newest row counts (latest round, then version).
    """

    def __init__(self, records: np.ndarray) -> None:
        live = np.flatnonzero((records["live"] == 1) & (records["version"] >= 0))
        live = live[np.lexsort((records["version"][live], records["round"][live]))]
        self._row_of = dict(zip(records["id"][live].tolist(), live.tolist(), strict=True))
        unused = np.setdiff1d(np.arange(len(records)), np.fromiter(self._row_of.values(), np.int64))
        self._free = unused[::-1].tolist()

    def __len__(self) -> int:
        return len(self._row_of)

    def ids(self) -> np.ndarray:
        """(len,) ids in ascending order."""
        return np.array(sorted(self._row_of), np.int64)

    def rows(self, ids: np.ndarray) -> np.ndarray:
        """(B,) row of each of ``ids`` (B,), -1 where there is none."""
        return np.fromiter((self._row_of.get(sample, -1) for sample in ids.tolist()), np.int64, len(ids))

    @property
    def free(self) -> list[int]:
        """Rows that hold nothing, in no order; not to be changed."""
        return self._free

    def add(self, first: int, count: int) -> None:
        """The file grew: rows ``first`` to ``first + count - 1`` are free."""
        self._free[:0] = range(first + count - 1, first - 1, -1)

    def take(self, count: int) -> np.ndarray:
        """``count`` rows, or as many as are free, which are free no more."""
        return np.array([self._free.pop() for _ in range(min(count, len(self._free)))], np.int64)

    def bind(self, ids: np.ndarray, rows: np.ndarray) -> None:
        """``ids`` (B,) are in ``rows`` (B,) from now on."""
        self._row_of.update(zip(ids.tolist(), rows.tolist(), strict=True))

    def release(self, ids: np.ndarray) -> np.ndarray:
        """Forget ``ids`` (B,); the rows that thereby became free."""
        known = [self._row_of.pop(sample) for sample in ids.tolist() if sample in self._row_of]
        self._free.extend(known)
        return np.array(known, np.int64)
