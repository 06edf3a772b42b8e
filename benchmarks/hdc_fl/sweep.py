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
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks.hdc_fl.configurations import CONFIGURATIONS, GRID, METHODS, OURS, RATES, ROWS, SCALES, VARIANTS, Job, Settings, planned
from benchmarks.hdc_fl.cost import estimate, of_machine
from benchmarks.hdc_fl.images import NoImages
from benchmarks.hdc_fl.results import MixedResults, machine, read_all, there
from benchmarks.hdc_fl.running import Bench, run_all
from deploy.arguments import count

HERE = Path(__file__).resolve().parent


def dry(jobs: Sequence[Job], bench: Bench) -> str:
    """The runs to make, with what each will cost."""
    known = of_machine(read_all(bench.results), machine(bench.machine)["id"])
    rows = [(job, there(job, bench.results) is not None, estimate(job, known, bench.limit)) for job in jobs]
    lines = [f"{job.name:40s} {'there' if done else f'{cost:8.0f} s'}  {told(job.settings)}" for job, done, cost in rows]
    todo = sum(cost for _, done, cost in rows if not done)
    source = f"{len(known)} runs of this machine" if known else "a CPU core's time for an image; on a GPU it is another"
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
    parser.add_argument("--jobs", type=count, help="runs side by side; by default a run a GPU, or a core where no GPUs are named")
    parser.add_argument("--gpus", nargs="*", default=[], help="numbers of the GPUs that runs share")
    parser.add_argument("--machine", default="", help="a name for this machine in the results, in place of a digest")
    parser.add_argument("--rounds", type=count, help="only a look: so many rounds")
    parser.add_argument("--limit-samples", type=count, default=0, help="only a look: about so many training images")
    parser.add_argument("--set", nargs="*", default=[], metavar="KEY=VALUE", help="only a look: change settings")
    parser.add_argument("--dry", action="store_true", help="list the runs and what they cost, and run nothing")


def bench_of(a: argparse.Namespace, kind: str) -> tuple[Bench, Settings]:
    """The bench that the arguments ask for, and the settings they change."""
    from deploy.overrides import parse_overrides
    from strategies.config import ConfigError

    try:
        changed: dict[str, Any] = {**({"rounds": a.rounds} if a.rounds else {}), **parse_overrides(a.set)}
    except ConfigError as fault:
        sys.exit(str(fault))
    if fixed := changed.keys() & {"seed", "method", "dataset"}:
        sys.exit(f"--set cannot change {', '.join(sorted(fixed))}: rows, seeds and data are what a sweep goes through")
    # a look has a folder by what it changes, so that two looks do not get into each other's way
    look = "_".join(f"{key}={value}" for key, value in {**changed, **({"samples": a.limit_samples} if a.limit_samples else {})}.items())
    results = a.results or (a.work / "look" / a.scale / look.replace("/", "-") / kind if look else HERE / a.scale / kind)
    folder = os.environ.get("FEDHEARTH_DATA", "")
    if not folder and not a.dry:
        sys.exit("set FEDHEARTH_DATA to the folder with the images")
    keep = str(Path(a.keep).resolve()) if getattr(a, "keep", None) else ""
    jobs = a.jobs or len(a.gpus) or os.cpu_count() or 1
    return Bench(Path(folder), a.work.resolve(), results.resolve(), jobs, tuple(a.gpus), keep, a.machine, a.limit_samples), changed


def rows_of(words: Sequence[str]) -> tuple[str, ...]:
    """Rows by name, ``methods``, ``variants`` or ``all``."""
    known = {"methods": METHODS, "variants": VARIANTS, "all": ROWS}
    if unknown := [word for word in words if word not in known and word not in ROWS]:
        sys.exit(f"no such rows: {', '.join(unknown)}; known: {', '.join([*known, *ROWS])}")
    wanted = {name for word in words for name in known.get(word, {word: None})}
    if not any(not ROWS[name].reclustered for name in wanted):
        sys.exit(f"{', '.join(sorted(wanted))}: no runs of their own, since they come out of those of {OURS}: give that row")
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


def check_settings(jobs: Sequence[Job]) -> None:
    """Leave with what is wrong with the settings, before anything runs."""
    from strategies.config import ConfigError
    from strategies.registry import parse_run_config

    for job in jobs:
        try:
            parse_run_config({**job.settings, "dataset": "npz:images.npz"})
        except ConfigError as fault:
            sys.exit(f"{job.name}: {fault}")


def no_values(rows: Sequence[str]) -> str:
    return f"no values are chosen for {', '.join(rows)}: run benchmarks.hdc_fl.tune first (all of it: what is there is not run again)"


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
    own = bench.results == HERE / a.scale / "runs"
    if own and a.untuned:
        sys.exit("runs with --untuned are not the benchmark's: name another folder with --results, or take a look (--rounds)")
    without = [] if a.untuned else unsearched(rows, chosen)
    if without and own and not a.dry:
        sys.exit(no_values(without) + "; or go on with --untuned and --results")
    if without:
        print(f"{no_values(without)}; {'until then a sweep is refused' if own else 'these runs have the scale and the defaults'}",
              file=sys.stderr)
    jobs = planned(a.scale, tuple(dict.fromkeys(a.configurations)), rows, tuple(dict.fromkeys(a.seeds)), chosen, changed)
    check_settings(jobs)
    try:
        if a.dry:
            print(dry(jobs, bench))
            return 0
        failed = run_all(jobs, bench)
    except (NoImages, MixedResults, OSError) as fault:
        sys.exit(str(fault))
    if failed:
        print(*failed, sep="\n", file=sys.stderr)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
