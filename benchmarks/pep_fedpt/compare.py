"""PEP-FedPT and its rivals on one frozen backbone, one split, one budget; resumable.

    FEDHEARTH_DATA=... FEDHEARTH_WEIGHTS=... python benchmarks/pep_fedpt/compare.py --work FOLDER
        [--tasks cifar10 ...] [--methods pep-fedpt ...] [--ablations] [--seeds 0 1 2] [--jobs 1] [--tune] [--full] [--table]

First ``--tune``: every method's learning rates from the same search, on images that no result is from; ``rates.json`` keeps the best.
Then the runs, each a process of its own that leaves one JSON in ``results/``; what is there is not run again. The table states the
closing evaluation without and with the client's log prior on the logits, for participants and for held-out clients.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from statistics import mean, stdev
from typing import Any

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE.parents[1])]

from data import make  # noqa: E402
from rows import ABLATIONS, FULL, LITE, METHODS, TASKS, Settings  # noqa: E402

TUNING_SEED, TUNING_ROUNDS = 100, 8
KEEP = ("served", "served_raw", "held_out", "bytes", "dropped", "seconds", "split_hash", "versions")


@dataclass(frozen=True)
class Job:
    """One run: its name (and file), the data it is on, and its settings."""

    name: str
    data: str
    settings: Settings


def run(job: Job, work: Path, results: Path) -> dict[str, Any]:
    """One run through the command line, or its result if it is there already."""
    path = results / f"{job.name.replace(' ', '_').replace('%', '').replace(',', '')}.json"
    if path.exists():
        return json.loads(path.read_text())
    with tempfile.TemporaryDirectory(dir=work) as folder:
        words = [word for key, value in job.settings.items() for word in ("-c", f"{key}={_toml(value)}")]
        command = [sys.executable, "-m", "deploy.cli", "run", "-c", f"dataset=npz:{work / job.data}", *words, "--workers", "1", "--quiet",
                   "--out", f"{folder}/run"]
        began = time.monotonic()
        done = subprocess.run(command, cwd=HERE.parents[1], capture_output=True, text=True, env=os.environ | {"OMP_NUM_THREADS": "1"})
        if done.returncode:
            raise RuntimeError(f"{job.name}: {done.stderr[-2000:]}")
        summary = json.loads(Path(folder, "run", "summary.json").read_text())
        records = [json.loads(line) for line in Path(folder, "run", "rounds.jsonl").read_text().splitlines()]
    found = {"name": job.name, "settings": dict(job.settings), "wall_seconds": time.monotonic() - began,
             **{key: summary[key] for key in KEEP if key in summary}, "rounds": [_round(record) for record in records]}
    path.write_text(json.dumps(found, indent=1))
    print(f"{job.name:48s} {found['wall_seconds']:6.0f} s  mean {_points(found['served_raw'])}, with prior {_points(found['served'])}",
          flush=True)
    return found


def _toml(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def _points(tail: Mapping[str, float] | None) -> str:
    return f"{100 * tail['mean']:.1f}" if tail else "-"


def _round(record: Mapping[str, Any]) -> dict[str, Any]:
    """Of a round: means over its clients, and the numbers of the server's state."""
    means = {key: mean(record[key].values()) for key in ("served", "served_raw", "loss", "mixture_accuracy") if record.get(key)}
    return {"round": record["round"], "seconds": record["seconds"], "up": sum(record["bytes"]["up"].values()), **means,
            "drift": (record.get("diagnostics") or {}).get("prototype_drift")}


def searches(task: str, methods: list[str], base: Settings) -> Iterator[tuple[str, Job]]:
    """(method, run) of every setting that is tried for it."""
    for name in methods:
        for number, tried in enumerate(METHODS[name].searched()):
            settings = {**base, **TASKS[task], **METHODS[name].settings, **tried, "rounds": TUNING_ROUNDS, "score-every": 99,
                        "seed": TUNING_SEED, "held-out": 0.0}
            yield name, Job(f"tune {task} {name} {number}", f"{file_of(task)}-tune.npz", settings)


def tune(task: str, methods: list[str], base: Settings, places: tuple[Path, Path], jobs: int) -> dict[str, Settings]:
    """The best rates of each method: the highest mean of both served means, without and with the prior."""
    pairs = list(searches(task, methods, base))
    with ThreadPoolExecutor(jobs) as pool:
        results = list(pool.map(lambda pair: run(pair[1], *places), pairs))
    best: dict[str, Settings] = {}
    for name in methods:
        mine = [(result, tried) for (of, _), result, tried in
                zip(pairs, results, [t for m in methods for t in METHODS[m].searched()], strict=True) if of == name]
        best[name] = max(mine, key=lambda pair: pair[0]["served"]["mean"] + pair[0]["served_raw"]["mean"])[1]
    return best


def file_of(task: str) -> str:
    """The data set of a task: its first word."""
    return task.split()[0]


