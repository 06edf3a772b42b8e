"""Seconds until FedHearth answers: ``--help`` and the commands that only tell something, and a run's first message of training.

    python benchmarks/start_up/measure.py [--out start_up.json] [--repeats 7]

Every figure is a median over fresh processes, one after the other in turn, with bytecode compiled beforehand as pip leaves it.
CPU is the process's own and its children's; where the machine is not quiet, CPU seconds say more than wall seconds. ``floor``
is what a run cannot do without: importing torch and Flower. The bars: 0.5 s to answer, 3 s to the first message.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

ASKED = ("--help", "run --help", "methods", "wire", "wire hdc-fl", "submit --help", "superlink --help", "predict --help", "join --help")
FLOOR = "import torch, flwr.app, flwr.clientapp, flwr.serverapp"
COMMAND = "import sys; from deploy.cli import main; sys.exit(main())"
# ends itself when the first message of training goes out, and says what it and its workers have used
FIRST = """
import os, resource, sys, psutil
def watched(grid, messages):
    messages = list(messages)
    if messages and messages[0].metadata.message_type == "train":
        family = [psutil.Process(), *psutil.Process().children(recursive=True)]
        print("CPU", sum(sum(p.cpu_times()[:2]) for p in family), flush=True)
        grid.close()
        os._exit(0)
    return push(grid, messages)
if __name__ == "__main__":
    from deploy.cli import main
    from deploy.inprocess import InProcessGrid
    push, InProcessGrid.push_messages = InProcessGrid.push_messages, watched
    main(["run", "-c", "method=fedper", "-c", "clients=4", "-c", "rounds=1", "--quiet", "--workers", sys.argv[1], "--out", sys.argv[2]])
"""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path)
    parser.add_argument("--repeats", type=int, default=7)
    a = parser.parse_args()
    root = Path(__file__).parents[2]
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "first.py").write_text(FIRST)
        environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(root), "PYTHONPYCACHEPREFIX": f"{folder}/cache",
                       "PYTHONDONTWRITEBYTECODE": ""}
        cases: dict[str, Callable[[int], tuple[float, float]]] = {
            **{f"fedhearth {words}": lambda _, words=words: finished(["-c", COMMAND, *words.split()], environment) for words in ASKED},
            "floor": lambda _: finished(["-c", FLOOR], environment),
            **{f"first message, workers = {n}": lambda turn, n=n: first(folder, n, turn, environment) for n in ("1", "2")},
        }
        taken: dict[str, list[tuple[float, float]]] = {name: [] for name in cases}
        load = [os.getloadavg()[0]]
        for turn in range(a.repeats + 1):  # the first turn compiles the bytecode and fills the disk's cache
            for name, case in cases.items():
                taken[name].append(case(turn))
            load.append(os.getloadavg()[0])
    rows = [{"what": name, "wall": median(t[1:], 0), "cpu": median(t[1:], 1), "runs": len(t) - 1} for name, t in taken.items()]
    for row in rows:
        print(f"{row['what']:34}{row['wall']:8.2f} s wall{row['cpu']:8.2f} s CPU")
    result = {"rows": rows, "machine": {"cores": os.cpu_count(), "load": [min(load), max(load)], "python": platform.python_version()}}
    print(json.dumps(result["machine"]))
    if a.out:
        a.out.write_text(json.dumps(result, indent=1) + "\n")


def finished(words: list[str], environment: dict[str, str]) -> tuple[float, float]:
    """Wall and CPU seconds of a Python process from its start to its end."""
    before, start = os.times(), time.perf_counter()
    subprocess.run([sys.executable, *words], env=environment, stdout=subprocess.DEVNULL, check=True)
    after = os.times()
    return time.perf_counter() - start, after.children_user + after.children_system - before.children_user - before.children_system


def first(folder: str, workers: str, turn: int, environment: dict[str, str]) -> tuple[float, float]:
    """Wall and CPU seconds until the first message of training goes out."""
    start = time.perf_counter()
    with subprocess.Popen([sys.executable, f"{folder}/first.py", workers, f"{folder}/run-{workers}-{turn}"], env=environment,
                          stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        for line in process.stdout:
            if line.startswith("CPU"):
                return time.perf_counter() - start, float(line.split()[1])
    raise SystemExit("the run ended before its first message of training")


def median(taken: list[tuple[float, float]], which: int) -> float:
    return round(statistics.median(t[which] for t in taken), 3)


if __name__ == "__main__":
    main()
