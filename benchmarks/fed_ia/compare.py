"""FedIA and its rivals on the same cached features, splits and budget; resumable, one JSON a run.

    FEDHEARTH_DATA=... FEDHEARTH_WEIGHTS=... python benchmarks/fed_ia/compare.py --work FOLDER [--tasks domain ...] [--shots full]
        [--methods fed-ia ...] [--ablations] [--seeds 0 1 2 3 4] [--jobs 1] [--encode | --tune | --table]

``--encode`` makes the data files and encodes every image once, in a process of its own; all runs of all methods then read those features.
``--tune`` tries the same number of settings for every method, on images that no result is from; ``rates.json`` keeps the best. Then the
runs: what has a JSON in ``results/`` is not run again. The table states the served mean of the closing evaluation, without and with the
client's log prior.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from statistics import mean
from typing import Any

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE.parents[1])]

from data import encode, file_name, make, source  # noqa: E402
from novel import novel_accuracy  # noqa: E402
from rows import ABLATIONS, METHODS, PROTOCOL, SHOTS, TASKS, Settings, Task  # noqa: E402
from table import tables  # noqa: E402

from benchmarks.command_line import command, there, words_of  # noqa: E402

TUNING_SEED, TUNING_ROUNDS = 100, 6
KEEP = ("served", "served_raw", "bytes", "dropped", "seconds", "split_hash", "versions")


@dataclass(frozen=True)
class Job:
    """One run. ``tuning``: on the images that settings are chosen on."""

    task: str
    shots: str
    row: str
    seed: int
    settings: Settings
    tuning: bool = False

    @property
    def name(self) -> str:
        words = f"{'tune ' * self.tuning}{self.task} {self.shots} {self.row} seed {self.seed}"
        return words.replace(" ", "_").replace(",", "").replace("=", "")

    @property
    def of(self) -> Task:
        return TASKS[self.task]


def run(job: Job, work: Path, results: Path, limit: int) -> dict[str, Any]:
    """One run through the command line, or its result if it is there already."""
    path = results / f"{job.name}.json"
    if made := there(path, job.settings):
        return made
    shots = SHOTS[job.shots]
    data = make(source(), work, job.of.data, job.tuning, shots, limit)
    settings = {**job.settings, "dataset": f"npz:{data}", "features-dir": str(features(work, data, job.of))}
    with tempfile.TemporaryDirectory(dir=work) as folder:
        began = time.monotonic()
        command("run", *words_of(settings), "--workers", "1", "--quiet", "--out", f"{folder}/run")
        wall = time.monotonic() - began
        summary = json.loads(Path(folder, "run", "summary.json").read_text())
        records = [json.loads(text) for text in Path(folder, "run", "rounds.jsonl").read_text().splitlines()]
        more = _afterwards(job, Path(folder, "run"), work, shots, limit)
    found = {"task": job.task, "shots": job.shots, "row": job.row, "seed": job.seed, "settings": dict(job.settings), "wall_seconds": wall,
             **{key: summary[key] for key in KEEP if key in summary}, "numbers_up": numbers_up(summary["bytes"]), **more,
             **_figures(summary), "held_out_mean": ((summary.get("held_out") or {}).get("tails_raw") or {}).get("mean"),
             "rounds": [_round(record) for record in records]}
    path.write_text(json.dumps(found, indent=1))
    plain, prior = (100 * found[key]["mean"] for key in ("served_raw", "served"))
    print(f"{job.name:56s} {wall:6.0f} s  mean {plain:.1f}, with prior {prior:.1f}", flush=True)
    return found


def features(work: Path, data: Path, task: Task) -> Path:
    """The folder of image features for a data file; part of a data set (``pacs-no-sketch``) finds its images among the whole one's."""
    whole = file_name(data.stem.partition("-")[0], "-tune" in data.stem, int(data.stem.endswith("-few")))
    return work / "features" / f"{Path(whole).stem}-{task.tower_size}"


def _afterwards(job: Job, folder: Path, work: Path, shots: int, limit: int) -> dict[str, float]:
    """What is asked of a finished run: a newcomer of another domain, or other classes."""
    if job.of.joins:
        other = make(source(), work, job.of.joins, job.tuning, shots, limit)
        command("join", "--run", str(folder), "--data", f"npz:{other}", "--name", "newcomer")
        return {"joined": json.loads((folder / "joined.json").read_text())[0]["served_raw"]}
    if job.of.novel:
        other = make(source(), work, job.of.novel, job.tuning, shots, limit)
        scores = novel_accuracy(next((folder / "clients").iterdir()), other, str(features(work, other, job.of)))
        return {"novel": mean(scores.values())} if scores else {}
    return {}


def _round(record: Mapping[str, Any]) -> dict[str, Any]:
    keys = ("served", "served_raw", "loss", "gate_weight", "gate_spread", "patch_overlap")
    return {"round": record["round"], "seconds": record["seconds"], **{key: mean(record[key].values()) for key in keys if record.get(key)}}


def _figures(summary: Mapping[str, Any]) -> dict[str, float]:
    """FedIA's closing figures about gate and patches, means over clients."""
    return {key: mean(values.values()) for key, values in (summary.get("fusion") or {}).items()}


