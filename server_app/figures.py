"""Charts of accuracy: every client from the worst up, learning curves of the tail, and a curve for every client."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from server_app.charts import POINTS_AT_MOST, ROWS_AT_MOST, Chart, rounded, thinned
from server_app.sections import percent, table_of
from server_app.summary import ClientRow, Findings, bottom_count, refreshes, scored, tail

NAMED_AT_MOST = 40  # clients beyond which bars stand upright, without names
KINDS = (("mean", "mean", "calm"), ("bottom20", "bottom 20 %", "tail"), ("worst", "worst", "worst"))


def every_client(found: Findings) -> str:
    """The bars of all clients that trained; "" if none was scored."""
    return client_bars(found.participants).html() if any(row.served is not None for row in found.participants) else ""


def learning(found: Findings) -> str:
    """The tail over rounds; "" without rounds or scores."""
    return learning_curves(found.records, found.summary["served"]).html() if found.summary["served"] and found.records else ""


def curves_by_client(found: Findings) -> str:
    """A curve a client, which the table of clients points to; "" where no round was scored."""
    closing = {row.client: row.served for row in found.participants if row.served is not None}
    if not any(scored(r.get("served")) for r in found.records):
        return ""
    return client_curves(found.records, closing).html()


def client_bars(rows: Sequence[ClientRow]) -> Chart:
    """Served accuracy of every client, sorted, the bottom 20 % in their own colour."""
    ranked = sorted((row for row in rows if row.served is not None), key=lambda row: (row.served, row.client))
    values = [row.served or 0.0 for row in ranked]
    low = bottom_count(len(ranked))
    mean = sum(values) / len(values)
    lowest = "the lowest is" if low == 1 else f"the lowest {low} are"
    return Chart(
        "Every client",
        f"Bars: served accuracy of {_counted(len(ranked), 'client')}, sorted from {100 * values[0]:.1f} % ({ranked[0].client}) to "
        f"{100 * values[-1]:.1f} % ({ranked[-1].client}); {lowest} marked as the bottom 20 %.",
        {
            "kind": "bars", "flat": len(ranked) <= NAMED_AT_MOST, "names": [row.client for row in ranked],
            "labels": [f"{row.client} · {row.group}" if row.group else row.client for row in ranked],
            "bars": [{"name": "served", "y": rounded(values, 1, 100), "tones": ["tail"] * low + ["calm"] * (len(ranked) - low)}],
            "lines": [{"name": "mean", "y": rounded([mean] * len(ranked), 1, 100), "tone": "ink"}],
            "unit": "%", "x_title": "clients, sorted", "y_title": "served accuracy, %", "top": _top(values),
        },
        "Served accuracy after the last round, sorted. <span class=tail>■</span> bottom 20 %, <span class=calm>■</span> the others, "
        f"line: mean {percent(mean)}. The table of clients has the numbers.",
    )


def learning_curves(records: Sequence[Mapping[str, Any]], closing: Mapping[str, Any]) -> Chart:
    """Mean, bottom 20 % and worst of the served scores against rounds of training, refresh rounds marked.

    A record's scores precede its training, so they stand at the round before; ``closing`` (the summary's
    ``served``) stands at the last round.
    """
    points = [(int(r["round"]) - 1, tail(r.get("served"), {}) or {}) for r in records if scored(r.get("served"))]
    points.append((int(records[-1]["round"]), dict(closing)))
    curves = {key: [figures[key] for _, figures in points] for key, _, _ in KINDS}
    marks = [number for number, _ in refreshes(records)]
    ends = ", ".join(f"{key} {100 * curves[key][0]:.1f} to {100 * closing[key]:.1f} %" for key, _, _ in KINDS)
    shown = [points[place] for place in thinned(len(points), ROWS_AT_MOST)]
    return Chart(
        "Learning",
        f"Lines: served accuracy from round {points[0][0]} to {points[-1][0]}: {ends}.",
        {
            "kind": "lines", "x": [number for number, _ in points], "marks": marks, "mark": "refresh",
            "lines": [{"name": name, "y": rounded(curves[key], 1, 100), "tone": tone} for key, name, tone in KINDS],
            "unit": "%", "x_title": "rounds of training", "y_title": "served accuracy, %", "top": _top(curves["mean"]),
        },
        "Served accuracy over the clients asked in each round; the last point is the closing evaluation of all clients."
        + (" Triangles: refresh rounds." if marks else ""),
        table_of(["rounds", *(name for _, name, _ in KINDS)],
                 [[str(number), *(percent(figures[key]) for key, _, _ in KINDS)] for number, figures in shown]),
    )


def client_curves(records: Sequence[Mapping[str, Any]], closing: Mapping[str, float]) -> Chart:
    """Served accuracy of each client over rounds: a point for every round it was scored in, and the closing one."""
    told = [(int(r["round"]) - 1, scored(r.get("served"))) for r in records if scored(r.get("served"))]
    told.append((int(records[-1]["round"]), dict(closing)))
    names = sorted(closing.keys() | {client for _, scores in told for client in scores})
    kept = [told[place] for place in thinned(len(told), POINTS_AT_MOST // max(1, len(names)))]
    means = [sum(scores.values()) / len(scores) if scores else None for _, scores in kept]
    lines = [{"name": name, "y": rounded([scores.get(name) for _, scores in kept], 1, 100), "tone": "faint"} for name in names]
    thin = "" if len(kept) == len(told) else f" Of {len(told)} rounds {len(kept)} are drawn."
    highest = max((v for _, scores in kept for v in scores.values()), default=0.0)
    return Chart(
        "Curves by client",
        f"Lines: served accuracy of {_counted(len(names), 'client')} over {_counted(len(told), 'evaluation')}, and their mean.",
        {
            "kind": "lines", "x": [number for number, _ in kept], "pick": True,
            "lines": [{"name": "mean", "y": rounded(means, 1, 100), "tone": "calm", "mean": True}, *lines],
            "unit": "%", "x_title": "rounds of training", "y_title": "served accuracy, %", "top": _top([highest]),
        },
        "Served accuracy of every client. Choose clients in the table, or a line here: both show the same ones."
        f"{thin} All values lie in rounds.jsonl.",
    )


def label(text: str, longest: int = 30) -> str:
    """``text`` as Matplotlib can show it: no control characters, no mathematics, not longer than ``longest``."""
    shown = "".join(c if c.isprintable() else "\N{REPLACEMENT CHARACTER}" for c in text)
    return (shown if len(shown) <= longest else shown[: longest - 1] + "…").replace("$", r"\$")


def _counted(number: int, thing: str) -> str:
    return f"{number} {thing}{'' if number == 1 else 's'}"


def _top(shares: Sequence[float]) -> float:
    """The next multiple of 20 above the highest of ``shares`` in per cent, at most 100."""
    return min(100.0, 20.0 * (100 * max(shares, default=0.0) // 20 + 1))
