"""What a report shows of global class prototypes: which class prompts a typical sample gets, and how fast prototypes move.

Both follow from what the server holds anyway; nothing here is about a single client.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from server_app.figures import INK, SIZE, canvas, inline_svg, label
from server_app.heatmaps import MANY, colour_ramp

NAMED_CLASSES = 20
_STYLES = ("-", "--", ":")


def mixture_picture(matrix: Sequence[Sequence[float]], classes: Sequence[str]) -> str:
    """Mixture weights (C, C): rows are the classes of samples, columns class prompts."""
    cells = np.array(matrix, dtype=float)
    figure, axes = canvas(4.1)
    axes.imshow(cells, aspect="auto", interpolation="none", cmap=colour_ramp("mixture", "#2f80d000", MANY), vmin=0, vmax=1)
    axes.spines[:].set_visible(False)
    if len(cells) <= NAMED_CLASSES:
        names = [label(str(name), 12) for name in classes] if len(classes) == len(cells) else [str(n) for n in range(len(cells))]
        axes.set_yticks(range(len(cells)), names)
        axes.set_xticks(range(len(cells)), names, rotation=60 if max(map(len, names)) >= 4 else 0)
    if len(cells) <= 10:
        for (row, column), share in np.ndenumerate(cells):
            if share >= 0.05:
                axes.text(column, row, f"{100 * share:.0f}", ha="center", va="center", color=INK, size=SIZE - 2)
    axes.set(xlabel="class prompt", ylabel="class of the sample")
    own = float(np.diag(cells).mean())
    return inline_svg(figure, f"Heat map: mixture weights of {len(cells)} classes; a sample's own class has {own:.2f} on average.")


def drift_curves(records: Sequence[Mapping[str, Any]]) -> str:
    """Relative step of the prototypes over rounds, a line a layer."""
    from matplotlib.ticker import MaxNLocator

    drifts = drifts_of(records)
    figure, axes = canvas(2.4)
    for place, layer in enumerate(drifts[-1][1]):
        axes.plot([number for number, _ in drifts], [found.get(layer, 0.0) for _, found in drifts], color=INK, linewidth=1.3,
                  linestyle=_STYLES[place % len(_STYLES)], label=layer)
    axes.set(xlabel="round", ylabel="relative step")
    axes.set_ylim(bottom=0)
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    axes.legend(frameon=False, ncols=3, fontsize=SIZE - 1)
    last = ", ".join(f"{layer} {step:.3f}" for layer, step in drifts[-1][1].items())
    return inline_svg(figure, f"Lines: how far the class prototypes moved in each round; in the last: {last}.")


def drifts_of(records: Sequence[Mapping[str, Any]]) -> list[tuple[int, Mapping[str, float]]]:
    """(round, step by layer) of every round whose record says it."""
    found = ((int(record["round"]), (record.get("diagnostics") or {}).get("prototype_drift")) for record in records)
    return [(number, steps) for number, steps in found if steps]
