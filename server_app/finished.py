"""A finished run, read back from its folder with every way it can be damaged said plainly."""

from __future__ import annotations

import csv
import json
import math
import shlex
import sys
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from server_app.reproduce import belongs, own_defaults
from server_app.summary import plain, tail
from strategies.config import ConfigError, RunConfig, items_of, parse
from strategies.registry import find_method

FIGURES = ("mean", "worst", "bottom20")
# clients.csv and summary.json hold every digit; what is left is the order in which a sum was taken
ROUNDING = 1e-9
WORDS = {"n": "number of clients with", "mean": "mean of", "worst": "lowest of", "bottom20": "bottom 20 % of", "std": "deviation of",
         "weighted_mean": "mean weighted by test images of"}


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
    def settings(self) -> Mapping[str, Any]:
        """Every setting that can change this run; one that an older version did not write down has its default."""
        return _settings(self.summary["method"], self.summary["run_config"])

    @property
    def key(self) -> tuple[str, int]:
        """What must agree for two runs to be paired: split and seed."""
        return self.summary["split_hash"], self.summary["seed"]


def read_run(path: Path) -> Run:
    """A finished run from its folder or its summary.json; raises ``ComparisonError``."""
    folder = path.parent if path.name == "summary.json" else path
    summary = _summary(folder)
    if problem := _problem(summary):
        raise ComparisonError(
            f"{folder}: summary.json {problem}. Was it written by this version of FedHearth?"
        )
    if summary["served"] is None:
        raise ComparisonError(f"{folder} has no served scores: no client had test images (is its test-fraction 0?). Leave it out")
    return Run(folder, summary, _accuracy(folder / "clients.csv", summary))


def _summary(folder: Path) -> Any:
    try:
        return json.loads((folder / "summary.json").read_text(encoding="utf-8"))
    except (FileNotFoundError, NotADirectoryError):
        do = (f"Wait for it if it is at work, else finish it (fedhearth run --resume {shlex.quote(str(folder))}), or leave it out"
              if (folder / "run.json").exists() else "Give the folder of a run, in which its summary.json lies")
        raise ComparisonError(f"{folder}: no summary.json, so this is not the folder of a finished run. {do}") from None
    except OSError as error:
        raise ComparisonError(f"{folder}: cannot read summary.json: {error.strerror}") from None
    except (ValueError, RecursionError) as error:
        raise ComparisonError(
            f"{folder}: summary.json is damaged ({error}). Run again, or restore the file"
        ) from None


def _problem(summary: Any) -> str:
    if not isinstance(summary, dict):
        return "is damaged: expected an object"
    if missing := [k for k in ("method", "seed", "served", "split_hash", "run_config") if k not in summary]:
        return f"is damaged: it lacks {', '.join(missing)}"
    kinds = {"method": str, "split_hash": str, "run_config": dict}
    if wrong := [key for key, kind in kinds.items() if not isinstance(summary[key], kind)]:
        return f"is damaged: {', '.join(wrong)} of the wrong kind"
    if wrong := [key for key in ("seed", "clients", "rounds", "void_rounds") if key in summary and not _is_whole(summary[key])]:
        return f"is damaged: expected a whole number for {', '.join(wrong)}"
    if wrong := [key for key, value in summary["run_config"].items() if isinstance(value, dict | list)]:
        return f"is damaged: run_config must hold one value a setting, but has lists or objects for {', '.join(map(repr, wrong))}"
    for kind in ("served", "adapted", "served_raw", "adapted_raw"):
        figures = summary.get(kind)
        if figures is not None and not (isinstance(figures, dict) and _are_shares(figures) and _is_whole(figures.get("n"))):
            return f"is damaged: {kind!r} must hold numbers from 0 to 1 for {', '.join(FIGURES)} and a whole number for n"
    outside = {} if summary.get("held_out") is None else summary["held_out"]
    if not isinstance(outside, dict) or not (outside.get("tails") is None or _are_shares(outside["tails"])):
        return f"is damaged: 'held_out' must hold tails with numbers from 0 to 1 for {', '.join(FIGURES)}"
    return ""


def _settings(method: str, told: Mapping[str, Any]) -> dict[str, Any]:
    whole = {**plain(items_of(RunConfig()) | own_defaults(method)), **told}
    borrowed = _borrowed(method, whole)
    for name in borrowed:
        whole = {**plain(own_defaults(name)), **whole}
    return {key: value for key, value in whole.items() if belongs(key, method) or any(belongs(key, name) for name in borrowed)}


