"""One ``fedhearth run`` from outside: memory and CPU time of its whole family of processes, and when each round ended."""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import subprocess
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

import psutil

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]


@dataclass
class Watched:
    """What was seen. ``samples`` are (seconds since the start, resident MiB, MiB of its own, CPU seconds), ``rounds`` the seconds at
    which each round ended."""

    samples: list[tuple[float, float, float, float]] = field(default_factory=list)
    rounds: list[float] = field(default_factory=list)
    seconds: float = 0.0
    code: int = 0

    def peak_mib(self, start: float = 0.0, end: float = float("inf")) -> float:
        """The most memory resident at once between two moments."""
        return max((resident for t, resident, _, _ in self.samples if start <= t <= end), default=0.0)

    @property
    def peak_own_mib(self) -> float:
        """The most memory held at once without what libraries and files take, which is the same for any number of clients."""
        return max(own for _, _, own, _ in self.samples)

    def cpu_at(self, moment: float) -> float:
        """CPU seconds spent until ``moment``, between samples by straight line."""
        before = (0.0, 0.0)
        for t, _, _, cpu in self.samples:
            if t >= moment:
                return before[1] + (moment - before[0]) / max(t - before[0], 1e-9) * (cpu - before[1])
            before = (t, cpu)
        return before[1]


def options(doc: str | None, asked: int, rounds: int) -> argparse.ArgumentParser:
    """The command line that a benchmark of tiny clients has, but for ``--clients``."""
    parser = argparse.ArgumentParser(description=(doc or "").splitlines()[0])
    parser.add_argument("--asked", type=int, default=asked)
    parser.add_argument("--rounds", type=int, default=rounds)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--method", default="fedper")
    parser.add_argument("--engine", default="inprocess", choices=("inprocess", "ray"))
    parser.add_argument("--out", type=Path)
    return parser


def tiny_run(method: str, clients: int, asked: int, rounds: int, lr: float) -> dict[str, object]:
    """Settings of a run of ``clients`` tiny clients, ``asked`` of them a round."""
    return {"method": method, "dataset": "tiny:load", "model": "tiny:encoder", "partition": "iid", "clients": clients,
            "fraction": asked / clients, "rounds": rounds, "epochs": 1, "batch": 12, "lr": lr, "score-adapted": "never"}


def watch(settings: Mapping[str, object], out: Path, workers: int, period: float = 0.2, engine: str = "inprocess") -> Watched:
    """Run ``settings`` into the folder ``out`` and watch."""
    command = [sys.executable, "-m", "deploy.cli", "run", "--quiet", "--engine", engine, "--workers", str(workers), "--out", str(out)]
    command += [word for key, value in settings.items() for word in ("-c", f"{key}={value}")]
    paths = os.pathsep.join([str(HERE), str(ROOT), os.environ.get("PYTHONPATH", "")])
    environment = {**os.environ, "PYTHONPATH": paths, "OMP_NUM_THREADS": "1"}
    with open(out.with_name(f"{out.name}.txt"), "w", encoding="utf-8") as shown:
        run = subprocess.Popen(command, cwd=HERE, stdout=shown, stderr=shown, env=environment)
    seen, began, lines, cpu = Watched(), time.monotonic(), out / "rounds.jsonl", dict[int, float]()
    while run.poll() is None:
        family = family_of(run.pid)
        with contextlib.suppress(psutil.Error):
            for member in family:
                with contextlib.suppress(psutil.Error):
                    times = member.cpu_times()
                    cpu[member.pid] = times.user + times.system
        now = time.monotonic() - began
        held = [memory_mib(member) for member in family]
        seen.samples.append((now, sum(resident for resident, _ in held), sum(own for _, own in held), sum(cpu.values())))
        complete = lines.read_bytes().count(b"\n") if lines.exists() else 0
        seen.rounds += [now] * (complete - len(seen.rounds))
        time.sleep(period)
    seen.seconds, seen.code = time.monotonic() - began, run.returncode
    return seen


def family_of(pid: int) -> list[psutil.Process]:
    try:
        top = psutil.Process(pid)
        return [top, *top.children(recursive=True)]
    except psutil.Error:
        return []


def memory_mib(process: psutil.Process) -> tuple[float, float]:
    """Resident memory of one process in MiB, and the part that is neither a library nor a file. Proportional set size would be less
    to add up, but depends on who else on the machine has the same libraries loaded."""
    with contextlib.suppress(psutil.Error):
        found = process.memory_info()
        return found.rss / 2**20, (found.rss - getattr(found, "shared", 0)) / 2**20
    return 0.0, 0.0


def machine() -> dict[str, object]:
    """What the figures were taken on."""
    return {"cores": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count(),
            "load": round(os.getloadavg()[0], 2), "python": sys.version.split()[0]}


def keep(path: Path | None, found: object) -> None:
    """Write ``found`` as JSON to ``path``, if there is one."""
    if path:
        path.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
