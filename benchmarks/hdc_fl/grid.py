"""Results put in order: which runs are compared, configuration by configuration, on the seeds that all methods share."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Literal

import numpy as np

from benchmarks.hdc_fl.configurations import CONFIGURATIONS, OURS
from benchmarks.hdc_fl.paired import FIGURES, Difference, average_ranks, difference, macro, over_seeds
from benchmarks.hdc_fl.results import Result, check_comparable

Kind = Literal["served", "adapted"]


@dataclass(frozen=True)
class Cell:
    """One configuration.

    Attributes
    ----------
    seeds : those that every method here has. left_out : those that only some have; they are in no figure.
    scores : method -> (S, N), clients in the same order for all.
    unscored : clients without a score under some method, by seed or not; they are in no figure either.
    without_score : the methods under which that is so.
    """

    number: int
    title: str
    seeds: tuple[int, ...]
    left_out: tuple[int, ...]
    scores: Mapping[str, np.ndarray]
    unscored: int
    without_score: tuple[str, ...]
    results: Mapping[str, Sequence[Result]]

    @property
    def clients(self) -> int:
        return next(iter(self.scores.values())).shape[1]

    def figure(self, method: str, name: str) -> float:
        return over_seeds(self.scores[method], name)[0]


@dataclass(frozen=True)
class Grid:
    """Every configuration that has results, for one kind of score. Served and adapted are two grids.

    ``lost``: configurations that have results, but no seed and client that all methods have a score of.
    """

    kind: Kind
    cells: Mapping[int, Cell]
    rows: tuple[str, ...]
    lost: tuple[int, ...] = ()

    @cached_property
    def whole(self) -> Mapping[int, Cell]:
        """The configurations in which every method has results: only they are in averages, ranks and counts."""
        return {number: cell for number, cell in self.cells.items() if not self.missing(cell)}

    def missing(self, cell: Cell) -> tuple[str, ...]:
        """The methods that have no result in a configuration."""
        return tuple(row for row in self.rows if row not in cell.scores)

    def averages(self, figure: str) -> dict[str, float]:
        """Macro-average over whole configurations, by method; empty if there is none."""
        return {row: float(np.mean([cell.figure(row, figure) for cell in self.whole.values()])) for row in self.rows if self.whole}

    def ranks(self, figure: str) -> dict[str, float]:
        return average_ranks([{row: cell.figure(row, figure) for row in self.rows} for cell in self.whole.values()])

    @cached_property
    def differences(self) -> dict[tuple[int, str, str], Difference]:
        """(configuration, method, figure) -> HDC-FL less the method; the same draws for all methods of a configuration."""
        return {(number, row, figure): difference(cell.scores[OURS], cell.scores[row], figure, _clients_of(number), cell.seeds)
                for number, cell in self.cells.items() if OURS in cell.scores
                for row in cell.scores if row != OURS for figure in FIGURES}

    def against(self, row: str, figure: str) -> list[Difference]:
        """HDC-FL less ``row`` in every whole configuration."""
        return [d for (number, other, name), d in self.differences.items() if (other, name) == (row, figure) and number in self.whole]

    def macro_against(self, row: str, figure: str) -> Difference | None:
        """The macro-averaged difference; None for HDC-FL itself, and without a whole configuration."""
        found = self.against(row, figure)
        return macro(found) if found else None


def _clients_of(number: int) -> int:
    """The first configuration with the same clients: those that differ in the encoder alone are drawn from together."""
    cell = CONFIGURATIONS[number]
    return next(n for n, other in CONFIGURATIONS.items() if (other.data, other.shift) == (cell.data, cell.shift))


def grid_of(results: Iterable[Result], rows: Sequence[str], kind: Kind, titles: Mapping[int, str]) -> Grid:
    """Results in order.

    Raises
    ------
    MixedResults
        If runs of one configuration and seed rest on different splits, images or budgets.
    """
    wanted = [r for r in results if r.row in rows and r.configuration in titles and not np.isnan(getattr(r, kind)).all()]
    check_comparable(wanted)
    numbers = sorted({r.configuration for r in wanted})
    cells = {number: _cell(number, titles[number], [r for r in wanted if r.configuration == number], rows, kind) for number in numbers}
    lost = tuple(number for number, cell in cells.items() if not cell.scores or not cell.clients)
    cells = {number: cell for number, cell in cells.items() if number not in lost}
    return Grid(kind, cells, tuple(row for row in rows if any(row in cell.scores for cell in cells.values())), lost)


def _cell(number: int, title: str, results: Sequence[Result], rows: Sequence[str], kind: Kind) -> Cell:
    by_row = {row: {r.seed: r for r in results if r.row == row} for row in rows}
    by_row = {row: runs for row, runs in by_row.items() if runs}
    all_seeds = {seed for runs in by_row.values() for seed in runs}
    seeds = tuple(sorted(set.intersection(*(set(runs) for runs in by_row.values()))))
    scores = {row: np.array([getattr(runs[seed], kind) for seed in seeds]) for row, runs in by_row.items()} if seeds else {}
    # a client may lack a score in one seed's split and not in another's: it is left out of both, to keep arrays square
    scored = np.all([np.isfinite(runs).all(0) for runs in scores.values()], axis=0) if scores else np.array([], bool)
    without = tuple(row for row, runs in scores.items() if not np.isfinite(runs).all())
    return Cell(number, title, seeds, tuple(sorted(all_seeds - set(seeds))), {row: runs[:, scored] for row, runs in scores.items()},
                int((~scored).sum()), without, {row: [runs[seed] for seed in seeds] for row, runs in by_row.items()})
