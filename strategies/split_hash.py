"""One hash for a whole split, from the clients' own digests and who is held out of training.

The server and ``client_app.data.manifest`` both call this, so that a run can prove which split it was. No
project imports.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping


def combined_hash(digests: Mapping[str, str], held_out: Iterable[str] = ()) -> str:
    """sha256 (hex) over ``client name -> digest`` and the held-out names, in order of the names, whatever order they came in."""
    lines = "".join(f"{client}\t{digests[client]}\n" for client in sorted(digests))
    # a line of its own kind: a split that holds nobody out keeps the hash it always had
    lines += "".join(f"\theld out\t{client}\n" for client in sorted(held_out))
    return hashlib.sha256(lines.encode()).hexdigest()
