"""What a site keeps between rounds, on its own disk and nowhere else.

A reply can be lost after the site has committed it (FLOWER.md section 3.3), so the site keeps two versions:
the one of the last round that the server acknowledged, which the next training continues from, and the one
trained since. Our own choices: one safetensors file a version (no pickle), one checksum over everything a
file says, and one lock a site, since a client left over from a killed node can still be writing.

Nothing here may import Flower or the wire. Errors carry no path, no name and no value: a client's error can
reach the server.
"""

from __future__ import annotations

import errno
import json
import os
import re
import zlib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import numpy as np
from filelock import FileLock, Timeout
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save

_NAME = re.compile(r"[A-Za-z0-9._-]{1,64}")
_VERSION = re.compile(r"v([1-9][0-9]*)")
_SUFFIX = ".safetensors"
# safetensors' own temporary files begin the same way
_TORN = ".tmp"


class StoreError(RuntimeError):
    """This site's state cannot be used; the message says what to do."""


class StoreBusy(StoreError):
    """Another process holds this site's state."""


class StoreFull(StoreError):
    """The disk has no room for the new version; the versions before it are untouched."""


class StateLost(StoreError):
    """The version that the server acknowledged is missing or damaged."""


class LocalStore:
    """The state of one site in one run: ``<root>/<run_id>/<site>/``.

    Writing and loading need the lock, so use it as a context manager::

        with LocalStore(root, run_id, site) as store:
            slots = store.load(acked)                # None in the first round
            ...
            store.commit(round_number, slots, base=acked)

    Raises ``ValueError`` when ``run_id`` or ``site`` is not 1 to 64 of ``A-Z a-z 0-9 . _ -``. Entering
    raises `StoreBusy` after ``lock_timeout`` seconds.
    """

    def __init__(self, root: Path | str, run_id: str, site: str, lock_timeout: float = 30.0) -> None:
        _require_name("the run id", run_id)
        _require_name("the site name", site)
        self._location = Path(root) / run_id / site
        self._lock = FileLock(self._location / "lock", timeout=lock_timeout, thread_local=False)

    @property
    def site(self) -> str:
        """The site's name, by which seeds and state go."""
        return self._location.name

    @property
    def location(self) -> Path:
        """The directory of this site's files. For use on this machine only: never send or print it."""
        return self._location

    def __enter__(self) -> LocalStore:
        with _errors_without_paths():
            _make_durable_directory(self._location)
            try:
                self._lock.acquire()
            except Timeout:
                raise StoreBusy(
                    "another process is using this site's state; stop it or give each site its own name"
                ) from None
            for torn in self._location.glob(f"{_TORN}*"):
                torn.unlink(missing_ok=True)
        return self

    def __exit__(self, *failure: object) -> None:
        self._lock.release()

    def load(self, acked: int) -> dict[str, dict[str, np.ndarray]] | None:
        """The slots that round ``acked`` committed, bit for bit and in their order; None for ``acked=0``.

        Raises `StateLost` when that version is missing or damaged, `StoreError` when the disk refuses
        to read it, in which case it may still be there.
        """
        self._require_lock()
        if acked == 0:
            return None
        try:
            return self._read(f"v{acked}", str(acked))
        except (FileNotFoundError, _Damaged):
            raise StateLost(
                "this site's state of the last acknowledged round is missing or damaged; "
                "this site starts again from the initial state"
            ) from None

    def commit(self, round_number: int, slots: Mapping[str, Mapping[str, np.ndarray]], base: int) -> None:
        """Makes ``slots`` the version of ``round_number`` and forgets all others but that of ``base``.

        ``base`` is the round this one continued from, 0 if none; it is earlier than ``round_number``
        (else a lost reply would leave nothing to go back to). Committing a round again replaces its
        version. When this returns, the version survives a crash of the machine.

        Raises `StoreFull` or `StoreError`, and then the versions before are as they were.
        """
        self._require_lock()
        if not 0 <= base < round_number:
            raise ValueError("a commit needs 0 <= base < round_number: base is the round it continued from")
        self._write(f"v{round_number}", slots, {"round": str(round_number), "base": str(base)})
        with _errors_without_paths():
            for old in set(self.versions()) - {round_number, base}:
                (self._location / f"v{old}{_SUFFIX}").unlink(missing_ok=True)

    def versions(self) -> tuple[int, ...]:
        """The rounds whose version is on disk, in ascending order, sound or not."""
        found = (_VERSION.fullmatch(path.stem) for path in self._location.glob(f"v*{_SUFFIX}"))
        return tuple(sorted(int(match[1]) for match in found if match))

    def export(self, name: str, slots: Mapping[str, Mapping[str, np.ndarray]]) -> None:
        """Keeps ``slots`` as ``<name>.safetensors`` (the finished personal model), whatever rounds follow."""
        self._require_lock()
        self._write(_require_export_name(name), slots, {})

    def exported(self, name: str) -> dict[str, dict[str, np.ndarray]] | None:
        """What `export` kept under ``name``, None if it never did. Needs no lock."""
        try:
            return self._read(_require_export_name(name))
        except FileNotFoundError:
            return None
        except _Damaged:
            raise StoreError("this exported model is damaged; export it again") from None

    def _require_lock(self) -> None:
        if not self._lock.is_locked:
            raise StoreError("this site's state is not open; use `with LocalStore(...) as store`")

    def _write(self, stem: str, slots: Mapping[str, Mapping[str, np.ndarray]], meta: dict[str, str]) -> None:
        arrays = {
            slot: {name: _plain(array) for name, array in tensors.items()} for slot, tensors in slots.items()
        }
        if any("/" in slot for slot in arrays):
            raise ValueError("a slot's name must not contain a slash")
        # the order is kept too, since sums over a mapping depend on it and safetensors sorts
        meta["index"] = json.dumps({slot: list(tensors) for slot, tensors in arrays.items()})
        meta["crc32"] = str(_checksum(meta, arrays))
        flat = {f"{slot}/{name}": array for slot, named in arrays.items() for name, array in named.items()}
        with _errors_without_paths():
            _replace_durably(self._location / f"{stem}{_SUFFIX}", save(flat, metadata=meta))

    def _read(self, stem: str, round_number: str | None = None) -> dict[str, dict[str, np.ndarray]]:
        with _errors_without_paths(missing_is_own_case=True):
            try:
                with safe_open(self._location / f"{stem}{_SUFFIX}", framework="numpy") as file:
                    meta: dict[str, str] = file.metadata() or {}
                    index: dict[str, list[str]] = json.loads(meta["index"])
                    arrays = {
                        slot: {name: file.get_tensor(f"{slot}/{name}") for name in names}
                        for slot, names in index.items()
                    }
                sound = meta.pop("crc32") == str(_checksum(meta, arrays))
            except (SafetensorError, KeyError, ValueError, TypeError, AttributeError):
                raise _Damaged from None
        if not sound or meta.get("round") != round_number:
            raise _Damaged
        return arrays


