"""The tables of the FedIA benchmark, from what runs left: a table a task, every row against FedIA, paired by seed."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from statistics import mean
from typing import Any

from strategies.tails import t_reach

Result = Mapping[str, Any]
HEAD = ("row", "seeds", "mean", "bottom 20 %", "worst", "mean, prior", "FedIA less this", "with the prior", "better of both",
        "held-out", "joined", "novel", "numbers up a reply", "gate spread", "shared patches")  # no times: results are of several machines


def tables(results: Iterable[Result]) -> str:
    """Markdown: served accuracy in points with 95 % t-intervals, without and with the client's class prior."""
    grouped: dict[str, dict[str, dict[int, Result]]] = {}
    for result in results:
        grouped.setdefault(f"{result['task']}, {result['shots']}", {}).setdefault(result["row"], {})[result["seed"]] = result
    lines: list[str] = []
    for task, rows in sorted(grouped.items()):
        lines += ["", f"### {task}", "", f"| {' | '.join(HEAD)} |", "|" + "---|" * len(HEAD)]
        lines += [line(name, runs, rows.get("fed-ia", {})) for name, runs in rows.items()]
    return "\n".join(lines).strip() + "\n"


def line(name: str, runs: Mapping[int, Result], ours: Mapping[int, Result]) -> str:
    """One row."""
    each = list(runs.values())
    cells = [interval([score(r, key, figure) for r in each]) for key, figure in
             (("served_raw", "mean"), ("served_raw", "bottom20"), ("served_raw", "worst"), ("served", "mean"))]
    pairs = [(ours[seed], result) for seed, result in runs.items() if seed in ours] if name != "fed-ia" else []
    cells += [interval([how(mine) - how(other) for mine, other in pairs]) for how in (raw, with_prior, best)]
    cells += [interval([100 * value for r in each if (value := r.get(key)) is not None]) for key in ("held_out_mean", "joined", "novel")]
    figures = [average([r[key] for r in each if r.get(key) is not None]) for key in ("gate_spread", "patch_overlap")]
    sent = mean(r["numbers_up"] for r in each)
    return f"| {' | '.join([name, str(len(each)), *cells, f'{sent:,.0f}', *figures])} |"


def raw(result: Result) -> float:
    """Served mean without the prior, in points."""
    return score(result, "served_raw", "mean")


def with_prior(result: Result) -> float:
    """Served mean with the prior, in points."""
    return score(result, "served", "mean")


def best(result: Result) -> float:
    """The better of the two: what a user who may choose would get."""
    return max(raw(result), with_prior(result))


def score(result: Result, key: str, figure: str) -> float:
    """A figure over clients, in points."""
    return 100 * result[key][figure]


def interval(values: list[float]) -> str:
    """Mean and 95 % t-interval."""
    if not values:
        return "-"
    if len(values) == 1:
        return f"{values[0]:.1f}"
    return f"{mean(values):.1f} ± {t_reach(values):.1f}"


def average(values: list[float]) -> str:
    """The mean, or a dash."""
    return f"{mean(values):.3f}" if values else "-"
