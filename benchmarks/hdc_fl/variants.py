"""Variants of HDC-FL, in no average or rank of the main tables; and how far the same training ends apart on two kinds of machine."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from statistics import mean

import numpy as np

from benchmarks.hdc_fl.configurations import CONTROL, OURS, PLAIN, VARIANTS
from benchmarks.hdc_fl.grid import Grid, grid_of
from benchmarks.hdc_fl.paired import FIGURES
from benchmarks.hdc_fl.parts import left_out, matrix, summary
from benchmarks.hdc_fl.results import Result
from benchmarks.hdc_fl.text import markdown, points

RECLUSTERED = tuple(row for row, of in VARIANTS.items() if of.reclustered)
TRAINED = tuple(row for row in VARIANTS if row not in RECLUSTERED)
ABOUT = """### The same training on two kinds of machine

What HDC-FL trains does not depend on how it serves, so that the runs of its variants trained as its own did. On the same
kind of machine they end alike to the bit (runs where that is so: {same} of {same_of}); on another, whose sums round otherwise, training
goes another way. *Adapted* figures, after local training, show how far. Where a configuration has one seed, the intervals above have none
of this in them.

"""


def variants(results: Sequence[Result], named: Mapping[int, str]) -> list[str]:
    """One table of the variants that come out of HDC-FL's own runs, one of each that has runs of its own, on seeds of the same machine."""
    own = {(r.configuration, r.seed): r for r in results if r.row == OURS}
    kept = [r for r in results if r.row not in TRAINED or same_machine(r, own.get((r.configuration, r.seed)))]
    found = []
    for beside, rows in (((), RECLUSTERED), *(((PLAIN,), (row,)) for row in TRAINED)):
        if any(r.row in rows for r in kept):
            found += table(grid_of(kept, (OURS, CONTROL, *beside, *rows), "served", named), rows)
    return ["## Variants of HDC-FL, served\n", *found, *elsewhere(results, own)] if found else []


def same_machine(one: Result, other: Result | None) -> bool:
    return other is not None and one.content["machine"]["id"] == other.content["machine"]["id"]


def table(grid: Grid, rows: Sequence[str]) -> list[str]:
    """The configurations of ``grid`` in which one of ``rows`` has run."""
    grid = replace(grid, cells={n: cell for n, cell in grid.cells.items() if cell.scores.keys() & set(rows)})
    seeds = sorted({seed for cell in grid.cells.values() for seed in cell.seeds})
    return [f"Configurations {', '.join(map(str, grid.cells))}; of seeds {', '.join(map(str, seeds))} those that all have; HDC-FL's "
            "chosen values but for what is named.\n", left_out(grid), summary(grid),
            *(matrix(grid, figure) for figure in ("mean", "bottom20"))]


def elsewhere(results: Sequence[Result], own: Mapping[tuple[int, int], Result]) -> list[str]:
    """HDC-FL's own runs beside the same training on another machine; nothing if there is none."""
    trained = sorted((r for r in results if r.row in TRAINED), key=lambda r: (r.configuration, r.seed))
    twice = [(own[key], r) for r in trained if (key := (r.configuration, r.seed)) in own]
    apart = [pair for pair in twice if not same_machine(*pair)]
    if not apart:
        return []
    alike = [np.array_equal(one.adapted, other.adapted, equal_nan=True) for one, other in twice if same_machine(one, other)]
    shown = [[(_of(one, figure), _of(other, figure)) for figure in ("mean", "bottom20")] for one, other in apart]
    lines = [[str(one.configuration), str(one.seed), *(f"{points(a)} / {points(b)}" for a, b in pairs)]
             for (one, _), pairs in zip(apart, shown, strict=True)]
    lines.append(["mean distance", "", *(points(mean(abs(a - b) for a, b in column)) for column in zip(*shown, strict=True))])
    return [ABOUT.format(same=sum(alike), same_of=len(alike)), markdown(["configuration", "seed", "mean", "bottom 20 %"], lines)]


def _of(result: Result, figure: str) -> float:
    return float(FIGURES[figure](result.adapted[np.isfinite(result.adapted)]))
