"""Writing to a site's disk so that a crash leaves the old content or the new one, and failing without naming a path.

A client's error can reach the server, so the text of an ``OSError``, which carries a path, must not.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

# safetensors' own temporary files begin the same way
TORN = ".tmp"


class StoreError(RuntimeError):
    """This site's state cannot be used; the message says what to do."""


class StoreFull(StoreError):
    """The disk has no room for the new version; the versions before it are untouched."""


def make_durable_directory(directory: Path, durable: bool = True) -> None:
    """``directory`` is there and, if ``durable``, stays there whenever the machine stops."""
    if directory.is_dir():
        return
    for missing in [folder for folder in reversed(directory.parents) if not folder.exists()]:
        missing.mkdir(mode=0o700, exist_ok=True)  # parents=True would leave these open to everyone
    # only the site's own user may look inside
    directory.mkdir(mode=0o700, exist_ok=True)
    for parent in list(directory.parents)[:2] if durable else ():
        _sync_directory(parent)


def replace_durably(path: Path, content: bytes, durable: bool = True) -> None:
    """``path`` holds its former content or all of the new one, whenever this process stops and, if ``durable``, the machine."""
    torn = path.with_name(f"{TORN}-{path.name}")
    try:
        with torn.open("wb") as file:
            file.write(content)
            file.flush()
            if durable:
                os.fsync(file.fileno())
        os.replace(torn, path)
        if durable:
            _sync_directory(path.parent)
    except BaseException:
        torn.unlink(missing_ok=True)
        raise


def _sync_directory(directory: Path) -> None:
    # Windows can neither open nor sync a directory
    if os.name == "nt":
        return
    descriptor = os.open(directory, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


@contextmanager
def errors_without_paths(missing_is_own_case: bool = False) -> Iterator[None]:
    """Turns an ``OSError``, whose text carries a path, into a `StoreError` that says what to do."""
    try:
        yield
    except OSError as error:
        if missing_is_own_case and isinstance(error, FileNotFoundError):
            raise
        if error.errno in {errno.ENOSPC, errno.EDQUOT}:
            raise StoreFull("the disk of this site's state is full; free some space, then go on (FH-028)") from None
        reason = os.strerror(error.errno) if error.errno else "unknown reason"
        raise StoreError(
            f"this site's state cannot be read or written ({reason}); check the disk and its permissions"
        ) from None
