"""What a site keeps between rounds, on its own disk and nowhere else.

A reply can be lost after the site has committed it (FLOWER.md section 3.3), so the site keeps two versions:
the one of the last round that the server acknowledged, which the next training continues from, and the one
trained since. Our own choices: one safetensors file a version (no pickle), one checksum over everything a
file says, and one lock a site, since a client left over from a killed node can still be writing.

Nothing here may import Flower or the wire. Errors carry no path, no name and no value: a client's error can
reach the server.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from filelock import FileLock, Timeout

from client_app.local.durable import TORN, StoreError, StoreFull, errors_without_paths, make_durable_directory, replace_durably
from client_app.local.slot_file import Damaged, read_slots, write_slots

__all__ = ["LocalStore", "StateLost", "StoreBusy", "StoreError", "StoreFull", "read_export"]

_NAME = re.compile(r"[A-Za-z0-9._-]{1,64}")
_VERSION = re.compile(r"v([1-9][0-9]*)")
_SUFFIX = ".safetensors"


class StoreBusy(StoreError):
    """Another process holds this site's state."""


class StateLost(StoreError):
    """The version that the server acknowledged is missing or damaged."""


class LocalStore:
    """The state of one site in one run: ``<root>/<run_id>/<site>/``.

    Writing and loading need the lock, so use it as a context manager::

        with LocalStore(root, run_id, site) as store:
            slots = store.load(acked)                # None in the first round
            ...
            store.commit(round_number, slots, base=acked)

    ``durable`` : whether what is written survives a crash of the machine by itself. A simulation, whose clients are all on
    one machine, leaves that to the run's end of a round: waiting for the disk at every client took most of a tiny client's time.

    Raises ``ValueError`` when ``run_id`` or ``site`` is not 1 to 64 of ``A-Z a-z 0-9 . _ -``. Entering
    raises `StoreBusy` after ``lock_timeout`` seconds.
    """

    def __init__(self, root: Path | str, run_id: str, site: str, lock_timeout: float = 30.0, durable: bool = True) -> None:
        _require_name("the run id", run_id)
        _require_name("the site name", site)
        self._location = Path(root) / run_id / site
        self._lock = FileLock(self._location / "lock", timeout=lock_timeout, thread_local=False)
        self._durable = durable

    @property
    def site(self) -> str:
        """The site's name, by which seeds and state go."""
        return self._location.name

    @property
    def location(self) -> Path:
        """The directory of this site's files. For use on this machine only: never send or print it."""
        return self._location

    def __enter__(self) -> LocalStore:
        with errors_without_paths():
            make_durable_directory(self._location, self._durable)
            try:
                self._lock.acquire()
            except Timeout:
                raise StoreBusy(
                    "another process is using this site's state; stop it or give each site its own name (FH-027)"
                ) from None
            for torn in self._location.glob(f"{TORN}*"):
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
            slots, meta = read_slots(self._path(f"v{acked}"))
            if meta.get("round") != str(acked):
                raise Damaged
        except (FileNotFoundError, Damaged):
            raise StateLost(
                "this site's state of the last acknowledged round is missing or damaged; "
                "this site starts again from the initial state (FH-029)"
            ) from None
        return slots

    def commit(self, round_number: int, slots: Mapping[str, Mapping[str, np.ndarray]], base: int) -> None:
        """Makes ``slots`` the version of ``round_number`` and forgets all others but that of ``base``.

        ``base`` is the round this one continued from, 0 if none; it is earlier than ``round_number``
        (else a lost reply would leave nothing to go back to). Committing a round again replaces its
        version. When this returns, the version survives a crash of the machine, if the store is ``durable``.

        Raises `StoreFull` or `StoreError`, and then the versions before are as they were.
        """
        self._require_lock()
        if not 0 <= base < round_number:
            raise ValueError("a commit needs 0 <= base < round_number: base is the round it continued from")
        write_slots(self._path(f"v{round_number}"), slots, {"round": str(round_number), "base": str(base)}, self._durable)
        with errors_without_paths():
            for old in set(self.versions()) - {round_number, base}:
                self._path(f"v{old}").unlink(missing_ok=True)

    def versions(self) -> tuple[int, ...]:
        """The rounds whose version is on disk, in ascending order, sound or not."""
        found = (_VERSION.fullmatch(path.stem) for path in self._location.glob(f"v*{_SUFFIX}"))
        return tuple(sorted(int(match[1]) for match in found if match))

    def export(self, name: str, slots: Mapping[str, Mapping[str, np.ndarray]], facts: Mapping[str, Any] | None = None) -> None:
        """Keeps ``slots`` as ``<name>.safetensors`` (the finished personal model), whatever rounds follow.

        ``facts``, which JSON can hold, say what the model is. They lie in the same file, so that both are replaced in one
        step, and as ``<name>.json`` beside it for people and other programs.
        """
        self._require_lock()
        path = self._path(_require_export_name(name))
        write_slots(path, slots, {} if facts is None else {"facts": json.dumps(facts, allow_nan=False)}, self._durable)
        if facts is not None:
            with errors_without_paths():
                replace_durably(path.with_name(f"{name}.json"), json.dumps(facts, ensure_ascii=False, indent=1).encode(), self._durable)

    def exported(self, name: str) -> dict[str, dict[str, np.ndarray]] | None:
        """The slots that `export` kept under ``name``, None if it never did. Needs no lock."""
        try:
            return read_export(self._path(_require_export_name(name)))[0]
        except FileNotFoundError:
            return None

    def _require_lock(self) -> None:
        if not self._lock.is_locked:
            raise StoreError("this site's state is not open; use `with LocalStore(...) as store`")

    def _path(self, stem: str) -> Path:
        return self._location / f"{stem}{_SUFFIX}"


def read_export(path: Path) -> tuple[dict[str, dict[str, np.ndarray]], dict[str, Any]]:
    """The slots and the facts of a file that `LocalStore.export` wrote, wherever it has been copied to.

    The facts are empty if none were given. Raises ``FileNotFoundError``, and `StoreError` for a damaged file or one that the
    disk refuses to read.
    """
    try:
        slots, meta = read_slots(path)
        facts = json.loads(meta.get("facts", "{}"))
    except (Damaged, ValueError):
        raise StoreError("this exported model is damaged; restore the file, or have it written again") from None
    return slots, facts


def _require_name(what: str, name: str) -> None:
    if not _NAME.fullmatch(name) or name in {".", ".."}:
        raise ValueError(f"{what} must be 1 to 64 characters of A-Z a-z 0-9 . _ - and not . or ..")


def _require_export_name(name: str) -> str:
    _require_name("the export's name", name)
    if name.startswith(".") or _VERSION.fullmatch(name):
        raise ValueError("the export's name must not start with a dot or look like a version")
    return name
