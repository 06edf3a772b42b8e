"""Donor swap on three shifts: do encoders of clients with like heads fit?

    FEDHEARTH_DATA=... python benchmarks/hdc_fl/donor_swap.py [--seeds 0 1 2] [--jobs 2] [--scale more-steps] [-c KEY=VALUE]

HDC-FL on CIFAR-10 (a 12,000-image subset), 20 clients, the default model and schedule, with rotated images, two classes a client, and
Dirichlet .1. Every run goes through ``fedhearth run`` with the setting ``donor-swap`` and leaves one JSON in ``swaps/``; what is there
is not run again. ``-c`` changes a setting of all runs and becomes part of their names, so that other scales can be tried beside.

    python benchmarks/hdc_fl/donor_swap.py --kept FOLDER --out FILE

takes the runs of HDC-FL that the sweep kept in FOLDER (its ``--keep``; 16 clients) instead and trains nothing; runs asked before are in
the table too. ``benchmarks/hdc_fl/lite/donor_swap.md`` is such a table.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from statistics import mean
from typing import Any

import numpy as np

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parents[1]))

from benchmarks.command_line import command, unmet, words_of  # noqa: E402
from benchmarks.hdc_fl.results import MixedResults, write  # noqa: E402

SWAPS = HERE / "swaps"
SHIFTS: dict[str, dict[str, str]] = {
    "rotation": {"partition": "rotation"},
    "label-subset 2": {"partition": "label-subset", "classes-per-client": "2"},
    "Dirichlet 0.1": {"partition": "dirichlet", "alpha": "0.1"},
}
# where to look further, since the signal grows with lr x steps x images (METHODS.md 1.8)
SCALES: dict[str, dict[str, str]] = {
    "B": {},
    "more-steps": {"epochs": "5"},
    "larger-steps": {"lr": "0.03"},
    "more-rounds": {"rounds": "40"},
}
DONORS = 50
KEEP = ("served", "served_raw", "split_hash", "clusters", "versions", "run_config")
MATRICES = ("similarity", "accuracy", "accuracy_raw", "own", "own_raw")
ABOUT = """# Donor swap: do encoders of clients with like heads fit?

Written by `python benchmarks/hdc_fl/donor_swap.py --kept FOLDER --out FILE` from the JSONs in `benchmarks/hdc_fl/swaps`, one a finished
run of HDC-FL in the grid. Every client scores the other clients' encoders under its own head. rho: Spearman's rank correlation, a
recipient, between how alike a donor's head is and how well its encoder does; p: of a permutation of the similarities. Controls: *partial
rho*, given donors' sample counts and how alike their labels are; *untrained heads* in place of the trained ones, which should give 0;
*donors' BatchNorm*, without re-estimating its statistics on the recipient's images. *Undefined*: recipients whose donors all do alike.
*Drop*: points lost against the client's own encoder, by the most, middle and least alike third of the donors.

"""
PLACES = frozenset({"dataset", "out", "state-dir", "run-id", "weights-dir"})


def run(name: str, settings: Mapping[str, str], data: Path, donors: int) -> dict[str, Any]:
    """One run with its donor swap through the command line, or its result if it is there already."""
    path = SWAPS / (name.replace(" ", "_").replace("=", "_") + ".json")
    if path.exists():
        return read_swap(path)
    with tempfile.TemporaryDirectory() as folder:
        config = {"method": "hdc-fl", "dataset": f"npz:{data}", "score-every": "1000", "channels-last": "true", "donor-swap": str(donors),
                  **settings}
        began = time.monotonic()
        command("run", *words_of(config), "--workers", "1", "--quiet", "--out", f"{folder}/run")
        found = kept(Path(folder, "run"))
    took = time.monotonic() - began
    write(path, {**found, "seconds": round(took, 1)})
    rho = found["association"]["rho"]
    print(f"{name:50s} {took:5.0f} s  rho {number(rho['mean'])} {interval(rho['interval'])}", flush=True)
    return found


def of_kept(folder: Path, donors: int) -> dict[str, list[dict[str, Any]]]:
    """The swaps of the sweep's HDC-FL runs, by configuration: those in ``folder`` are asked now if they were not, others were before."""
    from benchmarks.hdc_fl.configurations import CONFIGURATIONS, OURS

    for run in sorted(folder.glob(f"*_{OURS}_seed_*")):
        try:
            check_recorded(run)
            if not (run / "donor_swap.json").exists():
                command("donor-swap", str(run), "--donors", str(donors), "--workers", "1")
            write(SWAPS / f"{run.name}.json", kept(run))
        except (RuntimeError, MixedResults, OSError) as fault:
            print(f"passed over: {fault}", file=sys.stderr)
    found = {f"{number}. {cell.shift}, {cell.data} classes, {cell.encoder}":
             [read_swap(path) for path in sorted(SWAPS.glob(f"{number}_{OURS}_seed_*.json"))] for number, cell in CONFIGURATIONS.items()}
    return {name: swaps for name, swaps in found.items() if swaps}


