"""The tables and pictures of what the sweep left: Markdown, CSV, PNG.

    python -m benchmarks.hdc_fl.tables [--scale lite] [--results FOLDER] [--out FOLDER]

*Served* (before local training) and *adapted* (after it) are tables of their own and never mixed. Every figure is over clients, unweighted,
then the mean over seeds, then over configurations with equal weight; ``paired.py`` has the statistics, ``grid.py`` which runs count.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import mean
from typing import Any

from benchmarks.hdc_fl.conditions import budgets, check_chosen, costs, search, troubles
from benchmarks.hdc_fl.configurations import CONFIGURATIONS, CONTROL, GRID, METHODS, OURS, PLAIN, SCALES
from benchmarks.hdc_fl.cost import CLASSES
from benchmarks.hdc_fl.csv_files import write_figures
from benchmarks.hdc_fl.grid import Cell, Grid, grid_of
from benchmarks.hdc_fl.paired import FIGURES, MARGIN, over_seeds
from benchmarks.hdc_fl.parts import SHOWN, left_out, matrix, named_numbers, summary, titles
from benchmarks.hdc_fl.pictures import draw
from benchmarks.hdc_fl.results import MixedResults, Result, read_all, with_reclustered
from benchmarks.hdc_fl.text import gap, markdown, points
from benchmarks.hdc_fl.variants import variants

HERE = Path(__file__).resolve().parent
WHEN = {"served": "what a method delivers", "adapted": "after a round of local training"}
ABOUT = {"served": "Before any local training, but for fedavg-ft and fedbabu, which *are* fine-tuning: theirs is the score after it.\n",
         "adapted": "After the last round's local training. HDC-FL trains as FedPer does and its control as it does, so that these three "
                    "differ in the chosen rate alone; fedavg-ft's is FedAvg's and fedbabu's its encoder's, before their fine-tuning.\n"}
GROUPING = ("ifca", "cfl")


def details(cell: Cell, grid: Grid) -> str:
    """One configuration: deviations over seeds, and HDC-FL less each method."""
    rows = []
    for row, runs in cell.scores.items():
        found = {figure: over_seeds(runs, figure) for figure in FIGURES}
        cells = [points(value) + (f" ± {100 * std:.1f}" if std is not None else "") for value, std in found.values()]
        rows.append([row, *cells, *(gap(grid.differences.get((cell.number, row, figure)), figure) for figure in FIGURES)])
    seeds = f"seed{'s' * (len(cell.seeds) > 1)} {', '.join(map(str, cell.seeds))}"
    more = f"; seeds {', '.join(map(str, cell.left_out))} left out, since not every method has them" if cell.left_out else ""
    more += f"; left out: clients without a score under {', '.join(cell.without_score)} ({cell.unscored})" if cell.unscored else ""
    smallest = min(min(r.content["clients"]["n_test"]) for runs in cell.results.values() for r in runs)
    told = f"#### {cell.number}. {cell.title}\n\n{cell.clients} clients, {seeds}{more}; the smallest test set has {smallest} images.\n\n"
    return told + markdown(["method", *SHOWN.values(), *(f"HDC-FL less this: {shown}" for shown in SHOWN.values())], rows)


def groups(grid: Grid) -> str:
    """What the heads knew: HDC-FL beside random clusters of the same sizes, and how it clustered."""
    rows = []
    for number, cell in grid.cells.items():
        found = [r.content["clusters"] for r in cell.results.get(OURS, ()) if r.content.get("clusters")]
        shape, ari = ([c[key] for c in found if c.get(key) is not None] for key in ("silhouette", "adjusted_rand"))
        others = [", ".join(str((r.content.get("clusters") or {}).get("k", "–")) for r in cell.results.get(row, ())) for row in GROUPING]
        rows.append([f"{number}. {cell.title}", *(gap(grid.differences.get((number, CONTROL, figure)), figure) for figure in FIGURES),
                     ", ".join(str(c["k"]) for c in found) or "–", ", ".join(f"{s:.2f}" for s in shape) or "–",
                     ", ".join(f"{a:.2f}" for a in ari) or "–", *(told or "–" for told in others)])
    head = ["configuration", *(f"HDC-FL less random clusters: {shown}" for shown in SHOWN.values()), "clusters, by seed", "silhouette",
            "agreement with true groups (adjusted Rand)", *(f"clusters of {row}" for row in GROUPING)]
    return markdown(head, rows)


def bars(grid: Grid) -> str:
    """What the project set out to show, with the figures, reached or not."""
    if not grid.whole or not set(METHODS) <= set(grid.rows):
        return "Not all methods are there yet.\n"
    lines = [] if len(grid.whole) == len(GRID) else [f"So far, over {named_numbers(grid.whole)}:\n"]
    for figure in ("worst", "bottom20"):
        others = {row: value for row, value in grid.averages(figure).items() if row != OURS}
        first, ours = max(others, key=others.__getitem__), grid.averages(figure)[OURS]
        d = grid.macro_against(first, figure)
        lines.append(verdict(ours > others[first], f"macro-averaged {SHOWN[figure]}: HDC-FL {points(ours)}, the best other row, {first}, "
                             f"{points(others[first])}; difference {gap(d, figure)}", sure=d is not None and d.clear))
    rivals = {row: value for row, value in grid.averages("mean").items() if row not in (OURS, CONTROL)}
    first, ours = max(rivals, key=rivals.__getitem__), grid.averages("mean")[OURS]
    lines.append(verdict(ours >= rivals[first] - 0.005, f"macro-averaged mean within 0.5 points of the best rival: HDC-FL {points(ours)}, "
                         f"{first} {points(rivals[first])}"))
    below = {n: d for (n, row, figure), d in grid.differences.items()
             if n in grid.whole and (row, figure) == (PLAIN, "bottom20") and d.value < -0.01}
    told = "; ".join(f"{n}: {gap(d)}" for n, d in below.items()) or "none"
    lines.append(verdict(not below, f"configurations in which bottom 20 % is more than 1 point below FedPer's: {told}"))
    return "\n".join(lines) + "\n"


def verdict(reached: bool, told: str, sure: bool = True) -> str:
    return f"- {('reached' if sure else 'ahead, but not clear of 0') if reached else '**not reached**'}: {told}"


def raw(results: Sequence[Result], rows: Sequence[str], grid: Grid) -> str:
    """Macro-averages with BatchNorm statistics as averaged, without each client's re-computation; only where all runs have them."""
    found = []
    for row in rows:
        cells = [cell.results.get(row, ()) for cell in grid.cells.values()]
        if cells and all(cells) and all(r.content.get("served_raw") for runs in cells for r in runs):
            averages = [mean(mean(r.content["served_raw"][figure] for r in runs) for runs in cells) for figure in FIGURES]
            found.append([row, *map(points, averages)])
    return markdown(["method", *SHOWN.values()], found)


