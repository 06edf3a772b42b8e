"""What the runs of the PEP-FedPT benchmark say together: its tables, and the points of its pictures. Pure.

A *row* is a method, or an ablation of PEP-FedPT. Accuracies are means over the clients that took part in training: ``served_raw``
without the client's log prior on the logits, ``served`` with it.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import mean
from typing import Any

from strategies.tails import t_reach

OURS, RIVAL, ABLATION = "pep-fedpt", "fedvpt", "ablation "
RAW, PRIOR = "served_raw", "served"
TARGET_SHARE = 0.9
# of a round: the share of samples whose class has the most of their mixture, and the same with "_layer5" and so on
MEAN_SHARE = "mixture_accuracy"
ACCURACY = ("method", "seeds", "mean", "bottom 20 %", "mean, prior", "bottom 20 %, prior", "held-out gap", "held-out gap, prior",
            "numbers up a reply")  # no times: runs share their cores with others

Result = Mapping[str, Any]
# row -> seed -> result
Rows = Mapping[str, Mapping[int, Result]]


@dataclass(frozen=True)
class Point:
    """A scored state: rounds trained until then, its mean accuracy, and the numbers that all clients had sent up."""

    round: int
    accuracy: float
    numbers: float


@dataclass(frozen=True)
class Gain:
    """What one client gains by PEP-FedPT over FedVPT, in points, without and with its prior; the entropy of its labels in nats."""

    task: str
    entropy: float
    raw: float
    prior: float
    held_out: bool


@dataclass(frozen=True)
class Mixture:
    """Mixture accuracy of a row by round, a mean over seeds: at one layer, or ("") over all layers."""

    task: str
    row: str
    layer: str
    rounds: tuple[int, ...]
    shares: tuple[float, ...]


def grouped(results: Iterable[Result], tasks: Collection[str]) -> dict[str, dict[str, dict[int, Result]]]:
    """By task (as ``tasks`` has them), row (PEP-FedPT first, ablations last) and seed, as a result's name says."""
    found: dict[str, dict[str, dict[int, Result]]] = {}
    for result in results:
        name, _, seed = result["name"].rpartition(" seed ")
        task = max((task for task in tasks if name.startswith(f"{task} ")), key=len)
        found.setdefault(task, {}).setdefault(name.removeprefix(f"{task} "), {})[int(seed)] = result

    def place(row: str) -> tuple[bool, bool]:
        return row.startswith(ABLATION), row != OURS

    return {task: {row: found[task][row] for row in sorted(found[task], key=place)} for task in tasks if task in found}


def label_entropy(counts: Sequence[int]) -> float:
    """Entropy in nats of samples a class (C,); 0 of none."""
    n = sum(counts)
    return sum(count / n * math.log(n / count) for count in counts if count)


def curve(result: Result, key: str) -> list[Point]:
    """The states of a run that were scored, the last one by the closing evaluation; a round's score precedes its training.

    Only tensors count as sent. A run's metrics are taken off in proportion, so the last point is exact.
    """
    up, sent, points = result["bytes"]["up"], 0.0, []
    each = (up - result["bytes"]["by_slot"]["up"].get("metrics", 0)) / up / 4
    for record in result["rounds"]:
        if key in record:
            points.append(Point(record["round"] - 1, record[key], sent))
        sent += each * record["up"]
    return [*points, Point(result["rounds"][-1]["round"], result[key]["mean"], sent)]


def mean_curve(runs: Iterable[Result], key: str) -> list[Point]:
    """The mean over seeds of the states that all of them scored."""
    curves = [{point.round: point for point in curve(run, key)} for run in runs]
    shared = sorted(set.intersection(*map(set, curves)))
    return [Point(at, mean(c[at].accuracy for c in curves), mean(c[at].numbers for c in curves)) for at in shared]


def target(rows: Rows, key: str) -> float:
    """``TARGET_SHARE`` of the best method's closing accuracy, a mean over its seeds; ablations set no target. 0 without a method."""
    methods = [runs.values() for row, runs in rows.items() if not row.startswith(ABLATION)]
    return TARGET_SHARE * max((mean(run[key]["mean"] for run in runs) for runs in methods), default=0.0)


def reached(points: Iterable[Point], wanted: float) -> Point | None:
    """The first state that is as accurate as ``wanted``."""
    return next((point for point in points if point.accuracy >= wanted), None)


def differences(ours: Mapping[int, Result], others: Mapping[int, Result], key: str) -> list[float]:
    """Mean accuracy of ``ours`` less that of ``others``, for each seed that both have.

    Raises ``ValueError`` if the two of a seed were not on the same split.
    """
    seeds = sorted(ours.keys() & others.keys())
    for one, other in ((ours[seed], others[seed]) for seed in seeds):
        if one["split_hash"] != other["split_hash"]:
            raise ValueError(f"expected {one['name']!r} and {other['name']!r} on the same split, got {one['split_hash'][:12]} and "
                             f"{other['split_hash'][:12]}; remove the results of older settings and run them again")
    return [ours[seed][key]["mean"] - others[seed][key]["mean"] for seed in seeds]


