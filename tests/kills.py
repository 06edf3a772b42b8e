"""Kill -9 a run and resume it: what tests/test_resume.py and benchmarks/resume/kill.py share.

The processes are forked from one that has imported everything and computed nothing (multiprocessing's forkserver), so a
start costs no import. A killed process leaves nothing but its files, as any other would.
"""

from __future__ import annotations

import importlib
import itertools
import json
import multiprocessing as mp
import os
import random
import signal
from collections.abc import Mapping
from dataclasses import dataclass
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from pathlib import Path
from time import perf_counter
from typing import Any

from flwr.app import Context, RecordDict

# imported for the processes that are forked from here on
import client_app.main  # noqa: F401
from deploy.inprocess import InProcessGrid
from server_app.main import serve
from tests.running import SMALL, Ran

CONFIG: Mapping[str, Any] = {**SMALL, "method": "hdc-fl", "clients": 6, "rounds": 4}


@dataclass(frozen=True)
class Moment:
    """A place in the code to die at: at the ``number``-th call of ``function`` ("module:Class.name"), before or after it.

    Only calls with ``about`` in one of their arguments count.
    """

    function: str
    number: int
    after: bool = False
    about: str = ""

    def arm(self) -> None:
        """Let this process kill itself there."""
        module, _, path = self.function.partition(":")
        *owners, name = path.split(".")
        owner: Any = importlib.import_module(module)
        for part in owners:
            owner = getattr(owner, part)
        original, calls = getattr(owner, name), itertools.count(1)

        def dying(*arguments: Any, **named: Any) -> Any:
            mine = any(self.about in str(a) for a in arguments) and next(calls) == self.number
            if mine and not self.after:
                os.kill(os.getpid(), signal.SIGKILL)
            result = original(*arguments, **named)
            if mine:
                os.kill(os.getpid(), signal.SIGKILL)
            return result

        setattr(owner, name, dying)


@dataclass(frozen=True)
class Killed:
    """One kill: seconds after the start, whether the run was still going, checkpointed rounds then, and the verdict."""

    delay: float
    running: bool
    rounds_done: int
    same: bool


def start(folder: Path, moment: Moment | None = None, **settings: Any) -> tuple[BaseProcess, Connection]:
    """A run in a process of its own; the connection says "started", and "ended" if it got that far."""
    context: Any = mp.get_context("forkserver" if "forkserver" in mp.get_all_start_methods() else "spawn")
    context.set_forkserver_preload([__name__])
    ours, theirs = context.Pipe()
    config = {**CONFIG, "out": str(folder), "state-dir": str(folder / "clients"), **settings}
    process = context.Process(target=_go, args=(config, moment, theirs), daemon=True)
    process.start()
    theirs.close()
    return process, ours


def finish(folder: Path, **settings: Any) -> Ran:
    """Start or resume the run in a fresh process, to its end."""
    process, said = start(folder, resume=(folder / "run.json").exists(), **settings)
    words = _words(said)
    process.join()
    if words[-1:] != ["ended"]:
        raise RuntimeError(f"expected the run to end well, but its process ended with {process.exitcode}; see its error above")
    return Ran(folder, json.loads((folder / "summary.json").read_text()))


def kill_and_resume(folder: Path, count: int, seed: int = 0) -> list[Killed]:
    """Kill ``count`` runs at random moments, one in each of ``count`` equal parts of a run's time, and finish them.

    Every finished run is compared, bit for bit, with one that nobody disturbed.
    """
    draw = random.Random(seed)
    process, said = start(folder / "whole")
    assert said.recv() == "started"
    began = perf_counter()
    process.join()
    seconds = perf_counter() - began
    whole = finish(folder / "whole")  # a finished run resumed stays the same, and its summary is read here
    return [_kill(folder / f"killed-{i}", (i + draw.random()) / count * seconds, whole) for i in range(count)]


def _kill(folder: Path, delay: float, whole: Ran) -> Killed:
    process, said = start(folder)
    assert said.recv() == "started"
    process.join(delay)
    running = process.is_alive()
    process.kill()
    process.join()
    done = len(list(_checkpoints(folder)))
    return Killed(delay, running, done, finish(folder).everything() == whole.everything())


def _checkpoints(folder: Path) -> range:
    newest = max((int(p.stem.partition("-")[2]) for p in (folder / "checkpoints").glob("round-*.safetensors")), default=0)
    return range(newest)


def _words(said: Connection) -> list[str]:
    words = []
    try:
        while True:
            words.append(said.recv())
    except EOFError:
        return words


def _go(config: Mapping[str, Any], moment: Moment | None, said: Connection) -> None:
    """The process: one whole run. Killed at ``moment`` if there is one."""
    import server_app.report

    server_app.report.page = lambda found: ""  # drawing takes longer than the run
    server_app.report.write_split_png = lambda split, path: None
    if moment is not None:
        moment.arm()
    said.send("started")
    serve(InProcessGrid(config, config["clients"]), Context(1, 1, {}, RecordDict(), dict(config)), engine="inprocess")
    said.send("ended")
