"""A folder for files that are of use only as long as this process lives, under the system's temporary one.

A process that is killed cannot remove it; so its owner holds a lock there, and whoever makes such a folder removes those of the
same user whose lock is free.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from contextlib import suppress
from pathlib import Path

from filelock import FileLock, Timeout

PREFIX, OWNER = "fedhearth-", "owner.lock"


class Scratch:
    """The folder ``name``, until ``close``."""

    def __init__(self) -> None:
        _sweep(Path(tempfile.gettempdir()))
        self._folder = tempfile.TemporaryDirectory(prefix=PREFIX, ignore_cleanup_errors=True)
        self.name = self._folder.name
        self._lock = FileLock(Path(self.name, OWNER), timeout=0)
        with suppress(OSError):  # a disk without room: the folder is then one that nobody sweeps
            self._lock.acquire()

    def close(self) -> None:
        """Remove it and all that it holds."""
        self._lock.release()
        self._folder.cleanup()


def _sweep(where: Path) -> None:
    """Remove the folders of processes that are gone."""
    for folder in where.glob(f"{PREFIX}*"):
        with suppress(OSError, Timeout):
            if _ours(folder):
                with FileLock(folder / OWNER, timeout=0):
                    shutil.rmtree(folder, ignore_errors=True)


def _ours(folder: Path) -> bool:
    """Whether it is a folder of this user's that has, or had, an owner. One without a lock file may be about to get its own."""
    same = not hasattr(os, "getuid") or folder.lstat().st_uid == os.getuid()
    return same and not folder.is_symlink() and (folder / OWNER).is_file()
