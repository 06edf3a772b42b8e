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


def gap(d: Difference | None, figure: str = "mean") -> str:
    """``+1.2 [+0.3, +2.0]`` in points; bold where the interval leaves 0 out, but never for a minimum, whose interval is too narrow."""
    if d is None:
        return "–"
    told = f"{100 * d.value:+.1f} [{100 * d.low:+.1f}, {100 * d.high:+.1f}]"
    return f"**{told}**" if d.clear and figure != "worst" else told