def interval(values: Sequence[float], sign: str = "") -> str:
    """Mean and 95 % t-interval, in points; the mean alone of one value. ``sign = "+"`` writes a plus too."""
    if not values:
        return "-"
    centre = f"{100 * mean(values):{sign}.1f}"
    if len(values) < 2:
        return centre
    return f"{centre} ± {100 * t_reach(values):.1f}"


def gains(tasks: Mapping[str, Rows]) -> list[Gain]:
    """Every client of every seed that PEP-FedPT and FedVPT share, if their runs' results tell of clients."""
    found = []
    for task, rows in tasks.items():
        mine, theirs = rows.get(OURS, {}), rows.get(RIVAL, {})
        for seed in sorted(mine.keys() & theirs.keys()):
            others = theirs[seed].get("clients") or {}
            for client, one in (mine[seed].get("clients") or {}).items():
                other = others.get(client) or {}
                raw, prior = ((one.get(key), other.get(key)) for key in (RAW, PRIOR))
                if None not in (*raw, *prior):
                    found.append(Gain(task, one["entropy"], 100 * (raw[0] - raw[1]), 100 * (prior[0] - prior[1]), one["held_out"]))
    return found


def mixtures(tasks: Mapping[str, Rows]) -> list[Mixture]:
    """Mixture accuracy of every row that has one: over all layers, then by layer where rounds tell it."""
    found = []
    for task, rows in tasks.items():
        for row, runs in rows.items():
            keys = dict.fromkeys(key for run in runs.values() for record in run["rounds"] for key in record if key.startswith(MEAN_SHARE))
            for key in sorted(keys, key=lambda name: (len(name), name)):
                by_round = [{record["round"]: record[key] for record in run["rounds"] if key in record} for run in runs.values()]
                rounds = tuple(sorted(set.intersection(*map(set, by_round))))
                shares = tuple(mean(told[at] for told in by_round) for at in rounds)
                found.append(Mixture(task, row, key.removeprefix(MEAN_SHARE).lstrip("_"), rounds, shares))
    return [each for each in found if each.rounds]


def table(tasks: Mapping[str, Rows]) -> str:
    """Markdown: two tables a task, and who took part."""
    lines = []
    for task, rows in tasks.items():
        goals = {key: target(rows, key) for key in (RAW, PRIOR)}
        lines += ["", f"### {task}", "", took_part(rows), "", *_header(ACCURACY), *(accuracy_line(row, runs) for row, runs in rows.items())]
        until = [f"numbers up until {100 * goals[key]:.1f} %{also}" for key, also in ((RAW, ""), (PRIOR, ", prior"))]
        lines += ["", *_header(["method", *until, f"{OURS} less this", f"{OURS} less this, prior"]),
                  *(cost_line(row, runs, goals, rows.get(OURS, {})) for row, runs in rows.items())]
    return "\n".join(lines).strip() + "\n"


def _header(names: Sequence[str]) -> list[str]:
    return [f"| {' | '.join(names)} |", "|" + "---|" * len(names)]


def took_part(rows: Rows) -> str:
    """Clients, rounds and seeds, in a line; several numbers where runs differ."""
    runs = [run for by_seed in rows.values() for run in by_seed.values()]

    def told(values: Iterable[int], between: str = " or ") -> str:
        return between.join(map(str, sorted(set(values))))

    outside = told(len((run.get("held_out") or {}).get("clients", ())) for run in runs)
    return (f"Clients: {told(run[PRIOR]['n'] for run in runs)} in training, {outside} held out; "
            f"rounds: {told(run['rounds'][-1]['round'] for run in runs)}; seeds: {told((s for r in rows.values() for s in r), ', ')}.")


def accuracy_line(row: str, runs: Mapping[int, Result]) -> str:
    """Without and with the prior; the gap is participants minus held-out clients."""
    each = list(runs.values())
    cells = [interval([r[key][figure] for r in each]) for key in (RAW, PRIOR) for figure in ("mean", "bottom20")]
    for key, tails in ((RAW, "tails_raw"), (PRIOR, "tails")):
        if any((r.get("held_out") or {}).get("cannot_serve") for r in each):
            cells.append("cannot serve")
        else:
            known = [r for r in each if (r.get("held_out") or {}).get(tails)]
            cells.append(interval([r[key]["mean"] - r["held_out"][tails]["mean"] for r in known]))
    seeds = ", ".join(map(str, sorted(runs)))
    return f"| {' | '.join([row, seeds, *cells, f'{mean(map(numbers_up, each)):,.0f}'])} |"


def cost_line(row: str, runs: Mapping[int, Result], goals: Mapping[str, float], ours: Mapping[int, Result]) -> str:
    """What the targets cost (and after how many rounds they were seen to be reached), and the paired differences from PEP-FedPT."""
    cells = []
    for key, wanted in goals.items():
        at = reached(mean_curve(runs.values(), key), wanted)
        cells.append(f"{at.numbers:,.0f} (round {at.round})" if at else "not reached")
    apart = ["" if row == OURS else interval(differences(ours, runs, key), "+") for key in goals]
    return f"| {' | '.join([row, *cells, *apart])} |"


def numbers_up(result: Result) -> float:
    """Numbers that a reply's tensors hold, headers of 128 bytes a tensor among them."""
    moved = result["bytes"]
    replies = moved["up"] / moved["up_per_client_round"]
    return (moved["up"] - moved["by_slot"]["up"].get("metrics", 0)) / replies / 4
