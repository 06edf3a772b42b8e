"""The rounds of a run that goes on, as they appear in its rounds.jsonl; what was read is not read again."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from server_app.report import read_rounds


class NewRounds:
    """Gives every round that comes after those in ``lines`` now. ``seen`` is the number of the last one given, or there before."""

    def __init__(self, lines: Path) -> None:
        self._lines, self._start = lines, 0
        self.seen = max((record["round"] for record in read_rounds(lines)), default=0)

    def take(self) -> list[dict[str, Any]]:
        """Those that are new since the last call. Raises ``DamagedRecords`` as ``read_rounds``."""
        try:
            records, self._start = rounds_from(self._lines, self._start)
        except ValueError:
            records = read_rounds(self._lines)  # which says what is wrong, if it is not a torn last line
        new = []
        for record in records:
            if record["round"] > self.seen:
                self.seen = record["round"]
                new.append(record)
        return new


def rounds_from(lines: Path, start: int) -> tuple[list[dict[str, Any]], int]:
    """The rounds whose lines begin at byte ``start`` or later, and where the next one will: a long run is read once, not all the time."""
    if not lines.exists():
        return [], 0
    with lines.open("rb") as file:
        # a run that resumes writes the file anew, and cuts it
        start = file.seek(start if start <= lines.stat().st_size else 0)
        whole = file.read()
    whole = whole[:whole.rfind(b"\n") + 1]
    return [json.loads(line) for line in whole.splitlines()], start + len(whole)
