"""The donor swap in report.html: drop against similarity, a map of recipients by donors, and tables.

``PIECES`` is what the page puts into its part; ``swap_png`` is the map as a picture beside ``donor_swap.json``.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from html import escape
from typing import Any

import numpy as np

from server_app.charts import POINTS_AT_MOST, Chart, rounded, thinned
from server_app.donor_swap_words import association_rows, drop_rows, facts, recipient_rows
from server_app.pictures import SIGNED, heat_map
from server_app.sections import section, table_of
from server_app.summary import Findings

BINS = 10
WORDS = ("<p>Every client kept its head and tried other clients' encoders on its own test images; nothing was trained. If heads tell who "
         "resembles whom, encoders of clients with like heads fit better, and the rank correlations lie above 0. An association, not a "
         "cause: what makes heads alike may also make encoders fit.</p>")


def donor_swap_section(found: Findings) -> str:
    """The association, its controls and every recipient, as HTML; "" for a run without a donor swap."""
    told = found.donor_swap
    if not told:
        return ""
    said = "".join(f"<p class=note>{escape(line)}</p>" for line in facts(told))
    recipients = table_of(["client", "group", "rho", "tau-b", "own encoder", "donors, mean", "donors, best"], recipient_rows(told))
    return section("Do alike heads mean fitting encoders?", WORDS + said + table_of(
        ["", "mean over recipients", "95 % interval", "recipients above 0", ""], association_rows(told))
        + (table_of(["donors, a third each by similarity", "accuracy", "drop, points"], drop_rows(told)) if told["drop"] else "")
        + f"<details><summary>Every recipient</summary>{recipients}</details>")


def drop_figure(found: Findings) -> str:
    chart = drop_chart(found.donor_swap) if found.donor_swap else None
    return chart.html() if chart else ""


def map_figure(found: Findings) -> str:
    chart = swap_map(found.donor_swap) if found.donor_swap else None
    return chart.html() if chart else ""


PIECES = (donor_swap_section, (drop_figure, map_figure))


def drops(told: Mapping[str, Any]) -> np.ndarray:
    """Points lost against the own encoder (R, M); NaN where something is missing."""
    return 100 * (_array(told["own"])[:, None] - _array(told["accuracy"]))


def drop_chart(told: Mapping[str, Any]) -> Chart | None:
    """Mean and quartiles of the drop, by tenths of all pairs' similarity; None without a pair."""
    x, y = _array(told["similarity"]).ravel(), drops(told).ravel()
    there = np.flatnonzero(np.isfinite(x) & np.isfinite(y))
    if not len(there):
        return None
    tenths = [part for part in np.array_split(there[np.argsort(x[there], kind="stable")], BINS) if len(part)]
    at = [round(float(x[part].mean()), 3) for part in tenths]
    lines = (("mean", [float(y[part].mean()) for part in tenths], "calm"),
             ("best quarter up to", [float(np.percentile(y[part], 25)) for part in tenths], "muted"),
             ("worst quarter from", [float(np.percentile(y[part], 75)) for part in tenths], "muted"))
    body = [[f"{place:+.3f}", *(f"{values[n]:+.1f}" for _, values, _ in lines), str(len(tenths[n]))] for n, place in enumerate(at)]
    return Chart(
        "Drop against similarity",
        f"Lines: points of accuracy lost with a donor's encoder, by how alike the two heads are, over {len(there)} pairs.",
        {"kind": "lines", "x": at, "lines": [{"name": name, "y": rounded(values), "tone": tone} for name, values, tone in lines],
         "x_title": "similarity of recipient's and donor's heads", "y_title": "drop, points", "unit": "points"},
        f"Against the recipient's own encoder; {len(there)} pairs in {len(tenths)} parts of about equal size. All lie in donor_swap.json.",
        table_of(["similarity", *(name for name, _, _ in lines), "pairs"], body))


def swap_map(told: Mapping[str, Any]) -> Chart | None:
    """Drops, recipients down and donors across, both ordered by group; None without a pair."""
    down, across, cells = ordered(told)
    if not np.isfinite(cells).any():
        return None
    kept = thinned(len(down), POINTS_AT_MOST // max(1, len(across)))
    reach = max(1.0, float(np.nanmax(np.abs(cells))))
    groups = told.get("groups") or {}
    values = [rounded([None if np.isnan(v) else -float(v) for v in cells[n]]) for n in kept]
    return Chart(
        "Who can use whose encoder",
        f"Heat map: points of accuracy that {len(kept)} recipients win or lose with encoders of {len(across)} donors, up to {reach:.0f}.",
        {"kind": "cells", "rows": [_named(down[n], groups) for n in kept], "columns": [_named(name, groups) for name in across],
         "values": values, "tone": "signed", "most": reach, "digits": 1, "unit": "points", "x_title": f"{len(across)} donors",
         "bare": True},
        "Points <span class=many>■</span> won or <span class=less>■</span> lost against the recipient's own encoder; a row a recipient, a "
        "column a donor, both ordered by group. Empty: its own, or no score.")


def swap_png(told: Mapping[str, Any]) -> bytes | None:
    """The same map as a PNG, blue where a donor's encoder wins; None without a pair."""
    down, _, cells = ordered(told)
    if not np.isfinite(cells).any():
        return None
    reach = max(1.0, float(np.nanmax(np.abs(cells))))
    return heat_map(-cells, -reach, reach, SIGNED, down)


def ordered(told: Mapping[str, Any]) -> tuple[list[str], list[str], np.ndarray]:
    """Recipients and donors by group and name, and the drops in that order."""
    groups = told.get("groups") or {}

    def by_group(names: Sequence[str]) -> list[int]:
        return sorted(range(len(names)), key=lambda n: (str(groups.get(names[n], "")), names[n]))

    down, across = by_group(told["recipients"]), by_group(told["donors"])
    return [told["recipients"][n] for n in down], [told["donors"][n] for n in across], drops(told)[np.ix_(down, across)]


def _named(client: str, groups: Mapping[str, Any]) -> str:
    return f"{client} · {groups[client]}" if groups.get(client) else client


def _array(rows: Any) -> np.ndarray:
    """JSON's null as NaN."""
    return np.array(rows, dtype=float)