def _borrowed(method: str, whole: Mapping[str, Any]) -> tuple[str, ...]:
    """The other methods whose settings the run uses; none that are known of a method or settings that this installation lacks."""
    # JSON holds no infinity, which stands as null there
    given = {key: math.inf if value is None else value for key, value in whole.items()}
    try:
        return getattr(parse(find_method(method).config_class(), given, f"{method}."), "borrows", ())
    except (ConfigError, ImportError):
        return ()


def visible(text: str) -> str:
    """``text`` of a run, which may be anybody's, for a terminal: line breaks, controls and the like as spaces."""
    return "".join(letter if letter.isprintable() else " " for letter in text)


def is_number(value: Any) -> bool:
    """Whether a value of a JSON file is a number that fits a float; neither true nor NaN nor infinity is one."""
    return isinstance(value, int | float) and not isinstance(value, bool) and abs(value) <= sys.float_info.max


def _is_whole(value: Any) -> bool:
    return type(value) is int and value >= 0


def _are_shares(figures: Any) -> bool:
    return isinstance(figures, dict) and all(is_number(figures.get(key)) and 0 <= figures[key] <= 1 + ROUNDING for key in FIGURES)


def _accuracy(table: Path, summary: Mapping[str, Any]) -> dict[str, dict[str, float]]:
    """served and adapted by client that took part in training; empty without a clients.csv, which costs the paired differences only."""
    out: dict[str, dict[str, float]] = {"served": {}, "adapted": {}}
    if not table.exists():
        return out
    try:
        lines = trained_lines(table)
        n_test = {line["client"]: int(line["n_test"]) for line in lines if line.get("n_test")}
        out = {kind: {line["client"]: _share(line[kind]) for line in lines if line.get(kind)} for kind in out}
        said = [contradiction(f"{kind} scores", scores, n_test, summary.get(kind)) for kind, scores in out.items()]
    except (OSError, ValueError, KeyError, ArithmeticError) as error:
        raise ComparisonError(f"{table} is damaged ({type(error).__name__}: {error}). Restore the file, or remove it, which costs "
                              "the paired differences only") from None
    if any(said):
        raise ComparisonError(f"{table.parent}: clients.csv and summary.json contradict each other: {next(filter(None, said))}. "
                              "Restore the one that was changed, or run again")
    return out


def client_lines(table: Path) -> list[dict[str, str]]:
    """The lines of a clients.csv, in order: as wide as the header, and each of another client.

    Raises
    ------
    OSError, ValueError, KeyError
        If the file cannot be read, is damaged, or has no column ``client``.
    """
    try:
        with table.open(encoding="utf-8", newline="") as file:
            lines = list(csv.DictReader(file, strict=True))
    except csv.Error as error:
        raise ValueError(str(error)) from None
    if ragged := [number for number, line in enumerate(lines, start=1) if None in line or None in line.values()]:
        raise ValueError(f"row {ragged[0]} has not as many cells as the header")
    name, most = next(iter(Counter(line["client"] for line in lines).most_common(1)), ("", 0))
    if most > 1:
        raise ValueError(f"client {name!r} has {most} rows, and should have one")
    return lines


def trained_lines(table: Path) -> list[dict[str, str]]:
    """Those of clients that took part in training; raises as ``client_lines``."""
    return [line for line in client_lines(table) if line.get("held_out") != "yes"]


def _share(cell: str) -> float:
    value = float(cell)
    if not 0 <= value <= 1:
        raise ValueError(f"expected scores from 0 to 1, got {cell!r}")
    return value


def contradiction(what: str, scores: Mapping[str, float | None], n_test: Mapping[str, int], told: Mapping[str, Any] | None) -> str:
    """The first figure that comes out of ``scores`` by client other than the summary told it, in words; "" if there is none."""
    ours: Mapping[str, Any] = tail(scores, n_test) or {"n": 0}
    figures: Mapping[str, Any] = told or {"n": 0}
    for key, words in WORDS.items():
        one, other = ours.get(key, math.nan), figures.get(key, math.nan)
        if is_number(one) and is_number(other) and abs(one - other) > ROUNDING:
            return f"the {words} {what} is {one:.10g} by clients.csv and {other:.10g} by summary.json"
    return ""
