"""The project's bars on the fixed speed job, a row each: FedHearth and its floor in alternated runs, and medians of their ratios.

    FEDHEARTH_BENCH=... python benchmarks/overhead/ratios.py cpu|wall|ray|client [--pairs 5] [--rounds 5] [--method fedper]

cpu      CPU seconds a round, one process, against the plain loop                              bar 1.05
wall     wall seconds a round, two workers, against the plain loop in two processes            bar 1.15
ray      the same on Ray                                                                       bar 1.30
client   CPU milliseconds and MiB of an extra tiny client, between 100 and 500 of them         bars 1.25 x the floor's (it was 32 ms
         where 40 were set), and 1.3 MiB beyond its data

The first round warms up and is left out. Every figure is kept in ``ratios.json`` beside this file, with the machine's load
before each run: times mean something on a machine that does nothing else.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from statistics import median
from typing import Any

from compare import OURS, prepare

KEPT = Path(__file__).with_name("ratios.json")
FLOORS = {"plain-1": ("plain.py", ["--threads", 1]), "plain-2proc": ("plain_mp.py", ["--workers", 2])}
# row -> (ours, floor, figure, bar)
PAIRS = {"cpu": ("ours", "plain-1", "cpu_round", 1.05), "wall": ("ours-2", "plain-2proc", "wall_round", 1.15),
         "ray": ("ours-ray", "plain-2proc", "wall_round", 1.30)}
CLIENT_RATIO, CLIENT_MIB = 40 / 32, 1.3
Run = Callable[[str, Mapping[str, Any]], dict[str, Any]]


def runner(limit: float) -> Run:
    """Runs a contestant on a job's settings, watched by the job's own ``measure``; ends the program if it fails."""
    from measure import run  # of the job's folder

    def one(who: str, job: Mapping[str, Any]) -> dict[str, Any]:
        script, extra = {**FLOORS, **OURS}[who]
        load, log = os.getloadavg()[0], f"logs/ratios-{who}.log"
        found = run(script, [*extra, *(word for key, value in job.items() for word in (f"--{key}", value))], limit=limit, log=log)
        if not found["ok"]:
            raise SystemExit(f"{who} failed (exit code {found['rc']}); its output is {Path(log).absolute()}")
        kept = {key: found[key] for key in ("cpu_round", "wall_round", "startup", "peak_mb", "cpu", "wall")}
        print(f"{who:12} load {load:5.2f}", *(f" {key} {value:.3f}" for key, value in kept.items() if value is not None), flush=True)
        return {"who": who, "load_before": load, "acc": found["rounds"][-1]["acc"], **kept}

    return one


def alternated(one: Run, ours: str, floor: str, job: Mapping[str, Any], pairs: int) -> list[dict[str, dict[str, Any]]]:
    """``pairs`` of runs, each contestant first in turn."""
    order = [(ours, floor) if number % 2 == 0 else (floor, ours) for number in range(pairs)]
    return [{who: one(who, job) for who in both} for both in order]


def pair_row(one: Run, row: str, job: Mapping[str, Any], pairs: int) -> dict[str, Any]:
    ours, floor, figure, bar = PAIRS[row]
    runs = alternated(one, ours, floor, job, pairs)
    ratios = [both[ours][figure] / both[floor][figure] for both in runs]
    return {"ours": ours, "floor": floor, "figure": figure, "bar": bar, "job": dict(job), "ratio": median(ratios), "ratios": ratios,
            "median_ours": median(both[ours][figure] for both in runs), "median_floor": median(both[floor][figure] for both in runs),
            "met": median(ratios) <= bar, "runs": runs}


def client_row(one: Run, job: Mapping[str, Any], sizes: tuple[int, int], pairs: int) -> dict[str, Any]:
    """What a client more costs: the difference between two sizes of the job, a client."""
    few, many = sizes
    data_mib = (job["train"] + job["test"]) * (3 * 32 * 32 * 4 + 16) / 2**20
    rows = []
    for number in range(pairs):
        order = ("ours", "plain-1") if number % 2 == 0 else ("plain-1", "ours")
        runs = {who: {size: one(who, {**job, "clients": size}) for size in sizes} for who in order}
        rows.append({who: {"cpu_ms": 1000 * (at[many]["cpu_round"] - at[few]["cpu_round"]) / (many - few),
                           "mib": (at[many]["peak_mb"] - at[few]["peak_mb"]) / (many - few), "runs": list(at.values())}
                     for who, at in runs.items()})
    ratios = [row["ours"]["cpu_ms"] / row["plain-1"]["cpu_ms"] for row in rows]
    mib = median(row["ours"]["mib"] for row in rows)
    return {"job": dict(job), "sizes": sizes, "cpu_ms": median(row["ours"]["cpu_ms"] for row in rows),
            "cpu_ms_floor": median(row["plain-1"]["cpu_ms"] for row in rows), "ratio": median(ratios), "ratios": ratios,
            "bar": CLIENT_RATIO, "mib": mib, "mib_floor": median(row["plain-1"]["mib"] for row in rows), "data_mib": data_mib,
            "mib_beyond_data": mib - data_mib, "mib_bar": CLIENT_MIB,
            "met": median(ratios) <= CLIENT_RATIO and mib - data_mib <= CLIENT_MIB, "runs": rows}


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("row", choices=(*PAIRS, "client"))
    parser.add_argument("--pairs", type=int, default=5)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--method", default="fedper")
    parser.add_argument("--clients", type=int, default=20)
    parser.add_argument("--train", type=int, default=192)
    parser.add_argument("--test", type=int, default=64)
    parser.add_argument("--sizes", type=int, nargs=2, default=(100, 500), metavar=("FEW", "MANY"), help="of the row client")
    parser.add_argument("--limit", type=float, default=600, help="seconds a run may take")
    parser.add_argument("--out", type=Path, default=KEPT)
    a = parser.parse_args()
    out = a.out.absolute()
    prepare()
    one = runner(a.limit)
    if a.row == "client":
        # tiny shards, and two rounds at least: the first warms up
        found = client_row(one, {"method": a.method, "train": 32, "test": 16, "rounds": max(2, min(a.rounds, 3)), "eval": 1},
                           tuple(a.sizes), a.pairs)
        print(f"an extra client: {found['cpu_ms']:.1f} CPU ms, floor {found['cpu_ms_floor']:.1f}, ratio {found['ratio']:.2f} "
              f"(bar {CLIENT_RATIO}); {found['mib_beyond_data']:.2f} MiB beyond its data (bar {CLIENT_MIB})")
    else:
        job = {"method": a.method, "clients": a.clients, "train": a.train, "test": a.test, "rounds": a.rounds, "eval": 1}
        found = pair_row(one, a.row, job, a.pairs)
        print(f"{a.row}: {found['ours']} {found['median_ours']:.3f} s, {found['floor']} {found['median_floor']:.3f} s, "
              f"median ratio {found['ratio']:.3f} (bar {found['bar']}), all: {' '.join(f'{r:.3f}' for r in found['ratios'])}")
    kept = json.loads(out.read_text(encoding="utf-8")) if out.exists() else {}
    kept[a.row] = {"at": time.strftime("%Y-%m-%d"), "cores": os.cpu_count(), "python": platform.python_version(), **found}
    out.write_text(json.dumps(kept, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
