"""Finished runs side by side: served figures in one table, adapted ones in another, never mixed unless told.

Runs that differ in nothing but their seed (and in how fast or where they ran) are one row. Its figures are
averaged over seeds, each figure being one over clients first (METHODS 1.4). Our choices: runs over different
splits are refused, since a split can move a tail more than a method does; differences to the first row are
paired. With one seed their 95 % interval resamples clients, with several it is Student's t over the seeds'
differences, since seeds are then what varies. ``server_app.compare_tables`` writes the tables down.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import mean, stdev
from typing import Any, Literal

from server_app.finished import FIGURES, ComparisonError, Run, read_run, visible
from server_app.reproduce import belongs, shown
from server_app.sections import AVERAGED, raw_words
from strategies.config import nearest
from strategies.data_warnings import counted
from strategies.tails import paired_difference, t_reach

Kind = Literal["served", "adapted"]
KINDS: tuple[Kind, ...] = ("served", "adapted")
# how fast and where a run ran; the rows of a table should not split over it
SPEED = frozenset({"seed", "method", "threads", "deadline", "score-batch", "channels-last", "device",
                   "checkpointing", "features-dir", "resident-share", "tracker", "metrics-port", "metrics-host", "donor-swap"})
MIXED = "SERVED and ADAPTED figures are MIXED in this table: the adapted ones come after local training, which alone may be the difference."
OTHER_SPLITS = "The runs rest on DIFFERENT SPLITS: a difference may come from the data, not the method."


@dataclass(frozen=True)
class Figure:
    """A share in 0..1, averaged over seeds; ``std`` (sample deviation) from two on, ``raw`` if scored."""

    value: float
    std: float | None
    raw: float | None


@dataclass(frozen=True)
class Difference:
    """A figure of a row minus the first row's, with its 95 % interval over ``over``."""

    value: float
    low: float
    high: float
    over: Literal["clients", "seeds"]


@dataclass(frozen=True)
class Row:
    """One method with its distinguishing settings: ``figures`` by name (mean, worst, bottom20), paired ``differences`` to
    the first row by name (mean, bottom20; none in the first row, or if its clients are others), and the figures of the
    clients kept out of training in ``held_out``, empty if there are none.
    """

    label: str
    kind: Kind
    seeds: tuple[int, ...]
    clients: tuple[int, ...]
    figures: Mapping[str, Figure]
    differences: Mapping[str, Difference]
    held_out: Mapping[str, Figure] = field(default_factory=dict)


@dataclass(frozen=True)
class Comparison:
    """Tables by what they hold (``served``, ``adapted``, or ``mixed`` if asked for), their captions, and what must be said
    beside them: ``notes`` on all of it, ``remarks`` on single rows. A table is empty if no run was scored so.
    """

    tables: Mapping[str, tuple[Row, ...]]
    captions: Mapping[str, str]
    notes: tuple[str, ...] = ()
    remarks: tuple[str, ...] = ()
    same_splits: bool = True


@dataclass(frozen=True)
class _Group:
    """Runs that make up a row, and which of their figures it shows."""

    runs: list[Run]
    kind: Kind


def compare(runs: Sequence[Path], allow_different_splits: bool = False, allow_mixed: bool = False) -> Comparison:
    """Compare finished runs, given by their folders (or their summary.json); the first row is the reference.

    ``DIR@served`` and ``DIR@adapted`` ask for one kind of figures, in one table; a folder without either then counts as
    served. Without any, both kinds are shown, a table each.

    Raises
    ------
    ComparisonError
        If a summary is missing or damaged, a run is given twice or lacks the figures asked for, the rows do not rest on the
        same splits and ``allow_different_splits`` is false, or served and adapted figures are asked for together and
        ``allow_mixed`` is false.
    """
    if not runs:
        raise ComparisonError("expected at least one run folder, got none")
    asked = [_asked(path) for path in runs]
    read = [read_run(path) for path, _ in asked]
    kinds = {kind or "served" for _, kind in asked} if any(kind for _, kind in asked) else set()
    if len(kinds) > 1 and not allow_mixed:
        raise ComparisonError(_refused_mix(asked))
    notes = (MIXED,) if len(kinds) > 1 else ()
    rows = _grouped(read, [kind or "served" for _, kind in asked], mixed=len(kinds) > 1)
    same_splits = _check_splits(rows, allow_different_splits)
    notes += () if same_splits else (OTHER_SPLITS,)
    remarks = tuple(filter(None, (_remark(label, group, (group.kind,) if kinds else KINDS) for label, group in rows.items())))
    if kinds:
        _check_scored(rows)
        tables = {"mixed" if len(kinds) > 1 else kinds.pop(): _table(rows)}
    else:
        tables = {kind: _table({label: _Group(group.runs, kind) for label, group in rows.items()}) for kind in KINDS}
    return Comparison(tables, {name: _caption(table, read, name) for name, table in tables.items()}, notes, remarks, same_splits)