def check_recorded(run: Path) -> None:
    """Raise ``MixedResults`` unless the benchmark's result of this name came from ``run``: a look or another scale has no place here."""
    recorded = HERE / "lite" / "runs" / f"{run.name}.json"
    if not recorded.exists():
        raise MixedResults(f"{run.name} has no result in {recorded.parent.relative_to(HERE)}")
    wanted, had = json.loads(recorded.read_text(encoding="utf-8")), json.loads((run / "summary.json").read_text(encoding="utf-8"))
    differing = unmet(had["run_config"], wanted["settings"])
    if differing or had["split_hash"] != wanted["split_hash"]:
        raise MixedResults(f"{run.name} is not the run that the result of this name came from ({differing or 'another split'})")


def read_swap(path: Path) -> dict[str, Any]:
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except ValueError:
        sys.exit(f"{path} is damaged: delete it, and it is made anew")


def kept(folder: Path) -> dict[str, Any]:
    """What is kept of a run: its donor swap with matrices to four digits, and the figures it is seen beside."""
    swap = json.loads((folder / "donor_swap.json").read_text(encoding="utf-8"))
    summary = json.loads((folder / "summary.json").read_text(encoding="utf-8"))
    summary["run_config"] = {key: value for key, value in summary["run_config"].items() if key not in PLACES}
    return {**swap, **{key: rounded(swap[key]) for key in MATRICES}, **{key: summary[key] for key in KEEP if key in summary}}


def rounded(value: Any) -> Any:
    if isinstance(value, list):
        return [rounded(item) for item in value]
    return value if value is None else round(value, 4)


def table(results: Mapping[str, Sequence[Mapping[str, Any]]]) -> str:
    """A row a shift and scale: means over seeds; each seed's own interval beside its mean."""
    rows = ["| shift | seeds | rho, mean of seeds, 95 % interval over seeds and recipients | "
            "rho by seed, 95 % interval over recipients | tau-b | recipients above 0 | p by seed | "
            "partial rho | untrained heads | donors' BatchNorm | undefined | drop, most to least alike third (points) |",
            "|" + "---|" * 12]
    for name, found in results.items():
        main = [swap["association"] for swap in found]
        seeds = "; ".join(f"{number(a['rho']['mean'])} {interval(a['rho']['interval'])}" for a in main)
        rho = average([a["rho"]["mean"] for a in main]) + (f" {interval(over_seeds(main))}" if len(main) > 1 else "")
        controls = [swap["controls"] for swap in found]
        thirds = " / ".join(average([points(swap["drop"], n) for swap in found], "{:.1f}") for n in range(3))
        rows.append("| " + " | ".join([
            name, str(len(found)), rho, seeds, average([a["tau"]["mean"] for a in main]),
            average([100 * a["rho"]["positive"] for a in main if a["rho"]["positive"] is not None], "{:.0f} %"),
            ", ".join("–" if a["p"] is None else f"{a['p']:.4f}" for a in main),
            average([(c["given"]["rho"] or {}).get("mean") for c in controls]), average([c["untrained"]["mean"] for c in controls]),
            average([c["donor_statistics"]["rho"]["mean"] for c in controls]), str(sum(a["rho"]["undefined"] for a in main)),
            thirds]) + " |")
    return "\n".join(rows)


