"""report.html drawn anew from what a finished run has in its folder, when something was found out about the run afterwards."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from server_app.donor_swap_file import read_swap, split_of
from server_app.finished import client_lines, contradiction
from server_app.html import page
from server_app.report import read_rounds, replace_text
from server_app.summary import SCORES, ClientRow, Findings


def draw_again(folder: Path) -> Path:
    """The report's path.

    Raises
    ------
    OSError, ValueError, KeyError
        If summary.json, clients.csv or rounds.jsonl cannot be read, or they do not belong together: what they would give is another
        report than the run's.
    """
    summary = json.loads((folder / "summary.json").read_text(encoding="utf-8"))
    lines = client_lines(folder / "clients.csv")
    found = Findings(summary, read_rounds(folder / "rounds.jsonl"), [row_of(line) for line in lines], split_of(folder) or None,
                     read_swap(folder))
    # older files have no column served_raw
    if said := _missing(found) or _contradiction(found, [kind for kind in SCORES if lines and kind in lines[0]] or ["served"]):
        raise ValueError(said)
    path = folder / "report.html"
    replace_text(path, page(found))
    return path


def row_of(line: Mapping[str, str]) -> ClientRow:
    """A line of clients.csv as it was before it was written; an empty cell is unknown, and so is a column that older files lack."""
    n_train, n_test, classes = (int(line[key]) if line[key] else None for key in ("n_train", "n_test", "classes"))
    served, adapted = (float(line[key]) if line[key] else None for key in ("served", "adapted"))
    raw = float(line["served_raw"]) if line.get("served_raw") else None
    return ClientRow(line["client"], line["group"], n_train, n_test, classes, served, adapted, line.get("held_out") == "yes", raw)


def _missing(found: Findings) -> str:
    """What the records and rows lack of what the summary was made of, or have beyond it, in words; "" for nothing."""
    summary = found.summary
    rounds, clients, outside = summary["rounds"], summary["clients"], (summary.get("held_out") or {}).get("clients") or []
    if len(found.records) != rounds or any(record["round"] != number for number, record in enumerate(found.records, start=1)):
        return f"rounds.jsonl should hold the rounds 1 to {rounds}, each once, as summary.json says; it holds {len(found.records)} records"
    if len(found.participants) != clients or sorted(outside) != sorted(row.client for row in found.held_out):
        return (f"clients.csv should hold {clients} clients that trained and {len(outside)} kept out, as summary.json says; "
                f"it holds {len(found.participants)} and {len(found.held_out)}")
    return ""


def _contradiction(found: Findings, kinds: list[str]) -> str:
    """The first figure that the rows give other than the summary, in words; "" if there is none."""
    n_test = {row.client: row.n_test for row in found.rows if row.n_test is not None}
    outside: Mapping[str, Any] = found.summary.get("held_out") or {}
    compared = [(f"{kind} scores", kind, found.participants, found.summary[kind]) for kind in kinds]
    compared += [(f"held-out clients' {kind} scores", kind, found.held_out, outside.get(key))
                 for kind, key in (("served", "tails"), ("served_raw", "tails_raw")) if kind in kinds]
    said = (contradiction(what, {row.client: getattr(row, kind) for row in rows}, n_test, figures)
            for what, kind, rows, figures in compared)
    return next(filter(None, said), "")
