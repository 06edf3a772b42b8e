"""Finished runs read back from their folders: what is damaged, contradictory or not finished says so, and what to do."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from server_app.compare import compare
from server_app.finished import ComparisonError, read_run
from tests.test_compare import finished

HEADER = "client,group,n_train,n_test,classes,served,adapted"
CONTRADICT = "clients.csv and summary.json contradict each other: the"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A run that served a 0.2, b 0.4 and c 0.6, and adapted them to 0.3, 0.5 and 0.7."""
    return finished(tmp_path / "run", "fedper", [0.2, 0.4, 0.6], adapted=[0.3, 0.5, 0.7])


def with_summary(folder: Path, **changed: Any) -> Path:
    before = json.loads((folder / "summary.json").read_text())
    (folder / "summary.json").write_text(json.dumps(before | changed))
    return folder


@pytest.mark.parametrize(("rows", "said"), [
    (["a,,,,,0.2,0.3", "b,,,,,0.4,0.5", "c,,,,,0.9,0.7"],
     f"{CONTRADICT} mean of served scores is 0.5 by clients.csv and 0.4 by summary.json"),
    # the sum is the same, the lowest is not
    (["a,,,,,0.1,0.3", "b,,,,,0.5,0.5", "c,,,,,0.6,0.7"], f"{CONTRADICT} lowest of served scores is 0.1 by clients.csv and 0.2"),
    (["a,,,,,0.2,0.3", "b,,,,,0.4,0.5", "c,,,,,0.6,0.8"], f"{CONTRADICT} mean of adapted scores is 0.5333333333 by"),
    (["a,,,,,0.2,0.3"], f"{CONTRADICT} number of clients with served scores is 1 by clients.csv and 3 by summary.json"),
    ([], f"{CONTRADICT} number of clients with served scores is 0 by"),
    (["a,,,,,0.2,0.3", "a,,,,,0.2,0.3", "b,,,,,0.4,0.5", "c,,,,,0.6,0.7"], "client 'a' has 2 rows, and should have one"),
    (["a,,,,,0.2,0.3", "b,,,,0.4,0.5", "c,,,,,0.6,0.7"], "row 2 has not as many cells as the header"),
    (["a,,,,,0.2,0.3", "b,,,,,nan,0.5", "c,,,,,0.6,0.7"], "expected scores from 0 to 1, got 'nan'"),
    (["a,,,,,0.2,0.3", "b,,,,,inf,0.5", "c,,,,,0.6,0.7"], "expected scores from 0 to 1, got 'inf'"),
    (["a,,,,,0.2,0.3", "b,,,,,-0.4,0.5", "c,,,,,0.6,0.7"], "expected scores from 0 to 1, got '-0.4'"),
    (["a,,,-1,,0.2,0.3", "b,,,1,,0.4,0.5", "c,,,1,,0.6,0.7"], "weights of 0 or more"),
])
def test_an_altered_table_of_clients_is_refused(rows: list[str], said: str, folder: Path) -> None:
    assert read_run(folder).accuracy["adapted"] == {"a": 0.3, "b": 0.5, "c": 0.7}
    (folder / "clients.csv").write_text("\n".join([HEADER, *rows]))
    with pytest.raises(ComparisonError) as raised:
        read_run(folder)
    assert str(raised.value).startswith(str(folder)) and said in str(raised.value)


def test_a_table_that_is_no_file_or_not_there(folder: Path) -> None:
    (folder / "clients.csv").unlink()
    assert read_run(folder).accuracy == {"served": {}, "adapted": {}}
    (folder / "clients.csv").mkdir()
    with pytest.raises(ComparisonError, match=r"clients.csv is damaged \(IsADirectoryError"):
        read_run(folder)


FIGURES = {"mean": 0.4, "worst": 0.2, "bottom20": 0.2, "n": 3}


@pytest.mark.parametrize(("changed", "said"), [
    ({"served": FIGURES | {"mean": 10**400}}, "'served' must hold numbers from 0 to 1"),
    ({"served": FIGURES | {"worst": True}}, "'served' must hold numbers from 0 to 1"),
    ({"served": FIGURES | {"mean": 40}}, "'served' must hold numbers from 0 to 1"),
    ({"adapted": FIGURES | {"n": 2.5}}, "'adapted' must hold numbers from 0 to 1 for mean, worst, bottom20 and a whole number for n"),
    ({"held_out": {"tails": {"mean": 10**400, "worst": 0, "bottom20": 0}}}, "'held_out' must hold tails with numbers from 0 to 1"),
    ({"run_config": {"bn": ["recompute"]}}, "has lists or objects for 'bn'"),
    ({"run_config": {"bn": {}, "lr": 1}}, "has lists or objects for 'bn'"),
    ({"seed": True}, "expected a whole number for seed"),
    ({"rounds": "2", "void_rounds": None}, "expected a whole number for rounds, void_rounds"),
])
def test_a_summary_of_the_wrong_kind_is_no_traceback(changed: dict[str, Any], said: str, folder: Path) -> None:
    with pytest.raises(ComparisonError, match=f"summary.json is damaged: .*{said}"):
        compare([with_summary(folder, **changed)])


def test_a_summary_nested_without_end_is_no_traceback(folder: Path) -> None:
    (folder / "summary.json").write_text("[" * 100_000)
    with pytest.raises(ComparisonError, match="summary.json is damaged .*recursion"):
        read_run(folder)


def test_a_run_that_scored_nobody_says_why(folder: Path) -> None:
    with pytest.raises(ComparisonError) as raised:
        read_run(with_summary(folder, served=None))
    assert str(raised.value) == f"{folder} has no served scores: no client had test images (is its test-fraction 0?). Leave it out"


def test_an_unfinished_run_is_told_from_no_run(tmp_path: Path) -> None:
    folder = tmp_path / "my run"
    folder.mkdir()
    with pytest.raises(ComparisonError, match="not the folder of a finished run. Give the folder of a run, in which its summary.json lies"):
        read_run(folder)
    (folder / "run.json").write_text("{}")
    with pytest.raises(ComparisonError) as raised:
        read_run(folder)
    assert str(raised.value).endswith(f"Wait for it if it is at work, else finish it (fedhearth run --resume '{folder}'), or leave it out")


def test_settings_have_their_defaults_where_a_run_did_not_write_them_down(folder: Path) -> None:
    told = {"lr": 0.5, "out": "x", "fedper.y": 1, "fed-cache.reuse": False}
    found = read_run(with_summary(folder, method="hdc-fl", run_config=told)).settings
    assert (found["lr"], found["wire-dtype"], found["hdc-fl.temperature"], found["bn"]) == (0.5, "float32", 0.3, "recompute")
    assert not found.keys() & {"out", "fedper.y", "fed-cache.reuse"}
    # an infinite temperature stands as null in JSON, and a feature cache borrows another method's settings
    borrowing = {"hdc-fl.temperature": None, "hdc-fl.feature-cache": True, "fed-cache.reuse": False}
    found = read_run(with_summary(folder, method="hdc-fl", run_config=borrowing)).settings
    assert (found["hdc-fl.temperature"], found["fed-cache.reuse"], found["fed-cache.gate"]) == (None, False, "none")
    gone = read_run(with_summary(folder, method="gone", run_config={"gone.x": 1})).settings
    assert gone["gone.x"] == 1 and gone["lr"] == 0.01
