"""What came down in the last message, kept so that the next one may be a difference against it (``wire-delta = lossless``).

A file a version beside the site's state, named by its digest. Writing is not synced to the disk, as a version's is: whoever reads
compares the digest, and a version that is gone costs one message. At most two versions of a slot are kept, the one that the message
was a difference against, since the server goes on believing in it until it has the reply, and the one that came.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterable, Mapping
from pathlib import Path

from client_app.local.durable import TORN, errors_without_paths, make_durable_directory


class KeptBases:
    """The bases of one site in one run. ``location``: the site's directory."""

    def __init__(self, location: Path) -> None:
        self._location = location

    def get(self, digest: str) -> bytes | None:
        """The bytes of that digest; None if they are not here, or are no longer what they were."""
        try:
            content = self._path(digest).read_bytes()
        except OSError:
            return None
        return content if hashlib.blake2b(content, digest_size=16).hexdigest() == digest else None

    def keep(self, came: Mapping[str, bytes], used: Iterable[str]) -> None:
        """Keep ``came`` (digest -> bytes) and what of ``used`` is here, and nothing else. Raises ``StoreFull`` or ``StoreError``."""
        with errors_without_paths():
            make_durable_directory(self._location)
            for digest, content in came.items():
                path = self._path(digest)
                if not path.exists():
                    torn = path.with_name(f"{TORN}-{path.name}")
                    torn.write_bytes(content)
                    os.replace(torn, path)
            wanted = {self._path(digest).name for digest in {*came, *used}}
            for old in self._location.glob("base-*.npy"):
                if old.name not in wanted:
                    old.unlink(missing_ok=True)

    def _path(self, digest: str) -> Path:
        return self._location / f"base-{digest}.npy"