def _asked(path: Path) -> tuple[Path, Kind | None]:
    """A run's folder and the kind of figures asked for, if any."""
    folder, _, asked = str(path).rpartition("@")
    if path.exists() or "@" not in path.name:
        return path, None
    for kind in KINDS:
        if asked == kind:
            return Path(folder), kind
    if Path(folder).exists():
        raise ComparisonError(f"{path}: expected RUN, RUN@served or RUN@adapted, got {asked!r} after the @{nearest(asked, KINDS)}")
    return path, None


def _refused_mix(asked: Sequence[tuple[Path, Kind | None]]) -> str:
    one, other = (next(path for path, kind in asked if (kind or "served") == wanted) for wanted in KINDS)
    return (f"expected figures of one kind, but {one} is to be served and {other} adapted: adapted figures come after local training "
            "and are no rivals of served ones. Ask for one kind (RUN@served or RUN@adapted for all), or compare them all the same with "
            "--mix-served-adapted")


def _check_scored(rows: Mapping[str, _Group]) -> None:
    """Raise for the first run that lacks the figures asked for."""
    for group in rows.values():
        for run in group.runs:
            if not run.summary.get(group.kind):
                raise ComparisonError(f"{run.path} holds no {group.kind} figures; leave it out, or run it again with score-adapted=last")


def _grouped(runs: Sequence[Run], kinds: Sequence[Kind], mixed: bool) -> dict[str, _Group]:
    """Label -> runs that differ in their seed only, both in the order given."""
    settings = [run.settings for run in runs]
    keys = {key for config in settings for key in config if key not in SPEED}
    varying = sorted(key for key in keys if len(_values(key, runs, settings)) > 1)
    rows: dict[str, _Group] = {}
    for run, config, kind in zip(runs, settings, kinds, strict=True):
        method = run.summary["method"]
        told = [f"{key}={shown(config[key])}" for key in varying if config.get(key, "") != ""]
        label = " ".join([method, *told, *([f"({kind})"] if mixed else [])])
        row = rows.setdefault(label, _Group([], kind)).runs
        if twice := [other for other in row if other.key == run.key]:
            raise ComparisonError(
                f"{run.path} and {twice[0].path} are the same run (method, settings, seed and split "
                "agree), which would count it twice. Leave one out"
            )
        row.append(run)
    return rows


def _values(key: str, runs: Sequence[Run], settings: Sequence[Mapping[str, Any]]) -> set[str]:
    """What the runs have set for ``key``, as JSON; "" where one lacks a setting of its own that has no known default."""
    return {json.dumps(config[key]) if key in config else "" for run, config in zip(runs, settings, strict=True)
            if key in config or belongs(key, run.summary["method"])}


def _remark(label: str, group: _Group, kinds: Sequence[Kind]) -> str:
    """A sentence on a row's void rounds and on its clients that have no score; "" if there are none."""
    told = [run.summary for run in group.runs]
    void, rounds = (sum(summary.get(key, 0) for summary in told) for key in ("void_rounds", "rounds"))
    parts = [f"{void} of {counted(rounds, 'round')} {'was' if void == 1 else 'were'} void"] if void else []
    for kind in kinds:
        if not all(summary.get(kind) for summary in told):
            continue  # the row is not in that table
        clients = sum(summary.get("clients", summary[kind]["n"]) for summary in told)
        if (lacking := clients - sum(summary[kind]["n"] for summary in told)) > 0:
            parts.append(f"{lacking} of {counted(clients, 'client')} {'has' if lacking == 1 else 'have'} no {kind} score")
    seeds = f" ({len(told)} seeds together)" if len(told) > 1 else ""
    return f"{label}{seeds}: {'; '.join(parts)}." if parts else ""


def _check_splits(rows: Mapping[str, _Group], allowed: bool) -> bool:
    """Whether every row rests on the same known splits; raises if not and that is not allowed."""
    hashes = {label: {run.summary["split_hash"] for run in row.runs} for label, row in rows.items()}
    first = next(iter(hashes))
    for label, row in hashes.items():
        if (row != hashes[first] or "" in row) and not allowed:
            named = [" + ".join(sorted(visible(h[:12]) or "unknown" for h in hashes[name])) for name in (first, label)]
            raise ComparisonError(
                f"expected every row to rest on the same splits, but {first!r} has split {named[0]} "
                f"and {label!r} has {named[1]}. Run all methods with the same data, partition, clients and "
                "seeds, or compare them all the same with --different-splits"
            )
    return len({frozenset(row) for row in hashes.values()}) == 1 and "" not in hashes[first]


