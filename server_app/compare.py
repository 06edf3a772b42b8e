"""Finished runs side by side: served figures in one table, adapted ones in another, never mixed.

Runs that differ in nothing but their seed (and in how fast or where they ran) are one row. Its figures are
averaged over seeds, each figure being one over clients first (METHODS 1.4). Our choices: runs over different
splits are refused, since a split can move a tail more than a method does; the difference to the first row is
paired. With one seed its 95 % interval resamples clients, with several it is Student's t over the seeds'
differences, since seeds are then what varies.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import mean, stdev
from typing import Literal

from server_app.finished import FIGURES, ComparisonError, Run, read_run
from server_app.reproduce import PLACES, belongs, shown
from strategies.tails import paired_difference

Kind = Literal["served", "adapted"]
# how fast and where a run ran; the rows of a table should not split over it
SPEED = frozenset({"seed", "method", "threads", "deadline", "score-batch", "channels-last", "device"})
OTHER_SPLITS = "The runs rest on DIFFERENT SPLITS: a difference may come from the data, not the method."


@dataclass(frozen=True)
class Figure:
    """A share in 0..1, averaged over seeds; ``std`` (sample deviation) from two on, ``raw`` if scored."""

    value: float
    std: float | None
    raw: float | None


@dataclass(frozen=True)
class Difference:
    """Bottom-20 % of a row minus the first row's, with its 95 % interval over ``over``."""

    value: float
    low: float
    high: float
    over: Literal["clients", "seeds"]


@dataclass(frozen=True)
class Row:
    """One method with its distinguishing settings: ``figures`` by name (mean, worst, bottom20), and those of the
    clients kept out of training in ``held_out``, empty if there are none.
    """

    label: str
    seeds: tuple[int, ...]
    clients: tuple[int, ...]
    figures: Mapping[str, Figure]
    difference: Difference | None
    held_out: Mapping[str, Figure] = field(default_factory=dict)


@dataclass(frozen=True)
class Comparison:
    """Two tables and what to say beside them; ``adapted`` is empty if no run was scored so."""

    served: tuple[Row, ...]
    adapted: tuple[Row, ...]
    captions: Mapping[Kind, str]
    notes: tuple[str, ...] = ()


def compare(runs: Sequence[Path], allow_different_splits: bool = False) -> Comparison:
    """Compare finished runs, given by their folders (or their summary.json); the first row is the reference.

    Raises
    ------
    ComparisonError
        If a summary is missing or damaged, a run is given twice, or the rows do not rest on the same splits
        and ``allow_different_splits`` is false.
    """
    if not runs:
        raise ComparisonError("expected at least one run folder, got none")
    read = [read_run(path) for path in runs]
    rows = _grouped(read)
    same = _check_splits(rows, allow_different_splits)
    served, adapted = _table(rows, "served"), _table(rows, "adapted")
    return Comparison(
        served=served,
        adapted=adapted,
        captions={"served": _caption(served, read, "served"), "adapted": _caption(adapted, read, "adapted")},
        notes=() if same else (OTHER_SPLITS,),
    )


def _grouped(runs: Sequence[Run]) -> dict[str, list[Run]]:
    """Label -> runs that differ in their seed only, both in the order given."""
    settings = [run.summary["run_config"] for run in runs]
    keys = {key for config in settings for key in config if key not in PLACES | SPEED}
    varying = sorted(key for key in keys if len({json.dumps(c[key]) for c in settings if key in c}) > 1)
    rows: dict[str, list[Run]] = {}
    for run, config in zip(runs, settings, strict=True):
        method = run.summary["method"]
        told = [f"{key}={shown(config[key])}" for key in varying if key in config and belongs(key, method)]
        row = rows.setdefault(" ".join([method, *told]), [])
        if twice := [other for other in row if other.key == run.key]:
            raise ComparisonError(
                f"{run.path} and {twice[0].path} are the same run (method, settings, seed and split "
                "agree), which would count it twice. Leave one out"
            )
        row.append(run)
    return rows


def _check_splits(rows: Mapping[str, Sequence[Run]], allowed: bool) -> bool:
    """Whether every row rests on the same known splits; raises if not and that is not allowed."""
    hashes = {label: {run.summary["split_hash"] for run in row} for label, row in rows.items()}
    first = next(iter(hashes))
    for label, row in hashes.items():
        if (row != hashes[first] or "" in row) and not allowed:
            named = [" + ".join(sorted(h[:12] or "unknown" for h in hashes[name])) for name in (first, label)]
            raise ComparisonError(
                f"expected every row to rest on the same splits, but {first!r} has split {named[0]} "
                f"and {label!r} has {named[1]}. Run all methods with the same data, partition, clients and "
                "seeds, or compare them all the same with --different-splits"
            )
    return len({frozenset(row) for row in hashes.values()}) == 1 and "" not in hashes[first]


def _table(rows: Mapping[str, Sequence[Run]], kind: Kind) -> tuple[Row, ...]:
    scored = {label: row for label, row in rows.items() if all(run.summary.get(kind) for run in row)}
    first = next(iter(rows.values()))
    return tuple(
        Row(
            label=label,
            seeds=tuple(run.summary["seed"] for run in row),
            clients=tuple(sorted({run.summary[kind]["n"] for run in row})),
            figures={name: _figure(row, kind, name) for name in FIGURES},
            difference=None if row is first else _difference(row, first, kind),
            held_out=_held_out(row) if kind == "served" else {},
        )
        for label, row in scored.items()
    )


