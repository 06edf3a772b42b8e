"""A Flower command with its environment: shown as something to paste into a shell, started, and ended for sure.

Whoever would rather run Flower by hand can: what is printed is what runs.
"""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil

from deploy.simulate import OFFLINE
from strategies.config import ConfigError

# Flower's own default is two transfers at a time
TRANSFERS = {"FLWR_PRIVATE_MAX_CONCURRENT_OBJ_PUSHES": "8", "FLWR_PRIVATE_MAX_CONCURRENT_OBJ_PULLS": "8"}
GRACE = 10.0


@dataclass(frozen=True)
class FlowerCommand:
    """``words`` to run; ``settings`` is what its environment has beyond ours; ``ahead`` is searched for commands first."""

    words: tuple[str, ...]
    settings: Mapping[str, str] = field(default_factory=dict)
    ahead: tuple[str, ...] = ()

    @property
    def environment(self) -> dict[str, str]:
        """Ours, with ``settings``, and the folder of Flower's commands on the path: they start one another by name."""
        return {**os.environ, **self.settings, "PATH": os.pathsep.join([*self.ahead, scripts(), os.environ.get("PATH", "")])}

    def shown(self) -> str:
        """For a POSIX shell, one item a line."""
        settings = [f"{key}={shlex.quote(value)}" for key, value in self.settings.items()]
        first = [f'PATH={shlex.quote(os.pathsep.join([*self.ahead, scripts()]))}:"$PATH"', *settings, shlex.quote(self.words[0])]
        return " \\\n  ".join([*first, *_options(self.words[1:])])

    def start(self, **more: Any) -> subprocess.Popen[bytes]:
        """Start it in a process group of its own, so that Ctrl-C reaches us alone."""
        options: dict[str, Any] = {"stdin": subprocess.DEVNULL, "start_new_session": True, **more}
        return subprocess.Popen(self.words, env=self.environment, **options)  # type: ignore[return-value]


def flower_command(name: str, *words: str, home: Path, **settings: str) -> FlowerCommand:
    """Flower's command ``name``, at home in the folder ``home``, with quick transfers, and calling nobody.

    Raises ``ConfigError`` as ``flower_path`` does.
    """
    home.mkdir(parents=True, exist_ok=True)
    return FlowerCommand((flower_path(name), *words), {**OFFLINE, **TRANSFERS, "FLWR_HOME": str(home), "PYTHONUNBUFFERED": "1", **settings})


def flower_path(name: str) -> str:
    """Where Flower's command ``name`` lies; ``ConfigError`` if it is not installed beside this Python."""
    found = shutil.which(name, path=os.pathsep.join([scripts(), os.environ.get("PATH", "")]))
    if found is None:
        raise ConfigError(f"the command {name!r} is missing; install flwr into the environment of this Python")
    return found


def scripts() -> str:
    """Where the commands of this Python's environment lie."""
    return str(Path(sys.executable).parent)


def end(child: subprocess.Popen[bytes], grace: float = GRACE) -> None:
    """End ``child`` and all that it started: it is asked, and after ``grace`` seconds it and the rest are killed.

    A SuperNode that may say goodbye is offline at once, one that is killed only after a minute; and a SuperLink waits
    for ever while somebody follows its log (FLOWER.md 3.4).
    """
    try:
        family = psutil.Process(child.pid).children(recursive=True)
    except psutil.NoSuchProcess:
        family = []
    if child.poll() is None:
        child.terminate()
    try:
        child.wait(grace)
    except subprocess.TimeoutExpired:
        child.kill()
        child.wait()
    _, left = psutil.wait_procs(family, timeout=2)
    for member in left:
        try:
            member.kill()
        except psutil.NoSuchProcess:
            continue
    psutil.wait_procs(left, timeout=5)


def _options(words: tuple[str, ...]) -> list[str]:
    """Every option on one line with its value."""
    lines: list[str] = []
    for word in words:
        if lines and not word.startswith("--") and lines[-1].startswith("--") and " " not in lines[-1]:
            lines[-1] += f" {shlex.quote(word)}"
        else:
            lines.append(shlex.quote(word))
    return lines