def over_seeds(associations: Sequence[Mapping[str, Any]], draws: int = 2000) -> tuple[float, float] | None:
    """95 % bootstrap interval of the mean rho: seeds are drawn first and then, within each, recipients whose rho is defined."""
    known = [np.array([row["rho"] for row in a["by_recipient"].values() if row["rho"] is not None]) for a in associations]
    known = [values for values in known if values.size]
    if not known:
        return None
    rng = np.random.default_rng(0)
    means = [mean(float(rng.choice(known[i], known[i].size).mean()) for i in rng.integers(len(known), size=len(known)))
             for _ in range(draws)]
    low, high = np.percentile(means, [2.5, 97.5])
    return float(low), float(high)


def points(thirds: Sequence[Mapping[str, Any]], n: int) -> float | None:
    """Mean drop of the n-th third of donors, in points; None where there are no thirds or no own scores."""
    return 100 * thirds[n]["drop"] if thirds and thirds[n]["drop"] is not None else None


def average(values: Sequence[float | None], form: str = "{:+.3f}") -> str:
    known = [value for value in values if value is not None]
    return form.format(mean(known)) if known else "–"


def number(value: float | None) -> str:
    return average([value])


def interval(found: Sequence[float] | None) -> str:
    return "[–]" if found is None else f"[{found[0]:+.3f}, {found[1]:+.3f}]"


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--shifts", nargs="+", choices=tuple(SHIFTS), default=list(SHIFTS))
    parser.add_argument("--scale", nargs="+", choices=tuple(SCALES), default=["B"])
    parser.add_argument("--donors", type=int, default=DONORS)
    parser.add_argument("-c", dest="settings", metavar="KEY=VALUE", action="append", default=[])
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--data", type=Path, default=Path(os.environ.get("FEDHEARTH_DATA", ""), "cifar10_sub12k.npz"))
    parser.add_argument("--out", type=Path, default=HERE / "donor_swap.md")
    parser.add_argument("--kept", type=Path, help="a folder of runs that the sweep kept; nothing is trained")
    a = parser.parse_args()
    if a.kept:
        if not a.kept.is_dir():
            sys.exit(f"{a.kept} is no folder; give the one in which the sweep kept its runs (--keep), or an empty one for the table alone")
        return show(of_kept(a.kept.absolute(), a.donors), a.out, ABOUT)
    if not a.data.is_file():
        sys.exit("set FEDHEARTH_DATA to the folder with cifar10_sub12k.npz, or give a file with --data")
    if wrong := [word for word in a.settings if "=" not in word]:
        sys.exit(f"-c takes KEY=VALUE, got {', '.join(wrong)}")
    changed = dict(word.split("=", 1) for word in a.settings)
    label = "".join(f" {key}={value}" for key, value in changed.items()) + f" {a.donors} donors" * (a.donors != DONORS)
    rows = {f"{shift}, {scale}{label}": {**SHIFTS[shift], **SCALES[scale], **changed} for scale in a.scale for shift in a.shifts}
    todo = [(row, f"{row} seed {seed}", {**settings, "seed": str(seed)}) for row, settings in rows.items() for seed in a.seeds]
    with ThreadPoolExecutor(a.jobs) as pool:
        found = list(pool.map(lambda job: run(job[1].replace(",", ""), job[2], a.data.absolute(), a.donors), todo))
    results = {row: [swap for (name, *_), swap in zip(todo, found, strict=True) if name == row] for row in rows}
    return show(results, a.out)


def show(results: Mapping[str, Sequence[Mapping[str, Any]]], out: Path, about: str = "") -> None:
    text = about + table(results)
    out.write_text(text + "\n", encoding="utf-8")
    print(text)


if __name__ == "__main__":
    main()
