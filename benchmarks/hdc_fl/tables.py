"""The tables and pictures of what the sweep left: Markdown, CSV, PNG.

    python -m benchmarks.hdc_fl.tables [--scale lite] [--results FOLDER] [--out FOLDER]

*Served* (before local training) and *adapted* (after it) are tables of their own and never mixed. Every figure is over clients, unweighted,
then the mean over seeds, then over configurations with equal weight; ``paired.py`` has the statistics, ``grid.py`` which runs count.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from statistics import mean
from typing import Any

from benchmarks.hdc_fl.configurations import CONFIGURATIONS, CONTROL, GRID, METHODS, OURS, PLAIN, SCALES, VARIANTS
from benchmarks.hdc_fl.csv_files import write_figures
from benchmarks.hdc_fl.grid import Cell, Grid, grid_of
from benchmarks.hdc_fl.paired import FIGURES, MARGIN, Difference, over_seeds, win_tie_loss
from benchmarks.hdc_fl.pictures import draw
from benchmarks.hdc_fl.results import MixedResults, Result, read_all

HERE = Path(__file__).resolve().parent
SHOWN = {"mean": "mean", "worst": "worst", "bottom20": "bottom 20 %"}
WHEN = {"served": "before local training: what a method delivers", "adapted": "after a round of local training"}


def titles(results: Iterable[Result]) -> dict[int, str]:
    """Configuration -> its name, with the images as they are called; raises ``MixedResults`` if those differ."""
    found: dict[int, str] = {}
    for r in results:
        cell = CONFIGURATIONS[r.configuration]
        encoder = {"resnet18": "ResNet-18", "mobilenetv2": "MobileNetV2"}[cell.encoder]
        told = f"{r.content['images']['title']}, {cell.shift}, {encoder} of width {r.content['settings']['width']}"
        if found.setdefault(r.configuration, told) != told:
            raise MixedResults(f"configuration {r.configuration} has results on {found[r.configuration]!r} and {told!r}; keep one of them")
    return dict(sorted(found.items()))


def markdown(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """One table."""
    lines = [head, [" --- ", *[" ---: "] * (len(head) - 1)]]
    return "\n".join("| " + " | ".join(cell.strip() for cell in cells) + " |" for cells in [*lines, *rows]) + "\n"


def points(value: float) -> str:
    return f"{100 * value:.1f}"


def gap(d: Difference | None) -> str:
    """``+1.2 [+0.3, +2.0]`` in points; bold where the interval leaves 0 out."""
    if d is None:
        return "–"
    told = f"{100 * d.value:+.1f} [{100 * d.low:+.1f}, {100 * d.high:+.1f}]"
    return f"**{told}**" if d.clear else told


def summary(grid: Grid) -> str:
    """Macro-averages, average ranks, and HDC-FL against each method."""
    if not grid.complete:
        return "No method has results in every configuration yet, so there are no averages.\n"
    averages, ranks = ({name: of(name) for name in FIGURES} for of in (grid.averages, grid.ranks))
    head = ["method", *SHOWN.values(), *(f"rank, {shown}" for shown in SHOWN.values()), "HDC-FL less this: mean", "worst", "bottom 20 %",
            "bottom 20 %: win / tie / loss", "of them clear of 0"]
    rows = []
    for row in sorted(grid.complete, key=lambda name: -averages["bottom20"][name]):
        against = grid.against(row, "bottom20")
        clear = f"{sum(d.low > 0 for d in against)} / {sum(d.high < 0 for d in against)}"
        record = [" / ".join(map(str, win_tie_loss([d.value for d in against]))), clear] if against else ["–", "–"]
        rows.append([row, *(best(averages[f], row) for f in FIGURES), *(f"{ranks[f][row]:.1f}" for f in FIGURES),
                     *(gap(grid.macro_against(row, f)) for f in FIGURES), *record])
    return markdown(head, rows)


def best(values: Mapping[str, float], row: str) -> str:
    """In points; the largest bold."""
    told = points(values[row])
    return f"**{told}**" if told == points(max(values.values())) else told


def matrix(grid: Grid, figure: str) -> str:
    """Methods by configurations."""
    rows = [[row, *(points(cell.figure(row, figure)) if row in cell.scores else "–" for cell in grid.cells.values())] for row in grid.rows]
    return markdown(["method", *map(str, grid.cells)], rows)


def details(cell: Cell, grid: Grid) -> str:
    """One configuration: deviations over seeds, and HDC-FL less each method."""
    rows = []
    for row, runs in cell.scores.items():
        found = {figure: over_seeds(runs, figure) for figure in FIGURES}
        cells = [points(value) + (f" ± {100 * std:.1f}" if std is not None else "") for value, std in found.values()]
        rows.append([row, *cells, *(gap(grid.differences.get((cell.number, row, figure))) for figure in FIGURES)])
    seeds = f"seed{'s' * (len(cell.seeds) > 1)} {', '.join(map(str, cell.seeds))}"
    more = f"; seeds {', '.join(map(str, cell.left_out))} left out, since not every method has them" if cell.left_out else ""
    more += f"; {cell.unscored} clients without test images left out" if cell.unscored else ""
    smallest = min(min(r.content["clients"]["n_test"]) for runs in cell.results.values() for r in runs)
    told = f"#### {cell.number}. {cell.title}\n\n{cell.clients} clients, {seeds}{more}; the smallest test set has {smallest} images.\n\n"
    return told + markdown(["method", *SHOWN.values(), *(f"HDC-FL less this: {shown}" for shown in SHOWN.values())], rows)


def groups(grid: Grid) -> str:
    """What the heads knew: HDC-FL beside random clusters of the same sizes, and how it clustered."""
    rows = []
    for number, cell in grid.cells.items():
        found = [r.content["clusters"] for r in cell.results.get(OURS, ()) if r.content.get("clusters")]
        shape, ari = ([c[key] for c in found if c.get(key) is not None] for key in ("silhouette", "adjusted_rand"))
        rows.append([f"{number}. {cell.title}", *(gap(grid.differences.get((number, CONTROL, figure))) for figure in FIGURES),
                     ", ".join(str(c["k"]) for c in found) or "–", ", ".join(f"{s:.2f}" for s in shape) or "–",
                     ", ".join(f"{a:.2f}" for a in ari) or "–"])
    head = ["configuration", *(f"HDC-FL less random clusters: {shown}" for shown in SHOWN.values()), "clusters, by seed", "silhouette",
            "agreement with true groups (adjusted Rand)"]
    return markdown(head, rows)


def bars(grid: Grid) -> str:
    """What the project set out to show, with the figures, reached or not."""
    if OURS not in grid.complete or len(grid.complete) < 2:
        return "Not all runs are there yet.\n"
    lines = []
    for figure in ("worst", "bottom20"):
        others = {row: value for row, value in grid.averages(figure).items() if row != OURS}
        first, ours = max(others, key=others.__getitem__), grid.averages(figure)[OURS]
        lines.append(verdict(ours > others[first], f"macro-averaged {SHOWN[figure]}: HDC-FL {points(ours)}, the best other row, {first}, "
                             f"{points(others[first])}; difference {gap(grid.macro_against(first, figure))}"))
    rivals = {row: value for row, value in grid.averages("mean").items() if row not in (OURS, CONTROL)}
    first, ours = max(rivals, key=rivals.__getitem__), grid.averages("mean")[OURS]
    lines.append(verdict(ours >= rivals[first] - 0.005, f"macro-averaged mean within 0.5 points of the best rival: HDC-FL {points(ours)}, "
                         f"{first} {points(rivals[first])}"))
    below = {n: d for (n, row, figure), d in grid.differences.items() if (row, figure) == (PLAIN, "bottom20") and d.value < -0.01}
    told = "; ".join(f"{n}: {gap(d)}" for n, d in below.items()) or "none"
    lines.append(verdict(not below, f"configurations in which bottom 20 % is more than 1 point below FedPer's: {told}"))
    return "\n".join(lines) + "\n"


def verdict(reached: bool, told: str) -> str:
    return f"- {'reached' if reached else '**not reached**'}: {told}"


def raw(results: Sequence[Result], rows: Sequence[str], grid: Grid) -> str:
    """Macro-averages with BatchNorm statistics as averaged, without each client's re-computation; only where all runs have them."""
    found = []
    for row in rows:
        cells = [cell.results.get(row, ()) for cell in grid.cells.values()]
        if all(cells) and all(r.content.get("served_raw") for runs in cells for r in runs):
            averages = [mean(mean(r.content["served_raw"][figure] for r in runs) for runs in cells) for figure in FIGURES]
            found.append([row, *map(points, averages)])
    return markdown(["method", *SHOWN.values()], found)


