"""How figures are written: Markdown tables, accuracies in points, differences with their intervals."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from benchmarks.hdc_fl.paired import Difference


def markdown(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """One table."""
    lines = [head, [" --- ", *[" ---: "] * (len(head) - 1)]]
    return "\n".join("| " + " | ".join(cell.strip() for cell in cells) + " |" for cells in [*lines, *rows]) + "\n"


def points(value: float) -> str:
    return f"{100 * value:.1f}"


def signed(value: float) -> str:
    """A difference in points with its sign; one that rounds to nothing is +0.0 from either side."""
    return f"{round(100 * value, 1) + 0.0:+.1f}"


def gap(d: Difference | None, figure: str = "mean") -> str:
    """``+1.2 [+0.3, +2.0]`` in points; bold where the interval leaves 0 out, but never for a minimum, whose interval is too narrow."""
    if d is None:
        return "–"
    told = f"{signed(d.value)} [{signed(d.low)}, {signed(d.high)}]"
    return f"**{told}**" if d.clear and figure != "worst" else told
