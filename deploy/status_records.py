"""What ``fedhearth status`` reads in a run's folder. A watch must outlive damaged files, so every value is looked at before it is used."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from deploy.live import tails_told
from server_app.finished import is_number, read_run
from server_app.progress import is_whole
from server_app.report import DamagedRecords, read_rounds


@dataclass(frozen=True)
class Closing:
    """The outcome of a finished run: its figures in words, and each client's ``served`` accuracy in 0..1."""

    told: str
    served: Mapping[str, float]


def rounds_of(folder: Path) -> list[dict[str, Any]]:
    """The rounds of the run in ``folder`` so far. Raises ``DamagedRecords`` also for a value of a kind that no run writes."""
    path = folder / "rounds.jsonl"
    records = read_rounds(path)
    for number, record in enumerate(records, start=1):
        for key, (kind, sound) in KINDS.items():
            if record.get(key) is not None and not sound(record[key]):
                raise DamagedRecords(f"{path} is damaged: {key} in line {number} must be {kind}, got {json.dumps(record[key])[:60]}; "
                                     "restore the file, or start the run in a new folder")
    return records


def closing_of(folder: Path) -> Closing | None:
    """The outcome of the run in ``folder``; None if it has not got that far, or nobody was scored. Raises ``ComparisonError``."""
    if not _scored(folder / "summary.json"):
        return None
    run = read_run(folder)
    outside = (run.summary.get("held_out") or {}).get("served") or {}
    apart = {client: score for client, score in outside.items() if is_number(score)} if isinstance(outside, dict) else {}
    return Closing(tails_told(run.summary["served"]), {**run.accuracy["served"], **apart})


def _scored(summary: Path) -> bool:
    try:
        return summary.exists() and json.loads(summary.read_text(encoding="utf-8"))["served"] is not None
    except (ValueError, KeyError, TypeError, RecursionError):
        return True  # damaged, and who reads it says how


def _of(sound: Callable[[Any], bool]) -> Callable[[Any], bool]:
    """Whether something is a mapping whose values are all sound."""
    return lambda found: isinstance(found, dict) and all(map(sound, found.values()))


# what status uses of a round, if it is there, beside the round's number
KINDS: Mapping[str, tuple[str, Callable[[Any], bool]]] = {
    "served": ("an accuracy for each client", _of(lambda score: score is None or is_number(score))),
    "lost": ("a reason for each client", _of(lambda reason: isinstance(reason, str))),
    "dropped": ("a count for each reason", _of(is_whole)),
    "bytes": ("bytes for each slot, up and down", _of(_of(is_whole))),
}
