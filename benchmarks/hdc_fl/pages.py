"""The grid's figures on the methods' own pages: the part between ``<!-- grid -->`` and ``<!-- /grid -->`` of ``strategies/pages``.

    python -m benchmarks.hdc_fl.pages    # after tables.py; writes that part of every page anew
"""

from __future__ import annotations

import sys
import textwrap
from collections import defaultdict
from functools import cache

from benchmarks.hdc_fl.configurations import CONFIGURATIONS, CONTROL, GRID, METHODS, OURS, PLAIN
from benchmarks.hdc_fl.grid import Grid, grid_of
from benchmarks.hdc_fl.paired import FIGURES
from benchmarks.hdc_fl.parts import SHOWN, titles
from benchmarks.hdc_fl.results import MixedResults, read_all, with_reclustered
from benchmarks.hdc_fl.tables import HERE
from benchmarks.hdc_fl.text import gap, markdown, points
from deploy.method_pages import PAGES, filled

TABLES = "../../benchmarks/hdc_fl/lite/tables.md"
WIDTH = 140
COUNTS = ("no", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten")


@cache
def served() -> Grid:
    """The lite grid in the repository."""
    results = with_reclustered([r for r in read_all(HERE / "lite" / "runs") if r.configuration in GRID])
    return grid_of(results, tuple(METHODS), "served", titles(results))


def renewed(written: str, method: str, grid: Grid) -> str:
    """The page of ``method`` with the grid's figures as the results have them now."""
    table = ours(grid) if method == OURS else beside(method, grid)
    return filled(written, {"grid": f"{textwrap.fill(about(grid), WIDTH, break_long_words=False, break_on_hyphens=False)}\n\n{table}"})


def about(grid: Grid) -> str:
    """What was run, and how often."""
    clients = max(cell.clients for cell in grid.whole.values())
    small = [str(n) for n in grid.whole if CONFIGURATIONS[n].encoder == "mobilenetv2"]
    every = "all " if len(grid.whole) == len(GRID) else ""
    return (f"[tables.md]({TABLES}), HDC-FL beside its rivals: {clients} clients, a small ResNet-18 (in {listed(small)} a MobileNetV2), "
            f"settings searched alike for all; served accuracy in %, mean of {every}{len(grid.whole)} configurations of label skew and "
            f"turned images, {seeds(grid)}. Differences of a point are often noise: the intervals are there.")


def seeds(grid: Grid) -> str:
    """``one seed each``, or ``three seeds in 1 and 3, one in the others``: from most seeds to fewest."""
    by_count: dict[int, list[str]] = defaultdict(list)
    for number, cell in grid.whole.items():
        by_count[len(cell.seeds)].append(str(number))
    ranked = sorted(by_count, reverse=True)
    told = [f"{often(count)} in {listed(by_count[count])}" for count in ranked[:-1]]
    return ", ".join([*told, f"{often(ranked[-1])} {'in the others' if told else 'each'}"])


def often(count: int) -> str:
    return f"{COUNTS[count] if count < len(COUNTS) else count} seed{'s' * (count != 1)}"


def listed(words: list[str]) -> str:
    return " and ".join(filter(None, [", ".join(words[:-1]), *words[-1:]]))


def beside(method: str, grid: Grid) -> str:
    """The method, FedPer and HDC-FL."""
    averages, ranks = {figure: grid.averages(figure) for figure in FIGURES}, grid.ranks("bottom20")
    head = ["", *SHOWN.values(), f"mean rank by bottom 20 %, of {len(grid.rows)}"]
    rows = dict.fromkeys((method, PLAIN, OURS))
    return markdown(head, [[row, *(points(of[row]) for of in averages.values()), f"{ranks[row]:.1f}"] for row in rows])


def ours(grid: Grid) -> str:
    """HDC-FL less what comes nearest to it or before it in the bottom 20 %, FedPer and chance."""
    averages = {figure: grid.averages(figure) for figure in FIGURES}
    tail = averages["bottom20"]
    rivals = sorted(tail.keys() - {OURS, CONTROL, PLAIN}, key=lambda row: -tail[row])[:3]
    head = ["", *SHOWN.values(), "hdc-fl less this: mean", "bottom 20 %"]
    rows = [OURS, *sorted([*rivals, CONTROL, PLAIN], key=lambda row: -tail[row])]
    return markdown(head, [[{CONTROL: "hdc-fl, grouping = random"}.get(row, row), *(points(of[row]) for of in averages.values()),
                            *("" if row == OURS else gap(grid.macro_against(row, figure)) for figure in ("mean", "bottom20"))]
                           for row in rows])


def main() -> None:
    try:
        grid = served()
    except MixedResults as fault:
        sys.exit(str(fault))
    if not grid.whole:
        sys.exit("no configuration has results of every method yet: the pages stay as they are")
    for method in METHODS.keys() - {CONTROL}:
        file = PAGES / f"{method}.md"
        file.write_text(renewed(file.read_text(encoding="utf-8"), method, grid), encoding="utf-8")


if __name__ == "__main__":
    main()
