"""What a round of a secured deployment costs beyond its training: one server, two sites, loopback, TLS and node keys.

    python -m benchmarks.deploy.rounds [--only tiny resnet18 resnet18-float16 huge] [--rounds 6] [--out rounds.json]

Each row starts a deployment by our own commands, runs FedPer with scoring in every round, and takes the median round
after the first two (the first also hands out code and first heads). The training and scoring of the same message, done
in a process that lives already, is taken off; what remains is transfer, processes, polling. Peaks are the largest
resident memory that the kernel recorded for a process of each kind (VmHWM). The machine should be idle.
"""

from __future__ import annotations

import argparse
import json
import re
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import psutil

from tests.deployed import deployed, rounds_of

SAMPLES = 32
SITES = 2
HUGE_WIDTH = 5000  # two square layers of it hold 25 M weights each
BASE: dict[str, Any] = {"method": "fedper", "partition": "iid", "epochs": 1, "batch": 16, "score-adapted": "never"}
ROWS: dict[str, dict[str, Any]] = {
    "tiny": {"model": "cnn", "width": 4},
    "resnet18": {"model": "resnet18", "width": 64},
    "resnet18-float16": {"model": "resnet18", "width": 64, "wire-dtype": "float16"},
    "huge": {"model": "benchmarks.deploy.rounds:huge_encoder", "momentum": 0.0, "bn": "average"},
}
KINDS = {"server app": "flwr-serverapp", "superlink": "flower-superlink", "supernode": "flower-supernode", "client app": "deploy/warm.py"}


@dataclass(frozen=True)
class Row:
    """``round_s`` is the median over rounds 3 and later, ``work_s`` the training and scoring in it; peaks in MiB, sizes in MB."""

    name: str
    rounds: list[float]
    round_s: float
    work_s: float
    beyond_s: float
    up_mb_a_client: float
    peak_mib: dict[str, float]


def huge_encoder(in_shape: tuple[int, int, int], width: int) -> tuple[Any, int]:
    """50 M float32 weights in two tensors (200 MB), which train in no time on small images."""
    from torch import nn

    pixels = int(np.prod(in_shape))
    square = [nn.Linear(HUGE_WIDTH, HUGE_WIDTH, bias=False) for _ in range(2)]
    return nn.Sequential(nn.Flatten(), nn.Linear(pixels, HUGE_WIDTH), nn.ReLU(), square[0], nn.ReLU(), square[1], nn.ReLU()), HUGE_WIDTH


def measure(name: str, rounds: int, root: Path) -> Row:
    """One row of the table."""
    settings = BASE | ROWS[name] | {"dataset": f"npz:{_images(root)}", "rounds": rounds}
    with Peaks() as peaks, deployed(root, SITES) as cluster:
        folder = cluster.submit(name, **settings)
        code = cluster.finished(name, patience=1800)
        if code:
            sys.exit(f"{name}: the run ended with {code}\n{cluster.told('submit-' + name)[-2000:]}")
        records = rounds_of(folder)
    seconds = [round(record["seconds"], 2) for record in records]
    late, work = statistics.median(seconds[2:] or seconds), _work(settings, root)
    up = sum(sum(record["bytes"]["up"].values()) for record in records) / rounds / SITES / 1e6
    return Row(name, seconds, late, round(work, 2), round(late - work, 2), round(up, 2), peaks.found)


def _images(root: Path) -> Path:
    """Random images: what is in them does not matter here."""
    rng, path = np.random.default_rng(0), root / "images.npz"
    x = rng.integers(0, 256, (SAMPLES * SITES, 32, 32, 3), dtype=np.uint8)
    np.savez(path, x_train=x, y_train=np.arange(len(x)) % 10)
    return path


def _work(settings: dict[str, Any], root: Path) -> float:
    """Seconds that one client trains and scores in a round: the same run in one process, where nothing else costs much."""
    words = [word for key, value in {**settings, "clients": SITES, "rounds": 4}.items() for word in ("-c", f"{key}={value}")]
    out = root / "in-process"
    done = subprocess.run([sys.executable, "-m", "deploy.cli", "run", "--quiet", "--workers", "1", "--out", str(out), *words],
                          capture_output=True, text=True)
    if done.returncode:
        sys.exit(f"the run in one process ended with {done.returncode}\n{done.stderr[-2000:]}")
    return statistics.median(record["seconds"] for record in rounds_of(out)[1:]) / SITES


class Peaks:
    """Watches this user's processes for as long as it is open."""

    def __init__(self) -> None:
        self.found: dict[str, float] = {}
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)

    def __enter__(self) -> Peaks:
        self._thread.start()
        return self

    def __exit__(self, *failure: object) -> None:
        self._over.set()
        self._thread.join()

    def _watch(self) -> None:
        while not self._over.wait(0.1):
            for process in psutil.process_iter(["cmdline"]):
                words = " ".join(process.info["cmdline"] or ())
                for kind, command in KINDS.items():
                    if command in words and "deploy.cli" not in words:
                        self.found[kind] = max(self.found.get(kind, 0.0), _peak_mib(process.pid))


def _peak_mib(pid: int) -> float:
    try:
        found = re.search(r"VmHWM:\s+(\d+) kB", Path(f"/proc/{pid}/status").read_text())
    except OSError:
        return 0.0
    return round(int(found[1]) / 1024, 1) if found else 0.0


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--only", nargs="+", choices=ROWS, default=list(ROWS))
    parser.add_argument("--rounds", type=int, default=6)
    parser.add_argument("--out", type=Path)
    arguments = parser.parse_args()
    rows = []
    for name in arguments.only:
        with tempfile.TemporaryDirectory() as folder:
            rows.append(asdict(measure(name, arguments.rounds if name != "huge" else 2, Path(folder))))
        print(json.dumps(rows[-1]), flush=True)
        time.sleep(2)
    if arguments.out:
        arguments.out.write_text(json.dumps(rows, indent=1) + "\n")
