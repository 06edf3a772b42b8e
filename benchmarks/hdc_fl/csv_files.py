"""All figures of the tables as one CSV, a line a kind, configuration, method and figure; shares in 0..1."""

from __future__ import annotations

import csv
from collections.abc import Iterable
from pathlib import Path

from benchmarks.hdc_fl.grid import Grid
from benchmarks.hdc_fl.paired import FIGURES, Difference, over_seeds

HEAD = ("kind", "configuration", "title", "method", "figure", "clients", "seeds", "value", "std_over_seeds", "hdc_fl_less_this", "low",
        "high", "rank")


def write_figures(grids: Iterable[Grid], path: Path) -> None:
    """Write ``path``; configuration "all" is the macro-average."""
    with path.open("w", newline="", encoding="utf-8") as file:
        table = csv.writer(file, lineterminator="\n")
        table.writerow(HEAD)
        for grid in grids:
            table.writerows(rows(grid))


def rows(grid: Grid) -> Iterable[tuple[object, ...]]:
    """The lines of one grid."""
    for cell in grid.cells.values():
        for row, runs in cell.scores.items():
            for figure in FIGURES:
                value, std = over_seeds(runs, figure)
                gap = _interval(grid.differences.get((cell.number, row, figure)))
                yield (grid.kind, cell.number, cell.title, row, figure, cell.clients, len(cell.seeds), f"{value:.6f}", _short(std),
                       *gap, "")
    for figure in FIGURES:
        ranks = grid.ranks(figure) if grid.whole else {}
        for row, value in grid.averages(figure).items():
            yield (grid.kind, "all", f"mean of configurations {' '.join(map(str, grid.whole))}", row, figure, "", "", f"{value:.6f}", "",
                   *_interval(grid.macro_against(row, figure)), f"{ranks[row]:.3f}")


def _interval(d: Difference | None) -> tuple[str, str, str]:
    return ("", "", "") if d is None else (f"{d.value:.6f}", f"{d.low:.6f}", f"{d.high:.6f}")


def _short(value: float | None) -> str:
    return "" if value is None else f"{value:.6f}"
