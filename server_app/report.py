"""RunReport: what a run leaves in its folder.

rounds.jsonl    one line a round, flushed, so that a killed run can be read and resumed
tensorboard/    the same, as scalars
summary.json    the run in numbers: the closing evaluation, tails, bytes, seconds, versions
clients.csv     one row a client
report.html     the same for people, in one file

``split.json`` beside them is written by the client side of a simulation, and ``split.png`` is drawn from it; on separate
machines nobody has them.
"""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Mapping
from dataclasses import astuple, fields, replace
from pathlib import Path
from typing import Any

from server_app.donor_swap_file import read_swap
from server_app.durable import replacing
from server_app.events import ScalarLog
from server_app.finished import is_number
from server_app.html import page
from server_app.split_png import write_split_png
from server_app.summary import ClientRow, Findings, findings, plain, tail


class DamagedRecords(ValueError):
    """rounds.jsonl or split.json is not what a run, killed or not, leaves there. The text says what to do."""


class RunReport:
    """Writes a run's folder as it goes.

    Parameters
    ----------
    out : the run's folder; made if missing.
    config_items : the flat run config, keys with dashes.
    engine : what carries the messages (in-process, Ray, gRPC).
    resume_from : last round of the resumed state; later lines of rounds.jsonl are cut. 0 starts anew.
    """

    def __init__(
        self,
        out: Path,
        config_items: Mapping[str, str | int | float | bool],
        engine: str,
        resume_from: int = 0,
    ) -> None:
        out.mkdir(parents=True, exist_ok=True)
        self.out, self.config, self.engine = out, dict(config_items), engine
        kept = [r for r in read_rounds(out / "rounds.jsonl") if r["round"] <= resume_from]
        if [r["round"] for r in kept] != list(range(1, resume_from + 1)):
            raise DamagedRecords(
                f"rounds.jsonl lacks rounds: expected 1 to {resume_from}, as the checkpoint says, got {len(kept)} of them. "
                "Restore the file, or start the run in a new folder; without it the report would miss those rounds"
            )
        self._seconds_before = sum(r["seconds"] for r in kept)
        replace_text(out / "rounds.jsonl", "".join(map(_line, kept)))
        self._scalars = ScalarLog(out / "tensorboard", first_step=resume_from + 1)

    def round(self, record: Mapping[str, Any]) -> None:
        """Append one round's record.

        Its ``served`` scores precede this round's training: they belong to the state after the round before.
        """
        with (self.out / "rounds.jsonl").open("a", encoding="utf-8") as lines:
            lines.write(_line(record))
        number = int(record["round"])
        self._log_served(number - 1, record.get("served"))
        up = sum(((record.get("bytes") or {}).get("up") or {}).values())
        self._scalars.write(number, {"bytes/up": up, "seconds": record["seconds"]})

    def finish(self, final: Mapping[str, Any]) -> dict[str, Any]:
        """Write summary.json, clients.csv and report.html, and return the summary.

        ``final`` holds the closing evaluation (``served``, ``served_raw``, ``n_train``, ``n_test``) and
        ``peak_rss_mib``, ``split_hash``, ``versions``, ``personal_models``, ``model`` and ``seconds``; of clients kept out of
        training ``held_out`` and ``joined``.
        """
        records = read_rounds(self.out / "rounds.jsonl")
        found = findings(
            self.config, self.engine, records, plain(final), _read_split(self.out), self._seconds_before
        )
        self._log_served(int(found.summary["rounds"]), {r.client: r.served for r in found.participants if r.served is not None})
        write_findings(self.out, replace(found, donor_swap=read_swap(self.out)))
        return dict(found.summary)

    def _log_served(self, step: int, served: Mapping[str, float] | None) -> None:
        if figures := tail(served, {}):
            self._scalars.write(
                step, {f"served/{name}": figures[name] for name in ("mean", "worst", "bottom20")}
            )


def write_findings(out: Path, found: Findings) -> None:
    """The three closing files; summary.json last, since its presence says that the run is complete."""
    replace_text(out / "clients.csv", _csv(found))
    if found.split:
        write_split_png(found.split, out / "split.png")
    replace_text(out / "report.html", page(found))
    replace_text(
        out / "summary.json", json.dumps(found.summary, indent=2, allow_nan=False, ensure_ascii=False) + "\n"
    )


def read_rounds(path: Path) -> list[dict[str, Any]]:
    """The records of rounds.jsonl, in order; none if there is no file. A torn last line is dropped.

    Raises
    ------
    DamagedRecords
        If a line before the last is not JSON, or any is not a round's: that is not what a killed run leaves.
    """
    lines = (
        path.read_text(encoding="utf-8", errors="replace").splitlines(keepends=True) if path.exists() else []
    )
    records = []
    for number, line in enumerate(lines, start=1):
        try:
            record, said = json.loads(line), ""
        except (ValueError, RecursionError):
            if number == len(lines):
                break
            record, said = None, "expected one record a line"
        if said := said or _wrong(record):
            raise DamagedRecords(f"line {number} of {path.name} is not JSON of a round; {said}. "
                                 "Restore the file or start the run in a new folder")
        records.append(record)
    return records


def _wrong(record: Any) -> str:
    """What a line of rounds.jsonl should have been, "" if it is: without these two a run could not be finished."""
    if not isinstance(record, dict) or not {"round", "seconds"} <= record.keys():
        return "expected one record a line, with its round and seconds"
    if type(record["round"]) is not int:
        return f"expected a whole number as round, got {record['round']!r:.40}"
    return "" if is_number(record["seconds"]) else f"expected a finite number as seconds, got {record['seconds']!r:.40}"


def replace_text(path: Path, text: str) -> None:
    """Write ``path`` so that a reader sees the old file or the new one, never a part."""
    with replacing(path) as torn:
        torn.write_text(text, encoding="utf-8", newline="")


def _line(record: Mapping[str, Any]) -> str:
    return json.dumps(_lighter(plain(record)), allow_nan=False, ensure_ascii=True) + "\n"


def _lighter(record: dict[str, Any]) -> dict[str, Any]:
    """Similarities to four digits: they are drawn, not computed with, and N x N of them fill a line."""
    similarity = ((record.get("diagnostics") or {}).get("clusters") or {}).get("similarity")
    if similarity:
        similarity["matrix"] = [
            [x if x is None else round(x, 4) for x in row] for row in similarity["matrix"]
        ]
    return record


def _read_split(out: Path) -> dict[str, Any] | None:
    path = out / "split.json"
    if not path.exists():
        return None
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except ValueError:
        raise DamagedRecords(f"{path.name} is damaged; resume the run, which writes it anew") from None


def _csv(found: Findings) -> str:
    text = io.StringIO()
    table = csv.writer(text, lineterminator="\n")
    table.writerow(field.name for field in fields(ClientRow))
    table.writerows([("yes" if cell else "no") if isinstance(cell, bool) else cell for cell in astuple(row)]
                    for row in found.rows)
    return text.getvalue()
