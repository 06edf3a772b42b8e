"""A finished run, read back from its folder with every way it can be damaged said plainly."""

from __future__ import annotations

import csv
import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

FIGURES = ("mean", "worst", "bottom20")


class ComparisonError(ValueError):
    """These runs cannot be compared. The text says which run, why, and what to do."""


@dataclass(frozen=True)
class Run:
    """One finished run: its summary, and each client's ``served`` and ``adapted`` accuracy in 0..1."""

    path: Path
    summary: Mapping[str, Any]
    accuracy: Mapping[str, Mapping[str, float]]

    @property
    def held_out(self) -> Mapping[str, float] | None:
        """The tails of the clients kept out of training, None if there were none or none of them was scored."""
        return (self.summary.get("held_out") or {}).get("tails")

    @property
    def key(self) -> tuple[str, int]:
        """What must agree for two runs to be paired: split and seed."""
        return self.summary["split_hash"], self.summary["seed"]


def read_run(path: Path) -> Run:
    """A finished run from its folder or its summary.json; raises ``ComparisonError``."""
    folder = path.parent if path.name == "summary.json" else path
    try:
        summary = json.loads((folder / "summary.json").read_text(encoding="utf-8"))
    except (FileNotFoundError, NotADirectoryError):
        raise ComparisonError(
            f"{folder}: no summary.json, so this is not the folder of a finished run. "
            "Finish the run (resume=true) or leave it out"
        ) from None
    except OSError as error:
        raise ComparisonError(f"{folder}: cannot read summary.json: {error.strerror}") from None
    except ValueError as error:
        raise ComparisonError(
            f"{folder}: summary.json is damaged ({error}). Run again, or restore the file"
        ) from None
    if problem := _problem(summary):
        raise ComparisonError(
            f"{folder}: summary.json {problem}. Was it written by this version of FedHearth?"
        )
    return Run(folder, summary, _accuracy(folder / "clients.csv"))


def _problem(summary: Any) -> str:
    if not isinstance(summary, dict):
        return "is damaged: expected an object"
    if missing := [k for k in ("method", "seed", "served", "split_hash", "run_config") if k not in summary]:
        return f"is damaged: it lacks {', '.join(missing)}"
    kinds = {"method": str, "seed": int, "split_hash": str, "run_config": dict}
    if wrong := [key for key, kind in kinds.items() if not isinstance(summary[key], kind)]:
        return f"is damaged: {', '.join(wrong)} of the wrong kind"
    if not summary["served"]:
        return "has no served scores: nothing was scored in the closing evaluation"
    for kind in ("served", "adapted", *(raw for raw in ("served_raw", "adapted_raw") if summary.get(raw))):
        figures = summary.get(kind) or dict.fromkeys((*FIGURES, "n"), 0)
        if not isinstance(figures, dict) or not all(_is_number(figures.get(k)) for k in (*FIGURES, "n")):
            return f"is damaged: {kind!r} must hold numbers for {', '.join(FIGURES)} and n"
    outside = summary.get("held_out") or {}
    tails = outside.get("tails") or dict.fromkeys(FIGURES, 0) if isinstance(outside, dict) else None
    if not isinstance(tails, dict) or not all(_is_number(tails.get(k)) for k in FIGURES):
        return f"is damaged: 'held_out' must hold tails with numbers for {', '.join(FIGURES)}"
    return ""


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and math.isfinite(value)


def _accuracy(table: Path) -> dict[str, dict[str, float]]:
    """served and adapted by client that took part in training; empty without a clients.csv, which costs the paired differences only."""
    out: dict[str, dict[str, float]] = {"served": {}, "adapted": {}}
    if not table.exists():
        return out
    try:
        with table.open(encoding="utf-8", newline="") as lines:
            for line in csv.DictReader(lines):
                if line.get("held_out") == "yes":
                    continue
                for kind, scores in out.items():
                    if line.get(kind):
                        scores[line["client"]] = float(line[kind])
    except (ValueError, KeyError, csv.Error) as error:
        raise ComparisonError(f"{table} is damaged ({type(error).__name__}: {error}). Restore the file, or remove it, which costs "
                              "the paired differences only") from None
    return out
