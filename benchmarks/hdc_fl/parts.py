"""The parts that several tables are made of: averages, methods by configurations, what is left out."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from benchmarks.hdc_fl.configurations import CONFIGURATIONS, GRID
from benchmarks.hdc_fl.grid import Grid
from benchmarks.hdc_fl.paired import FIGURES, win_tie_loss
from benchmarks.hdc_fl.results import MixedResults, Result
from benchmarks.hdc_fl.text import gap, markdown, points

SHOWN = {"mean": "mean", "worst": "worst", "bottom20": "bottom 20 %"}


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


def summary(grid: Grid) -> str:
    """Macro-averages, average ranks, and HDC-FL against each method."""
    if not grid.whole:
        return "No configuration has results of every method yet, so there are no averages.\n"
    averages, ranks = ({name: of(name) for name in FIGURES} for of in (grid.averages, grid.ranks))
    head = ["method", *SHOWN.values(), *(f"rank, {shown}" for shown in SHOWN.values()), "HDC-FL less this: mean", "worst", "bottom 20 %",
            "win / tie / loss: mean", "worst", "bottom 20 %", "of these clear of 0"]
    rows = []
    for row in sorted(grid.rows, key=lambda name: -averages["bottom20"][name]):
        against = {f: grid.against(row, f) for f in FIGURES}
        record = [" / ".join(map(str, win_tie_loss([d.value for d in found]))) if found else "–" for found in against.values()]
        tail = against["bottom20"]
        record.append(f"{sum(d.low > 0 for d in tail)} / {sum(d.high < 0 for d in tail)}" if tail else "–")
        rows.append([row, *(best(averages[f], row) for f in FIGURES), *(f"{ranks[f][row]:.1f}" for f in FIGURES),
                     *(gap(grid.macro_against(row, f), f) for f in FIGURES), *record])
    return markdown(head, rows)


def best(values: Mapping[str, float], row: str) -> str:
    """In points; the largest bold."""
    told = points(values[row])
    return f"**{told}**" if told == points(max(values.values())) else told


def matrix(grid: Grid, figure: str) -> str:
    """Methods by configurations; how many seeds each has stands above it."""
    rows = [[row, *(points(cell.figure(row, figure)) if row in cell.scores else "–" for cell in grid.cells.values())] for row in grid.rows]
    heads = [f"{n} ({len(cell.seeds)} seed{'s' * (len(cell.seeds) > 1)}{f', {cell.clients} clients' * bool(cell.unscored)})"
             for n, cell in grid.cells.items()]
    return markdown(["method", *heads], rows)


def named_numbers(numbers: Iterable[int]) -> str:
    """``2 of 11 configurations (1, 5)``."""
    found = list(numbers)
    return f"{len(found)} of {len(GRID)} configurations ({', '.join(map(str, found))})"


def left_out(grid: Grid) -> str:
    """The configurations that are in no average, and what they lack; "" if there is none."""
    lacking = [f"{n} (without {', '.join(missing)})" for n, cell in grid.cells.items() if (missing := grid.missing(cell))]
    told = [f"In no average, since methods are missing: {'; '.join(lacking)}.\n"] if lacking else []
    told += [f"In no table, since no seed or client has a score of every method: {', '.join(map(str, grid.lost))}.\n"] if grid.lost else []
    return "\n".join(told)
