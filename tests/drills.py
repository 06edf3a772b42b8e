"""Fault drills on a deployment of one server and three sites, each on a host of its own.

``python -m tests.drills --times 3 --out drills.json`` (root, Linux) runs all, prints a line each, and ends with the table
that ``deploy/RUNBOOK.md`` shows. What is broken, and what must hold, is in ``drill_cases``.
"""

from __future__ import annotations

import argparse
import json
import logging
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from types import FrameType

from tests.deployed import Cluster, deployed, host_names
from tests.drill_cases import DRILLS
from tests.multihost import Network, why_not


@dataclass(frozen=True)
class Verdict:
    """One drill, once. ``note``: what it saw, or what did not hold."""

    drill: str
    seconds: float
    held: bool
    note: str

    def __str__(self) -> str:
        return f"{'held ' if self.held else 'FAILED'} {self.drill:26}{self.seconds:6.0f} s  {self.note}"


@contextmanager
def whole_cluster(folder: Path) -> Iterator[Cluster]:
    """Three sites and a stranger, on hosts of their own."""
    network = Network(host_names(3))
    try:
        with deployed(folder, 3, network) as cluster:
            yield cluster
    finally:
        network.close()


def practise(names: list[str], folder: Path) -> Iterator[Verdict]:
    """Every drill once. After one that failed, the cluster may be in any state, so the next gets a new one."""
    left = list(names)
    for attempt in range(len(names)):
        if not left:
            return
        where = folder / f"cluster-{attempt}"
        where.mkdir(parents=True)
        with whole_cluster(where) as cluster:
            held = True
            while left and held:
                verdict = judge(left.pop(0), cluster)
                held = verdict.held
                yield verdict


def judge(name: str, cluster: Cluster) -> Verdict:
    began = time.monotonic()
    try:
        held, note = True, DRILLS[name](cluster)
    except (AssertionError, subprocess.TimeoutExpired) as fault:
        held, note = False, str(fault)
    return Verdict(name, round(time.monotonic() - began, 1), held, note)


def table(verdicts: list[Verdict]) -> str:
    """The runbook's table."""
    lines = ["| drill | what is done | held | seconds | seen, the last time |", "| --- | --- | --- | --- | --- |"]
    for name, drill in DRILLS.items():
        if mine := [v for v in verdicts if v.drill == name]:
            seconds = sorted(round(v.seconds) for v in mine)
            spread = f"{seconds[0]}" if seconds[0] == seconds[-1] else f"{seconds[0]} to {seconds[-1]}"
            what = " ".join((drill.__doc__ or "").split())
            lines.append(f"| `{name}` | {what} | {sum(v.held for v in mine)} of {len(mine)} | {spread} | {mine[-1].note} |")
    return "\n".join(lines) + "\n"


def _asked_to_stop(number: int, frame: FrameType | None) -> None:
    """Let every ``finally`` run: processes, mounts and namespaces must not stay."""
    raise SystemExit(128 + number)


def main() -> int:
    """Run drills; 0 if all held."""
    parser = argparse.ArgumentParser(prog="python -m tests.drills", description="break a deployment and see whether it holds")
    parser.add_argument("--times", type=int, default=1, metavar="N", help="how often, each time with a new deployment")
    parser.add_argument("--only", nargs="+", choices=DRILLS, default=list(DRILLS), metavar="DRILL", help=f"some of {', '.join(DRILLS)}")
    parser.add_argument("--out", type=Path, metavar="FILE", help="where all verdicts go, as JSON; those that are there stay")
    options = parser.parse_args()
    if reason := why_not():
        print(f"no drills: {reason}")
        return 2
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, _asked_to_stop)
    logging.disable(logging.WARNING)  # the replays would tell once more what was dropped
    verdicts: list[Verdict] = []
    if options.out and options.out.exists():
        verdicts = [Verdict(**each) for each in json.loads(options.out.read_text())]
    fresh = []
    with tempfile.TemporaryDirectory(prefix="fedhearth-drills-") as folder:
        for number in range(options.times):
            for verdict in practise(options.only, Path(folder, str(number))):
                print(verdict, flush=True)
                fresh.append(verdict)
                if options.out:
                    options.out.write_text(json.dumps([asdict(v) for v in verdicts + fresh], indent=1))
    print("\n" + table(verdicts + fresh))
    return 0 if all(verdict.held for verdict in fresh) else 1


if __name__ == "__main__":
    raise SystemExit(main())
