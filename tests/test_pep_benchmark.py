"""The PEP-FedPT benchmark's configurations can be run, and what it keeps of a run is what the run's folder says."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from types import ModuleType

import pytest

from strategies.registry import parse_run_config

HERE = Path(__file__).parents[1] / "benchmarks" / "pep_fedpt"


def module(name: str, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """``name`` of the benchmark, whose modules import each other by their bare names."""
    for other in ("data", "figures", "pictures", "rows"):
        monkeypatch.delitem(sys.modules, other, raising=False)
    monkeypatch.setattr(sys, "path", list(sys.path))
    spec = importlib.util.spec_from_file_location(f"pep_benchmark_{name}", HERE / f"{name}.py")
    assert spec is not None and spec.loader is not None
    made = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, spec.name, made)
    spec.loader.exec_module(made)
    for other in ("data", "figures", "pictures", "rows"):
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
    # as many settings for every method
    assert {name: sum(of == name for of, _ in tried) for name in methods} == dict.fromkeys(methods, 3)
    for job in [*jobs, *(job for _, job in tried)]:
        run = parse_run_config(dict(job.settings)).run
        assert run.logit_prior and (run.held_out_count >= 5 or job.name.startswith("tune"))
    assert all(job.data.endswith("-tune.npz") for _, job in tried) and not any("tune" in job.data for job in jobs)


def test_what_is_kept_of_clients_and_rounds_by_hand(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    compare = module("compare", monkeypatch)
    (tmp_path / "split.json").write_text('{"train": {"a": [5, 5, 0], "b": [0, 0, 7]}}')
    (tmp_path / "clients.csv").write_text("client,group,n_train,n_test,classes,served,adapted,held_out,served_raw\n"
                                          "a,,10,9,2,0.5,,no,0.25\nb,,7,0,1,,,yes,\n")
    assert compare.clients_of(tmp_path) == {"a": {"served": 0.5, "served_raw": 0.25, "held_out": False, "entropy": 0.6931},
                                            "b": {"served": None, "served_raw": None, "held_out": True, "entropy": 0.0}}
    record = {"round": 1, "seconds": 2.0, "bytes": {"up": {"head": 60, "metrics": 4}}, "loss": {"a": 1.0, "b": 2.0}, "served": {},
              "mixture_accuracy": {"a": 0.5, "b": 0.25}, "mixture_accuracy_layer5": {"a": 0.5, "b": 1.0}}
    assert compare._round(record) == {"round": 1, "seconds": 2.0, "up": 64, "loss": 1.5, "mixture_accuracy": 0.375,
                                      "mixture_accuracy_layer5": 0.75, "drift": None}


def test_the_tables_and_pictures_lie_beside_each_other(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without clients and mixtures there is no picture and no link to one; with them both are small."""
    compare = module("compare", monkeypatch)
    tail = {"mean": 0.5, "bottom20": 0.4, "n": 3}
    moved = {"up": 400, "up_per_client_round": 200, "by_slot": {"up": {"head": 400}}}
    bare = {"served": tail, "served_raw": tail, "split_hash": "cafe", "wall_seconds": 1.0, "bytes": moved,
            "rounds": [{"round": 1, "up": 400}]}
    results = [{"name": f"pacs {row} seed 0", **bare} for row in ("pep-fedpt", "fedvpt")]
    text = compare.write_down(results, tmp_path / "compare")
    assert "![" not in text and [path.name for path in tmp_path.iterdir()] == ["compare.md"]
    told = {"rounds": [{"round": 1, "up": 400, "mixture_accuracy": 0.5, "mixture_accuracy_layer5": 0.5}],
            "clients": {name: {"served": 0.5, "served_raw": 0.5, "held_out": name == "b", "entropy": 0.5} for name in "ab"}}
    text = compare.write_down([{**result, **told} for result in results], tmp_path / "compare")
    assert (tmp_path / "compare.md").read_text() == text
    for name in ("gain", "mixture"):
        drawn = (tmp_path / f"compare-{name}.png").read_bytes()
        assert f"](compare-{name}.png)" in text and drawn.startswith(b"\x89PNG") and len(drawn) < 150_000