class _Damaged(Exception):
    """A file is there, but is not what was written."""


def _require_name(what: str, name: str) -> None:
    if not _NAME.fullmatch(name) or name in {".", ".."}:
        raise ValueError(f"{what} must be 1 to 64 characters of A-Z a-z 0-9 . _ - and not . or ..")


def _require_export_name(name: str) -> str:
    _require_name("the export's name", name)
    if name.startswith(".") or _VERSION.fullmatch(name):
        raise ValueError("the export's name must not start with a dot or look like a version")
    return name


def _plain(array: np.ndarray) -> np.ndarray:
    """``array`` as safetensors needs it, without a copy if it is so already.

    safetensors writes the memory as it lies: an array that is not contiguous would be saved wrongly,
    and without an error.
    """
    if not isinstance(array, np.ndarray) or array.dtype.kind not in "biuf" or array.dtype.itemsize > 8:
        raise TypeError("a slot holds numpy arrays of float, integer or boolean numbers of at most 64 bits")
    return np.asarray(array, dtype=array.dtype.newbyteorder("<"), order="C")


def _checksum(meta: Mapping[str, str], arrays: Mapping[str, Mapping[str, np.ndarray]]) -> int:
    """crc32 over the numbers and over what gives them their meaning: names, order, dtypes, shapes, round."""
    shapes = [[array.dtype.name, array.shape] for tensors in arrays.values() for array in tensors.values()]
    crc = zlib.crc32(json.dumps([sorted(meta.items()), shapes]).encode())
    for tensors in arrays.values():
        for array in tensors.values():
            crc = zlib.crc32(array.data, crc)
    return crc


def _make_durable_directory(directory: Path) -> None:
    if directory.is_dir():
        return
    # only the site's own user may look inside
    directory.mkdir(mode=0o700, parents=True, exist_ok=True)
    for parent in list(directory.parents)[:2]:
        _sync_directory(parent)


def _replace_durably(path: Path, content: bytes) -> None:
    """``path`` holds its former content or all of the new one, whenever the machine stops."""
    torn = path.with_name(f"{_TORN}-{path.name}")
    try:
        with torn.open("wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        os.replace(torn, path)
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
def _errors_without_paths(missing_is_own_case: bool = False) -> Iterator[None]:
    """Turns an ``OSError``, whose text carries a path, into a `StoreError` that says what to do."""
    try:
        yield
    except OSError as error:
        if missing_is_own_case and isinstance(error, FileNotFoundError):
            raise
        if error.errno in {errno.ENOSPC, errno.EDQUOT}:
            raise StoreFull("the disk of this site's state is full; free some space, then go on") from None
        reason = os.strerror(error.errno) if error.errno else "unknown reason"
        raise StoreError(
            f"this site's state cannot be read or written ({reason}); check the disk and its permissions"
        ) from None
