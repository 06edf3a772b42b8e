"""The HDC-FL benchmark's sweep as a process: runs end with it, leftovers go, bad input is refused before anything is trained."""

from __future__ import annotations

import argparse
import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from benchmarks.hdc_fl import donor_swap, one_run, paired, parts, process, running, sweep, tables
from benchmarks.hdc_fl.configurations import CONFIGURATIONS, GRID, OURS, ZERO, planned
from benchmarks.hdc_fl.grid import grid_of
from benchmarks.hdc_fl.images import Images, NoImages, prepared
from benchmarks.hdc_fl.results import MixedResults, check_comparable, read, read_all, write
from tests.hdc_results import NAMED, ROOT, content, result

PARENT = """
import sys
from benchmarks.hdc_fl.process import run_until_gone
run_until_gone(["tests.test_hdc_sweep", sys.argv[1]], {})
"""


def test_a_run_ends_with_its_sweep_by_kill_9(tmp_path: Path) -> None:
    told = tmp_path / "pid"
    parent = subprocess.Popen([sys.executable, "-c", PARENT, str(told)], cwd=ROOT)
    while not told.exists() or not told.read_text():
        time.sleep(0.05)
    child = int(told.read_text())
    assert process._alive(child)
    parent.send_signal(signal.SIGKILL)
    parent.wait()
    until = time.monotonic() + 30
    while process._alive(child) and time.monotonic() < until:
        time.sleep(0.05)
    assert not process._alive(child)


def test_what_a_dead_sweep_left_goes_and_what_a_living_one_has_stays(tmp_path: Path) -> None:
    gone = subprocess.Popen([sys.executable, "-c", ""])
    gone.wait()
    (tmp_path / f"a.of-{gone.pid}.job").touch()
    (tmp_path / f"run.of-{gone.pid}.xyz").mkdir()
    for name in (process.owned("b", "job"), "lite-ten-450x400.npz"):
        (tmp_path / name).touch()
    process.sweep_out(tmp_path)
    assert sorted(path.name for path in tmp_path.iterdir()) == [f"b.of-{os.getpid()}.job", "lite-ten-450x400.npz"]


def test_any_fault_of_one_run_leaves_the_others_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    jobs = planned("lite", (1,), ("fedper", "fedavg", "cfl"), (0,), {}, {})

    def run(job: Any, bench: running.Bench) -> Any:
        if job.row == "fedper":
            raise OSError(28, "No space left on device")
        if job.row == "cfl":
            raise KeyError("served")
        write(bench.results / f"{job.name}.json", content(1, job.row, 0, [0.5, 0.7]))
        return read(bench.results / f"{job.name}.json")

    monkeypatch.setattr(running, "run", run)
    monkeypatch.setattr(running, "prepared", lambda *_: Images(tmp_path, "images", "d"))
    failed = running.run_all(jobs, running.Bench(tmp_path, tmp_path, tmp_path / "runs"))
    assert sorted(failed) == ["1_cfl_seed_0: KeyError('served')", "1_fedper_seed_0: OSError(28, 'No space left on device')"]
    assert [r.row for r in read_all(tmp_path / "runs")] == ["fedavg"]


def test_a_run_that_another_sweep_made_is_not_made_again(tmp_path: Path) -> None:
    (job,) = planned("lite", (1,), ("fedper",), (0,), {}, {})
    write(tmp_path / f"{job.name}.json", content(1, "fedper", 0, [0.5]))
    assert running.run(job, running.Bench(tmp_path, tmp_path, tmp_path)).served.tolist() == [0.5]  # there is no image to train on


def test_other_images_are_refused_before_anything_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    result(1, "fedper", 0, [0.5], tmp_path)
    monkeypatch.setattr(running, "prepared", lambda *_: Images(tmp_path, "CIFAR-10", "e"))
    monkeypatch.setattr(running, "run", lambda *_: pytest.fail("nothing should run"))
    with pytest.raises(MixedResults, match=r"1_fedper_seed_0 .* CIFAR-10 \(12,000 images\) \(digest d\), .* CIFAR-10 \(e\): move"):
        running.run_all(planned("lite", (2,), ("fedavg",), (0,), {}, {}), running.Bench(tmp_path, tmp_path / "work", tmp_path))
    # nor do tables take them, whatever the configuration or seed
    runs = [*read_all(tmp_path), result(3, "fedper", 1, [0.5], tmp_path, images={"title": "CIFAR-10 (12,000 images)", "digest": "e"})]
    with pytest.raises(MixedResults, match="different images"):
        check_comparable(runs)


