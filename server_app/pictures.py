"""Heat maps as PNG, for TensorBoard and for trackers: how alike the heads are, and every client's accuracy over the rounds.

Drawn cell by cell with Pillow: no Matplotlib in a server that runs for days, and a few milliseconds a picture.
"""

from __future__ import annotations

import io
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from server_app.summary import refreshes, scored

MOST_PIXELS, LARGEST_CELL = 720, 24
NAMED_AT_MOST = 48  # more names than this would not be legible
LETTER, LINE = 7, 12  # pixels
UNKNOWN = (200, 200, 200)
# the ends and the middle of a scale; blue and orange part for any colour vision
SIGNED = ((217, 119, 43), (255, 255, 255), (47, 128, 208))
SHARES = ((178, 34, 34), (245, 222, 179), (8, 48, 107))


def similarity_png(clusters: Mapping[str, Any]) -> bytes:
    """Similarity of the heads (N, N), -1 orange, 0 white, 1 blue; clients sorted by cluster, then by name."""
    clients, assignment = clusters["similarity"]["clients"], clusters["assignment"]
    order = sorted(range(len(clients)), key=lambda i: (assignment.get(clients[i], -1), clients[i]))
    cells = np.array(clusters["similarity"]["matrix"], dtype=float)[np.ix_(order, order)]
    return heat_map(cells, -1.0, 1.0, SIGNED, [clients[i] for i in order])


def served_png(records: Sequence[Mapping[str, Any]], final: Mapping[str, float] | None = None) -> bytes | None:
    """Served accuracy of every client (row, by name) over the scored rounds (column), 0 red to 1 blue; grey: not scored.

    The last column is ``final``, the closing evaluation. None if nobody was ever scored.
    """
    columns = [found for found in (*(scored(record.get("served")) for record in records), scored(final)) if found]
    clients = sorted({client for column in columns for client in column})
    if not clients:
        return None
    cells = np.array([[column.get(client, np.nan) for column in columns] for client in clients])
    return heat_map(cells, 0.0, 1.0, SHARES, clients)


def last_similarity(record: Mapping[str, Any]) -> Mapping[str, Any] | None:
    """The clusters of this round's refresh, if there was one and it says how alike the heads are."""
    found = refreshes([record])
    clusters = found[-1][1] if found else {}
    return clusters if clusters.get("similarity") and clusters.get("assignment") else None


def heat_map(cells: np.ndarray, low: float, high: float, scale: Sequence[tuple[int, int, int]], names: Sequence[str]) -> bytes:
    """PNG of ``cells`` (rows, columns), coloured from ``low`` to ``high``; NaN is grey. Rows are named while they are few."""
    from PIL import Image, ImageDraw

    rows, columns = cells.shape
    size = max(1, min(LARGEST_CELL, MOST_PIXELS // max(rows, columns)))
    named = len(names) <= NAMED_AT_MOST and size >= LINE
    margin = LETTER * max(map(len, names)) + 8 if named else 0
    shown = np.repeat(np.repeat(colours(cells, low, high, scale), size, axis=0), size, axis=1)
    picture = Image.new("RGB", (margin + shown.shape[1], shown.shape[0]), "white")
    picture.paste(Image.fromarray(shown), (margin, 0))
    pen = ImageDraw.Draw(picture)
    for row, name in enumerate(names if named else ()):
        pen.text((4, row * size + (size - LINE) // 2), name, fill="black")
    drawn = io.BytesIO()
    picture.save(drawn, format="png")
    return drawn.getvalue()


def colours(cells: np.ndarray, low: float, high: float, scale: Sequence[tuple[int, int, int]]) -> np.ndarray:
    """``cells`` (rows, columns) as RGB (rows, columns, 3), uint8, on a scale of three colours; what lies beyond takes the end's."""
    known = np.isfinite(cells)
    places = np.clip((np.where(known, cells, low) - low) / (high - low), 0, 1)
    steps = np.linspace(0, 1, len(scale))
    mixed = np.stack([np.interp(places, steps, [colour[channel] for colour in scale]) for channel in range(3)], axis=-1)
    return np.where(known[..., None], mixed.round(), UNKNOWN).astype(np.uint8)
