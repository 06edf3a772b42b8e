"""The HDC-FL benchmark: its statistics by hand, its runs as data, and what it refuses to put in one table."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from benchmarks.hdc_fl import anchors, conditions, configurations, donor_swap, pages, paired, parts, running, sweep, tables, tune
from benchmarks.hdc_fl.configurations import (
    CONFIGURATIONS,
    CONTROL,
    GRID,
    METHODS,
    OURS,
    RIVALS,
    ROWS,
    SCALES,
    Job,
    base_of,
    planned,
    searches,
)
from benchmarks.hdc_fl.cost import estimate, hours, of_machine, reckoned
from benchmarks.hdc_fl.encoders import resnet18
from benchmarks.hdc_fl.grid import _clients_of, grid_of
from benchmarks.hdc_fl.images import Images, NoImages, Source, chosen, digest, prepared
from benchmarks.hdc_fl.results import (
    BUDGET,
    MixedResults,
    Result,
    check_comparable,
    machine,
    read,
    read_all,
    there,
    with_reclustered,
    write,
)
from benchmarks.hdc_fl.variants import variants
from strategies.registry import parse_run_config
from tests.hdc_results import NAMED, ROOT, content, result

# statistics

def test_figures_by_hand() -> None:
    runs = np.array([[0.5, 0.1, 0.9, 0.3, 0.7, 0.2]])  # the bottom 20 % of six are two
    assert paired.bottom20(runs).tolist() == pytest.approx([0.15])
    assert paired.over_seeds(runs, "worst") == (0.1, None)
    value, std = paired.over_seeds(np.array([[0.2, 0.4], [0.6, 0.8]]), "mean")
    assert (value, std) == (pytest.approx(0.5), pytest.approx(0.4 / 2**0.5))


def test_the_bootstrap_is_paired() -> None:
    theirs = np.array([[0.1, 0.9, 0.4]])
    for figure in paired.FIGURES:  # the same distance for every client leaves nothing to chance, however clients differ
        found = paired.difference(theirs + 0.1, theirs, figure)
        assert (found.value, found.low, found.high) == pytest.approx((0.1, 0.1, 0.1)) and found.clear


@pytest.mark.parametrize(("ours", "theirs"), [([[1.0, 0.0]], [[0.0, 0.0]]), ([[1.0, 1.0], [0.0, 0.0]], [[0.0, 0.0], [0.0, 0.0]])])
def test_the_bootstrap_draws_seeds_and_clients(ours: list[list[float]], theirs: list[list[float]]) -> None:
    """Two clients of one seed, or two seeds of like clients, that differ by 1 and 0: the mean is 0, 1/2, 1 with chances 1/4, 1/2, 1/4."""
    found = paired.difference(np.array(ours), np.array(theirs), "mean", draws=4000)
    assert (found.value, found.low, found.high, found.clear) == (0.5, 0.0, 1.0, False)
    assert [np.mean(found.draws == v) for v in (0.0, 0.5, 1.0)] == pytest.approx([0.25, 0.5, 0.25], abs=0.03)


def test_clients_are_drawn_within_each_seed() -> None:
    """Two seeds of two clients, 1 and 0 in each: the mean of two independent draws is not 0 or 1 a quarter of the time."""
    ours = np.array([[1.0, 0.0], [1.0, 0.0]])
    draws = paired.difference(ours, np.zeros((2, 2)), "mean", draws=4000).draws
    assert np.mean(draws == 0.0) == pytest.approx(1 / 16, abs=0.02) and np.mean(draws == 0.25) == pytest.approx(1 / 4, abs=0.03)


def test_what_the_bootstrap_refuses() -> None:
    with pytest.raises(ValueError, match="one shape"):
        paired.difference(np.zeros((1, 2)), np.zeros((1, 3)), "mean")
    with pytest.raises(ValueError, match="finite"):
        paired.difference(np.array([[np.nan, 1.0]]), np.zeros((1, 2)), "mean")


def test_macro_difference_by_hand() -> None:
    first, second = (paired.Difference(v, v, v, np.array([v, v + 0.1])) for v in (0.2, 0.4))
    found = paired.macro([first, second])
    assert (found.value, found.draws.tolist()) == (pytest.approx(0.3), pytest.approx([0.3, 0.4]))
    assert (found.low, found.high) == pytest.approx((0.3025, 0.3975))


def test_ranks_with_ties() -> None:
    table = {"a": 0.5, "b": 0.7, "c": 0.1 + 0.4, "d": 0.1}
    assert paired.ranks(table) == {"a": 2.5, "b": 1.0, "c": 2.5, "d": 4.0}
    assert paired.average_ranks([table, {"a": 0.9, "b": 0.8, "c": 0.1, "d": 0.2}]) == {"a": 1.75, "b": 1.5, "c": 3.25, "d": 3.5}
    with pytest.raises(ValueError, match="same methods"):
        paired.average_ranks([table, {"a": 1.0}])


def test_win_tie_loss() -> None:
    assert paired.win_tie_loss([0.01, 0.005, 0.805 - 0.8, -0.005, -0.0051, 0.0, 0.3]) == (2, 4, 1)


# results in order

def test_averages_weigh_configurations_alike(tmp_path: Path) -> None:
    """Two seeds in one configuration count no more than one in the other: (.5 + .9) / 2, not (.3 + .7 + .9) / 3."""
    runs = [result(1, OURS, 0, [0.2, 0.4], tmp_path), result(1, OURS, 1, [0.6, 0.8], tmp_path), result(2, OURS, 0, [0.9, 0.9], tmp_path)]
    grid = grid_of(runs, [OURS], "served", NAMED)
    assert grid.averages("mean") == {OURS: pytest.approx(0.7)} and grid.averages("worst") == {OURS: pytest.approx((0.4 + 0.9) / 2)}
    assert (grid.cells[1].seeds, grid.cells[1].clients) == ((0, 1), 2)


def test_only_shared_seeds_and_whole_configurations_are_averaged(tmp_path: Path) -> None:
    told = [(1, OURS, 0, [0.2, 0.4]), (1, OURS, 1, [0.6, 0.8]), (1, "fedper", 0, [0.1, 0.4]), (2, OURS, 0, [0.9, 0.9]),
            (2, "fedper", 0, [0.9, 0.8]), (3, OURS, 0, [0.1, 0.1])]
    runs = [result(*each, tmp_path) for each in told]
    grid = grid_of(runs, list(METHODS), "served", NAMED)
    assert (grid.cells[1].seeds, grid.cells[1].left_out, list(grid.whole)) == ((0,), (1,), [1, 2])
    assert grid.rows == (OURS, "fedper") and grid.missing(grid.cells[3]) == ("fedper",)
    assert grid.averages("mean")[OURS] == pytest.approx((0.3 + 0.9) / 2) and grid.ranks("mean") == {OURS: 1.0, "fedper": 2.0}
    gap = grid.macro_against("fedper", "worst")
    assert gap is not None and gap.value == pytest.approx(0.1) and grid.macro_against(OURS, "worst") is None
    assert not grid_of(runs, list(METHODS), "adapted", NAMED).cells  # nothing was scored so, and served never stands in


def test_a_client_without_a_score_is_left_out_of_all_rows(tmp_path: Path) -> None:
    result(1, OURS, 0, [0.5, 0.1, 0.9], tmp_path)
    told = content(1, "fedper", 0, [0.4, 0.2, 0.8])
    told["clients"]["served"][1] = None
    write(tmp_path / "1_fedper_seed_0.json", told)
    cell = grid_of(read_all(tmp_path), [OURS, "fedper"], "served", NAMED).cells[1]
    assert (cell.unscored, cell.without_score) == (1, ("fedper",))
    assert (cell.unscored, cell.scores[OURS].tolist(), cell.scores["fedper"].tolist()) == (1, [[0.5, 0.9]], [[0.4, 0.8]])


@pytest.mark.parametrize(("changed", "told"), [({"split_hash": "other"}, "different splits"),
                                               ({"images": {"title": "CIFAR-10", "digest": "e"}}, "different images .*keep one of them"),
                                               ({"settings": {"rounds": 3, "seed": 0}}, "different budgets")])
def test_different_splits_and_budgets_are_not_mixed(changed: dict[str, Any], told: str, tmp_path: Path) -> None:
    runs = [result(1, OURS, 0, [0.5], tmp_path), result(1, "fedper", 0, [0.5], tmp_path, **changed)]
    with pytest.raises(MixedResults, match=told):
        grid_of(runs, list(METHODS), "served", NAMED)
    if "images" not in changed:
        check_comparable([runs[0], replace(runs[1], seed=1)])  # seeds are splits of their own, of the same images
    with pytest.raises(MixedResults, match="different budgets"):
        check_comparable([runs[0], result(1, "cfl", 0, [0.5], tmp_path, settings=dict(runs[0].content["settings"]) | {"epochs": 7})])


def test_images_of_two_names_are_not_mixed(tmp_path: Path) -> None:
    runs = [result(1, OURS, seed, [0.5], tmp_path, images={"title": title, "digest": "d"}) for seed, title in enumerate(("A", "B"))]
    with pytest.raises(MixedResults, match="keep one of them"):
        parts.titles(runs)


# resuming

def test_a_killed_writer_leaves_whole_files_only(tmp_path: Path) -> None:
    program = ("import sys; from pathlib import Path; from benchmarks.hdc_fl.results import write\n"
               "for n in range(10**6): write(Path(sys.argv[1], f'{n % 50}.json'), {'n': n, 'much': [n] * 20000})")
    writer = subprocess.Popen([sys.executable, "-c", program, str(tmp_path)], cwd=ROOT)
    end = time.monotonic() + 60
    while len(list(tmp_path.glob("*.json"))) < 5 and time.monotonic() < end:
        time.sleep(0.02)
    writer.kill()
    writer.wait()
    found = list(tmp_path.glob("*.json"))
    assert len(found) >= 5
    for path in found:
        told = json.loads(path.read_text())
        assert told["much"] == [told["n"]] * 20000


def test_an_interrupted_write_is_no_result(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def stopped(self: Path, target: Path) -> Path:
        raise KeyboardInterrupt

    monkeypatch.setattr(Path, "replace", stopped)
    with pytest.raises(KeyboardInterrupt):
        write(tmp_path / "run.json", {"a": 1})
    assert not (tmp_path / "run.json").exists() and read_all(tmp_path) == []


def test_a_sweep_goes_on_where_it_stopped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    jobs = planned("lite", (1, 2), (OURS, "fedper"), (0,), {}, {})
    bench = running.Bench(tmp_path, tmp_path, tmp_path / "runs")
    began: list[str] = []

    def run(job: Job, bench: running.Bench) -> Result:
        began.append(job.name)
        if job.name == "2_hdc-fl_seed_0" and len(began) < 5:
            raise RuntimeError("2_hdc-fl_seed_0: broken")
        write(bench.results / f"{job.name}.json", content(job.configuration, job.row, job.seed, [0.5, 0.7]))
        return read(bench.results / f"{job.name}.json")

    monkeypatch.setattr(running, "run", run)
    monkeypatch.setattr(running, "prepared", lambda *_: Images(tmp_path, "images", "d"))
    assert running.run_all(jobs, bench) == ["2_hdc-fl_seed_0: broken"]  # the others ran all the same
    assert sorted(began) == sorted(job.name for job in jobs)
    assert running.run_all(jobs, bench) == [] and began[4:] == ["2_hdc-fl_seed_0"]
    assert running.run_all(jobs, bench) == [] and len(began) == 5
    assert "4 of 4 runs are there" in capsys.readouterr().out
    assert "4 runs, 4 there; 0.00 core-hours to go" in sweep.dry(jobs, bench)


def test_a_run_of_other_settings_does_not_pass_for_this_one(tmp_path: Path) -> None:
    job = planned("lite", (1,), ("fedper",), (0,), {}, {})[0]
    assert there(job, tmp_path) is None
    write(tmp_path / f"{job.name}.json", content(1, "fedper", 0, [0.5]))
    assert there(job, tmp_path) is not None
    with pytest.raises(MixedResults, match="lr: 0.03, not 0.1"):
        there(replace(job, settings={**job.settings, "lr": 0.1}), tmp_path)
    (tmp_path / f"{job.name}.json").write_text('{"half": ')
    with pytest.raises(MixedResults, match="delete it"):
        there(job, tmp_path)


# what is run

def test_the_grid_is_that_of_the_design() -> None:
    shifts = [(c.data, c.shift, c.encoder) for n, c in CONFIGURATIONS.items() if n in GRID]
    assert len(GRID) == len(set(shifts)) == 11 and len(RIVALS) >= 11
    assert sum(data == "hundred" for data, *_ in shifts) == 5 and sum(encoder == "mobilenetv2" for *_, encoder in shifts) == 2
    assert [CONFIGURATIONS[n].settings for n in (1, 3, 5)] == [{"partition": "label-subset", "classes-per-client": 2},
                                                               {"partition": "dirichlet", "alpha": 0.1}, {"partition": "rotation"}]


@pytest.mark.parametrize("scale", SCALES)
def test_every_planned_run_can_be_run(scale: str) -> None:
    values = {row: method.rates()[-1] for row, method in METHODS.items() if not method.as_of}
    jobs = planned(scale, tuple(CONFIGURATIONS), tuple(ROWS), (0,), values, {})
    tried = [*searches(scale, tuple(METHODS), {}), *searches(scale, tuple(METHODS), {}, best=dict.fromkeys(METHODS, 0.05))]
    own = [row for row in ROWS if not ROWS[row].reclustered]
    assert len({job.name for job in jobs}) == len(jobs) == 12 * len(own) and CONTROL not in own
    for job in [*jobs, *tried]:
        parse_run_config(dict(job.settings))
    per_method = {row: sum(job.row.startswith(f"{row} try") for job in tried) for row in METHODS}
    assert per_method == {row: 0 if row == CONTROL else 5 for row in METHODS}  # the same search for all, and the control's is HDC-FL's
    assert running.reclustered_of(next(job for job in jobs if job.row == OURS))[CONTROL] == {"hdc-fl.grouping": "random"}
    assert not any(running.reclustered_of(job) for job in tried)
    # no search buys a larger budget, and none sees a test image or a seed of the results
    assert not any(set(t) & set(BUDGET) for method in METHODS.values() for t in [*method.rates(), *method.last(0.05)])
    assert all(job.tuning and job.settings["test-split"] == "own" and job.seed not in (0, 1, 2) for job in tried)


def test_a_variant_keeps_what_makes_it() -> None:
    job = planned("lite", (1,), ("hdc-fl, better of both",), (0,), {OURS: {"lr": 0.5, "hdc-fl.serve": "mixture"}}, {})[0]
    assert (job.settings["lr"], job.settings["hdc-fl.serve"]) == (0.5, "better")


def source(train: int, test: int) -> Source:
    """Two classes; every image is filled with its number, and tests begin at 100."""
    def pixels(part: int, rows: np.ndarray) -> np.ndarray:
        return np.broadcast_to((rows + 100 * part).astype(np.uint8)[:, None, None, None], (len(rows), 4, 4, 3)).copy()

    labels = (np.arange(train) % 2, np.arange(test) % 2)
    return Source("some", labels, pixels, np.array(["a", "b"]))


def test_no_image_is_on_both_sides() -> None:
    arrays = chosen(source(20, 4), train=3, test=4)
    numbers = {part: arrays[f"x_{part}"][:, 0, 0, 0].tolist() for part in ("train", "test")}
    assert numbers == {"train": [0, 1, 2, 3, 4, 5], "test": [100, 101, 102, 103, 16, 17, 18, 19]}  # official ones, then the last
    assert arrays["y_test"].tolist() == [0, 1, 0, 1, 0, 1, 0, 1]
    with pytest.raises(NoImages, match="too few"):
        chosen(source(6, 4), train=3, test=4)
    assert len(chosen(source(20, 4), 0, 0)["y_train"]) == 20
    other = dict(arrays, y_test=arrays["y_test"][::-1])
    assert digest(arrays) != digest(other) and digest(arrays) == digest(dict(arrays))


def test_the_tuning_file_holds_no_test_image(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("benchmarks.hdc_fl.images.first_source", lambda *_: ("made.npz", lambda: source(40, 10)))
    whole, tuning = (prepared("lite", "ten", tuned, tmp_path, tmp_path / "work", limit=12) for tuned in (False, True))
    with np.load(whole.path) as results, np.load(tuning.path) as searched:
        assert {"x_test", "y_test"} <= set(results.files) and not {"x_test", "y_test"} & set(searched.files)
        assert np.array_equal(results["x_train"], searched["x_train"]) and len(searched["y_train"]) == 12
    assert whole.digest != tuning.digest and prepared("lite", "ten", False, tmp_path, tmp_path / "work", limit=12) == whole


def test_missing_images_are_named(tmp_path: Path) -> None:
    with pytest.raises(NoImages, match="cifar-100-python or tinyimagenet32_jpegbytes.npz"):
        prepared("full", "hundred", False, tmp_path, tmp_path / "work")


def test_the_lite_encoder_is_the_models_own_with_a_stride() -> None:
    import torch

    from models.split import build_model

    made = [build_model("benchmarks.hdc_fl.encoders:resnet18", 3, (3, 32, 32), 4, seed) for seed in (0, 0, 1)]
    whole = build_model("resnet18", 3, (3, 32, 32), 4)
    assert {n: p.shape for n, p in made[0].named_parameters()} == {n: p.shape for n, p in whole.named_parameters()}
    first, again, other = (next(m.encoder.parameters()) for m in made)
    assert torch.equal(first, again) and not torch.equal(first, other)  # the run's seed reaches the weights
    encoder, width = resnet18((3, 32, 32), 4)
    with torch.no_grad():
        assert encoder.stem(torch.zeros(1, 3, 32, 32)).shape == (1, 4, 16, 16) and width == 32  # type: ignore[operator]


# cost

def test_cost_by_hand(tmp_path: Path) -> None:
    job = planned("lite", (3,), ("ditto",), (0,), {}, {"rounds": 2})[0]
    of = SCALES["lite"]
    images, epochs = of.images["ten"][0] * 10, int(of.settings["epochs"])
    by_hand = 6 + images * 2 * epochs * 2 * of.milliseconds["resnet18"] / 1000
    searched = replace(job, tuning=True, settings={**job.settings, "test-fraction": 0.25})
    assert reckoned(searched) == pytest.approx(6 + 0.75 * (by_hand - 6))
    assert reckoned(job) == pytest.approx(by_hand) and estimate(job, []) == reckoned(job)
    known = [result(3, "ditto", seed, [0.5], tmp_path, seconds={"cpu": 10.0 * seed, "wall": 1.0},
                    settings={**job.settings, "seed": seed}) for seed in (1, 2)]
    assert estimate(job, known) == 15.0
    twice = [result(3, "fedper", 1, [0.5], tmp_path, settings={**job.settings, "method": "fedper", "seed": 1},
                    seconds={"wall": 1.0, "cpu": 2 * reckoned(replace(job, settings={**job.settings, "method": "fedper"}))})]
    assert estimate(job, twice) == pytest.approx(2 * by_hand)  # this machine is twice as slow
    assert [hours(s) for s in (0, 90, 3660)] == ["0:00 h", "0:02 h", "1:01 h"]


def test_timings_of_machines_are_never_mixed(tmp_path: Path) -> None:
    here, away = {"id": "here", "cpu": "C", "cores": 2, "gpu": ""}, {"id": "away", "cpu": "D", "cores": 8, "gpu": "G"}
    runs = [result(1, "fedper", 0, [0.5], tmp_path, machine=here),
            result(1, OURS, 0, [0.5], tmp_path, machine=here, seconds={"cpu": 90.0, "wall": 30.0}),
            result(1, "cfl", 0, [0.5], tmp_path, machine=away, seconds={"cpu": 1.0, "wall": 9.0})]
    assert [r.row for r in of_machine(runs, "here")] == ["fedper", OURS]
    told = conditions.costs(runs, {"core_hours": 0.5})
    assert told.startswith("- the search: 0.50 core-hours")
    assert "machine here (C, 2 cores): 2 runs, 0.04 core-hours, 0.03 hours at work. CPU beside FedPer's: fedper 1.00, hdc-fl 1.50" in told
    assert "machine away (G): 1 runs, 0.00 core-hours, 0.00 hours at work. CPU beside FedPer's: –" in told
    assert machine("named")["id"] == "named" and machine()["id"] == machine()["id"] and len(machine()["id"]) == 8


# what comes out of a run without another one

def test_rows_of_other_clusters_come_out_of_the_run(tmp_path: Path) -> None:
    told = {CONTROL: {"served": [0.5, None], "served_raw": {"mean": 0.4, "worst": 0.4, "bottom20": 0.4}, "clusters": {"k": 3}}}
    ours = result(5, OURS, 0, [0.7, 0.8], tmp_path, reclustered=told)
    first, control = with_reclustered([ours])
    assert first is ours and (control.row, control.seed, control.split) == (CONTROL, 0, ours.split)
    assert control.served[0] == 0.5 and np.isnan(control.served[1]) and control.content["settings"]["hdc-fl.grouping"] == "random"
    assert control.content["served_raw"]["mean"] == 0.4 and control.content["seconds"]["cpu"] == 0.0
    assert with_reclustered([control]) == [control]


def test_a_whole_run_leaves_them(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rng, y = np.random.default_rng(0), np.arange(96) % 4
    np.savez(tmp_path / "data.npz", x_train=rng.integers(0, 256, (64, 16, 16, 3), np.uint8), y_train=y[:64],
             x_test=rng.integers(0, 256, (32, 16, 16, 3), np.uint8), y_test=y[64:], class_names=np.array(list("abcd")))
    monkeypatch.setattr(running, "prepared", lambda *_: Images(tmp_path / "data.npz", "noise", "d"))
    small: dict[str, Any] = {"clients": 4, "rounds": 2, "epochs": 1, "batch": 8, "model": "cnn", "width": 4}
    job = planned("lite", (5,), (OURS,), (0,), {}, small)[0]
    found = running.run(job, running.Bench(tmp_path, tmp_path, tmp_path / "runs"))
    told = found.content["reclustered"]
    assert told.keys() == {row for row in ROWS if ROWS[row].reclustered} and told["hdc-fl, one cluster"]["clusters"]["k"] == 1
    assert all(len(one["served"]) == 4 and one["served_raw"]["n"] == 4 for one in told.values())
    rows = {r.row: r.served.mean() for r in with_reclustered([found])}
    assert rows[OURS] == pytest.approx(found.content["served"]["mean"]) and len(rows) == 1 + len(told)
    assert list(tmp_path.glob("*.job")) == [] and list(tmp_path.glob("tmp*")) == []


# what is told

def grid_results(folder: Path) -> list[Result]:
    clusters = {"k": 4, "silhouette": 0.5, "rank": 3, "adjusted_rand": 1.0}
    scores = {row: [0.2, 0.3] for row in METHODS} | {OURS: [0.5, 0.6], CONTROL: [0.4, 0.6], "fedper": [0.48, 0.66]}
    return [result(n, row, 0, values, folder, **({"clusters": clusters} if row == OURS else {}))
            for n in (1, 5) for row, values in scores.items()]


def test_the_report_by_hand(tmp_path: Path) -> None:
    variant = result(1, "hdc-fl, shrunk", 0, [0.45, 0.6], tmp_path)
    early = result(3, "fedavg", 0, [0.9, 0.9], tmp_path)  # as after a sweep that was stopped: in no average
    told, (grid, _) = tables.report([*grid_results(tmp_path), variant, early], {}, "lite")
    main, _, variants = told.partition("## Variants of HDC-FL, served\n\nConfigurations 1; of seeds 0 those that all have; ")
    assert "shrunk" not in main
    assert "| hdc-fl, shrunk | 52.5 | 45.0 | 45.0 | 2.0 | 2.0 | 2.0 | +2.5 [+0.0, +5.0] | +5.0 [+0.0, +5.0] |" in variants
    assert "| hdc-fl random | 50.0 | 40.0 | 40.0 | 3.0 | 3.0 | 3.0 |" in variants
    assert "### Over 2 of 11 configurations (1, 5)\n" in told and "So far, over 2 of 11 configurations (1, 5):" in told
    assert "In no average, since methods are missing: 3 (without hdc-fl, hdc-fl random, fedper, local-only, " in told
    assert "- ahead, but not clear of 0: macro-averaged worst: HDC-FL 50.0, the best other row, fedper, 48.0; difference +2.0" in told
    assert "- **not reached**: macro-averaged mean within 0.5 points of the best rival: HDC-FL 55.0, fedper 57.0" in told
    assert "- reached: configurations in which bottom 20 % is more than 1 point below FedPer's: none" in told
    assert "| hdc-fl | 55.0 | **50.0** | **50.0** | 2.0 | 1.0 | 1.0 | – | – | – | – | – | – | – |" in told
    assert "| fedavg | 25.0 | 20.0 | 20.0 | 10.0 | 10.0 | 10.0 | **+30.0 [+30.0, +30.0]** | +30.0 [+30.0, +30.0] |" in told
    assert "| 2 / 0 / 0 | 2 / 0 / 0 | 2 / 0 / 0 | 2 / 0 |" in told and "No update was dropped and no round void, in 34 runs." in told
    assert "1. CIFAR-10 (12,000 images), 2 classes a client, ResNet-18 of width 8" in told and "2 clients, seed 0" in told
    assert "| 4 | 0.50 | 1.00 | – | – |" in told and "## Adapted" not in told  # nobody was scored so
    tables.draw(grid, tmp_path)
    for name in ("averages", "differences", "clients"):
        assert (tmp_path / f"{name}.png").read_bytes()[:4] == b"\x89PNG"


def test_donor_swaps_over_seeds_by_hand(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def of(*values: float | None) -> dict[str, Any]:
        return {"by_recipient": {str(n): {"rho": value} for n, value in enumerate(values)}}

    # alike within a seed, so that only the seeds are drawn: 0, .25 or .5 with a quarter, a half, a quarter of the draws
    assert donor_swap.over_seeds([of(0.5, None, 0.5), of(0.0, 0.0)]) == (0.0, 0.5)
    assert donor_swap.over_seeds([of(0.25, 0.25), of(None)]) == (0.25, 0.25)
    assert donor_swap.over_seeds([of(None), of()]) is None
    # runs that were asked before are in the table beside those of the folder, in which there is none
    before = sorted(donor_swap.SWAPS.glob("5_hdc-fl_seed_*.json"))
    monkeypatch.setattr(donor_swap, "SWAPS", tmp_path)
    for path in before:
        (tmp_path / path.name).write_bytes(path.read_bytes())
    (name, swaps), = donor_swap.of_kept(tmp_path / "none", 50).items()
    assert name == "5. rotation, ten classes, resnet18" and len(swaps) == len(before) > 0


@pytest.mark.parametrize("method", sorted(METHODS.keys() - {CONTROL}))
def test_the_methods_pages_say_what_the_results_say(method: str) -> None:
    written = (pages.PAGES / f"{method}.md").read_text(encoding="utf-8")
    assert "<!-- grid -->" in written
    assert written == pages.renewed(written, method, pages.served()), "run: python -m benchmarks.hdc_fl.pages"


def test_how_often_a_configuration_ran_in_words(tmp_path: Path) -> None:
    def of(*counts: int) -> str:
        results = [result(number, OURS, seed, [0.5], tmp_path) for number, count in enumerate(counts, 1) for seed in range(count)]
        return pages.seeds(grid_of(results, (OURS,), "served", NAMED))

    assert [of(1, 1, 1), of(3, 1, 3), of(1, 2, 3)] == ["one seed each", "three seeds in 1 and 3, one seed in the others",
                                                       "three seeds in 3, two seeds in 2, one seed in the others"]


def test_what_the_search_chose_is_what_was_run(tmp_path: Path) -> None:
    runs = [result(1, "cfl", 0, [0.5], tmp_path), result(1, OURS, 0, [0.5], tmp_path)]
    chosen = {"cfl": {"lr": 0.03}, OURS: {"lr": 0.03}}
    conditions.check_chosen(runs, {"chosen": chosen})
    for other, told in (({**chosen, "cfl": {"lr": 0.5}}, r"1_cfl_seed_0 .*\(lr: 0.03, not 0.5"), ({"cfl": {"lr": 0.03}}, "not searched"),
                        ({**chosen, "cfl": {"lr": 0.03, "cfl.eps1": 2.0}}, "cfl.eps1: None, not 2.0")):
        with pytest.raises(MixedResults, match=told):
            conditions.check_chosen(runs, {"chosen": other})


def test_a_rate_that_ends_a_run_is_replaced_and_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(configurations.LOWER, ("lite", 2, "fedper"), {"lr": 0.01})
    chosen: dict[str, Any] = {"fedper": {"lr": 0.1}}
    assert [job.settings["lr"] for job in planned("lite", (1, 2), ("fedper",), (0,), chosen, {})] == [0.1, 0.01]
    assert [job.settings["lr"] for job in planned("full", (2,), ("fedper",), (0,), chosen, {})] == [0.1]
    settings = {**base_of("lite", 2), "method": "fedper", "seed": 0}
    runs = [result(2, "fedper", 0, [0.5], tmp_path, settings={**settings, "lr": rate}) for rate in (0.01, 0.1)]
    conditions.check_chosen(runs[:1], {"chosen": chosen})
    with pytest.raises(MixedResults, match="lr: 0.1, not 0.01"):
        conditions.check_chosen(runs[1:], {"chosen": chosen})
    tuned = json.loads((ROOT / "benchmarks/hdc_fl/lite/tuned.json").read_text(encoding="utf-8"))
    assert "fedper in configuration 2 (lr = 0.01)" in conditions.search(tuned, "lite")


def test_what_went_wrong_in_runs_is_told(tmp_path: Path) -> None:
    runs = [result(1, "cfl", 0, [0.5], tmp_path, dropped={"non-finite": 2}, void_rounds=0, versions={"fedhearth-code": "abc"}),
            result(1, "fedper", 0, [0.5], tmp_path, versions={"fedhearth-code": "abd"})]
    told = conditions.troubles(runs)
    assert "Not all went well: 1_cfl_seed_0: 0 void rounds, dropped {'non-finite': 2}, in 2 runs." in told
    assert "Digests of the code they ran on: abc, abd." in told


def test_methods_without_chosen_values_are_named() -> None:
    chosen: dict[str, Any] = {"fedper": {"lr": 0.05}, OURS: {"lr": 0.05, "hdc-fl.temperature": 0.1}, "cfl": {"lr": 0.7, "cfl.eps1": 2.0}}
    assert sweep.unsearched((OURS, CONTROL, "fedper"), chosen) == []
    assert sweep.unsearched(("hdc-fl, shrunk", "cfl", "fedavg"), chosen) == ["cfl", "fedavg"]  # .7 is no rate of the search


def test_encoders_apart_configurations_have_the_same_clients() -> None:
    """Configurations 3 and 10, and 6 and 11: what differs is the encoder, so clients are drawn alike."""
    assert [_clients_of(n) for n in (3, 10, 6, 11, 5)] == [3, 3, 6, 6, 5]


def test_the_csv_by_hand(tmp_path: Path) -> None:
    _, grids = tables.report(grid_results(tmp_path), {}, "lite")
    tables.write_figures(grids, tmp_path / "figures.csv")
    lines = (tmp_path / "figures.csv").read_text().splitlines()
    assert 'served,5,"CIFAR-10 (12,000 images), rotation, ResNet-18 of width 8",fedper,worst,2,1,0.480000,,0.020000' in "\n".join(lines)
    assert "served,all,mean of configurations 1 5,hdc-fl,bottom20,,,0.500000,,,,,1.000" in lines
    assert len(lines) == 1 + 2 * len(METHODS) * 3 + len(METHODS) * 3


def test_the_search_keeps_the_best_of_mean_and_tail(tmp_path: Path) -> None:
    jobs = [job for job in searches("lite", ("fedper", "cfl"), {}) if job.row[-1] in "012"]
    scores = {"fedper try 0": [0.2, 0.8], "fedper try 1": [0.4, 0.6], "cfl try 0": [0.9, 0.1], "cfl try 2": [0.3, 0.4]}
    found = {job.name: result(3, job.row, 100, scores[job.row], tmp_path, settings=dict(job.settings)) for job in jobs if job.row in scores}
    told = tune.outcome(jobs, found)
    assert tune.best_rates(found) == {row: chosen["lr"] for row, chosen in told["chosen"].items()} and tune.best_rates({}) == {}
    assert told["chosen"] == {"fedper": {"lr": 0.03}, "cfl": {"lr": 0.05, "cfl.eps1": METHODS["cfl"].searched["cfl.eps1"][0]}}
    assert told["scores"]["fedper"] == [pytest.approx(0.35), pytest.approx(0.45)]
    assert told["tried"]["cfl"][1]["score"] is None and told["core_hours"] == 0.07  # the one that diverged; four runs of a minute
    with pytest.raises(MixedResults, match="no try of cfl has ended well"):
        tune.outcome(jobs, {name: r for name, r in found.items() if "cfl" not in name})
    last = list(searches("lite", ("fedper", "cfl"), {}, best={"fedper": 0.03, "cfl": 0.05}))
    assert [(job.name, job.settings["lr"], job.settings["cfl.eps1"]) for job in last] == [("3_cfl_try_4_seed_100", 0.05, 0.4)]


# anchors

def test_central_training_learns_what_is_plain(tmp_path: Path) -> None:
    rng, y = np.random.default_rng(0), np.arange(64) % 2
    x = (rng.integers(0, 100, (64, 8, 8, 3)) + 120 * y[:, None, None, None]).astype(np.uint8)
    np.savez(tmp_path / "plain.npz", x_train=x[:48], y_train=y[:48], x_test=x[48:], y_test=y[48:], class_names=np.array(["dark", "light"]))
    job = anchors.federated("lite", [0], {"model": "cnn", "width": 8, "rounds": 6, "batch": 8})[0]
    made = anchors.central(job, Images(tmp_path / "plain.npz", "plain", "d"))
    assert made["accuracy"] == 1.0 and made["settings"]["partition"] == "dirichlet" and made["settings"]["alpha"] == 100.0


def test_the_anchors_by_hand(tmp_path: Path) -> None:
    job = anchors.federated("lite", [0], {})[0]
    told = content(0, "near-IID fedavg", 0, [0.6])
    write(tmp_path / "0_near-IID_fedavg_seed_0.json", told | {
        "settings": dict(job.settings), "served": {**told["served"], "weighted_mean": 0.612}, "served_raw": {"weighted_mean": 0.6}})
    run = read(tmp_path / "0_near-IID_fedavg_seed_0.json")
    made = {"seed": 0, "accuracy": 0.605, "images": dict(run.content["images"])}
    told = anchors.against_central([run], [made])
    assert "| FedAvg, BatchNorm recomputed | 61.2 | +0.7 |" in told and "| FedAvg, BatchNorm as averaged | 60.0 | -0.5 |" in told
    with pytest.raises(MixedResults, match="different images"):
        anchors.against_central([run], [{**made, "images": {"digest": "other"}}])
    rows = {"fedavg": [0.5, 0.6], "fedper": [0.49, 0.61], "fedrep": [0.4, 0.5], "local-only": [0.2, 0.3]}
    told = anchors.without_heterogeneity([result(0, row, 0, values, tmp_path) for row, values in rows.items()], tuple(METHODS))
    assert "| fedper | 55.0 | +0.0 [-1.0, +1.0] | yes |" in told and "| fedrep | 45.0 | **-10.0 [-10.0, -10.0]** | no |" in told
    assert "| local-only | 25.0 | **-30.0 [-30.0, -30.0]** | trains alone |" in told


def test_a_variants_own_run_is_compared_on_the_same_machine_alone(tmp_path: Path) -> None:
    """On another machine the same training ends elsewhere: that is shown, and compared with nothing."""
    away = {"id": "away", "cpu": "D", "cores": 8, "gpu": ""}
    row = "hdc-fl, better of both"
    runs = [result(1, OURS, 0, [0.5, 0.7], tmp_path), result(1, OURS, 1, [0.4, 0.6], tmp_path),
            result(1, row, 0, [0.9, 0.9], tmp_path, machine=away), result(1, row, 1, [0.4, 0.8], tmp_path)]
    for r, adapted in zip(runs, ([0.5, 0.6], [0.4, 0.7], [0.5, 0.8], [0.4, 0.7]), strict=True):
        r.adapted[:] = adapted
    title, about, _, table, *_, told, distances = variants(runs, {1: "one"})
    assert title.startswith("## Variants") and about.startswith("Configurations 1; of seeds 1 those")
    assert f"| {row} | **60.0** | **40.0** | **40.0** |" in table and "| hdc-fl | 50.0 |" in table
    assert "(runs where that is so: 1 of 1)" in told
    assert "| 1 | 0 | 55.0 / 65.0 | 50.0 / 50.0 |" in distances and "| mean distance |  | 10.0 | 0.0 |" in distances
    assert not any("two kinds of machine" in part for part in variants(runs[:2] + runs[3:], {1: "one"}))
