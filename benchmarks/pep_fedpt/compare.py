"""PEP-FedPT and its rivals on one frozen backbone, one split, one budget; resumable.

    FEDHEARTH_DATA=... FEDHEARTH_WEIGHTS=... python benchmarks/pep_fedpt/compare.py --work FOLDER
        [--tasks cifar10 ...] [--methods pep-fedpt ...] [--ablations] [--seeds 0 1 2] [--jobs 1] [--tune] [--full] [--table]

First ``--tune``: every method's learning rates from the same search, on images that no result is from; ``rates.json`` keeps the best.
Then the runs, each a process of its own that leaves one JSON in ``results/``; what is there is not run again. The tables state
the closing evaluation without and with the client's log prior on the logits, for participants and for held-out clients, what a common
accuracy costs in numbers sent, and differences paired by seed; the pictures beside them, gains by client and mixture accuracy by round.
"""

from __future__ import annotations

import argparse
import csv
import json
import os
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from statistics import mean
from typing import Any

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE.parents[1])]

from data import make  # noqa: E402
from figures import MEAN_SHARE, OURS, gains, grouped, label_entropy, mixtures, table  # noqa: E402
from pictures import draw_gains, draw_mixtures  # noqa: E402
from rows import ABLATIONS, FULL, LITE, METHODS, TASKS, TUNED_ON, Settings  # noqa: E402

from benchmarks.command_line import command, there, words_of  # noqa: E402

TUNING_SEED, TUNING_ROUNDS = 100, 8
GAIN_CAPTION = "what each client gains by PEP-FedPT over FedVPT, by the entropy of its labels"
MIXTURE_CAPTION = "share of samples whose own class leads their mixture, by round"
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
    if made := there(path, job.settings):
        return made
    with tempfile.TemporaryDirectory(dir=work) as folder:
        began = time.monotonic()
        settings = {"dataset": f"npz:{work / job.data}", **job.settings}
        command("run", *words_of(settings), "--workers", "1", "--quiet", "--out", f"{folder}/run")
        summary = json.loads(Path(folder, "run", "summary.json").read_text())
        records = [json.loads(line) for line in Path(folder, "run", "rounds.jsonl").read_text().splitlines()]
        clients = clients_of(Path(folder, "run"))
    found = {"name": job.name, "settings": dict(job.settings), "wall_seconds": time.monotonic() - began,
             **{key: summary[key] for key in KEEP if key in summary}, "rounds": [_round(record) for record in records],
             "clients": clients}
    path.write_text(json.dumps(found, indent=1))
    print(f"{job.name:48s} {found['wall_seconds']:6.0f} s  mean {_points(found['served_raw'])}, with prior {_points(found['served'])}",
          flush=True)
    return found


def _points(tail: Mapping[str, float] | None) -> str:
    return f"{100 * tail['mean']:.1f}" if tail else "-"


def _round(record: Mapping[str, Any]) -> dict[str, Any]:
    """Of a round: means over its clients, and the numbers of the server's state."""
    keys = [*("served", "served_raw", "loss"), *(key for key in record if key.startswith(MEAN_SHARE))]
    means = {key: mean(record[key].values()) for key in keys if record.get(key)}
    return {"round": record["round"], "seconds": record["seconds"], "up": sum(record["bytes"]["up"].values()), **means,
            "drift": (record.get("diagnostics") or {}).get("prototype_drift")}


def clients_of(folder: Path) -> dict[str, dict[str, Any]]:
    """By client of a finished run, held-out ones among them: both closing scores, and the entropy of its training labels in nats."""
    from server_app.redraw import row_of

    train = json.loads((folder / "split.json").read_text())["train"]
    with (folder / "clients.csv").open(newline="") as lines:
        rows = [row_of(line) for line in csv.DictReader(lines)]
    return {row.client: {"served": row.served, "served_raw": row.served_raw, "held_out": row.held_out,
                         "entropy": round(label_entropy(train[row.client]), 4)} for row in rows}


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
            tuned = rates_for(task, rates)
            for name in methods:
                found.append(Job(f"{task} {name} seed {seed}", f"{file_of(task)}.npz",
                                 {**base, **TASKS[task], **METHODS[name].settings, **tuned.get(name, {}), "seed": seed}))
        for name, changed in (ABLATIONS if ablations else {}).items():
            settings = {**base, **TASKS[tasks[0]], "method": "pep-fedpt", **rates_for(tasks[0], rates).get("pep-fedpt", {})}
            found.append(Job(f"{tasks[0]} ablation {name} seed {seed}", f"{file_of(tasks[0])}.npz", {**settings, **changed, "seed": seed}))
    return found


def rates_for(task: str, rates: Mapping[str, Mapping[str, Settings]]) -> Mapping[str, Settings]:
    """Each method's rates: from the task's own search, else from the one on ``TUNED_ON``."""
    return rates.get(file_of(task), rates.get(TUNED_ON, {}))


def write_down(results: list[dict[str, Any]], stem: Path) -> str:
    """``STEM.md`` and its pictures, of those there are figures for; the text."""
    tasks = grouped(results, TASKS)
    text, gained, mixed = table(tasks), gains(tasks), mixtures(tasks)
    for name, found, drawn, caption in (("gain", gained, lambda path: draw_gains(gained, path), GAIN_CAPTION),
                                        ("mixture", mixed, lambda path: draw_mixtures(mixed, OURS, path), MIXTURE_CAPTION)):
        if found:
            path = stem.with_name(f"{stem.name}-{name}.png")
            drawn(path)
            text += f"\n![{caption}]({path.name})\n"
    stem.with_name(f"{stem.name}.md").write_text(text)
    return text


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
    print(write_down(found, a.results.parent / a.results.name.replace("results", "compare")))


if __name__ == "__main__":
    main()
