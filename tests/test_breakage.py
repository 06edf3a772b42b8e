"""What broke it once: hostile settings, loaders, encoders and folders. Each ends in one line and a code, or is counted."""

from __future__ import annotations

import json
import os
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from client_app.data import DataError, PartitionError, npz
from client_app.data.sources import load_by_function
from client_app.node import Node
from deploy.cli import main
from models import build_model
from models.split import ModelError
from server_app.finished import ComparisonError, read_run
from server_app.report import DamagedRecords, RunReport
from server_app.reproduce import command
from strategies.config import ConfigError
from strategies.registry import items_of_all, parse_run_config
from tests import breakage_cases

CASES = "tests.breakage_cases"
TINY = ("-c", "clients=2", "-c", "rounds=2", "-c", "epochs=1", "-c", "width=4", "--workers", "1")


@pytest.fixture(autouse=True)
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.setenv("PYTHONPATH", os.environ.get("PYTHONPATH", ""))


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    folder = tmp_path_factory.mktemp("runs") / "whole"
    assert main(["run", *TINY, "-c", f"dataset={CASES}:plain", "--out", str(folder)]) == 0
    yield folder


@pytest.mark.parametrize(("given", "expected"), [
    ({"lr": 10**400}, "lr must be a number between -2"),
    ({"rounds": 2**63}, "rounds must be a whole number between -2"),
    ({"threads": 10**6}, "threads must be at most 1024"),
    ({"alpha": 1e300}, "alpha must be at most 1e+09"),
    ({"deadline": 1e300}, "deadline must be at most 1e+07 seconds"),
    ({"state-dir": "a\0b"}, "state-dir must be text in UTF-8 without a zero byte"),
    ({"out": "\ud800"}, "out must be text in UTF-8"),
    ({"hdc-fl.max-rank": 1}, "hdc-fl.max-rank must be at least 2, got 1"),
    ({"hdc-fl.rank": "raito"}, "did you mean 'ratio'?"),
    ({"hdc-fl.energy": 2.0}, "hdc-fl.energy must be in (0, 1], got 2.0"),
    ({"hdc-fl.min-silhouette": float("nan")}, "hdc-fl.min-silhouette must be in [-1, 1], got nan"),
    ({"hdc-fl.projection-dim": 10**12}, "hdc-fl.projection-dim must be in 1..65536"),
    ({"hdc-fl.restarts": 10**9}, "hdc-fl.restarts must be at most 10000"),
])
def test_settings_that_overflowed_or_hung_are_refused(given: dict[str, object], expected: str) -> None:
    with pytest.raises(ConfigError) as refused:
        parse_run_config(given)
    assert expected in str(refused.value) and len(str(refused.value)) < 200


@pytest.mark.parametrize(("words", "expected"), [
    (["-c", "device=banana"], "device must be auto, cpu, cuda or cuda:NUMBER"),
    (["-c", "device=cuda:99"], "asked for, but torch sees"),
    (["-c", "dataset=digits:here"], "write `digits` alone"),
    (["-c", "dataset=npz:~nobody-lives-here/x.npz"], "the home of an unknown user"),
    (["--out", "~nobody-lives-here/x"], "the home of an unknown user"),
    (["--out", "x" * 300], "cannot use"),
    (["-c", "model=os:getcwd"], "failed with TypeError"),
    (["-c", "model=:"], "must name an importable function"),
    (["-c", f"model={CASES}:wrong_width"], "features (B, 7), as it says; for 2 images it gave the shape (2, 5)"),
    (["-c", f"model={CASES}:no_pair"], "failed with TypeError"),
    (["-c", f"model={CASES}:a_tuple"], "failed with AttributeError"),
    (["-c", f"dataset={CASES}:leaving"], "the data loader failed with SystemExit"),
    (["-c", f"dataset={CASES}:numbered"], "class names and the group as text"),
    (["-c", f"dataset={CASES}:half_a_pair"], "class names and the group as text"),
    (["-c", f"dataset={CASES}:numbered_group"], "class names and the group as text"),
    (["-c", f"dataset={CASES}:telling"], "a client cannot take part: client-001: the data loader failed with DataError"),
])
def test_input_that_ended_in_a_traceback_ends_with_2(words: list[str], expected: str, capsys: pytest.CaptureFixture[str]) -> None:
    place = [] if "--out" in words else ["--out", "out"]
    assert main(["run", *TINY, *words, *place]) == 2
    told = capsys.readouterr()
    assert expected in told.err and "Traceback" not in told.err


