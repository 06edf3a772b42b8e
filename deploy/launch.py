"""From the command line's words to a run that may start: settings, folder, lock, and a look at the data.

Everything that can be known to be wrong is found here, before an engine is started.
"""

from __future__ import annotations

import json
import os
import re
import secrets
import shlex
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from itertools import count
from pathlib import Path
from typing import Any

from strategies.config import ConfigError, Scalar
from strategies.registry import Settings, items_of_all, parse_run_config


class Finished(Exception):
    """There is nothing to resume: the run is complete. Holds its folder."""

    def __init__(self, folder: Path) -> None:
        super().__init__(str(folder))
        self.folder = folder


@dataclass(frozen=True)
class Launch:
    """A run that may start. ``items`` is the whole flat run config; ``folder`` is absolute."""

    settings: Settings
    folder: Path

    @property
    def items(self) -> dict[str, Scalar]:
        return items_of_all(self.settings)


def new_run(given: Mapping[str, Scalar], out: str) -> Launch:
    """A run of the settings ``given``, in the folder ``out`` or one named after the run.

    Raises
    ------
    ConfigError
        If a setting is wrong, or the folder holds a run already.
    """
    settings = parse_run_config({**given, "out": out} if out else given)
    run, stamp = settings.run, time.strftime("%Y%m%d-%H%M%S")
    division = re.sub(r"(?s:[?].*)|[^\w+-]", "", run.partition)  # its arguments may hold anything
    name = f"{run.method}-{run.dataset.partition(':')[0]}-{division}-{run.seed}-{stamp}"
    folder = place("out", run.out) if run.out else _unused(place("out", str(Path("runs", name))))
    if is_there(folder / "run.json"):
        raise ConfigError(f"{folder} already holds a run; give another folder, or go on with that one: "
                          f"fedhearth run --resume {shlex.quote(str(folder))}")
    state_dir = place("state-dir", run.state_dir) if run.state_dir else folder / "clients"
    if run.run_id and is_there(state_dir / run.run_id):
        raise ConfigError(f"{state_dir} already holds the clients of a run named {run.run_id}; give another run-id or state-dir")
    weights = str(place("weights-dir", run.weights_dir)) if run.weights_dir else ""
    placed = replace(run, out=str(folder), state_dir=str(state_dir), resume=False, weights_dir=weights,
                     run_id=run.run_id or f"{stamp}-{secrets.token_hex(3)}", dataset=_absolute(run.dataset))
    return Launch(replace(settings, run=placed), folder)


def _unused(folder: Path) -> Path:
    """``folder``, or with ``-2``, ``-3`` ... behind it if it is there: a loop can start several runs in one second."""
    tried = (folder if number == 1 else folder.with_name(f"{folder.name}-{number}") for number in count(1))
    return next(path for path in tried if not is_there(path))


def resumed_run(given: Mapping[str, Scalar], where: str) -> Launch:
    """The run in the folder ``where``, to go on from its latest checkpoint with its own settings.

    Raises
    ------
    ConfigError
        If there is no run, or ``given`` would change what it computes.
    Finished
        If it is complete.
    """
    from server_app.record import FREE_KEYS

    folder = place("--resume", where)
    saved = saved_settings(folder)
    if (folder / "summary.json").exists():
        raise Finished(folder)
    settings = parse_run_config({**saved, **given})
    changed = [key for key in given if key not in FREE_KEYS and items_of_all(settings).get(key) != saved.get(key)]
    if changed:
        raise ConfigError(f"a run resumes with the settings it started with; {changed[0]} cannot change "
                          f"(free to change: {', '.join(sorted(FREE_KEYS - {'resume', 'out', 'state-dir'}))}) (FH-032)")
    state_dir = _inside(folder, saved) or settings.run.state_dir
    return Launch(replace(settings, run=replace(settings.run, out=str(folder), state_dir=state_dir, resume=True)), folder)


def _inside(folder: Path, saved: Mapping[str, Any]) -> str:
    """Where the clients' state lies if it lies in the run's folder, which may have been moved since; else ""."""
    return str(folder / "clients") if saved.get("state-dir") == str(Path(str(saved.get("out")), "clients")) else ""


def state_of(folder: Path, saved: Mapping[str, Any]) -> Path:
    """The clients' state of the run in ``folder`` that wrote down ``saved``, as far as it lies on this machine."""
    state_dir = _inside(folder, saved) or str(saved.get("state-dir") or Path.home() / ".fedhearth" / "state")
    return place("state-dir", state_dir) / str(saved.get("run-id") or "run")


def saved_settings(folder: Path) -> dict[str, Any]:
    """The flat run config that the run in ``folder`` wrote down; raises ``ConfigError``."""
    from server_app.record import HELD_OUT

    try:
        saved = json.loads((folder / "run.json").read_text(encoding="utf-8"))
        if not isinstance(saved, dict):
            raise ValueError("it holds no settings")
    except (FileNotFoundError, NotADirectoryError):
        raise ConfigError(f"{folder} holds no run (no run.json); give a run's own: its --out, or under runs/") from None
    except OSError as error:
        raise ConfigError(f"cannot read {folder / 'run.json'}: {error.strerror}") from None
    except (ValueError, RecursionError) as error:
        raise ConfigError(f"{folder / 'run.json'} is damaged ({error}); restore it, or start the run anew in another folder") from None
    # which clients are held out is the run's own note, no setting
    return {key: value for key, value in saved.items() if key != HELD_OUT}


