"""``split.png``: how many samples of each class every client has, for training and for testing, side by side.

Counts are written into the cells while they fit. Cells go from light to dark blue by the square root of the count, so
that rare classes show beside frequent ones, with any colour vision and in print; a class that a client lacks stays white.
"""

from __future__ import annotations

import io
import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from server_app.durable import replacing
from server_app.figures import label
from server_app.summary import whose

if TYPE_CHECKING:
    from matplotlib.axes import Axes

DPI = 150
ROW, COLUMN = 0.24, 0.46            # inches of a cell with room for a count
TALLEST, WIDEST = 10.0, 7.5         # inches of a panel
LIGHT, DARK = "#d6e6f5", "#08306b"
SMALLEST_TEXT = 4.5                 # points
TICKS = 50
# Matplotlib's own font has Latin, Greek, Cyrillic, Arabic and Hebrew letters; these have more, on one system or another
FONTS = ("Noto Sans CJK SC", "Noto Sans CJK JP", "Noto Sans CJK KR", "WenQuanYi Micro Hei", "PingFang SC", "Hiragino Sans",
         "Apple SD Gothic Neo", "Microsoft YaHei", "Yu Gothic", "Malgun Gothic", "Arial Unicode MS", "Noto Sans Devanagari")


def write_split_png(split: Mapping[str, Any], path: Path) -> None:
    """Draw the manifest ``split`` (see ``client_app.data.manifest``) into ``path``, in one step."""
    with replacing(path) as part:
        part.write_bytes(split_png(split))


def split_png(split: Mapping[str, Any]) -> bytes:
    """The picture as PNG: a panel of training counts (N, C) and, if anyone tests, one of test counts (N, C)."""
    from matplotlib import rc_context

    with rc_context({"font.family": families()}):
        return _drawn(split)


def families() -> list[str]:
    """Matplotlib's own font, and those of ``FONTS`` that are installed, for what it lacks."""
    from matplotlib.font_manager import fontManager

    installed = {font.name for font in fontManager.ttflist}
    return ["DejaVu Sans", *(name for name in FONTS if name in installed)]


def _drawn(split: Mapping[str, Any]) -> bytes:
    from matplotlib.figure import Figure

    names, clients = [str(name) for name in split["classes"]], list(split["train"])
    halves = {half: _counts(split.get(half) or {}, clients, len(names)) for half in ("train", "test")}
    shown = {half: counts for half, counts in halves.items() if half == "train" or counts.any()}
    height = min(max(ROW * len(clients), 1.0), TALLEST)
    width = min(max(COLUMN * len(names), 1.4), WIDEST)
    figure = Figure(figsize=(len(shown) * (width + 0.6) + 1.6, height + 1.9), layout="constrained", dpi=DPI)
    axes = np.atleast_1d(np.asarray(figure.subplots(1, len(shown), sharey=True)))
    for place, (half, counts) in zip(axes, shown.items(), strict=True):
        _panel(place, counts, (height / max(len(clients), 1), width / len(names)))
        _name_columns(place, names)
        place.set_title(f"{'training' if half == 'train' else 'test'} samples: {counts.sum():,}", size=9)
    _name_rows(axes[0], [_row_name(client, split) for client in clients])
    figure.suptitle(_title(split), size=8, wrap=True)
    drawn = io.BytesIO()
    with warnings.catch_warnings():
        # a class may be named in a script that no font here has
        warnings.filterwarnings("ignore", message="Glyph .* missing from")
        warnings.filterwarnings("ignore", message="constrained_layout not applied")
        figure.savefig(drawn, format="png")
    return drawn.getvalue()


def text_points(largest: int, cell: tuple[float, float]) -> float:
    """Size in points at which ``largest`` fits a cell of (height, width) inches; 0 where that is too small to read."""
    height, width = cell
    size = min(8.0, 72 * height * 0.7, 72 * width * 0.9 / (0.62 * len(str(largest))))
    return size if size >= SMALLEST_TEXT else 0.0


def _counts(half: Mapping[str, Sequence[int]], clients: Sequence[str], classes: int) -> np.ndarray:
    return np.array([half.get(client, [0] * classes) for client in clients], dtype=np.int64).reshape(len(clients), classes)


def _panel(axes: Axes, counts: np.ndarray, cell: tuple[float, float]) -> None:
    from matplotlib.colors import LinearSegmentedColormap, PowerNorm

    largest = int(counts.max(initial=1))
    image = axes.imshow(np.ma.masked_equal(counts, 0), aspect="auto", interpolation="nearest",
                        cmap=LinearSegmentedColormap.from_list("counts", [LIGHT, DARK]), norm=PowerNorm(0.5, vmin=0, vmax=largest))
    if size := text_points(largest, cell):
        for (row, column), count in np.ndenumerate(counts):
            if count:
                dark = (count / largest) ** 0.5 > 0.55
                axes.text(column, row, str(count), ha="center", va="center", size=size, color="white" if dark else "black")
    assert axes.figure is not None
    bar = axes.figure.colorbar(image, ax=axes, location="bottom", shrink=0.8, aspect=30, ticks=sorted({1, largest}))
    bar.ax.tick_params(labelsize=7)


def _name_columns(axes: Axes, names: Sequence[str]) -> None:
    every = -(-len(names) // 20)
    chosen = range(0, len(names), every)
    longest = max(len(names[i]) for i in chosen)
    axes.set_xticks(chosen, [label(names[i], 16) for i in chosen], rotation=60 if longest > 3 else 0, size=7)
    axes.set_xlabel(f"{len(names)} classes" + (f", one in {every} named" if every > 1 else ""), size=8)


def _name_rows(axes: Axes, names: Sequence[str]) -> None:
    every = -(-len(names) // TICKS)
    axes.set_yticks(range(0, len(names), every), [label(name, 28) for name in names[::every]], size=7)
    axes.set_ylabel(f"{len(names)} clients" + (f", one in {every} named" if every > 1 else ""), size=8)


def _row_name(client: str, split: Mapping[str, Any]) -> str:
    told = [whose(split, client), "held out" if client in (split.get("held_out") or ()) else ""]
    return " · ".join([client, *(word for word in told if word)])


def _title(split: Mapping[str, Any]) -> str:
    facts = [str(split[key]) for key in ("dataset", "partition") if split.get(key)]
    facts += [f"seed {split['seed']}"] if "seed" in split else []
    facts += [f"{split['unused']:,} samples unused"] if split.get("unused") else []
    return label(" · ".join([*facts, f"split {str(split.get('hash', ''))[:12]}"]), 160)
