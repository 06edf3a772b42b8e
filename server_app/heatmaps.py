"""Pictures of a matrix: the split, the similarity of heads, and which cluster a client was in."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from server_app.charts import CELLS_AT_MOST, POINTS_AT_MOST, Chart, rounded, thinned
from server_app.cluster_numbers import aligned, cluster_history
from server_app.sections import number, table_of
from server_app.summary import Findings, refreshes

PAIRS_AT_MOST = 150  # clients beyond which similarities are shown by cluster


def split_figure(found: Findings) -> str:
    """Who has what; a note where nobody but the clients knows."""
    if not found.split:
        return "<p class=note>Class counts stay at the clients, so there is no picture.</p>"
    order = [row.client for row in sorted(found.rows, key=lambda row: (row.group, row.client))]
    return split_picture(found.split, order).html()


def similarity_figure(found: Findings) -> str:
    """How alike the heads were at the last refresh; "" for a run without refreshes, or whose server sees no similarity."""
    refreshed = refreshes(found.records)
    if not refreshed or not refreshed[-1][1].get("similarity"):
        return ""
    return similarity_picture(refreshed[-1][1], refreshed[-1][0]).html()


def cluster_figure(found: Findings) -> str:
    """Clusters over time; "" for a run without clusters."""
    told = found.summary.get("clusters")
    if not told or not (history := cluster_history(found.records)):
        return ""
    rand = told.get("adjusted_rand")
    last = f"Last: k = {told['k']}, silhouette {number(told['silhouette'])}" + (
        f", adjusted Rand index against the split's groups {rand:.2f}." if rand is not None else ".")
    return cluster_picture(history, {row.client: row.group for row in found.rows}, last).html()


def split_picture(split: Mapping[str, Any], order: Sequence[str]) -> Chart:
    """Training images by client and class: clients (N) down in ``order``, classes (C) across."""
    names, groups = [str(name) for name in split["classes"]], split.get("groups") or {}
    kept = [order[place] for place in thinned(len(order), POINTS_AT_MOST // max(1, len(names)))]
    cells = [list(split["train"].get(client, [0] * len(names))) for client in kept]
    most = max((n for row in cells for n in row), default=0)
    few = "" if len(kept) == len(order) else f" {len(kept)} of {len(order)} clients, evenly chosen."
    table = table_of(["client", *names], [[client, *map(str, row)] for client, row in zip(kept, cells, strict=True)])
    return Chart(
        "Training images by client and class",
        f"Heat map: training images of {len(kept)} clients in {len(names)} classes, up to {most:.0f} in a cell.",
        {"kind": "cells", "rows": [_named(client, groups) for client in kept], "columns": names, "values": cells,
         "tone": "counts", "most": max(1, most), "unit": "training images", "x_title": f"{len(names)} classes"},
        f"The stronger the colour, the more.{few} All counts lie in split.json.",
        table if len(kept) * len(names) <= CELLS_AT_MOST else "",
    )


def similarity_picture(clusters: Mapping[str, Any], refresh: int) -> Chart:
    """Similarity of the clients' heads (N x N, -1 to 1), ordered by cluster, gaps between clusters; of many, means by cluster."""
    clients, assignment = clusters["similarity"]["clients"], clusters["assignment"]
    order = sorted(range(len(clients)), key=lambda i: (assignment.get(clients[i], -1), clients[i]))
    matrix = np.array(clusters["similarity"]["matrix"], dtype=float)[np.ix_(order, order)]
    homes = [assignment.get(clients[i], -1) for i in order]
    kinds = sorted(set(homes))
    names = [f"cluster {kind}" if kind >= 0 else "no cluster" for kind in kinds]
    means = [[_mean(matrix, homes, one, other) for other in kinds] for one in kinds]
    whole = len(order) <= PAIRS_AT_MOST
    rows = [f"{clients[i]} · cluster {home}" for i, home in zip(order, homes, strict=True)] if whole else names
    values = [[v if np.isfinite(v) else None for v in row] for row in matrix.tolist()] if whole else means
    return Chart(
        "Similarity of heads",
        f"Heat map: similarity of the heads of {len(order)} clients, ordered by cluster, {len(set(assignment.values()))} clusters.",
        {"kind": "cells", "rows": rows, "columns": rows, "values": [rounded(row, 2) for row in values], "tone": "signed",
         "most": 1, "digits": 2, "gaps": [i for i in range(1, len(homes)) if homes[i] != homes[i - 1]] if whole else [], "bare": True},
        f"At the refresh after round {refresh}, clients ordered by cluster{'' if whole else '; means over pairs, by cluster'}. "
        "<span class=many>■</span> alike (1), <span class=less>■</span> opposed (−1), empty: unrelated (0).",
        table_of(["mean over pairs", *names], [[name, *map(number, row)] for name, row in zip(names, means, strict=True)]),
    )


def cluster_picture(found: Sequence[tuple[int, Mapping[str, Any]]], groups: Mapping[str, str], last: str = "") -> Chart:
    """Which cluster (colour) each client (row) was in after each of the rounds of ``found`` (column)."""
    steps = aligned([clusters["assignment"] for _, clusters in found])
    order = sorted({c for step in steps for c in step}, key=lambda c: (steps[-1].get(c, -1), groups.get(c, ""), c))
    kept = thinned(len(steps), max(2, POINTS_AT_MOST // max(1, len(order))))
    cells = [[steps[place].get(client) for place in kept] for client in order]
    moves = [sum(a != b for a, b in zip(row, row[1:], strict=False)) for row in cells]
    body = [[client, groups.get(client, ""), "–" if row[-1] is None else str(row[-1]), str(moved)]
            for client, row, moved in zip(order, cells, moves, strict=True)]
    return Chart(
        "Clusters over time",
        f"Map: cluster of {len(order)} clients at {len(found)} times, after rounds "
        f"{', '.join(str(found[place][0]) for place in thinned(len(found), 20))}; {sum(map(bool, moves))} clients changed theirs.",
        {"kind": "cells", "rows": [_named(client, groups) for client in order], "columns": [str(found[place][0]) for place in kept],
         "values": cells, "tone": "parts", "unit": "cluster", "x_title": "after round", "names": order},
        f"One colour a cluster, carried over from one time to the next. {last}",
        table_of(["client", "group", "last cluster", "changes"], body),
    )


def _mean(matrix: np.ndarray, homes: Sequence[int], one: int, other: int) -> float | None:
    """Mean similarity between clients of two clusters; within one, without each client's own with itself."""
    rows, columns = ([i for i, home in enumerate(homes) if home == kind] for kind in (one, other))
    block = matrix[np.ix_(rows, columns)]
    if one == other and len(rows) > 1:
        block = block[~np.eye(len(rows), dtype=bool)]
    known = block[np.isfinite(block)]
    return float(known.mean()) if known.size else None


def _named(client: str, groups: Mapping[str, Any]) -> str:
    return f"{client} · {groups[client]}" if groups.get(client) else client
