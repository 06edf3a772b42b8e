"""Putting files in place at once, for the server's side and the command line.

What a site keeps has a twin of this, ``client_app/local/durable.py``: strictly local code may import nothing of ours,
and client and server never each other. That one also strips paths from errors, which these may name.
"""

from __future__ import annotations

import ctypes
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def replacing(path: Path, durable: bool = True) -> Iterator[Path]:
    """A path beside ``path`` to write a file to (``.tmp-NAME``), which takes its place when the block is through.

    ``path`` holds its former content or all of the new one, at any moment; with ``durable`` also if the machine stops.
    If the block or the disk fails, the temporary file is removed.
    """
    torn = path.with_name(f".tmp-{path.name}")
    try:
        yield torn
        if durable:
            sync_to_disk(torn)
        os.replace(torn, path)
        if durable:
            sync_to_disk(path.parent)
    except BaseException:
        torn.unlink(missing_ok=True)
        raise


def sync_file_system(folder: Path) -> None:
    """Waits until all that was written to the file system of ``folder`` is on the disk; one call for any number of files.

    Where the platform has no such call (Windows), nothing is waited for.
    """
    try:
        sync = ctypes.CDLL(None, use_errno=True).syncfs  # Linux alone has it, and Python not at all
    except (AttributeError, TypeError, OSError):
        if hasattr(os, "sync"):
            os.sync()
        return
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        if sync(descriptor):
            raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()), str(folder))
    finally:
        os.close(descriptor)


def sync_to_disk(path: Path) -> None:
    """Waits until a file's content, or a directory's list of names, is on the disk."""
    # Windows can neither open nor sync a directory, and syncs only a file opened for writing
    if os.name == "nt" and path.is_dir():
        return
    descriptor = os.open(path, os.O_RDWR if path.is_file() else os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