def numbers_up(moved: Mapping[str, Any]) -> float:
    """Numbers that a reply's tensors hold, headers of 128 bytes a tensor among them."""
    each = moved["up_per_client_round"]
    return (moved["up"] - moved["by_slot"]["up"].get("metrics", 0)) / (moved["up"] / each) / 4 if each else 0.0


def tune(tasks: list[str], shots: str, methods: list[str], changed: Settings, run_all: Any) -> dict[str, dict[str, Settings]]:
    """The best settings of each method by task: the highest sum of both served means."""
    base: Settings = {"rounds": TUNING_ROUNDS, "score-every": 99, "held-out": 0.0, "seed": TUNING_SEED}
    jobs = [Job(task, shots, f"{name} {number}", TUNING_SEED,
                {**PROTOCOL, **_task(task), **base, **METHODS[name].settings, **tried, **changed}, tuning=True)
            for task in tasks for name in methods for number, tried in enumerate(METHODS[name].tries())]
    found = {(job.task, job.row): result for job, result in zip(jobs, run_all(jobs), strict=True)}
    best: dict[str, dict[str, Settings]] = {}
    for task in tasks:
        for name in methods:
            tries = METHODS[name].tries()
            sums = [sum(found[task, f"{name} {n}"][key]["mean"] for key in ("served", "served_raw")) for n in range(len(tries))]
            best.setdefault(task, {})[name] = tries[sums.index(max(sums))]
    return best


def planned(tasks: list[str], shots: str, methods: list[str], ablations: bool, seeds: list[int], changed: Settings,
            rates: Mapping[str, Mapping[str, Settings]]) -> list[Job]:
    """Every run, seed by seed, so that all methods have the first seed before any has the second; ablations on the first task."""
    found = []
    for seed in seeds:
        for task in tasks:
            # a task without a search of its own takes what another task's gave
            tuned, base = rates.get(f"{task}, {shots}") or next(iter(rates.values()), {}), {**PROTOCOL, **_task(task)}
            found += [Job(task, shots, name, seed, {**base, **METHODS[name].settings, **tuned.get(name, {}), **changed, "seed": seed})
                      for name in methods]
            if ablations and task == tasks[0]:
                found += [Job(task, shots, name, seed, {**base, **tuned.get("fed-ia", {}), **settings, **changed, "seed": seed})
                          for name, settings in ABLATIONS.items()]
    return found


def _task(task: str) -> dict[str, Any]:
    return {**TASKS[task].settings, "tower-size": TASKS[task].tower_size}


def encode_all(a: argparse.Namespace, changed: Settings) -> None:
    """Data files and features of the chosen tasks, for results and for tuning."""
    for task in map(TASKS.__getitem__, a.tasks):
        for tuning in (False, True):
            path = make(source(), a.work, task.data.partition("-")[0], tuning, SHOTS[a.shots], a.limit)
            began = time.monotonic()
            count = encode(path, features(a.work, path, task), task.tower_size, {**PROTOCOL, **changed})
            print(f"{path.name} at {task.tower_size} pixels: {count} images in {time.monotonic() - began:.0f} s", flush=True)


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--work", type=Path, required=True, help="where data files, features and runs have their place")
    parser.add_argument("--results", type=Path, default=HERE / "results")
    parser.add_argument("--tasks", nargs="+", default=["domain"], choices=TASKS)
    parser.add_argument("--shots", default="full", choices=SHOTS)
    parser.add_argument("--methods", nargs="+", default=list(METHODS), choices=METHODS)
    parser.add_argument("--ablations", action="store_true", help="also FedIA's ablations, on the first task")
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2, 3, 4])
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--encode", action="store_true", help="make the data files and encode every image once; run nothing")
    parser.add_argument("--tune", action="store_true", help="search every method's settings and write them down; run nothing else")
    parser.add_argument("--table", action="store_true", help="write the tables of what is there and run nothing")
    parser.add_argument("--limit", type=int, default=0, help="images a data file keeps, for a look; use other --results and --work")
    parser.add_argument("--set", nargs="*", default=[], metavar="KEY=VALUE", help="change the protocol, for a look; use other --results")
    return parser.parse_args()


def main() -> None:
    a = arguments()
    from deploy.overrides import parse_overrides

    a.work, changed = a.work.resolve(), dict(parse_overrides(a.set))
    a.results.mkdir(parents=True, exist_ok=True)
    kept = a.results / "rates.json"
    rates = json.loads(kept.read_text()) if kept.is_file() else {}

    def run_all(jobs: list[Job]) -> list[dict[str, Any]]:
        with ThreadPoolExecutor(a.jobs) as pool:
            return list(pool.map(lambda job: run(job, a.work, a.results, a.limit), jobs))

    if a.encode:
        return encode_all(a, changed)
    if a.tune:
        for task, found in tune(a.tasks, a.shots, a.methods, changed, run_all).items():
            rates[f"{task}, {a.shots}"] = rates.get(f"{task}, {a.shots}", {}) | found
        kept.write_text(json.dumps(rates, indent=1))
        return None
    if not a.table:
        run_all(planned(a.tasks, a.shots, a.methods, a.ablations, a.seeds, changed, rates))
    files = [path for path in sorted(a.results.glob("*_seed_*.json")) if not path.name.startswith("tune")]
    text = tables(json.loads(path.read_text()) for path in files)
    (a.results.parent / f"{a.results.name.replace('results', 'compare')}.md").write_text(text)
    print(text)
    return None


if __name__ == "__main__":
    main()
