"""The same small search for every method: four learning rates and one setting of its own, or five rates, on one configuration.

    FEDHEARTH_DATA=FOLDER python -m benchmarks.hdc_fl.tune --work FOLDER [--scale lite] [--rows methods] [--on 3] [--jobs 2] [--dry]

The second value of a method's own setting is tried at the rate that was best with the first. The search sees the training images alone:
clients hold a quarter of them out, divided by a seed that no result has, so no figure is from an image that chose a setting. The best of a
method's tries is the one with the highest sum of served mean and bottom 20 %, so that neither is bought with the other. ``tuned.json``
keeps the budget, every try and what was chosen; the sweep reads it. Resumable as the sweep is.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks.hdc_fl.configurations import CONFIGURATIONS, METHODS, RATES, ROWS, TUNED_ON, Job, Value, searches
from benchmarks.hdc_fl.images import NoImages
from benchmarks.hdc_fl.results import MixedResults, Result, check_comparable, there, write
from benchmarks.hdc_fl.running import Bench, run_all
from benchmarks.hdc_fl.sweep import HERE, arguments, bench_of, dry, rows_of

CRITERION = "the sum of served mean and bottom 20 %"


def score(result: Result) -> float:
    """What tries are compared by: half the sum, so that it reads as an accuracy."""
    return (result.content["served"]["mean"] + result.content["served"]["bottom20"]) / 2


def outcome(jobs: Sequence[Job], found: Mapping[str, Result]) -> dict[str, Any]:
    """``tuned.json`` from the tries: job name -> result; a try that failed (it diverged, say) has no score and is not chosen.

    Raises
    ------
    MixedResults
        If tries differ in split or budget, or a method has none that ended.
    """
    check_comparable(found.values())
    tried: dict[str, list[dict[str, Any]]] = {}
    for job in jobs:
        row = row_of(job)
        scored = score(found[job.name]) if job.name in found else None
        settings = {key: job.settings[key] for key in ("lr", *ROWS[row].searched)}
        tried.setdefault(row, []).append({"settings": settings, "score": scored})
    best = {row: best_of(row, tries) for row, tries in tried.items()}
    ended = {row: [t["score"] for t in tries if t["score"] is not None] for row, tries in tried.items()}
    first = next(iter(found.values())).content
    return {"configuration": jobs[0].configuration, "images": f"the training images of {first['images']['title']}",
            "tries": max(map(len, tried.values())), "rounds": jobs[0].settings["rounds"], "seed": jobs[0].seed, "criterion": CRITERION,
            "split_hash": first["split_hash"], "core_hours": round(sum(r.content["seconds"]["cpu"] for r in found.values()) / 3600, 2),
            "chosen": {row: t["settings"] for row, t in best.items()},
            "scores": {row: [min(scores), max(scores)] for row, scores in ended.items()}, "tried": tried}


def ended(jobs: Sequence[Job], bench: Bench) -> dict[str, Result]:
    """The results that are there, by the job's name."""
    return {job.name: result for job in jobs if (result := there(job, bench.results))}


def row_of(tried: Job | Result) -> str:
    return tried.row.rpartition(" try ")[0]


def best_of(row: str, tries: Sequence[Mapping[str, Any]]) -> Mapping[str, Any]:
    """The try with the highest score, the first of equal ones; raises ``MixedResults`` if none has one."""
    if not (scored := [t for t in tries if t["score"] is not None]):
        raise MixedResults(f"no try of {row} has ended well; see what the runs say above")
    return max(scored, key=lambda t: t["score"])


def best_rates(found: Mapping[str, Result]) -> dict[str, Value]:
    """The rate of the best try so far, of the rows that have one."""
    best: dict[str, Result] = {}
    for result in found.values():
        row = row_of(result)
        if row not in best or score(result) > score(best[row]):
            best[row] = result
    return {row: result.content["settings"]["lr"] for row, result in best.items()}


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    arguments(parser)
    parser.add_argument("--rows", nargs="+", default=["methods"])
    parser.add_argument("--on", type=int, default=TUNED_ON, choices=CONFIGURATIONS, metavar="NUMBER", help="the configuration")
    a = parser.parse_args()
    bench, changed = bench_of(a, "tuning")
    rows = rows_of(a.rows)
    jobs = list(searches(a.scale, rows, changed, a.on))
    benchmark = bench.results == HERE / a.scale / "tuning"
    if benchmark and not a.dry and not set(METHODS) <= set(rows):
        sys.exit("the benchmark's own search is of all methods: leave --rows out (what is there is not run again), or, for a look at "
                 "some, give a folder with --results")
    try:
        if a.dry:
            # before the first tries it is not known which rate is best, which makes no difference to the cost
            best = {**dict.fromkeys(rows, RATES[-1]), **best_rates(ended(jobs, bench))}
            print(dry([*jobs, *searches(a.scale, rows, changed, a.on, best)], bench))
            return 0
        failed = run_all(jobs, bench)
        best = {row: tried["lr"] for row, tried in outcome(jobs, ended(jobs, bench))["chosen"].items()}
        more = list(searches(a.scale, tuple(best), changed, a.on, best))
        failed += run_all(more, bench)
        # row by row, as the first tries are, so that of equal tries the first one is chosen
        jobs = sorted([*jobs, *more], key=lambda job: list(best).index(row_of(job)))
        told = outcome(jobs, ended(jobs, bench))
    except (NoImages, MixedResults, OSError) as fault:
        sys.exit(str(fault))
    path = (HERE / a.scale if benchmark else Path(bench.results)) / "tuned.json"
    write(path, told)
    print("\n".join(f"{row:16s} {chosen}" for row, chosen in told["chosen"].items()) + f"\n{path}; {len(failed)} tries failed")
    return 0


if __name__ == "__main__":
    sys.exit(main())
