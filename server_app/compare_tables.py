"""A comparison as text, Markdown, LaTeX or CSV, to read or to paste.

The first three show percent, rounded; CSV holds shares in 0..1 as they are, a line a row, for programs. LaTeX needs the
packages booktabs and graphicx; a table that is wider than the text is set smaller. Methods and settings can be anybody's text:
for people they are shown as what they are, markup and all, with spaces for what is no letter or sign.
"""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Callable, Mapping, Sequence

from server_app.compare import Comparison, Difference, Figure, Row
from server_app.finished import FIGURES, visible

FLOWED = ("mean", "bottom20")  # figures with a paired difference
# the usual idiom for "no wider than the text"
FITTED = r"\resizebox{\ifdim\width>\linewidth\linewidth\else\width\fi}{!}{"
NAMES = {"mean": "mean", "worst": "worst", "bottom20": "bottom 20 %"}
SPECIAL = {"\\": r"\textbackslash{}", "~": r"\textasciitilde{}", "^": r"\textasciicircum{}", "±": r"$\pm$", "–": "--",
           **{char: f"\\{char}" for char in "&%$#_{}"}}


def render_text(comparison: Comparison) -> str:
    """The tables as aligned plain text."""
    blocks = []
    for caption, table in _blocks(comparison):
        widths = [max(map(len, column)) for column in zip(*table, strict=True)]
        lines = ["  ".join(cell.rjust(w) if i else cell.ljust(w) for i, (cell, w) in enumerate(zip(cells, widths, strict=True))).rstrip()
                 for cells in table]
        blocks.append("\n".join([caption, "", lines[0], "-" * max(map(len, lines)), *lines[1:]]))
    return "\n\n".join([*blocks, *comparison.notes, *_remarks(comparison, visible)]) + "\n"


def render_markdown(comparison: Comparison) -> str:
    """The tables as Markdown."""
    blocks = []
    for caption, table in _blocks(comparison):
        lines = ["| " + " | ".join([markdown(label), *cells]) + " |" for label, *cells in table]
        rule = "|" + "|".join([" --- ", *[" ---: "] * (len(table[0]) - 1)]) + "|"
        blocks.append("\n".join([caption, "", lines[0], rule, *lines[1:]]))
    remarks = _remarks(comparison, lambda remark: f"- {markdown(remark)}")
    return "\n\n".join([*blocks, *(f"**{note}**" for note in comparison.notes), *remarks]) + "\n"


def render_latex(comparison: Comparison) -> str:
    """Each table as a ``table`` float; notes and remarks end its caption, so that pasting cannot lose them."""
    blocks = []
    for number, (caption, whole) in enumerate(_blocks(comparison), start=1):
        table = _narrowed(whole)
        head, *rows = [" & ".join(map(tex, cells)) + r" \\" for cells in table]
        told = " ".join([caption, *comparison.notes, *map(visible, comparison.remarks)])
        blocks.append("\n".join([
            r"\begin{table}", r"\centering", r"\small", r"\setlength{\tabcolsep}{4pt}", rf"\caption{{{tex(told)}}}",
            rf"\label{{tab:comparison-{number}}}", FITTED + "%", rf"\begin{{tabular}}{{l{'r' * (len(table[0]) - 1)}}}", r"\toprule", head,
            r"\midrule", *rows, r"\bottomrule", r"\end{tabular}}", r"\end{table}"]))
    return "% \\usepackage{booktabs,graphicx}\n" + "\n\n".join(blocks) + "\n"


def _narrowed(table: list[list[str]]) -> list[list[str]]:
    """``table`` without seeds and clients where they are the same in all rows: the caption says how many."""
    same = [column for column, name in enumerate(table[0])
            if name in ("seeds", "clients") and len({cells[column] for cells in table[1:]}) == 1]
    return [[cell for column, cell in enumerate(cells) if column not in same] for cells in table]


def render_csv(comparison: Comparison) -> str:
    """A line a row of either table. ``same_splits`` is "no" where the rows rest on different splits."""
    text = io.StringIO()
    lines = [_record(kind, row, comparison.same_splits) for kind, row in _rows(comparison)]
    table = csv.DictWriter(text, list(lines[0]), lineterminator="\n")
    table.writeheader()
    table.writerows(lines)
    return text.getvalue()


RENDERERS: Mapping[str, Callable[[Comparison], str]] = {
    "text": render_text, "markdown": render_markdown, "latex": render_latex, "csv": render_csv}


def markdown(text: str) -> str:
    """``text`` as Markdown shows it, in a table too."""
    return re.sub(r"[\\`*_<>\[\]|~&$]", r"\\\g<0>", visible(text))


def tex(text: str) -> str:
    """``text`` as LaTeX sets it, with the signs of numbers as mathematics."""
    escaped = "".join(SPECIAL.get(char, char) for char in text)
    return re.sub(r"(?<![\w.])([+-])(?=\d)", r"$\1$", escaped)


def _blocks(comparison: Comparison) -> list[tuple[str, list[list[str]]]]:
    """(caption, cells with the header first) of each table that has rows."""
    blocks = []
    for kind, rows in comparison.tables.items():
        some = any(row.held_out for row in rows)
        head = ["method", "seeds", "clients", *NAMES.values(), *(f"{NAMES[name]}, difference" for name in FLOWED),
                *(f"held-out clients, {name}" for name in NAMES.values() if some)]
        if rows:
            blocks.append((comparison.captions[kind], [head, *(_cells(row, some) for row in rows)]))
    return blocks


def _remarks(comparison: Comparison, form: Callable[[str], str]) -> list[str]:
    """A block with a line a remark; nothing without any."""
    return ["\n".join(map(form, comparison.remarks))] if comparison.remarks else []


def _rows(comparison: Comparison) -> Sequence[tuple[str, Row]]:
    return [(row.kind, row) for rows in comparison.tables.values() for row in rows]


def _cells(row: Row, outside: bool) -> list[str]:
    """One line; with ``outside`` also the columns of the clients kept out of training."""
    return [visible(row.label), ", ".join(map(str, row.seeds)), " or ".join(map(str, row.clients)),
            *(_shown(row.figures[name]) for name in FIGURES),
            *(_gap(row.differences.get(name)) for name in FLOWED),
            *((_shown(row.held_out[name]) if row.held_out else "–" for name in FIGURES) if outside else ())]


def _shown(figure: Figure) -> str:
    std = f" ± {100 * figure.std:.1f}" if figure.std is not None else ""
    raw = f" ({100 * figure.raw:.1f})" if figure.raw is not None else ""
    return f"{100 * figure.value:.1f}{std}{raw}"


def _gap(gap: Difference | None) -> str:
    return f"{100 * gap.value:+.1f} [{100 * gap.low:+.1f}, {100 * gap.high:+.1f}]" if gap else "–"


def _record(kind: str, row: Row, same: bool) -> dict[str, object]:
    """A row for programs; what is unknown is empty."""
    line: dict[str, object] = {"scores": kind, "method": row.label, "seeds": " ".join(map(str, row.seeds)),
                               "clients": " ".join(map(str, row.clients)), "same_splits": "yes" if same else "no"}
    for name in FIGURES:
        line |= {name: row.figures[name].value, f"{name}_std": row.figures[name].std, f"{name}_raw": row.figures[name].raw}
    for name in FLOWED:
        gap = row.differences.get(name)
        line |= {f"{name}_difference{end}": getattr(gap, field) if gap else None
                 for end, field in (("", "value"), ("_low", "low"), ("_high", "high"), ("_over", "over"))}
    return line | {f"held_out_{name}": row.held_out[name].value if row.held_out else None for name in FIGURES}
