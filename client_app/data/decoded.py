"""Decoded images of this client, kept on its own disk.

On separate machines a client's process is new for every message, and decoding thousands of files again would cost more
than training on them. So what was decoded is kept as a file that the next process maps into memory. The key says where
the images came from, as of when, which, and how they were read; so a changed file is decoded anew.

Only memoisation: a file that is missing, torn or damaged is made anew, and a full disk merely keeps none. Our own
choices: the limits, and one checksum behind the array, read once when a process opens it.
"""

from __future__ import annotations

import json
import logging
import os
import time
import zlib
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np

from client_app.local.durable import make_durable_directory

log = logging.getLogger(__name__)
MOST_FILES = 64
MOST_BYTES = 20 * 2**30
LEFT_OVER = 3600.0  # seconds after which an unfinished file has no owner any more
CHECKSUM = 4  # bytes


class DecodedShelf:
    """At most ``most_files`` arrays and ``most_bytes`` bytes in ``folder``; the longest unused go first."""

    def __init__(self, folder: Path, most_files: int = MOST_FILES, most_bytes: int = MOST_BYTES) -> None:
        self._folder, self._most_files, self._most_bytes = folder, most_files, most_bytes

    def images(self, key: str, shape: tuple[int, ...], make: Callable[[], np.ndarray]) -> np.ndarray:
        """The uint8 array of ``shape`` under ``key``, read-only and mapped from the disk; made, and kept, if it is not there."""
        path = self._folder / f"{key}.npy"
        found = _mapped(path, shape)
        if found is not None:
            return found
        made = make()
        if made.nbytes <= self._most_bytes:
            self._write(path, lambda part: _save(part, made))
        return made

    def note(self, key: str) -> Any:
        """What ``keep_note`` kept under ``key``, None if nothing sound is there."""
        path = self._folder / f"{key}.json"
        try:
            os.utime(path)
            return json.loads(path.read_text(encoding="utf-8"))
        except (OSError, ValueError):
            return None

    def keep_note(self, key: str, content: Any) -> None:
        """Keep something small that JSON can hold."""
        self._write(self._folder / f"{key}.json", lambda part: part.write_text(json.dumps(content), encoding="utf-8"))

    def _write(self, path: Path, fill: Callable[[Path], object]) -> None:
        part = path.with_name(f"{path.name}.{os.getpid()}.part")
        try:
            make_durable_directory(self._folder)
            fill(part)
            part.replace(path)
            self._drop()
        except OSError as error:
            log.warning("decoded images are not kept on the disk (%s); they will be decoded again", error.strerror)
            with suppress(OSError):
                part.unlink(missing_ok=True)

    def _drop(self) -> None:
        """Forget what is beyond the limits, the longest unused first, and unfinished files that nobody writes any more."""
        for pattern in ("*.npy", "*.json"):
            total = 0
            for count, (path, status) in enumerate(_newest_first(self._folder.glob(pattern)), start=1):
                total += status.st_size
                if count > self._most_files or total > self._most_bytes:
                    path.unlink(missing_ok=True)
        for path, status in _newest_first(self._folder.glob("*.part")):
            if time.time() - status.st_mtime > LEFT_OVER:
                path.unlink(missing_ok=True)


def _newest_first(paths: Any) -> list[tuple[Path, os.stat_result]]:
    found: list[tuple[Path, os.stat_result]] = []
    for path in paths:
        try:
            found.append((path, path.stat()))
        except OSError:  # another process dropped it meanwhile
            continue
    return sorted(found, key=lambda entry: entry[1].st_mtime_ns, reverse=True)


def _save(path: Path, array: np.ndarray) -> None:
    array = np.ascontiguousarray(array)
    with path.open("wb") as file:
        np.save(file, array, allow_pickle=False)
        file.write(zlib.crc32(array.data).to_bytes(CHECKSUM, "little"))


def _mapped(path: Path, shape: tuple[int, ...]) -> np.ndarray | None:
    """The array in the file, or None unless it is there, whole and sound."""
    try:
        os.utime(path)  # the mark of use that ``_drop`` goes by
        array = np.load(path, mmap_mode="r", allow_pickle=False)
        if not isinstance(array, np.memmap) or array.shape != shape or array.dtype != np.uint8:
            return None
        with path.open("rb") as file:
            file.seek(array.offset + array.nbytes)
            told = file.read(CHECKSUM + 1)
        sound = told == zlib.crc32(array.data).to_bytes(CHECKSUM, "little")
        return np.asarray(array) if sound else None
    except (OSError, ValueError, EOFError):
        return None