def costs(results: Sequence[Result]) -> str:
    """Core-hours by machine, and CPU by method beside FedPer's on the same machine and configuration; machines are never mixed."""
    lines = []
    for identity in dict.fromkeys(r.content["machine"]["id"] for r in results):
        mine = [r for r in results if r.content["machine"]["id"] == identity]
        of = mine[0].content["machine"]
        cpu, wall = (sum(r.content["seconds"][key] for r in mine) / 3600 for key in ("cpu", "wall"))
        base = {(r.configuration, r.seed): r.content["seconds"]["cpu"] for r in mine if r.row == PLAIN}
        ratios = {row: [r.content["seconds"]["cpu"] / base[r.configuration, r.seed] for r in mine
                        if r.row == row and (r.configuration, r.seed) in base] for row in dict.fromkeys(r.row for r in mine)}
        told = ", ".join(f"{row} {mean(found):.2f}" for row, found in ratios.items() if found)
        kind = of["gpu"] or f"{of['cpu']}, {of['cores']} cores"
        lines.append(f"- machine {identity} ({kind}): {len(mine)} runs, {cpu:.2f} core-hours, {wall:.2f} hours at work. "
                     f"CPU beside FedPer's: {told or '–'}")
    return "\n".join(lines) + "\n"


def budgets(results: Sequence[Result], tuned: Mapping[str, Any]) -> str:
    """What every run had, and how its settings were chosen."""
    of = results[0].content["settings"]
    each = sorted({tuple(r.content["settings"][key] for key in ("clients", "rounds", "epochs", "batch")) for r in results})
    lines = ["Every method, in a configuration: the same split, model, first weights, clients, rounds, local epochs and batch ("
             + "; ".join("{} clients, {} rounds of {} epochs, batch {}".format(*values) for values in each)
             + f"), SGD with momentum {of.get('momentum', 0.9)}, BatchNorm recomputed on each client's own training images before scoring."]
    if not tuned:
        return lines[0] + " Settings are the defaults: no search has been made.\n"
    lines.append(f"Learning rate and one setting of its own were searched for every method on {tuned['images']}, configuration "
                 f"{tuned['configuration']}, on a validation split of the training images: {tuned['tries']} tries each, of "
                 f"{tuned['rounds']} rounds; chosen by {tuned['criterion']}.\n")
    rows = [[row, ", ".join(f"{key} = {value}" for key, value in chosen.items()),
             f"{points(tuned['scores'][row][0])} to {points(tuned['scores'][row][1])}"] for row, chosen in tuned["chosen"].items()]
    return "\n".join([*lines, markdown(["method", "chosen", "validation, worst to best try"], rows)])


