"""Run the grid: configurations x methods x seeds. Resumable: one JSON a run, and what is there is not run again.

    FEDHEARTH_DATA=FOLDER python -m benchmarks.hdc_fl.sweep --work FOLDER [--scale lite|full] [--configurations 1 3 5]
        [--rows hdc-fl fedper] [--seeds 0 1 2] [--jobs 2] [--gpus 0 1] [--keep FOLDER] [--dry]
        [--rounds 1] [--limit-samples 500] [--set KEY=VALUE ...]

From the root of the repository. ``--rows`` takes methods' names, ``methods`` (the default), ``variants`` (of HDC-FL) and ``all``. With
``--rounds``, ``--limit-samples`` or ``--set`` it is only a look: results go below ``WORK/look``, not to the benchmark's own folder.
``--keep`` keeps the whole folder of every run (for ``fedhearth donor-swap``, reports and pictures). ``--dry`` lists runs and costs.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import asdict, dataclass, field
from pathlib import Path
from queue import SimpleQueue
from typing import Any

from benchmarks.hdc_fl.configurations import CONFIGURATIONS, GRID, METHODS, RATES, ROWS, SCALES, VARIANTS, Job, Settings, planned
from benchmarks.hdc_fl.cost import estimate, hours, of_machine
from benchmarks.hdc_fl.images import NoImages, prepared
from benchmarks.hdc_fl.results import MixedResults, Result, machine, read_all, there

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]


@dataclass(frozen=True)
class Bench:
    """Where and how runs are made.

    Attributes
    ----------
    source, work, results : folders of the images as they came, of files made from them, and of the JSONs.
    gpus : numbers of those to share out among the runs side by side; empty leaves the machine as it is.
    keep : folder for the runs' own folders, "" for none.
    """

    source: Path
    work: Path
    results: Path
    jobs: int = 1
    gpus: tuple[str, ...] = ()
    keep: str = ""
    machine: str = ""
    limit: int = 0
    slots: SimpleQueue[str] = field(default_factory=SimpleQueue, compare=False)

    def __post_init__(self) -> None:
        for number in range(self.jobs):
            self.slots.put(self.gpus[number % len(self.gpus)] if self.gpus else "")


def run(job: Job, bench: Bench) -> Result:
    """One run in a process of its own; raises ``RuntimeError`` with the end of its complaint."""
    images = prepared(job.scale, job.cell.data, job.tuning, bench.source, bench.work, bench.limit)
    told = bench.work / f"{job.name}.{os.getpid()}.job"
    into = bench.results / f"{job.name}.json"
    told.write_text(json.dumps({"name": job.name, "scale": job.scale, "configuration": job.configuration, "row": job.row, "seed": job.seed,
                                "settings": dict(job.settings), "images": asdict(images) | {"path": str(images.path)}, "into": str(into),
                                "work": str(bench.work), "keep": bench.keep, "machine": bench.machine, "jobs": bench.jobs,
                                "reclustered": reclustered_of(job)}))
    slot = bench.slots.get()
    try:
        alone = {"OMP_NUM_THREADS": "1", **({"CUDA_VISIBLE_DEVICES": slot} if slot else {})}
        done = subprocess.run([sys.executable, "-m", "benchmarks.hdc_fl.one_run", str(told)], cwd=ROOT, capture_output=True, text=True,
                              env=os.environ | alone)
    finally:
        bench.slots.put(slot)
        told.unlink()
    if done.returncode:
        raise RuntimeError(f"{job.name}: {done.stderr[-2000:] or f'exit code {done.returncode}'}")
    found = there(job, bench.results)
    assert found is not None
    return found


def reclustered_of(job: Job) -> dict[str, Settings]:
    """The rows that come out of the run of ``job``, by what makes them."""
    return {name: {key: value for key, value in row.settings.items() if key != "method"}
            for name, row in ROWS.items() if row.reclustered and row.as_of == job.row}


def run_all(jobs: Sequence[Job], bench: Bench) -> list[str]:
    """Every run that is not there yet; what went wrong, one text a failed run, which the others do not wait for."""
    known = of_machine(read_all(bench.results), machine(bench.machine)["id"])
    todo = [job for job in jobs if there(job, bench.results) is None]
    left = {job.name: estimate(job, known, bench.limit) for job in todo}
    print(f"{len(jobs) - len(todo)} of {len(jobs)} runs are there; about {hours(sum(left.values()) / bench.jobs)} to go", flush=True)
    for scale, data, tuning in {(job.scale, job.cell.data, job.tuning) for job in todo}:
        images = prepared(scale, data, tuning, bench.source, bench.work, bench.limit)
        print(f"{data} classes: {images.title}", flush=True)
    failed: list[str] = []
    reckoned, began, done = 0.0, time.monotonic(), 0
    pool = ThreadPoolExecutor(bench.jobs)
    try:
        running = {pool.submit(run, job, bench): job for job in todo}
        for future in as_completed(running):
            job, done = running[future], done + 1
            reckoned += left.pop(job.name)
            pace = (time.monotonic() - began) / max(reckoned, 1e-9)
            try:
                told = line(future.result())
            except (RuntimeError, MixedResults) as fault:
                failed.append(str(fault))
                told = f"FAILED {fault}"
            print(f"[{done}/{len(todo)}, {hours(pace * sum(left.values()))} left] {told}", flush=True)
    finally:
        # on Ctrl-C the terminal has told the runs at work too; those that wait need not begin
        pool.shutdown(cancel_futures=True)
    return failed


def line(found: Result) -> str:
    """One run for the terminal."""
    served, took = found.content["served"], found.content["seconds"]
    figures = "  ".join(f"{key} {100 * served[key]:5.1f}" for key in ("mean", "worst", "bottom20"))
    ari = (found.content.get("clusters") or {}).get("adjusted_rand")
    told = f"{found.name:36s} {figures}  cpu {took['cpu']:.0f} s  wall {took['wall']:.0f} s"
    return told + (f"  ari {ari:.2f}" if ari is not None else "")


def dry(jobs: Sequence[Job], bench: Bench) -> str:
    """The runs to make, with what each will cost."""
    known = of_machine(read_all(bench.results), machine(bench.machine)["id"])
    rows = [(job, there(job, bench.results) is not None, estimate(job, known, bench.limit)) for job in jobs]
    lines = [f"{job.name:40s} {'there' if done else f'{cost:8.0f} s'}  {told(job.settings)}" for job, done, cost in rows]
    todo = sum(cost for _, done, cost in rows if not done)
    source = f"{len(known)} runs of this machine" if known else "the scale's figures for an image"
    there_already = sum(done for _, done, _ in rows)
    return "\n".join([*lines, f"{len(rows)} runs, {there_already} there; {todo / 3600:.2f} core-hours to go, by {source}"])


def told(settings: Settings) -> str:
    """The settings of a run in one line."""
    return " ".join(f"{key}={value}" for key, value in settings.items())


def arguments(parser: argparse.ArgumentParser) -> None:
    """What sweep, search and rebuild have in common."""
    parser.add_argument("--work", type=Path, required=True, help="a folder for image files and runs at work")
    parser.add_argument("--scale", choices=SCALES, default="lite")
    parser.add_argument("--results", type=Path, help="where the JSONs go; the benchmark's own folder by default")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, help="runs side by side")
    parser.add_argument("--gpus", nargs="*", default=[], help="numbers of the GPUs that runs share")
    parser.add_argument("--machine", default="", help="a name for this machine in the results, in place of a digest")
    parser.add_argument("--rounds", type=int, help="only a look: so many rounds")
    parser.add_argument("--limit-samples", type=int, default=0, help="only a look: about so many training images")
    parser.add_argument("--set", nargs="*", default=[], metavar="KEY=VALUE", help="only a look: change settings")
    parser.add_argument("--dry", action="store_true", help="list the runs and what they cost, and run nothing")


def bench_of(a: argparse.Namespace, kind: str) -> tuple[Bench, Settings]:
    """The bench that the arguments ask for, and the settings they change."""
    from deploy.overrides import parse_overrides

    changed: dict[str, Any] = {**({"rounds": a.rounds} if a.rounds else {}), **parse_overrides(a.set)}
    # a look has a folder by what it changes, so that two looks do not get into each other's way
    look = "_".join(f"{key}={value}" for key, value in {**changed, **({"samples": a.limit_samples} if a.limit_samples else {})}.items())
    results = a.results or (a.work / "look" / a.scale / look.replace("/", "-") / kind if look else HERE / a.scale / kind)
    folder = os.environ.get("FEDHEARTH_DATA", "")
    if not folder and not a.dry:
        sys.exit("set FEDHEARTH_DATA to the folder with the images")
    keep = str(Path(a.keep).resolve()) if getattr(a, "keep", None) else ""
    return Bench(Path(folder), a.work.resolve(), results.resolve(), max(a.jobs, len(a.gpus)), tuple(a.gpus), keep, a.machine,
                 a.limit_samples), changed


def rows_of(words: Sequence[str]) -> tuple[str, ...]:
    """Rows by name, ``methods``, ``variants`` or ``all``."""
    known = {"methods": METHODS, "variants": VARIANTS, "all": ROWS}
    if unknown := [word for word in words if word not in known and word not in ROWS]:
        sys.exit(f"no such rows: {', '.join(unknown)}; known: {', '.join([*known, *ROWS])}")
    wanted = {name for word in words for name in known.get(word, {word: None})}
    return tuple(name for name in ROWS if name in wanted)


def chosen_values(scale: str) -> dict[str, Settings]:
    """The outcome of ``tune.py``: row -> settings; empty before there is one."""
    path = HERE / scale / "tuned.json"
    return json.loads(path.read_text(encoding="utf-8"))["chosen"] if path.exists() else {}


def unsearched(rows: Sequence[str], chosen: Mapping[str, Settings]) -> list[str]:
    """The methods behind ``rows`` for which the search chose nothing, or something that is not searched any more."""
    of = dict.fromkeys(ROWS[row].as_of or row for row in rows)
    known = {row: [*ROWS[row].rates(), *(t for rate in RATES for t in ROWS[row].last(rate))] for row in of}
    return [row for row in of if chosen.get(row) not in known[row]]


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    arguments(parser)
    parser.add_argument("--configurations", type=int, nargs="+", default=list(GRID), choices=CONFIGURATIONS, metavar="NUMBER")
    parser.add_argument("--rows", nargs="+", default=["methods"])
    parser.add_argument("--seeds", type=int, nargs="+", default=[0])
    parser.add_argument("--keep", help="a folder in which whole run folders are kept")
    parser.add_argument("--untuned", action="store_true", help="go without the values that tune.py chose")
    a = parser.parse_args()
    bench, changed = bench_of(a, "runs")
    rows, chosen = rows_of(a.rows), {} if a.untuned else chosen_values(a.scale)
    if not (a.untuned or a.dry) and (without := unsearched(rows, chosen)):
        sys.exit(f"no values are chosen for {', '.join(without)}: run benchmarks.hdc_fl.tune first, or go on with --untuned")
    jobs = planned(a.scale, tuple(a.configurations), rows, tuple(a.seeds), chosen, changed)
    try:
        if a.dry:
            print(dry(jobs, bench))
            return 0
        failed = run_all(jobs, bench)
    except (NoImages, MixedResults) as fault:
        sys.exit(str(fault))
    if failed:
        print(*failed, sep="\n", file=sys.stderr)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