@pytest.mark.parametrize(("words", "told"), [
    (["--jobs", "0"], "expected a whole number, 1 or more, got '0'"), (["--rounds", "0"], "expected a whole number, 1 or more, got '0'"),
    (["--limit-samples", "-1"], "expected a whole number, 1 or more, got '-1'"), (["--set", "nonsense"], "KEY=VALUE"),
    (["--set", "nonsense=3"], r"1_fedper_seed_0: .*nonsense"), (["--set", "method=fedavg"], "--set cannot change method"),
    (["--seeds", "-1"], r"1_fedper_seed_-1: .*seed"), (["--rows", "hdc-fl random"], "no runs of their own, .*of hdc-fl"),
    (["--untuned"], "not the benchmark's"), (["--results", "/proc/nix"], "nix"),
], ids=lambda found: found if isinstance(found, str) else " ".join(found))
def test_bad_words_are_refused_before_anything_runs(words: list[str], told: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
                                                    capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(running, "run", lambda *_: pytest.fail("nothing should run"))
    monkeypatch.setenv("FEDHEARTH_DATA", str(tmp_path))
    asked = ["sweep", "--work", str(tmp_path / "work"), "--configurations", "1", "--rows", "fedper", *words]
    monkeypatch.setattr(sys, "argv", asked)
    with pytest.raises(SystemExit) as left:
        sweep.main()
    assert re.search(told, f"{left.value} {capsys.readouterr().err}")


@pytest.mark.parametrize(("jobs", "gpus", "expected"), [(None, ["0", "1"], 2), (4, ["0", "1"], 4), (None, [], os.cpu_count()), (1, [], 1)])
def test_by_default_a_gpu_has_one_run(jobs: int | None, gpus: list[str], expected: int, tmp_path: Path,
                                      monkeypatch: pytest.MonkeyPatch) -> None:
    parser = argparse.ArgumentParser()
    sweep.arguments(parser)
    words = ["--work", str(tmp_path), "--dry", *(["--jobs", str(jobs)] if jobs else []), *(["--gpus", *gpus] if gpus else [])]
    bench, _ = sweep.bench_of(parser.parse_args(words), "runs")
    assert bench.jobs == expected
    assert sorted(bench.slots.get() for _ in range(bench.jobs)) == sorted((gpus * expected)[:expected] if gpus else [""] * expected)


def test_damaged_image_files_are_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "cifar10_sub12k.npz").write_bytes(b"PK nonsense")
    with pytest.raises(NoImages, match="cifar10_sub12k.npz in FEDHEARTH_DATA is damaged"):
        prepared("lite", "ten", False, tmp_path, tmp_path / "work")
    (tmp_path / "work" / "lite-ten-cifar10_sub12k-450x400.npz").touch()
    with pytest.raises(NoImages, match="is damaged: delete it"):
        prepared("lite", "ten", False, tmp_path, tmp_path / "work")


@pytest.mark.parametrize("damage", [
    lambda told: told.pop("settings"), lambda told: told["machine"].pop("gpu"), lambda told: told["clients"].pop("n_train"),
    lambda told: told["clients"].update(served=[0.5, 73.0]), lambda told: told["clients"].update(served=["0.5", 0.5]),
    lambda told: told["clients"].update(adapted=[0.5]), lambda told: told["clients"].update(served=[[0.5], [0.5]]),
    lambda told: told["settings"].update(seed=3), lambda told: told.update(configuration="1"),
])
def test_a_result_that_is_not_whole_is_damaged(damage: Any, tmp_path: Path) -> None:
    path = tmp_path / "1_fedper_seed_0.json"
    told = content(1, "fedper", 0, [0.5, 0.6])
    write(path, told)
    assert read(path).served.tolist() == [0.5, 0.6]
    damage(told)
    write(path, told)
    with pytest.raises(MixedResults, match="1_fedper_seed_0.json is damaged .*delete it"):
        read(path)


def test_a_copied_result_does_not_count_twice(tmp_path: Path) -> None:
    write(tmp_path / "1_fedper_seed_0 copy.json", content(1, "fedper", 0, [0.5]))
    with pytest.raises(MixedResults, match="holds 1_fedper_seed_0: a copy counts twice"):
        read_all(tmp_path)