def _table(rows: Mapping[str, _Group]) -> tuple[Row, ...]:
    scored = {label: row for label, row in rows.items() if all(run.summary.get(row.kind) for run in row.runs)}
    first = next(iter(rows.values()))
    return tuple(
        Row(
            label=label,
            kind=row.kind,
            seeds=tuple(run.summary["seed"] for run in row.runs),
            clients=tuple(sorted({run.summary[row.kind]["n"] for run in row.runs})),
            figures={name: _figure(row, name) for name in FIGURES},
            differences={} if row is first else _differences(row, first),
            held_out=_held_out(row.runs) if row.kind == "served" else {},
        )
        for label, row in scored.items()
    )


def _figure(row: _Group, name: str) -> Figure:
    raw = [run.summary[f"{row.kind}_raw"][name] for run in row.runs if run.summary.get(f"{row.kind}_raw") and _raw_words(run)]
    return _over_seeds([run.summary[row.kind][name] for run in row.runs], mean(raw) if len(raw) == len(row.runs) else None)


def _raw_words(run: Run) -> str:
    return raw_words(run.summary["method"], run.summary["run_config"])


def _held_out(row: Sequence[Run]) -> dict[str, Figure]:
    """Figures over the clients kept out of training, where every run of the row has some."""
    tails = [run.held_out for run in row if run.held_out]
    return {name: _over_seeds([t[name] for t in tails]) for name in FIGURES} if len(tails) == len(row) else {}


def _over_seeds(values: Sequence[float], raw: float | None = None) -> Figure:
    return Figure(value=mean(values), std=stdev(values) if len(values) > 1 else None, raw=raw)


def _differences(row: _Group, first: _Group) -> dict[str, Difference]:
    """Paired by split and seed; none where a pair is missing or its clients are not the same."""
    base = {run.key: run.accuracy[first.kind] for run in first.runs}
    ours = {run.key: run.accuracy[row.kind] for run in row.runs}
    if base.keys() != ours.keys() or any(not a or a.keys() != base[key].keys() for key, a in ours.items()):
        return {}
    pairs = [paired_difference(a, base[key]) for key, a in ours.items()]
    if len(pairs) == 1:
        pair = pairs[0]
        return {"mean": Difference(pair.mean, *pair.mean_interval, over="clients"),
                "bottom20": Difference(pair.bottom20, *pair.bottom20_interval, over="clients")}
    return {"mean": _over_pairs([pair.mean for pair in pairs]), "bottom20": _over_pairs([pair.bottom20 for pair in pairs])}


def _over_pairs(values: Sequence[float]) -> Difference:
    """Student's t interval of the mean of the seeds' differences, two of them at least."""
    reach = t_reach(values)
    return Difference(mean(values), mean(values) - reach, mean(values) + reach, over="seeds")


def _caption(rows: Sequence[Row], runs: Sequence[Run], name: str) -> str:
    """What the figures are: kind, BatchNorm rule where there is one, clients, seeds, and what the interval is over."""
    if not rows:
        return ""
    told = {"served": "Served accuracy in % (before local training)", "adapted": "Adapted accuracy in % (after local training)",
            "mixed": "Accuracy in %, served (before local training) or adapted (after it)"}[name]
    rules = {run.summary["run_config"].get("bn") for run in runs if AVERAGED in _raw_words(run)}
    words = sorted({_raw_words(run) for run in runs} - {""}) if any(row.figures["mean"].raw is not None for row in rows) else []
    raw = "as averaged" if words == [AVERAGED] else " or ".join(words)
    norm = ", BatchNorm recomputed" if rules == {"recompute"} else ", BatchNorm as each run's bn setting says" if rules else ""
    clients = " or ".join(str(n) for n in sorted({n for row in rows for n in row.clients}))
    seeds = sorted({len(row.seeds) for row in rows})
    many = seeds[-1] > 1
    parts = [
        f"{told} over {counted(clients, 'client')}{norm}" + (f" (in brackets: {raw})" if raw else ""),
        counted(" or ".join(map(str, seeds)), "seed") + (", mean ± std over seeds" if many else ""),
    ]
    if over := sorted({gap.over for row in rows for gap in row.differences.values()}):
        parts.append(f"differences paired with the first row, 95 % interval over {' or '.join(over)}"
                     + (" (two seeds make very wide ones; take three or more)" if seeds == [2] and "seeds" in over else ""))
    return "; ".join(parts) + "."
