"""Pictures of a matrix: the split, the similarity of heads, and which cluster a client was in.

Cells are drawn from transparent to a middle tone, so that they read on a light and on a dark page; they are
embedded as one small bitmap, so that a thousand clients cost little.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from server_app.figures import INK, NAMED_AT_MOST, SIZE, canvas, inline_svg, label

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.colors import Colormap

MANY, LESS = "#2f80d0", "#d9772b"
CLUSTERS = ("#2f80d0", "#d9772b", "#3a9a5b", "#b45fc4", "#c9a227", "#d2476a", "#2aa3a3", "#8a7f76")


def split_picture(split: Mapping[str, Any], order: Sequence[str]) -> str:
    """Training images by client and class: clients (N) down in ``order``, classes (C) across."""
    names = [str(name) for name in split["classes"]]
    train = split["train"]
    cells = np.array([train.get(c, [0] * len(names)) for c in order], dtype=float).reshape(
        len(order), len(names)
    )
    slanted = len(names) <= 20 and max(map(len, names)) >= 4
    # slanted names are as high as a few rows: with one or two clients no room would be left for the cells
    figure, axes = canvas(_height(len(order)) + (0.6 if slanted else 0.0))
    axes.imshow(
        cells,
        aspect="auto",
        interpolation="none",
        cmap=colour_ramp("counts", "#2f80d000", MANY),
        vmin=0,
        vmax=max(1.0, cells.max(initial=0)),
    )
    if cells.size <= 400 and len(order) <= NAMED_AT_MOST:
        for (row, column), n in np.ndenumerate(cells):
            if n:
                axes.text(column, row, f"{n:.0f}", ha="center", va="center", color=INK, size=SIZE - 2)
    _name_rows(axes, order, split.get("groups") or {})
    if len(names) <= 20:
        axes.set_xticks(
            range(len(names)),
            [label(name, 12) for name in names],
            rotation=60 if slanted else 0,
        )
    axes.set(xlabel=f"{len(names)} classes")
    return inline_svg(
        figure,
        f"Heat map: training images of {len(order)} clients in {len(names)} classes, "
        f"up to {cells.max(initial=0):.0f} in a cell.",
    )


def similarity_picture(clusters: Mapping[str, Any]) -> str:
    """Similarity of the clients' heads (N x N, -1 to 1), ordered by cluster; lines part the clusters."""
    clients, assignment = clusters["similarity"]["clients"], clusters["assignment"]
    order = sorted(range(len(clients)), key=lambda i: (assignment.get(clients[i], -1), clients[i]))
    matrix = np.array(clusters["similarity"]["matrix"], dtype=float)[np.ix_(order, order)]
    figure, axes = canvas(4.1)
    axes.imshow(
        matrix,
        aspect="auto",
        interpolation="none",
        vmin=-1,
        vmax=1,
        cmap=colour_ramp("signed", LESS, "#80808000", MANY),
    )
    for place in range(1, len(order)):
        if assignment.get(clients[order[place]]) != assignment.get(clients[order[place - 1]]):
            axes.axhline(place - 0.5, color=INK, linewidth=0.7)
            axes.axvline(place - 0.5, color=INK, linewidth=0.7)
    _name_rows(axes, [clients[i] for i in order], {})
    axes.set_xticks([])
    return inline_svg(
        figure,
        f"Heat map: similarity of the heads of {len(order)} clients, ordered by cluster, "
        f"{len(set(assignment.values()))} clusters.",
    )


def cluster_picture(found: Sequence[tuple[int, Mapping[str, Any]]], groups: Mapping[str, str]) -> str:
    """Which cluster (colour) each client (row) was in at each refresh (column)."""
    steps = aligned([clusters["assignment"] for _, clusters in found])
    order = sorted(
        {c for step in steps for c in step}, key=lambda c: (steps[-1].get(c, -1), groups.get(c, ""), c)
    )
    cells = np.array([[step.get(client, -1) for step in steps] for client in order], dtype=float)
    figure, axes = canvas(_height(len(order)))
    from matplotlib.colors import ListedColormap

    shown = np.ma.masked_less(cells, 0) % len(CLUSTERS)
    axes.imshow(
        shown,
        aspect="auto",
        interpolation="none",
        cmap=ListedColormap(CLUSTERS),
        vmin=-0.5,
        vmax=len(CLUSTERS) - 0.5,
        alpha=0.85,
    )
    _name_rows(axes, order, groups)
    every = -(-len(found) // 16)
    axes.set_xticks(range(0, len(found), every), [str(number) for number, _ in found[::every]])
    axes.set(xlabel="refresh after round")
    return inline_svg(
        figure,
        f"Map: cluster of {len(order)} clients at {len(found)} refreshes, after rounds "
        f"{', '.join(str(number) for number, _ in found)}.",
    )


def aligned(steps: Sequence[Mapping[str, int]]) -> list[dict[str, int]]:
    """The same partitions with cluster numbers carried over: k-means numbers them anew at every refresh.

    Each step takes the numbering that keeps most clients' number; a cluster of new clients gets a new one.
    """
    from scipy.optimize import linear_sum_assignment

    out: list[dict[str, int]] = []
    used = 0
    for step in steps:
        before = out[-1] if out else {}
        old, new = sorted(set(before.values())), sorted(set(step.values()))
        kept = np.array(
            [[sum(before.get(c) == o for c, k in step.items() if k == n) for o in old] for n in new]
        )
        pairs = zip(*linear_sum_assignment(kept.reshape(len(new), len(old)), maximize=True), strict=True)
        number = {new[i]: old[j] for i, j in pairs if kept[i, j]}
        for n in new:
            if n not in number:
                number[n], used = used, used + 1
        out.append({client: number[k] for client, k in step.items()})
    return out


def _height(clients: int) -> float:
    return 0.17 * clients + 0.7 if clients <= NAMED_AT_MOST else 4.2


def _name_rows(axes: Axes, clients: Sequence[str], groups: Mapping[str, Any]) -> None:
    axes.spines[:].set_visible(False)
    if len(clients) > NAMED_AT_MOST:
        axes.set_yticks([])
        axes.set_ylabel(f"{len(clients)} clients")
        return
    axes.set_yticks(
        range(len(clients)), [label(f"{c} · {groups[c]}" if groups.get(c) else c) for c in clients]
    )


def colour_ramp(name: str, *colours: str) -> Colormap:
    from matplotlib.colors import LinearSegmentedColormap

    return LinearSegmentedColormap.from_list(name, list(colours))
