"""report.html drawn anew from what a finished run has in its folder, when something was found out about the run afterwards."""

from __future__ import annotations

import csv
import json
from collections.abc import Mapping
from pathlib import Path

from server_app.donor_swap_file import read_swap, split_of
from server_app.html import page
from server_app.report import read_rounds, replace_text
from server_app.summary import ClientRow, Findings


def draw_again(folder: Path) -> Path:
    """The report's path. Raises ``OSError``, ``ValueError`` or ``KeyError`` if summary.json, clients.csv or rounds.jsonl cannot be read."""
    summary = json.loads((folder / "summary.json").read_text(encoding="utf-8"))
    with (folder / "clients.csv").open(encoding="utf-8", newline="") as lines:
        rows = [row_of(line) for line in csv.DictReader(lines)]
    found = Findings(summary, read_rounds(folder / "rounds.jsonl"), rows, split_of(folder) or None, read_swap(folder))
    path = folder / "report.html"
    replace_text(path, page(found))
    return path


def row_of(line: Mapping[str, str]) -> ClientRow:
    """A line of clients.csv as it was before it was written; an empty cell is unknown, and so is a column that older files lack."""
    n_train, n_test, classes = (int(line[key]) if line[key] else None for key in ("n_train", "n_test", "classes"))
    served, adapted = (float(line[key]) if line[key] else None for key in ("served", "adapted"))
    raw = float(line["served_raw"]) if line.get("served_raw") else None
    return ClientRow(line["client"], line["group"], n_train, n_test, classes, served, adapted, line.get("held_out") == "yes", raw)