def report(results: Sequence[Result], tuned: Mapping[str, Any], scale: str) -> tuple[str, list[Grid]]:
    """The whole text, and the two grids."""
    runs = [r for r in results if r.configuration in GRID]
    if not runs:
        raise MixedResults(f"there is nothing to put in tables: no result is of the configurations {', '.join(map(str, GRID))}")
    check_chosen(runs, tuned)
    results = with_reclustered(runs)
    named, rows = titles(results), tuple(METHODS)
    grids = [grid_of(results, rows, kind, named) for kind in ("served", "adapted")]
    parts = [f"# HDC-FL beside its rivals, {scale} scale{', only a look' * looked(runs, scale)}\n",
             "Written by `python -m benchmarks.hdc_fl.tables`; accuracy in %, over clients. How to make all of it anew: "
             "[README.md](../README.md).\n", budgets(runs), search(tuned, scale)]
    for grid in grids:
        if not grid.cells:
            parts += [f"## {grid.kind.capitalize()}: {WHEN[grid.kind]}\n", left_out(grid)] if grid.lost else []
            continue
        parts += [f"## {grid.kind.capitalize()}: {WHEN[grid.kind]}\n", f"### Over {named_numbers(grid.whole)}\n", left_out(grid),
                  ABOUT[grid.kind], legend(), summary(grid)]
        parts += ["### What was to be shown\n", bars(grid), "### What the heads knew\n", groups(grid)] if grid.kind == "served" else []
        parts += [f"### {SHOWN[figure].capitalize()}, by configuration\n\n{matrix(grid, figure)}" for figure in FIGURES]
        parts += ["### Each configuration\n", *(details(cell, grid) for cell in grid.cells.values())]
    if grids[0].cells:
        parts += ["## Served, BatchNorm statistics as averaged\n", raw(results, rows, grids[0])]
    parts += variants(results, named)
    return "\n".join([*parts, "## Cost\n", troubles(runs), costs(runs, tuned)]), grids


def looked(runs: Sequence[Result], scale: str) -> bool:
    """Whether some run is shorter, or on fewer images, than the scale's."""
    of = SCALES[scale]
    wanted = {data: classes * of.images[data][0] for data, classes in CLASSES.items()}
    return any(r.content["settings"]["rounds"] != of.settings["rounds"]
               or sum(r.content["clients"]["n_train"]) < wanted[CONFIGURATIONS[r.configuration].data] for r in runs)


def legend() -> str:
    return (f"Macro-averages and mean ranks over configurations; 95 % intervals by paired bootstrap over seeds and clients, bold where "
            f"they leave 0 out (of a minimum never: no draw is below the worst client seen). Where a configuration has one seed they are "
            f"over its clients alone, and what another split and other first weights would change is not in them. Nothing is corrected for "
            f"the number of comparisons: of twenty bold differences one is chance. A tie is a difference of at most {100 * MARGIN:g} "
            f"points; the last column counts intervals of the bottom 20 % above / below 0.\n")


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--scale", choices=SCALES, default="lite")
    parser.add_argument("--results", type=Path, help="the folder of the JSONs; the benchmark's own by default")
    parser.add_argument("--out", type=Path, help="where tables and pictures go; beside the benchmark's own JSONs, or among others")
    a = parser.parse_args()
    own = HERE / a.scale / "runs"
    folder = a.results or own
    out = a.out or (own.parent if folder.resolve() == own else folder)
    tuned = HERE / a.scale / "tuned.json"
    try:
        results = [r for r in read_all(folder) if r.content["scale"] == a.scale]
        if not results:
            sys.exit(f"{folder} holds no result of the {a.scale} scale; run the sweep first")
        text, grids = report(results, json.loads(tuned.read_text(encoding="utf-8")) if tuned.exists() else {}, a.scale)
    except MixedResults as fault:
        sys.exit(str(fault))
    try:
        out.mkdir(parents=True, exist_ok=True)
    except OSError as fault:
        sys.exit(f"no folder for tables: {fault}")
    (out / "tables.md").write_text(text, encoding="utf-8")
    write_figures(grids, out / "figures.csv")
    draw(grids[0], out)
    print(text)


if __name__ == "__main__":
    main()
