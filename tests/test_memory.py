"""Freed arrays go back to the system once the server asks for it."""

from __future__ import annotations

import platform
import subprocess
import sys

import pytest

CHECK = """
import os
from server_app.memory import give_back_freed_memory
assert give_back_freed_memory()
import numpy as np

def anonymous():
    resident, shared = open("/proc/self/statm").read().split()[1:3]
    return (int(resident) - int(shared)) * os.sysconf("SC_PAGE_SIZE") / 2**20

for size in (20, 10, 5):  # each freed size would raise glibc's own threshold for the next
    np.ones(size << 17)
before = anonymous()
pinned = []
for _ in range(5):
    block = np.ones(4 << 17)
    pinned.append(np.ones(1000))  # lies after the block in the heap, if that is where the block is
    del block
print(anonymous() - before)
"""


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="glibc's threshold")
def test_freed_blocks_leave_the_process() -> None:
    done = subprocess.run([sys.executable, "-c", CHECK], capture_output=True, text=True, check=True)
    assert float(done.stdout) < 1.0  # MiB; the five blocks of 4 MiB are gone
