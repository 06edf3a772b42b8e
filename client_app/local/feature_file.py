"""Rows of features on this site's disk: two memory-mapped files, one checksum a row.

``<stem>.payload`` holds the features, row after row; ``<stem>.records`` a header and one record a row. Our own choices:

- Files grow by writing zeros, not as sparse files: a full disk is then an error here, not a SIGBUS at some later store.
- A row is freed, filled, and only then said to be live, and its checksum covers its features and its key. So whatever a
  kill or a crash of the machine leaves, a row is either what was put or is seen not to be.
- The header is a digest of what the rows look like. Any other header, a damaged one or one of other features, means that
  the files start again, empty: they are a cache.
"""

from __future__ import annotations

import hashlib
import math
import zlib
from io import FileIO
from pathlib import Path

import numpy as np

from client_app.local.durable import errors_without_paths, make_durable_directory

RECORD = np.dtype([
    # what the checksum covers, beside the features
    ("id", "<i8"), ("version", "<i8"), ("round", "<i4"), ("label", "<i4"), ("layout", "<u4"),
    ("crc", "<u4"),
    # what may change while a row stands
    ("uses", "<i4"), ("confidence", "<f4"), ("live", "u1"), ("marked", "u1"), ("spare", "<u2"),
])
_KEY_BYTES = 28
_HEADER_BYTES = 64
_ZEROS = bytes(2**18)


class FeatureFile:
    """Numbered rows, each of features and one record; the caller holds the site's lock, so one process writes.

    Attributes
    ----------
    records : (rows,) of `RECORD`, the mapped file itself.
    payload : (rows, *shape) of ``dtype``, the mapped file itself.
    rebuilt : whether files were there and could not be used, so that these are new and empty.

    Raises `StoreFull` or `StoreError` when the disk refuses.
    """

    def __init__(self, folder: Path, stem: str, shape: tuple[int, ...], dtype: str, max_rows: int) -> None:
        self._paths = {kind: folder / f"{stem}.{kind}" for kind in ("records", "payload")}
        self._shape, self._dtype, self.max_rows = shape, np.dtype(dtype).newbyteorder("<"), max_rows
        self.row_bytes = math.prod(shape) * self._dtype.itemsize
        self._header = hashlib.blake2b(f"fedhearth features 1 {stem} {dtype} {shape}".encode()).digest()
        with errors_without_paths():
            make_durable_directory(folder)
            self.rebuilt = not self._usable()
            if self.rebuilt:
                self.rebuilt = self._paths["records"].exists()
                self._paths["payload"].unlink(missing_ok=True)
                self._paths["records"].write_bytes(self._header)
                self._paths["payload"].touch()
            self._map()

    @property
    def nbytes(self) -> int:
        """Bytes of both files."""
        return _HEADER_BYTES + len(self.records) * (RECORD.itemsize + self.row_bytes)

    def grow(self, more: int) -> int:
        """Add at least ``more`` free rows, or as many as ``max_rows`` allows; returns how many were added.

        Raises `StoreFull` or `StoreError`, and then the rows are as they were.
        """
        rows = len(self.records)
        # at least a quarter of a megabyte at a time, so that files are not mapped anew for every batch
        target = min(rows + max(more, len(_ZEROS) // self.row_bytes), self.max_rows)
        if more < 1 or target <= rows:
            return 0
        with errors_without_paths():
            _extend(self._paths["payload"], rows * self.row_bytes, target * self.row_bytes)
            _extend(self._paths["records"], *(_HEADER_BYTES + n * RECORD.itemsize for n in (rows, target)))
            self._map()
        return len(self.records) - rows

    def write(self, rows: np.ndarray, records: np.ndarray, features: np.ndarray) -> None:
        """Fill ``rows`` (B,) with ``records`` (B,), whose checksums are set here, and features (B, *shape) of ``dtype``."""
        records["live"], records["crc"] = 1, checksums(records, features)
        self.free(rows)
        self.payload[rows] = features
        self.records[rows] = records

    def free(self, rows: np.ndarray) -> None:
        """Let nobody read ``rows`` (B,) any more."""
        self.records["live"][rows] = 0

    def sound(self, rows: np.ndarray) -> np.ndarray:
        """(B,) whether each of ``rows`` (B,) still holds what was put there."""
        records = self.records[rows]
        return checksums(records, self.payload[rows]) == records["crc"]

    def flush(self) -> None:
        """Returns when every row would survive a crash of the machine; a killed process loses none anyway."""
        with errors_without_paths():
            for array in (self.payload, self.records):
                if isinstance(array.base, np.memmap):
                    array.base.flush()

    def _usable(self) -> bool:
        if not all(path.exists() for path in self._paths.values()):
            return False
        with self._paths["records"].open("rb") as file:
            return file.read(_HEADER_BYTES) == self._header and self._rows_on_disk() <= self.max_rows

    def _rows_on_disk(self) -> int:
        # a kill between the growth of both leaves one of them longer
        records, payload = (self._paths[kind].stat().st_size for kind in ("records", "payload"))
        return min((records - _HEADER_BYTES) // RECORD.itemsize, payload // self.row_bytes)

    def _map(self) -> None:
        rows = self._rows_on_disk()
        # both or none, should the second mapping fail
        self.records, self.payload = (_mapped(self._paths["records"], RECORD, _HEADER_BYTES, (rows,)),
                                      _mapped(self._paths["payload"], self._dtype, 0, (rows, *self._shape)))


def checksums(records: np.ndarray, features: np.ndarray) -> np.ndarray:
    """(B,) crc32 of each record's key (B,) together with its features (B, *shape)."""
    keys = np.ascontiguousarray(records).view(np.uint8).reshape(len(records), RECORD.itemsize)[:, :_KEY_BYTES]
    features = np.ascontiguousarray(features)
    return np.fromiter((zlib.crc32(f.data, zlib.crc32(k.data)) for k, f in zip(keys, features, strict=True)), np.uint32, len(keys))


def _mapped(path: Path, dtype: np.dtype, offset: int, shape: tuple[int, ...]) -> np.ndarray:
    if not shape[0]:  # an empty file cannot be mapped
        return np.empty(shape, dtype)
    return np.memmap(path, dtype, "r+", offset, shape).view(np.ndarray)


def _extend(path: Path, size: int, target: int) -> None:
    """``path``, of ``size`` bytes that count, gets ``target`` bytes, the new ones zero; or it stays as it was."""
    with path.open("r+b", buffering=0) as file:
        try:
            # a kill in the middle of a growth can have left bytes that belong to no row
            file.truncate(size)
            file.seek(size)
            for start in range(size, target, len(_ZEROS)):
                _write_all(file, _ZEROS[: target - start])
        except OSError:
            file.truncate(size)
            raise


def _write_all(file: FileIO, content: bytes) -> None:
    # the disk's last free bytes are a short write, and only the next one is an error
    while content:
        content = content[file.write(content) :]
