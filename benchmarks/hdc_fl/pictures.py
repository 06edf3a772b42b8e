"""Three pictures of the served scores: the overall ranking, HDC-FL against everybody everywhere, and whole client populations."""

from __future__ import annotations

import math
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from benchmarks.hdc_fl.configurations import CONTROL, GRID, OURS, PLAIN
from benchmarks.hdc_fl.grid import Cell, Grid
from benchmarks.hdc_fl.paired import FIGURES
from benchmarks.hdc_fl.text import signed

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

DPI = 160
# readable with any colour vision, and in grey by their lightness
BLUE, ORANGE, GREY, DARK, LIGHT = "#0b5fa5", "#d9730d", "#8a8f98", "#2b2f36", "#e4e7eb"
LINES = {OURS: (BLUE, "-", 2.2), PLAIN: (ORANGE, "-", 1.5), CONTROL: (BLUE, ":", 1.5), "fedavg": (DARK, "--", 1.2),
         "local-only": (GREY, "-", 1.2)}
MARKS = {"mean": ("o", GREY, "mean"), "bottom20": ("D", BLUE, "bottom 20 %"), "worst": ("v", ORANGE, "worst client")}


def draw(grid: Grid, out: Path) -> None:
    """``averages.png``, ``differences.png`` and ``clients.png`` in ``out``; the first two as soon as there are averages."""
    if grid.whole:
        save(averages(grid), out / "averages.png")
    if grid.differences:
        save(differences(grid), out / "differences.png")
    save(populations(grid), out / "clients.png")


def averages(grid: Grid) -> Figure:
    """Macro-averaged mean, bottom 20 % and worst of every method, the best bottom 20 % on top."""
    values = {figure: grid.averages(figure) for figure in FIGURES}
    order = sorted(grid.rows, key=lambda row: values["bottom20"][row])
    figure, axes = canvas(7.2, 0.30 * len(order) + 1.3)
    for place, row in enumerate(order):
        axes.plot([100 * values["worst"][row], 100 * values["mean"][row]], [place, place], color=LIGHT, lw=3, zorder=1)
    for name, (marker, colour, label) in MARKS.items():
        found = [100 * values[name][row] for row in order]
        axes.scatter(found, range(len(order)), marker=marker, color=colour, s=34, label=label, zorder=2)
    best = 100 * max(values["bottom20"].values())
    axes.axvline(best, color=BLUE, lw=0.8, ls=":", zorder=0)
    axes.set_yticks(range(len(order)), order)
    for label in axes.get_yticklabels():
        label.set_fontweight("bold" if label.get_text() == OURS else "normal")
    axes.set_xlabel(f"served accuracy in %, mean of {len(grid.whole)} of {len(GRID)} configurations")
    figure.legend(loc="outside upper center", ncols=3, frameon=False)
    return figure


def differences(grid: Grid) -> Figure:
    """Bottom 20 % of HDC-FL less that of each method in each configuration; a dot where the interval leaves 0 out."""
    rows, numbers = [row for row in grid.rows if row != OURS], list(grid.cells)
    found = {(n, row): grid.differences.get((n, row, "bottom20")) for n in numbers for row in rows}
    table = np.array([[100 * d.value if (d := found[n, row]) else math.nan for n in numbers] for row in rows])
    figure, axes = canvas(0.62 * len(numbers) + 2.6, 0.30 * len(rows) + 1.6)
    reach = max(1.0, min(15.0, float(np.nanmax(np.abs(table)))))
    shown = axes.imshow(table, cmap="RdBu", vmin=-reach, vmax=reach, aspect="auto")
    for y, row in enumerate(rows):
        for x, n in enumerate(numbers):
            if d := found[n, row]:
                axes.text(x, y, f"{signed(d.value)}{'•' if d.clear else ''}", ha="center", va="center", size=7,
                          color="white" if abs(100 * d.value) > 0.65 * reach else DARK)
    axes.set_xticks(range(len(numbers)), map(str, numbers))
    axes.set_yticks(range(len(rows)), rows)
    axes.set_xlabel("configuration")
    axes.set_title("HDC-FL less each method: served bottom 20 %, in points\nblue: HDC-FL ahead; • 95 % interval clear of 0", size=9)
    figure.colorbar(shown, ax=axes, fraction=0.03)
    return figure


def populations(grid: Grid) -> Figure:
    """Every configuration's clients from the worst up, mean over seeds at each place; the bottom 20 % shaded."""
    across = min(4, len(grid.cells))
    down = math.ceil(len(grid.cells) / across)
    figure, _ = canvas(3.1 * across, 2.3 * down + 0.6, axes=False)
    places = np.atleast_1d(np.asarray(figure.subplots(down, across, squeeze=False))).ravel()
    for axes, cell in zip(places, grid.cells.values(), strict=False):
        population(axes, cell)
    for axes in places[len(grid.cells):]:
        axes.set_axis_off()
    handles, labels = places[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside upper center", ncols=len(labels), frameon=False)
    figure.supxlabel("clients, from the worst up (share)", size=8)
    figure.supylabel("served accuracy in %", size=8)
    return figure


def population(axes: Axes, cell: Cell) -> None:
    """One configuration's panel."""
    axes.axvspan(0, -(-cell.clients // 5) / cell.clients, color=LIGHT, lw=0)
    for row, (colour, style, width) in LINES.items():
        if row in cell.scores:
            sorted_clients = 100 * np.sort(cell.scores[row], axis=1).mean(0)
            axes.step(np.arange(cell.clients + 1) / cell.clients, [sorted_clients[0], *sorted_clients], where="pre", color=colour, ls=style,
                      lw=width, label=row)
    images, _, rest = cell.title.partition(", ")
    axes.set_title(f"{cell.number}. {images}\n{rest}", size=7)
    axes.set_xlim(0, 1)
    axes.tick_params(labelsize=7)


def canvas(width: float, height: float, axes: bool = True) -> tuple[Figure, Axes]:
    """A figure, and axes without a box."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(width, height), layout="constrained", dpi=DPI)
    made = figure.add_subplot() if axes else None
    if made is not None:
        made.spines[["top", "right"]].set_visible(False)
        made.tick_params(labelsize=8)
    return figure, made  # type: ignore[return-value]


def save(figure: Figure, path: Path) -> None:
    # without the date of drawing, so that the same results give the same file
    figure.savefig(path, metadata={"Software": None})