def planned(tasks: list[str], methods: list[str], ablations: bool, seeds: list[int], base: Settings,
            rates: Mapping[str, Mapping[str, Settings]]) -> list[Job]:
    """Every run, seed by seed, so that all methods have the first seed before any has the second."""
    found = []
    for seed in seeds:
        for task in tasks:
            tuned = rates.get(file_of(task), {})
            for name in methods:
                found.append(Job(f"{task} {name} seed {seed}", f"{file_of(task)}.npz",
                                 {**base, **TASKS[task], **METHODS[name].settings, **tuned.get(name, {}), "seed": seed}))
        for name, changed in (ABLATIONS if ablations else {}).items():
            settings = {**base, **TASKS[tasks[0]], "method": "pep-fedpt", **rates.get(file_of(tasks[0]), {}).get("pep-fedpt", {})}
            found.append(Job(f"{tasks[0]} ablation {name} seed {seed}", f"{file_of(tasks[0])}.npz", {**settings, **changed, "seed": seed}))
    return found


def interval(values: list[float]) -> str:
    """Mean and 95 % t-interval, in points."""
    if not values:
        return "-"
    centre = 100 * mean(values)
    if len(values) < 2:
        return f"{centre:.1f}"
    from scipy.stats import t

    return f"{centre:.1f} ± {100 * float(t.ppf(0.975, len(values) - 1)) * stdev(values) / len(values) ** 0.5:.1f}"


def table(results: list[dict[str, Any]]) -> str:
    """Markdown: a table a task."""
    grouped: dict[str, dict[str, list[dict[str, Any]]]] = {}
    for result in results:
        row = result["name"].rpartition(" seed ")[0]
        task = max((task for task in TASKS if row.startswith(f"{task} ")), key=len)
        grouped.setdefault(task, {}).setdefault(row.removeprefix(f"{task} "), []).append(result)
    lines = []
    for task, found in grouped.items():
        lines += ["", f"### {task}", "", "| method | seeds | mean | bottom 20 % | mean, prior | bottom 20 %, prior | held-out gap | "
                  "held-out gap, prior | numbers up a reply | wall s |", "|" + "---|" * 10]
        lines += [line(name, runs) for name, runs in found.items()]
    return "\n".join(lines).strip() + "\n"


def line(name: str, runs: list[dict[str, Any]]) -> str:
    """One row: without and with the prior; the gap is participants minus held-out clients."""
    cells = [interval([r[key][figure] for r in runs]) for key in ("served_raw", "served") for figure in ("mean", "bottom20")]
    for key, tails in (("served_raw", "tails_raw"), ("served", "tails")):
        if any((r.get("held_out") or {}).get("cannot_serve") for r in runs):
            cells.append("cannot serve")
        else:
            known = [r for r in runs if (r.get("held_out") or {}).get(tails)]
            cells.append(interval([r[key]["mean"] - r["held_out"][tails]["mean"] for r in known]))
    wall = mean(r["wall_seconds"] for r in runs)
    return f"| {' | '.join([name, str(len(runs)), *cells, f'{mean(map(numbers_up, runs)):,.0f}', f'{wall:.0f}'])} |"


def numbers_up(result: Mapping[str, Any]) -> float:
    """Numbers that a reply's tensors hold, headers of 128 bytes a tensor among them."""
    moved = result["bytes"]
    replies = moved["up"] / moved["up_per_client_round"]
    return (moved["up"] - moved["by_slot"]["up"].get("metrics", 0)) / replies / 4


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--work", type=Path, required=True, help="where data sets are made and runs have their files")
    parser.add_argument("--results", type=Path, default=HERE / "results")
    parser.add_argument("--tasks", nargs="+", default=["cifar10"], choices=TASKS)
    parser.add_argument("--methods", nargs="+", default=list(METHODS), choices=METHODS)
    parser.add_argument("--ablations", action="store_true", help="also PEP-FedPT's ablations, on the first task")
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--tune", action="store_true", help="search learning rates and write them down; run nothing else")
    parser.add_argument("--full", action="store_true", help="the full protocol at 224 pixels, for a GPU; use other --results and --work")
    parser.add_argument("--table", action="store_true", help="write the table of what is there and run nothing")
    parser.add_argument("--set", nargs="*", default=[], metavar="KEY=VALUE", help="change the protocol, for a look; use other --results")
    a = parser.parse_args()
    from deploy.overrides import parse_overrides

    a.results.mkdir(parents=True, exist_ok=True)
    work, base = a.work.resolve(), {**LITE, **(FULL if a.full else {}), **parse_overrides(a.set)}
    kept = a.results / "rates.json"
    rates = json.loads(kept.read_text()) if kept.is_file() else {}
    if not a.table:
        for task in a.tasks:
            make(Path(os.environ["FEDHEARTH_DATA"]), work, file_of(task), a.full)
    if a.tune:
        for task in dict.fromkeys(map(file_of, a.tasks)):
            rates[task] = rates.get(task, {}) | tune(task, a.methods, base, (work, a.results), a.jobs)
            kept.write_text(json.dumps(rates, indent=1))
        return
    if not a.table:
        jobs = planned(a.tasks, a.methods, a.ablations, a.seeds, base, rates)
        with ThreadPoolExecutor(a.jobs) as pool:
            list(pool.map(lambda job: run(job, work, a.results), jobs))
    found = [json.loads(path.read_text()) for path in sorted(a.results.glob("*_seed_*.json")) if not path.name.startswith("tune")]
    text = table(found)
    (a.results.parent / f"{a.results.name.replace('results', 'compare')}.md").write_text(text)
    print(text)


if __name__ == "__main__":
    main()
