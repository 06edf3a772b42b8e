"""A chart of report.html: a drawing as data for chart_script.py, with the words and the table that stand for it.

Chart.js draws it in the reader's browser, in the page's colours, and answers to mouse, finger and arrow keys. Without script
the words and the table are there alone.

A drawing has a ``kind`` and what that kind needs; y and cell values are rounded, since they are drawn and not computed with:

lines   x (n,); lines, each name, y (n,) with None for no value, tone; marks: x of dotted signs; pick: lines are clients
bars    labels (n,); names: the clients behind them, if they are; bars and lines, each name, y (n,), tone or tones (n,); flat; stacked
cells   rows (r,), columns (c,); values (r, c); tone: counts, signed or parts (clusters); most: the value of the full colour;
        gaps: rows before which a gap parts the cells, in both directions (for square ones)

``x_title``, ``y_title``, ``unit``, ``digits`` and ``top`` (upper end of y) say the rest.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from html import escape
from typing import Any

POINTS_AT_MOST = 40_000  # numbers in one drawing: what a phone still draws at once, and 200 KB
CELLS_AT_MOST = 2_000    # cells of a table that stands for a picture
ROWS_AT_MOST = 40        # rounds in a table that stands for curves


@dataclass(frozen=True)
class Chart:
    """``heading`` and ``alt`` are plain text, ``caption`` and ``table`` HTML that their makers have escaped."""

    heading: str
    alt: str
    drawing: Mapping[str, Any]
    caption: str = ""
    table: str = ""

    def html(self) -> str:
        numbers = f"<details class=data><summary>Numbers: {escape(self.heading)}</summary>{self.table}</details>" if self.table else ""
        return (
            f"<figure><h3>{escape(self.heading)}</h3><div class=chart>"
            f'<canvas role="img" tabindex="0" aria-label="{escape(self.alt)}"></canvas>'
            f'<script type="application/json">{inline_json(self.drawing)}</script></div>'
            f"<figcaption>{self.caption}</figcaption>{numbers}</figure>"
        )


def inline_json(value: Any) -> str:
    """``value`` as JSON that can stand in a page: nothing in it ends the element that it stands in."""
    return json.dumps(value, ensure_ascii=False, allow_nan=False, separators=(",", ":")).replace("<", "\\u003c").replace("&", "\\u0026")


def rounded(values: Sequence[float | None], digits: int = 1, times: float = 1.0) -> list[float | None]:
    """``times`` each value to ``digits``; whole numbers without a point, which every value of a large drawing would carry."""
    out: list[float | None] = []
    for value in values:
        near = None if value is None else round(times * value, digits)
        out.append(int(near) if near is not None and near == int(near) else near)
    return out


def thinned(count: int, at_most: int) -> list[int]:
    """Places 0 .. count - 1, evenly thinned to about ``at_most`` and always with the last."""
    every = max(1, -(-count // max(1, at_most)))
    return sorted({*range(0, count, every), count - 1}) if count else []
