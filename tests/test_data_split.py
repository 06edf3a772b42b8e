"""``fedhearth data split``: the table, the two files, and every input that cannot be divided."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from client_app.data import manifest
from deploy.cli import main
from strategies.config import RunConfig
from tests.data_cases import write_npz


def split(*words: str) -> int:
    return main(["data", "split", *words])


def test_the_table_and_both_files_without_training(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    spec = write_npz(tmp_path / "a.npz", y_train=[0] * 6 + [1] * 6, y_test=[0, 0, 0, 1, 1, 1], class_names=["ant", "bee"])
    out = tmp_path / "out"
    settings = {"dataset": spec, "partition": "label-subset", "clients": 2, "classes-per-client": 1, "held-out": 0.5, "seed": 3}
    assert split(*(word for key, value in settings.items() for word in ("-c", f"{key}={value}")), "--out", str(out)) == 0
    expected = manifest(RunConfig(dataset=spec, partition="label-subset", clients=2, classes_per_client=1, held_out=0.5, seed=3))
    assert json.loads((out / "split.json").read_text()) == expected
    assert (out / "split.png").read_bytes().startswith(b"\x89PNG")
    assert sorted(path.name for path in out.iterdir()) == ["split.json", "split.png"]
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].split() == ["client", "group", "train", "test", "classes", "ant", "bee"]
    rows = {line.split()[0]: line.replace("(held out)", "").split()[1:] for line in lines[1:3]}
    # 9 images of one class each: round(2.25) = 2 to test on
    assert sorted(map(tuple, rows.values())) == [("-", "7", "2", "1", "-", "7/2"), ("-", "7", "2", "1", "7/2", "-")]
    assert sum("(held out)" in line for line in lines[1:3]) == 1
    assert lines[3] == "2 clients, 2 classes; training samples a client: 7 to 7; unused samples: 0"
    assert lines[4] == f"split hash: {expected['hash']}"


def test_many_classes_leave_the_table_narrow(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    spec = write_npz(tmp_path / "a.npz", ("x_test", "y_test"), y_train=list(range(12)), class_names=[f"kind {n}" for n in range(25)])
    assert split("-c", f"dataset={spec}", "-c", "clients=2", "--out", str(tmp_path / "out")) == 0
    printed = capsys.readouterr().out
    assert "kind" not in printed and "more than 20 classes: counts by class are in the files" in printed


@pytest.mark.parametrize(("setting", "expected"), [
    ("partition=dirichlett", "did you mean 'dirichlet'"),
    ("partition=natural", "needs a `client` column"),
    ("partition=domain", "needs a `domain` column"),
    ("clients=2000", "use fewer clients"),
    ("dataset=npz:/nowhere/a.npz", "/nowhere/a.npz"),
    ("partition=flwr-datasets:NoPartitioner", "no partitioner 'NoPartitioner'"),
    ("partiton=iid", "did you mean 'partition'"),
])
def test_what_cannot_be_divided_is_told_with_exit_code_2(
    setting: str, expected: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert split("-c", setting, "--out", str(tmp_path / "out")) == 2
    assert expected in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


def test_the_folder_of_a_run_and_a_file_are_left_alone(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "run.json").write_text("{}")
    assert split("--out", str(tmp_path)) == 2
    assert "holds a run" in capsys.readouterr().err
    assert split("--out", str(tmp_path / "run.json")) == 2
    assert "cannot write to" in capsys.readouterr().err
