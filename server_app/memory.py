"""Let a server process give freed arrays back to the system.

glibc keeps freed blocks of up to 32 MiB for itself once one of that size was freed, so a server that folds models would
stay a model larger than what it holds. Blocks over a fixed threshold go straight back instead. Not for a process that
trains: there the same blocks are asked for again at once, and giving them back costs more than it saves.
"""

from __future__ import annotations

import ctypes
import platform

M_MMAP_THRESHOLD = -3  # of glibc's mallopt(3)
THRESHOLD = 1 << 20


def give_back_freed_memory() -> bool:
    """Fix glibc's threshold at 1 MiB. Returns whether it could be done (elsewhere nothing changes)."""
    if platform.libc_ver()[0] != "glibc":
        return False
    return bool(ctypes.CDLL(None).mallopt(M_MMAP_THRESHOLD, THRESHOLD))