def report(results: Sequence[Result], tuned: Mapping[str, Any], scale: str) -> tuple[str, list[Grid]]:
    """The whole text, and the two grids."""
    results = [r for r in results if r.configuration in GRID]
    named, rows = titles(results), tuple(METHODS)
    grids = [grid_of(results, rows, kind, named) for kind in ("served", "adapted")]
    parts = [f"# HDC-FL beside its rivals, {scale} scale\n",
             "Written by `python -m benchmarks.hdc_fl.tables`; accuracy in %, over clients.\n", budgets(results, tuned)]
    for grid in grids:
        if not grid.cells:
            continue
        parts += [f"## {grid.kind.capitalize()}: {WHEN[grid.kind]}\n", f"### Over {len(grid.cells)} configurations\n", legend(),
                  summary(grid)]
        parts += ["### What was to be shown\n", bars(grid), "### What the heads knew\n", groups(grid)] if grid.kind == "served" else []
        parts += [f"### {SHOWN[figure].capitalize()}, by configuration\n\n{matrix(grid, figure)}" for figure in FIGURES]
        parts += ["### Each configuration\n", *(details(cell, grid) for cell in grid.cells.values())]
    parts += ["## Served, BatchNorm statistics as averaged\n", raw(results, rows, grids[0])]
    extra = grid_of(results, (OURS, *VARIANTS), "served", named) if any(r.row in VARIANTS for r in results) else None
    if extra is not None:
        extra = subset(extra)
        parts += ["## Variants of HDC-FL, served\n", f"Configurations {', '.join(map(str, extra.cells))}.\n", summary(extra),
                  *(matrix(extra, figure) for figure in ("mean", "bottom20"))]
    return "\n".join([*parts, "## Cost\n", costs(results)]), grids


def subset(grid: Grid) -> Grid:
    """Only the configurations in which a variant has run."""
    return Grid(grid.kind, {n: cell for n, cell in grid.cells.items() if len(cell.scores) > 1}, grid.rows)


def legend() -> str:
    return (f"Macro-averages and mean ranks over configurations; 95 % intervals by paired bootstrap over seeds and clients, bold where "
            f"they leave 0 out; a tie is a difference of at most {100 * MARGIN:g} points; the last column counts intervals above / below "
            "0.\n")


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--scale", choices=SCALES, default="lite")
    parser.add_argument("--results", type=Path)
    parser.add_argument("--out", type=Path)
    a = parser.parse_args()
    out, folder = a.out or HERE / a.scale, a.results or HERE / a.scale / "runs"
    tuned = HERE / a.scale / "tuned.json"
    try:
        results = [r for r in read_all(folder) if r.content["scale"] == a.scale]
        if not results:
            sys.exit(f"{folder} holds no result of the {a.scale} scale; run the sweep first")
        text, grids = report(results, json.loads(tuned.read_text(encoding="utf-8")) if tuned.exists() else {}, a.scale)
    except MixedResults as fault:
        sys.exit(str(fault))
    out.mkdir(parents=True, exist_ok=True)
    (out / "tables.md").write_text(text, encoding="utf-8")
    write_figures(grids, out / "figures.csv")
    draw(grids[0], out)
    print(text)


if __name__ == "__main__":
    main()
