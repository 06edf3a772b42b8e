"""Charts as inline SVG: the per-client bars, the learning curves, and how a figure becomes part of a page.

Matplotlib draws with stand-in colours that are then replaced by CSS variables, so that one drawing serves
light, dark and print. Figures are 4.4 inches wide: on a phone their text is about 9 pixels high.
"""

from __future__ import annotations

import hashlib
import io
import re
import warnings
from collections.abc import Mapping, Sequence
from html import escape
from typing import TYPE_CHECKING, Any

from server_app.summary import ClientRow, bottom_count, refreshes, scored, tail

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

WIDTH = 4.4
INK, MUTED, RULE, CALM, TAIL, WORST = "#0b0b01", "#0b0b02", "#0b0b03", "#0b0b04", "#0b0b05", "#0b0b06"
VARIABLES = {
    INK: "var(--ink)",
    MUTED: "var(--muted)",
    RULE: "var(--rule)",
    CALM: "var(--calm)",
    TAIL: "var(--tail)",
    WORST: "var(--worst)",
}
NAMED_AT_MOST = 40  # clients beyond which a chart no longer has room for their names
SIZE = 8.5


def client_bars(rows: Sequence[ClientRow]) -> str:
    """Served accuracy of every client, sorted, the bottom 20 % in their own colour."""
    ranked = sorted((row for row in rows if row.served is not None), key=lambda row: (row.served, row.client))
    values = [100 * (row.served or 0.0) for row in ranked]
    low = bottom_count(len(ranked))
    mean = sum(values) / len(values)
    named = len(ranked) <= NAMED_AT_MOST
    figure, axes = canvas(0.19 * len(ranked) + 0.6 if named else 2.6)
    colours = [TAIL] * low + [CALM] * (len(ranked) - low)
    if named:
        axes.barh(range(len(ranked)), values, color=colours, height=0.72)
        axes.set_yticks(
            range(len(ranked)), [label(f"{r.client} · {r.group}" if r.group else r.client) for r in ranked]
        )
        axes.invert_yaxis()
        for place, value in enumerate(values):
            axes.text(
                1.01,
                place,
                f"{value:.1f}",
                transform=axes.get_yaxis_transform(),
                va="center",
                color=INK,
                size=SIZE,
            )
        axes.axvline(mean, color=INK, linewidth=0.8, dashes=(3, 2))
        axes.set(xlim=(0, _top(values)), xlabel=f"served accuracy, % (dashed: mean {mean:.1f})")
    else:
        axes.bar(range(1, len(ranked) + 1), values, color=colours, width=0.85)
        axes.axhline(mean, color=INK, linewidth=0.8, dashes=(3, 2))
        axes.set(
            ylim=(0, _top(values)),
            xlim=(0.4, len(ranked) + 0.6),
            xlabel=f"clients, sorted (dashed: mean {mean:.1f})",
            ylabel="served accuracy, %",
        )
    alt = (
        f"Bars: served accuracy of {len(ranked)} clients, sorted "
        f"from {values[0]:.1f} % ({ranked[0].client}) to "
        f"{values[-1]:.1f} % ({ranked[-1].client}); the lowest {low} are marked as the bottom 20 %."
    )
    return inline_svg(figure, alt)


def learning_curves(records: Sequence[Mapping[str, Any]], closing: Mapping[str, Any]) -> str:
    """Mean, bottom 20 % and worst of the served scores against rounds of training, refresh rounds marked.

    A record's scores precede its training, so they stand at the round before; ``closing`` (the summary's
    ``served``) stands at the last round.
    """
    from matplotlib.ticker import MaxNLocator

    points = [(int(r["round"]) - 1, tail(r.get("served"), {})) for r in records if scored(r.get("served"))]
    points.append((int(records[-1]["round"]), dict(closing)))
    figure, axes = canvas(2.7)
    for number, _ in refreshes(records):
        axes.axvline(number, color=MUTED, linewidth=1.0, linestyle=":", zorder=0)
    for key, name, colour in (
        ("mean", "mean", CALM),
        ("bottom20", "bottom 20 %", TAIL),
        ("worst", "worst", WORST),
    ):
        axes.plot(
            [x for x, _ in points],
            [100 * figures[key] for _, figures in points if figures],
            color=colour,
            label=name,
            linewidth=1.6,
            marker="o",
            markersize=2.6,
        )
    if refreshes(records):
        axes.plot([], [], color=MUTED, linewidth=1.0, linestyle=":", label="refresh")
    means = [100 * figures["mean"] for _, figures in points if figures]
    axes.set(xlabel="rounds of training", ylabel="served accuracy, %", ylim=(0, _top(means)))
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    axes.grid(axis="y", color=RULE, linewidth=0.5)
    axes.legend(
        loc="lower center", bbox_to_anchor=(0.5, 1.0), ncols=4, frameon=False, fontsize=SIZE, labelcolor=INK
    )
    ends = ", ".join(
        f"{key} {100 * points[0][1][key]:.1f} to {100 * closing[key]:.1f} %"
        for key in ("mean", "bottom20", "worst")
        if points[0][1]
    )
    return inline_svg(figure, f"Lines: served accuracy from round {points[0][0]} to {points[-1][0]}: {ends}.")


def canvas(height: float) -> tuple[Figure, Axes]:
    """An empty chart of the report's width and ``height`` inches, its axes in the page's colours."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(WIDTH, height), layout="constrained")
    axes = figure.subplots()
    axes.spines[["top", "right"]].set_visible(False)
    axes.spines[["left", "bottom"]].set_color(MUTED)
    axes.tick_params(colors=MUTED, labelcolor=INK, labelsize=SIZE, length=2.5)
    for name in (axes.xaxis.label, axes.yaxis.label):
        name.set(color=INK, size=SIZE)
    return figure, axes


def label(text: str, longest: int = 30) -> str:
    """``text`` as a chart can show it: no control characters, no mathematics, not longer than ``longest``."""
    shown = "".join(c if c.isprintable() else "\N{REPLACEMENT CHARACTER}" for c in text)
    return (shown if len(shown) <= longest else shown[: longest - 1] + "…").replace("$", r"\$")


def _top(percents: Sequence[float]) -> float:
    """The next multiple of 20 above the highest of ``percents``, at most 100."""
    return min(100.0, 20.0 * (max(percents) // 20 + 1))


def inline_svg(figure: Figure, alt: str) -> str:
    """``figure`` as an ``<svg>`` element that can stand beside others: scalable, described, own ids."""
    from matplotlib import rc_context

    drawn = io.StringIO()
    with rc_context({"svg.fonttype": "none", "svg.hashsalt": "fedhearth"}), warnings.catch_warnings():
        # a client may be named in a script that Matplotlib's font lacks; the browser's fonts have it
        warnings.filterwarnings("ignore", message="Glyph .* missing from")
        figure.savefig(drawn, format="svg", transparent=True)
    body = re.sub(r"<metadata>.*?</metadata>", "", drawn.getvalue(), flags=re.DOTALL)
    body = body[body.index("<svg") :]
    opening, _, rest = body.partition(">")
    view = re.search(r'viewBox="[^"]*"', opening)
    prefix = hashlib.sha256(body.encode()).hexdigest()[:8]
    rest = re.sub(r'(\bid="|url\(#|href="#)', rf"\g<1>f{prefix}-", rest)
    for stand_in, variable in VARIABLES.items():
        rest = rest.replace(stand_in, variable)
    return (
        f'<svg xmlns:xlink="http://www.w3.org/1999/xlink" {view.group() if view else ""} role="img" '
        f'aria-label="{escape(alt)}">{rest}'
    )