def _figure(row: Sequence[Run], kind: Kind, name: str) -> Figure:
    raw = [run.summary[f"{kind}_raw"][name] for run in row if run.summary.get(f"{kind}_raw")]
    return _over_seeds([run.summary[kind][name] for run in row], mean(raw) if len(raw) == len(row) else None)


def _held_out(row: Sequence[Run]) -> dict[str, Figure]:
    """Figures over the clients kept out of training, where every run of the row has some."""
    tails = [run.held_out for run in row if run.held_out]
    return {name: _over_seeds([t[name] for t in tails]) for name in FIGURES} if len(tails) == len(row) else {}


def _over_seeds(values: Sequence[float], raw: float | None = None) -> Figure:
    return Figure(value=mean(values), std=stdev(values) if len(values) > 1 else None, raw=raw)


def _difference(row: Sequence[Run], first: Sequence[Run], kind: Kind) -> Difference | None:
    """Paired by split and seed; ``None`` where a pair is missing or its clients are not the same."""
    base = {run.key: run.accuracy[kind] for run in first}
    ours = {run.key: run.accuracy[kind] for run in row}
    if base.keys() != ours.keys() or any(not a or a.keys() != base[key].keys() for key, a in ours.items()):
        return None
    pairs = [paired_difference(a, base[key]) for key, a in ours.items()]
    if len(pairs) == 1:
        return Difference(pairs[0].bottom20, *pairs[0].bottom20_interval, over="clients")
    values = [pair.bottom20 for pair in pairs]
    from scipy.stats import t

    reach = float(t.ppf(0.975, len(values) - 1)) * stdev(values) / len(values) ** 0.5
    return Difference(mean(values), mean(values) - reach, mean(values) + reach, over="seeds")


def _caption(rows: Sequence[Row], runs: Sequence[Run], kind: Kind) -> str:
    """What the figures are: kind, BatchNorm rule, clients, seeds, and what the interval is over."""
    if not rows:
        return ""
    when = "before" if kind == "served" else "after"
    rules = {run.summary["run_config"].get("bn") for run in runs}
    raw = any(row.figures["mean"].raw is not None for row in rows)
    norm = "BatchNorm recomputed" if rules == {"recompute"} else "BatchNorm as each run's bn setting says"
    clients = " or ".join(str(n) for n in sorted({n for row in rows for n in row.clients}))
    seeds = sorted({len(row.seeds) for row in rows})
    many = seeds[-1] > 1
    parts = [
        f"{kind.capitalize()} accuracy in % ({when} local training) over {clients} clients, {norm}"
        + (" (in brackets: as averaged)" if raw else ""),
        f"{' or '.join(map(str, seeds))} seed{'s' if many else ''}"
        + (", mean ± std over seeds" if many else ""),
    ]
    if over := sorted({row.difference.over for row in rows if row.difference}):
        parts.append(f"difference paired with the first row, 95 % interval over {' or '.join(over)}")
    return "; ".join(parts) + "."


def render_text(comparison: Comparison) -> str:
    """Both tables as aligned plain text."""
    blocks = []
    for caption, table in _blocks(comparison):
        widths = [max(map(len, column)) for column in zip(*table, strict=True)]
        lines = [
            "  ".join(
                cell.ljust(w) if i == 0 else cell.rjust(w)
                for i, (cell, w) in enumerate(zip(cells, widths, strict=True))
            ).rstrip()
            for cells in table
        ]
        blocks.append("\n".join([caption, "", lines[0], "-" * max(map(len, lines)), *lines[1:]]))
    return "\n\n".join([*blocks, *comparison.notes]) + "\n"


def render_markdown(comparison: Comparison) -> str:
    """Both tables as Markdown."""
    blocks = []
    for caption, table in _blocks(comparison):
        lines = ["| " + " | ".join(cell.replace("|", r"\|") for cell in cells) + " |" for cells in table]
        rule = "|" + "|".join([" --- ", *[" ---: "] * (len(table[0]) - 1)]) + "|"
        blocks.append("\n".join([caption, "", lines[0], rule, *lines[1:]]))
    return "\n\n".join([*blocks, *(f"**{note}**" for note in comparison.notes)]) + "\n"


def _blocks(comparison: Comparison) -> list[tuple[str, list[list[str]]]]:
    """(caption, cells with the header first) of each table that has rows."""
    tables: tuple[tuple[Kind, tuple[Row, ...]], ...] = (
        ("served", comparison.served),
        ("adapted", comparison.adapted),
    )
    head = ["method", "seeds", "clients", "mean", "worst", "bottom 20 %", "bottom 20 %, difference"]
    outside = [f"held-out clients, {name}" for name in ("mean", "worst", "bottom 20 %")]
    blocks = []
    for kind, rows in tables:
        some = any(row.held_out for row in rows)
        if rows:
            blocks.append((comparison.captions[kind], [head + outside * some, *(_cells(row, some) for row in rows)]))
    return blocks


def _cells(row: Row, outside: bool) -> list[str]:
    """One line; with ``outside`` also the columns of the clients kept out of training."""
    gap = row.difference
    return [
        row.label,
        ", ".join(map(str, row.seeds)),
        " or ".join(map(str, row.clients)),
        *(_shown(row.figures[name]) for name in FIGURES),
        f"{100 * gap.value:+.1f} [{100 * gap.low:+.1f}, {100 * gap.high:+.1f}]" if gap else "–",
        *((_shown(row.held_out[name]) if row.held_out else "–" for name in FIGURES) if outside else ()),
    ]


def _shown(figure: Figure) -> str:
    std = f" ± {100 * figure.std:.1f}" if figure.std is not None else ""
    raw = f" ({100 * figure.raw:.1f})" if figure.raw is not None else ""
    return f"{100 * figure.value:.1f}{std}{raw}"
