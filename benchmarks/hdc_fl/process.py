"""A run in a process of its own that ends when the sweep does, however that ended; and what a dead sweep left in its work folder."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import threading
from collections.abc import Mapping
from pathlib import Path

from benchmarks.command_line import ROOT

OWNED = re.compile(r"\.of-(\d+)\.")


def owned(stem: str, rest: str) -> str:
    """A name in the work folder that says which process it belongs to."""
    return f"{stem}.of-{os.getpid()}.{rest}"


def run_until_gone(words: list[str], env: Mapping[str, str]) -> subprocess.CompletedProcess[str]:
    """``python -m WORDS``; its standard input is a pipe that closes with this process, even by kill -9 (see ``end_with_parent``)."""
    reading, writing = os.pipe()  # not inherited but by the one child that reads from it
    try:
        return subprocess.run([sys.executable, "-m", *words], cwd=ROOT, capture_output=True, text=True, env=os.environ | env, stdin=reading)
    finally:
        os.close(reading)
        os.close(writing)


def end_with_parent() -> None:
    """In the child: end at once when standard input ends, so that no run goes on beside the one that takes its place."""
    def wait() -> None:
        while os.read(0, 1):
            pass
        os._exit(1)

    threading.Thread(target=wait, daemon=True).start()


def sweep_out(work: Path) -> None:
    """Remove what processes that are gone have left in ``work``: descriptions of jobs, and folders of runs."""
    for path in work.iterdir() if work.is_dir() else ():
        if (owner := OWNED.search(path.name)) and not _alive(int(owner[1])):
            shutil.rmtree(path, ignore_errors=True) if path.is_dir() else path.unlink(missing_ok=True)


def _alive(number: int) -> bool:
    try:
        os.kill(number, 0)
    except ProcessLookupError:
        return False
    except PermissionError:  # someone else's
        pass
    return True
