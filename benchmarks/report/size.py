"""Size and time of report.html for runs from small to large, against the bars of 3 MB and 5 s at 100 clients x 200 rounds.

    OMP_NUM_THREADS=1 python benchmarks/report/size.py [--out benchmarks/report/size.json] [--keep FOLDER]

The runs are made up: every client scored in every round, a refresh with all similarities every tenth, a cache, prototypes, ten
classes, so that every part of the page is there.
"""

from __future__ import annotations

import argparse
import json
import math
import platform
import sys
import time
from pathlib import Path
from typing import Any

from server_app.html import page
from server_app.summary import Findings, findings

CASES = ((12, 15), (20, 100), (100, 200), (500, 100), (1000, 50))
BYTES, SECONDS = 3 * 10**6, 5.0


def large_run(clients: int, rounds: int) -> Findings:
    """A made-up run in which everything that a report can show happened."""
    names = [f"client-{n:04d}" for n in range(clients)]
    config = {"method": "hdc-fl", "dataset": "digits", "partition": "rotation", "seed": 0, "clients": clients, "rounds": rounds,
              "bn": "recompute"}
    records = [_round(names, number, rounds) for number in range(1, rounds + 1)]
    groups = {name: str(90 * (n % 4)) for n, name in enumerate(names)}
    split = {"classes": [f"class {n}" for n in range(10)], "groups": groups, "hash": "cafe",
             "train": {name: [(n * k) % 23 for k in range(10)] for n, name in enumerate(names)}, "test": {}}
    served = {name: _served(n, clients, rounds, rounds) for n, name in enumerate(names)}
    final = {"served": served, "served_raw": {name: value - 0.1 for name, value in served.items()}, "n_test": dict.fromkeys(names, 20),
             "peak_rss_mib": 300.0, "split_hash": "cafe", "versions": {"flwr": "1.39.0"}, "seconds": 400.0,
             **{key: dict.fromkeys(names, 0.5) for key in ("gate_weight", "gate_spread", "patch_overlap")}}
    return findings(config, "in-process", records, final, split)


def _round(names: list[str], number: int, rounds: int) -> dict[str, Any]:
    served = {name: _served(n, len(names), number, rounds) for n, name in enumerate(names)}
    lost = {names[0]: "deadline", names[1]: "not finite"} if number % 7 == 0 else {}
    return {
        "round": number, "seconds": 2 + math.sin(number), "asked": names, "accepted": [name for name in names if name not in lost],
        "lost": lost, "dropped": {reason: 1 for reason in lost.values()}, "void": False, "served": served, "loss": served,
        "adapted": served if number == rounds else {}, "hit": dict.fromkeys(names, 0.8 * number / rounds),
        "fuse": dict.fromkeys(names, 0.1), "miss": dict.fromkeys(names, 0.9 - 0.8 * number / rounds),
        "gate_weight": dict.fromkeys(names, 0.4),
        "train_seconds": {name: 1 + n / len(names) for n, name in enumerate(names)}, "score_seconds": dict.fromkeys(names, 0.2),
        "bytes": {"up": {"encoder": 5_000_000, "descriptor": 200_000}, "down": {"encoder": 5_000_000}},
        "diagnostics": {
            "prototype_drift": {"layer5": 1 / number, "layer6": 0.5 / number},
            "mixture_map": [[0.7 if i == j else 0.3 / 9 for j in range(10)] for i in range(10)],
            "cache": {"moved": 0.5 / number, "encoder_bytes": 1000, "drift": 2.2, "version": number},
            **({"clusters": _clusters(names, number, rounds)} if number % 10 == 0 else {})},
    }


def _clusters(names: list[str], number: int, rounds: int) -> dict[str, Any]:
    """Four clusters; until half of the run every ninth client is in its neighbour's."""
    homes = [(n + (n % 9 == 0 and number < rounds // 2)) % 4 for n in range(len(names))]
    matrix = [[1.0 if i == j else round((0.7 if a == b else -0.2) + 0.1 * math.sin(i * j), 4) for j, b in enumerate(homes)]
              for i, a in enumerate(homes)]
    return {"k": 4, "silhouette": 0.5, "rank": 3, "assignment": dict(zip(names, homes, strict=True)),
            "similarity": {"clients": names, "matrix": matrix}}


def _served(place: int, clients: int, number: int, rounds: int) -> float:
    reached = 0.3 + 0.6 * (1 - math.exp(-3 * number / rounds)) * (0.5 + 0.5 * ((place * 7) % clients) / clients)
    return min(1.0, reached + 0.02 * math.sin(place * number))


def main() -> int:
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("--out", type=Path, help="write the rows as JSON")
    arguments.add_argument("--keep", type=Path, help="folder for the pages")
    asked = arguments.parse_args()
    rows = []
    for clients, rounds in CASES:
        found = large_run(clients, rounds)
        began, cpu = time.perf_counter(), time.process_time()
        text = page(found)
        rows.append({"clients": clients, "rounds": rounds, "bytes": len(text.encode()), "seconds": round(time.perf_counter() - began, 3),
                     "cpu_seconds": round(time.process_time() - cpu, 3)})
        print(f"{clients:5} clients x {rounds:4} rounds: {rows[-1]['bytes'] / 1e6:.2f} MB, {rows[-1]['cpu_seconds']:.2f} CPU s", flush=True)
        if asked.keep:
            asked.keep.mkdir(parents=True, exist_ok=True)
            (asked.keep / f"report-{clients}x{rounds}.html").write_text(text, encoding="utf-8")
    if asked.out:
        asked.out.write_text(json.dumps({"python": platform.python_version(), "rows": rows}, indent=1) + "\n", encoding="utf-8")
    at_bar = next(row for row in rows if (row["clients"], row["rounds"]) == (100, 200))
    return at_bar["bytes"] >= BYTES or at_bar["cpu_seconds"] >= SECONDS


if __name__ == "__main__":
    sys.exit(main())