def test_a_loaders_own_words_stay_on_its_machine() -> None:
    node = breakage_node(1)
    with pytest.raises(DataError) as failed:
        load_by_function(f"{CASES}:telling", node, 0)
    assert breakage_cases.SECRET not in str(failed.value) and breakage_cases.SECRET in str(failed.value.__cause__)
    with pytest.raises((DataError, PartitionError), match="as many labels and ids as images"):  # our own words may travel
        load_by_function(f"{CASES}:too_few_labels", node, 0)


def breakage_node(index: int) -> Node:
    return Node(f"client-{index:03d}", index, 2, "", Path(), "", True)


def test_a_label_in_the_billions_does_not_make_as_many_classes(tmp_path: Path) -> None:
    np.savez(tmp_path / "far.npz", x_train=np.zeros((2, 8, 8), np.uint8), y_train=np.array([0, 10**9]))
    with pytest.raises(DataError, match="number the classes from 0"):
        npz.load(str(tmp_path / "far.npz"))


def test_an_encoder_of_ones_own_answers_before_training() -> None:
    assert build_model(f"{CASES}:good_encoder", 3, (1, 8, 8)).feature_dim == 5
    with pytest.raises(ModelError) as failed:
        build_model(f"{CASES}:refusing", 3, (1, 8, 8))
    assert "failed with KeyError" in str(failed.value) and breakage_cases.SECRET not in str(failed.value)


def test_a_model_beyond_memory_is_no_traceback() -> None:
    with pytest.raises(ModelError, match="does not fit in this machine's memory"):
        build_model("cnn", 10, (1, 8, 8), width=10**7)


@pytest.mark.filterwarnings("ignore:overflow encountered")
def test_a_short_run_without_one_good_round_is_no_success(capsys: pytest.CaptureFixture[str]) -> None:
    """Two void rounds are fewer than ``max-void-rounds``: it used to end with 0 and the first model's scores."""
    assert main(["run", *TINY, "-c", f"dataset={CASES}:blowing_up", "--out", "out"]) == 1
    assert "no client has a trained model" in capsys.readouterr().err
    assert not Path("out", "summary.json").exists()
    assert main(["run", "--resume", "out", "--workers", "1"]) == 1  # nor does resuming make it one


def interrupted(finished: Path, folder: Path) -> Path:
    """A copy of the run as if it had been killed before it closed."""
    shutil.copytree(finished, folder)
    for name in ("summary.json", "report.html", "clients.csv"):
        (folder / name).unlink()
    return folder


@pytest.mark.parametrize(("name", "content", "code", "expected"), [
    ("run.json", "[1]", 2, "is damaged"),
    ("run.json", '{"rounds": "two"}', 2, "rounds must be a whole number"),
    ("rounds.jsonl", '{"round": 1, "sec', 1, "rounds.jsonl lacks rounds: expected 1 to 2"),
    ("rounds.jsonl", "7\n8\n", 1, "line 1 of rounds.jsonl is not JSON of a round"),
])
def test_resuming_a_damaged_folder_says_what_is_damaged(name: str, content: str, code: int, expected: str, finished: Path, tmp_path: Path,
                                                        capsys: pytest.CaptureFixture[str]) -> None:
    folder = interrupted(finished, tmp_path / "damaged")
    (folder / name).write_text(content)
    assert main(["run", "--resume", str(folder), "--workers", "1"]) == code
    assert expected in capsys.readouterr().err