def test_tables_of_a_look_do_not_replace_the_benchmarks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    runs = tmp_path / "runs"
    for row in (OURS, "fedper"):
        result(1, row, 0, [0.5, 0.7], runs)
    monkeypatch.setattr(tables, "HERE", tmp_path / "bench")
    monkeypatch.setattr(sys, "argv", ["tables", "--results", str(runs)])
    tables.main()
    told = (runs / "tables.md").read_text()
    assert not (tmp_path / "bench").exists()
    assert told.startswith("# HDC-FL beside its rivals, lite scale, only a look\n")  # of 200 images
    assert "Of CIFAR-10 (12,000 images), 200 images to train on and 100 to test on. Every method" in told


def test_nothing_to_put_in_tables_is_told(tmp_path: Path) -> None:
    with pytest.raises(MixedResults, match="nothing to put in tables"):
        tables.report([result(0, "fedper", 0, [0.5], tmp_path)], {}, "lite")
    # no seed in common: no figure, and both are named
    apart = [result(1, "fedper", 0, [0.5], tmp_path), result(1, "fedavg", 1, [0.5], tmp_path)]
    grid = grid_of(apart, ("fedper", "fedavg"), "served", NAMED)
    assert (grid.cells, grid.lost) == ({}, (1,)) and "no seed or client has a score of every method: 1." in parts.left_out(grid)
    told, grids = tables.report(apart, {}, "lite")
    assert not grids[0].cells and "a method delivers\n\nIn no table, since no seed or client has a score of every method: 1." in told


def test_a_run_of_other_settings_in_the_kept_folder_is_told_apart(tmp_path: Path) -> None:
    told = {"settings": {"lr": 0.1, "seed": 1}, "images": {"path": "/images.npz"}}
    had = {"lr": 0.1, "seed": 1, "dataset": "npz:/images.npz", "batch": 50}
    for config, same in ((had, True), ({**had, "lr": 0.2}, False), ({**had, "dataset": "npz:/other.npz"}, False)):
        (tmp_path / "summary.json").write_text(json.dumps({"run_config": config}))
        assert one_run.same_run(tmp_path, told) == same


def test_only_the_benchmarks_own_runs_become_its_donor_swaps(tmp_path: Path) -> None:
    recorded = json.loads((ROOT / "benchmarks/hdc_fl/lite/runs/1_hdc-fl_seed_0.json").read_text())
    run = tmp_path / "1_hdc-fl_seed_0"
    run.mkdir()
    for config, split, told in ((recorded["settings"], recorded["split_hash"], ""),
                                ({**recorded["settings"], "rounds": 1}, recorded["split_hash"], "rounds: 1, not 9"),
                                (recorded["settings"], "other", "another split")):
        (run / "summary.json").write_text(json.dumps({"run_config": config, "split_hash": split}))
        if told:
            with pytest.raises(MixedResults, match=told):
                donor_swap.check_recorded(run)
        else:
            donor_swap.check_recorded(run)
    with pytest.raises(MixedResults, match="has no result"):
        donor_swap.check_recorded(tmp_path / "1_hdc-fl_seed_77")


def test_the_same_clients_are_drawn_together_whatever_is_beside_them() -> None:
    """A seed of one configuration alone, and the same among three of another: where only that seed is drawn, the same draws."""
    ours = np.arange(8.0)[None] / 8
    alone = paired.difference(ours, np.zeros((1, 8)), "mean", seed=3, seeds=(1,), draws=300)
    among = paired.difference(np.repeat(ours, 2, 0), np.zeros((2, 8)), "mean", seed=3, seeds=(0, 1), draws=300)
    rows = np.random.default_rng([3, 2]).integers(2, size=(300, 2))
    first = [np.random.default_rng([3, 1, 0]).integers(8, size=(300, 8)), np.random.default_rng([3, 1, 1]).integers(8, size=(300, 8))]
    assert np.allclose(alone.draws, first[0].mean(1) / 8)
    both = (rows == 1).all(1)
    assert both.any() and np.allclose(among.draws[both], (first[0].mean(1)[both] + first[1].mean(1)[both]) / 16)
    other = paired.difference(ours, np.zeros((1, 8)), "mean", seed=3, seeds=(2,), draws=300)
    assert abs(np.corrcoef(alone.draws, other.draws)[0, 1]) < 0.2  # another seed's clients are other people


def test_every_configuration_is_in_the_grid_but_the_one_without_heterogeneity() -> None:
    assert {*GRID, ZERO} == CONFIGURATIONS.keys()


if __name__ == "__main__":
    process.end_with_parent()
    Path(sys.argv[1]).write_text(str(os.getpid()))
    time.sleep(120)
