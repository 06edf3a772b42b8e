"""One hash for a whole split, from the clients' own digests.

The server and ``client_app.data.manifest`` both call this, so that a run can prove which split it was. No
project imports.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping


def combined_hash(digests: Mapping[str, str]) -> str:
    """sha256 (hex) over ``client name -> digest``, in order of the names, whatever order they came in."""
    lines = "".join(f"{client}\t{digests[client]}\n" for client in sorted(digests))
    return hashlib.sha256(lines.encode()).hexdigest()