def test_resuming_without_its_shelf_says_so(finished: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = interrupted(finished, tmp_path / "bare")
    shutil.rmtree(folder / "shelf")
    assert main(["run", "--resume", str(folder), "--workers", "1"]) == 1
    assert "is not on the shelf" in capsys.readouterr().err


def test_resuming_with_other_data_is_refused(finished: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str],
                                             monkeypatch: pytest.MonkeyPatch) -> None:
    folder, whole = interrupted(finished, tmp_path / "other"), breakage_cases.plain
    monkeypatch.setattr(breakage_cases, "plain", lambda node, seed: whole(node, seed, group="moved"))
    from client_app.data.opening import _CACHE

    kept = _CACHE._kept.copy()
    _CACHE._kept.clear()
    assert main(["run", "--resume", str(folder), "--workers", "1"]) == 2
    _CACHE._kept.clear()
    _CACHE._kept.update(kept)
    assert "the clients now hold other samples" in capsys.readouterr().err


def test_a_torn_split_is_told_as_such(tmp_path: Path) -> None:
    report = RunReport(tmp_path, {}, "in-process")
    (tmp_path / "split.json").write_text('{"cli')
    with pytest.raises(DamagedRecords, match="split.json is damaged"):
        report.finish({})


def test_drops_of_the_closing_evaluation_are_counted() -> None:
    from server_app.summary import findings

    rounds = [{"round": 1, "seconds": 1.0, "dropped": {"shape": 1}}]
    found = findings({}, "inprocess", rounds, {"dropped": {"shape": 1, "deadline": 2}}, None)
    assert found.summary["dropped"] == {"deadline": 2, "shape": 2}


def test_an_infinite_temperature_can_be_repeated() -> None:
    from server_app.summary import plain

    settings = parse_run_config({"hdc-fl.temperature": float("inf")})
    assert "hdc-fl.temperature=inf" in command(plain(items_of_all(settings)))


@pytest.mark.parametrize(("name", "content", "expected"), [
    ("summary.json", b"\xff", "summary.json is damaged"),
    ("summary.json", {"run_config": None}, "run_config of the wrong kind"),
    ("summary.json", {"split_hash": ["x"]}, "split_hash of the wrong kind"),
    ("summary.json", {"served_raw": {"mean": 1.0}}, "'served_raw' must hold numbers"),
    ("summary.json", {"served": {"mean": float("nan"), "worst": 0, "bottom20": 0, "n": 1}}, "'served' must hold numbers"),
    ("clients.csv", b"client,served\nclient-000,high\n", "clients.csv is damaged"),
    ("clients.csv", b"\xff\xfe", "clients.csv is damaged"),
])
def test_a_damaged_finished_run_is_no_traceback(name: str, content: bytes | dict[str, object], expected: str, finished: Path,
                                                tmp_path: Path) -> None:
    folder = tmp_path / "copy"
    shutil.copytree(finished, folder)
    if isinstance(content, dict):
        content = json.dumps(json.loads((folder / name).read_text()) | content).encode()
    (folder / name).write_bytes(content)
    with pytest.raises(ComparisonError, match=expected):
        read_run(folder)


def test_one_client_with_long_class_names_leaves_room_for_its_picture() -> None:
    """Warnings are errors here; Matplotlib warned that nothing was left of the axes."""
    from server_app.heatmaps import split_picture

    split = {"classes": ["<script>alert(1)</script>", "$\\frac{$ " + "x" * 100], "train": {"client-000": [4, 4]},
             "groups": {"client-000": "$x^$<b>&" + "g" * 300}}
    drawn = split_picture(split, ["client-000"]).html()
    assert "<script>" not in drawn and "\\u003cscript>alert(1)" in drawn and "&lt;script&gt;alert(1)" in drawn
