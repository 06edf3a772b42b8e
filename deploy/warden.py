"""Run a command that must not outlive us: ``python warden.py COMMAND...``.

The command, and all it started, ends when this process's standard input closes, which happens however our owner ends,
``kill -9`` included. Run as a file, it needs nothing of this project.
"""

from __future__ import annotations

import os
import subprocess
import sys
import threading

import psutil


def main(command: list[str]) -> int:
    """Run ``command`` to its end, or to our owner's; returns its exit code."""
    child = subprocess.Popen(command, stdin=subprocess.DEVNULL)
    threading.Thread(target=_until_owner_ends, args=(child.pid,), daemon=True).start()
    return child.wait()


def _until_owner_ends(pid: int) -> None:
    # not sys.stdin.read(): a thread inside it holds a lock that the interpreter wants when it ends
    while os.read(0, 1024):
        pass
    end_tree(pid)


def end_tree(pid: int) -> None:
    """End a process we started and all its descendants: first politely, then not."""
    try:
        top = psutil.Process(pid)
        family = [*top.children(recursive=True), top]
    except psutil.NoSuchProcess:
        return
    for wish in (psutil.Process.terminate, psutil.Process.kill):
        for member in family:
            try:
                wish(member)
            except psutil.NoSuchProcess:
                continue
        _, family = psutil.wait_procs(family, timeout=5)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
