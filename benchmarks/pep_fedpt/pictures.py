"""Two pictures of the PEP-FedPT benchmark: what a client gains by how mixed its labels are, and how often mixtures find the class."""

from __future__ import annotations

import io
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from figures import Gain, Mixture
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

DPI = 110
GREY = "#8a8f98"
# readable with any colour vision (Okabe and Ito)
COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#2b2f36")
STYLES = ("-", "--", ":", "-.")


def draw_gains(gains: Sequence[Gain], path: Path) -> None:
    """Gain of each client against the entropy of its labels, without and with the prior; held-out clients hollow."""
    figure, panels = _canvas(8.6, 3.9, False)
    tasks = list(dict.fromkeys(gain.task for gain in gains))
    for axes, key, title in zip(panels, ("raw", "prior"), ("without the prior", "with the prior"), strict=True):
        axes.axhline(0, color=GREY, lw=0.8)
        for task, held_out in ((task, held_out) for task in tasks for held_out in (False, True)):
            chosen = [gain for gain in gains if gain.task == task and gain.held_out == held_out]
            colour = COLOURS[tasks.index(task) % len(COLOURS)]
            if chosen:
                axes.scatter([gain.entropy for gain in chosen], [getattr(gain, key) for gain in chosen], s=18, linewidths=0.9,
                             edgecolors=colour, facecolors="none" if held_out else colour,
                             label=f"{task}, held out" if held_out else task)
        axes.set_title(title, size=9)
        axes.set_xlabel("entropy of a client's training labels, nats", size=8)
    panels[0].set_ylabel("pep-fedpt less fedvpt, points", size=8)
    _legend(figure, panels[0], 4)
    _save(figure, path)


def draw_mixtures(found: Sequence[Mixture], ours: str, path: Path) -> None:
    """Mixture accuracy by round: every row over all layers (``ours`` bold, ablations thin), and ``ours`` by layer."""
    figure, panels = _canvas(8.6, 5.4, True)
    rows, layers = [one for one in found if not one.layer], [one for one in found if one.layer and one.row == ours]
    tasks = list(dict.fromkeys(one.task for one in found))
    others = iter(range(len(rows)))
    for one in rows:
        if one.row == ours:
            colour, style, width = COLOURS[tasks.index(one.task) % len(COLOURS)], "-", 2.2
        else:
            at = next(others)
            colour, style, width = COLOURS[at % len(COLOURS)], STYLES[1 + at // len(COLOURS) % 3], 1.0
        _line(panels[0], one, f"{one.task} {one.row}", colour, style, width)
    names = list(dict.fromkeys(one.layer for one in layers))
    for one in layers:
        _line(panels[1], one, f"{one.task}, {one.layer.replace('layer', 'layer ')}", COLOURS[tasks.index(one.task) % len(COLOURS)],
              STYLES[names.index(one.layer) % len(STYLES)], 1.5)
    for axes, title in zip(panels, ("mean over layers", f"{ours} by layer"), strict=True):
        axes.set_title(title, size=9)
        axes.set_xlabel("round", size=8)
        if axes.lines:
            axes.legend(fontsize=6, frameon=False, loc="upper center", bbox_to_anchor=(0.5, -0.14), ncols=2)
    panels[0].set_ylabel("samples whose class leads their mixture, %", size=8)
    _save(figure, path)


def _line(axes: Axes, one: Mixture, label: str, colour: str, style: str, width: float) -> None:
    # a marker, for one round makes no line
    axes.plot(one.rounds, [100 * share for share in one.shares], color=colour, ls=style, lw=width, marker=".", ms=4, label=label)


def _canvas(width: float, height: float, shared: bool) -> tuple[Figure, list[Axes]]:
    """A figure with two panels, on one scale of y where ``shared``."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(width, height), layout="constrained", dpi=DPI)
    panels = list(figure.subplots(1, 2, sharey=shared))
    for axes in panels:
        axes.spines[["top", "right"]].set_visible(False)
        axes.tick_params(labelsize=8)
    return figure, panels


def _legend(figure: Figure, axes: Axes, columns: int) -> None:
    handles, labels = axes.get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=columns, frameon=False, fontsize=7)


def _save(figure: Figure, path: Path) -> None:
    """In 64 colours, a third of the bytes; without what drew it, so that the same results give the same file."""
    from PIL import Image

    drawn = io.BytesIO()
    figure.savefig(drawn, format="png", metadata={"Software": None})
    Image.open(drawn).convert("RGB").quantize(64).save(path, optimize=True)