def place(key: str, text: str) -> Path:
    """``text`` as an absolute path; ``ConfigError`` about ``key`` if it names the home of an unknown user."""
    try:
        return Path(text).expanduser().absolute()
    except RuntimeError:
        raise ConfigError(f"{key} must be a path on this machine, got {text!r}, which names the home of an unknown user") from None


def output_file(text: str) -> Path:
    """What ``--out`` names as a file to write or replace.

    Raises
    ------
    ConfigError
        If its folder is missing, or it is a folder, a pipe or a device: putting a file in its place would destroy it.
    """
    path = place("--out", text)
    try:
        usable = path.parent.is_dir() and (path.is_file() or not path.exists())
    except OSError as error:
        raise ConfigError(f"cannot write {path}: {error.strerror}") from None
    if not usable:
        raise ConfigError(f"--out must name a file in a folder that exists, got {path}")
    return path


def is_there(path: Path) -> bool:
    """Whether there is something at ``path``; raises ``ConfigError`` if this user may not look."""
    try:
        return path.exists()
    except OSError as error:
        raise ConfigError(f"cannot use {path.parent}: {error.strerror}") from None


@contextmanager
def locked(folder: Path, patience: float = 0) -> Iterator[int]:
    """Hold the folder's lock, so that a second writer is refused (after ``patience`` seconds); yields the lock's file descriptor.

    Raises
    ------
    ConfigError
        If another process writes to the folder.
    """
    from filelock import FileLock, Timeout

    try:
        folder.mkdir(parents=True, exist_ok=True)
        lock = FileLock(folder / ".lock", timeout=patience)
        lock.acquire()
    except Timeout:
        raise ConfigError(f"another process is writing to {folder}; wait for it, or end it first") from None
    except OSError as error:
        raise ConfigError(f"cannot write to {folder}: {error.strerror}") from None
    with lock:
        descriptor = lock._context.lock_file_fd  # noqa: SLF001  (inherited by the Ray engine's server, which may outlive us)
        assert descriptor is not None
        yield descriptor


def to_finish(folder: Path) -> str:
    """What to do about the unfinished run in ``folder``: wait while a process writes to it, else resume."""
    try:
        with locked(folder):
            return f"finish it first: fedhearth run --resume {shlex.quote(str(folder))}"
    except ConfigError:
        return "it is still at work, or its folder cannot be written: wait for it"


def check_data(settings: Settings) -> None:
    """Open the first client's data and fit the model to it, so that both fail here or not at all.

    Raises
    ------
    ConfigError
        If the data are missing or damaged, cannot be divided as asked, or do not fit the model.
    """
    from client_app.data import DataError, PartitionError, open_data
    from client_app.data.place import divided
    from client_app.loop_settings import DeviceError, LoopSettings
    from client_app.node import open_node

    run = settings.run
    where = divided(run.dataset)[1]
    if where and not is_there(Path(where)):
        raise ConfigError(f"dataset: {where} does not exist (FH-026)")
    try:
        _ = LoopSettings.from_config(run).torch_device
        data = open_data(run, open_node({"partition-id": 0, "num-partitions": run.clients}, run))
        settings.build_model(len(data.classes), data.input_shape)
        if run.cohort > 1:
            from client_app.cohort_check import check_cohort

            check_cohort(settings, len(data.classes), data.input_shape)
    except (DataError, PartitionError, DeviceError, ValueError) as error:
        raise ConfigError(told_here(error)) from error


def told_here(error: Exception) -> str:
    """``error`` with what its own text leaves out, since it may travel: where the data were, and what a user's code said."""
    path, cause = getattr(error, "path", ""), error.__cause__
    said = " ".join(f"{type(cause).__name__}: {cause}".split()) if cause else ""
    return "; ".join([f"{error} ({path})" if path else str(error), *([said[:300]] if said else [])])


def importable_here() -> None:
    """Let ``module:function`` data sets be found in the current folder, here and in processes started from here.

    Last on the path, so that a ``models.py`` lying there shadows nothing of ours.
    """
    here = os.getcwd()
    if here not in sys.path:
        sys.path.append(here)
    paths = [p for p in os.environ.get("PYTHONPATH", "").split(os.pathsep) if p]
    if here not in paths:
        os.environ["PYTHONPATH"] = os.pathsep.join([*paths, here])


def cores() -> int:
    """CPU cores this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _absolute(dataset: str) -> str:
    """Worker processes may have another current folder."""
    from client_app.data.place import with_absolute_place

    return with_absolute_place(dataset, lambda where: place("dataset", where))
