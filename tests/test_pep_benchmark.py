"""The PEP-FedPT benchmark's configurations can be run, and its table says what its runs say."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from strategies.registry import parse_run_config

HERE = Path(__file__).parents[1] / "benchmarks" / "pep_fedpt"


def module(name: str, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """``name`` of the benchmark, whose modules import each other by their bare names."""
    for other in ("data", "rows"):
        monkeypatch.delitem(sys.modules, other, raising=False)
    monkeypatch.setattr(sys, "path", list(sys.path))
    spec = importlib.util.spec_from_file_location(f"pep_benchmark_{name}", HERE / f"{name}.py")
    assert spec is not None and spec.loader is not None
    made = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, spec.name, made)
    spec.loader.exec_module(made)
    for other in ("data", "rows"):
        sys.modules.pop(other, None)
    return made


@pytest.mark.parametrize("full", [False, True])
def test_every_planned_run_can_be_run(full: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    compare = module("compare", monkeypatch)
    base = {**compare.LITE, **(compare.FULL if full else {})}
    methods = list(compare.METHODS)
    jobs = compare.planned(list(compare.TASKS), methods, True, [0, 1, 2], base, {})
    assert len(jobs) == 3 * (len(compare.TASKS) * len(methods) + len(compare.ABLATIONS)) and len({job.name for job in jobs}) == len(jobs)
    tried = list(compare.searches("cifar10", methods, base))
    # the same search for every method that has prompts
    assert {name: sum(of == name for of, _ in tried) for name in methods} == {name: 3 if name == "head-only" else 9 for name in methods}
    for job in [*jobs, *(job for _, job in tried)]:
        run = parse_run_config(dict(job.settings)).run
        assert run.logit_prior and (run.held_out_count >= 5 or job.name.startswith("tune"))
    assert all(job.data.endswith("-tune.npz") for _, job in tried) and not any("tune" in job.data for job in jobs)


def result(name: str, raw: float, prior: float, outside: dict[str, Any]) -> dict[str, Any]:
    def tail(mean: float) -> dict[str, float]:
        return {"mean": mean, "bottom20": mean - 0.1}

    return {"name": name, "served": tail(prior), "served_raw": tail(raw), "held_out": outside, "wall_seconds": 60.0,
            "bytes": {"up": 4100 * 30, "up_per_client_round": 4100, "by_slot": {"up": {"head": 4000 * 30, "metrics": 100 * 30}}}}


def test_the_table_by_hand(monkeypatch: pytest.MonkeyPatch) -> None:
    compare = module("compare", monkeypatch)
    outside = {"tails_raw": {"mean": 0.45}, "tails": {"mean": 0.7}}
    told = compare.table([result("cifar10 pep-fedpt seed 0", 0.5, 0.8, outside), result("cifar10 pep-fedpt seed 1", 0.6, 0.8, outside),
                          result("cifar10 at 25 % fedvpt seed 0", 0.3, 0.7, outside),
                          result("cifar10 pfedpg seed 0", 0.3, 0.7, {"cannot_serve": True})])
    assert "| pep-fedpt | 2 | 55.0 ± 63.5 | 45.0 ± 63.5 | 80.0 ± 0.0 | 70.0 ± 0.0 | 10.0 ± 63.5 | 10.0 ± 0.0 | 1,000 | 60 |" in told
    assert "| pfedpg | 1 | 30.0 | 20.0 | 70.0 | 60.0 | cannot serve | cannot serve | 1,000 | 60 |" in told
    assert told.index("### cifar10\n") < told.index("### cifar10 at 25 %") < told.index("| fedvpt | 1 |")
