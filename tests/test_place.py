"""The place in a data URI: found, made absolute, and its changes noticed."""

from __future__ import annotations

import argparse
import os
from pathlib import Path

import pytest

from client_app.data.place import changed, divided, options, with_absolute_place
from deploy.launch import new_run
from deploy.supernode import node_config
from strategies.config import ConfigError


@pytest.mark.parametrize(("uri", "parts"), [
    ("digits", ("digits", "", "")),
    ("npz:a/b.npz", ("npz:", "a/b.npz", "")),
    ("folder:a?b=c", ("folder:", "a?b=c", "")),
    ("table:a/t.csv", ("table:", "a/t.csv", "")),
    ("table:what?/t.csv?label=y&split=", ("table:", "what?/t.csv", "?label=y&split=")),
    ("torchvision:MNIST@data/x", ("torchvision:MNIST@", "data/x", "")),
    ("torchvision:EMNIST@data?split=letters", ("torchvision:EMNIST@", "data", "?split=letters")),
    ("torchvision:MNIST", ("torchvision:MNIST", "", "")),
    ("hub:someone/thing#small?label=y", ("hub:someone/thing#small?label=y", "", "")),
    ("hub:saved", ("hub:", "saved", "")),
    ("hub:saved?label=y", ("hub:", "saved", "?label=y")),
    ("my_module:load", ("my_module:load", "", "")),
    ("", ("", "", "")),
])
def test_a_uri_is_divided_around_its_place(uri: str, parts: tuple[str, str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "saved").mkdir()
    monkeypatch.chdir(tmp_path)
    assert divided(uri) == parts and "".join(parts) == uri
    absolute = with_absolute_place(uri, lambda place: Path(place).absolute())
    assert absolute == (f"{parts[0]}{tmp_path / parts[1]}{parts[2]}" if parts[1] else uri)
    assert with_absolute_place(absolute, lambda place: Path(place).absolute()) == absolute


def test_runs_and_sites_are_told_absolute_places(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for uri, told in (("folder:f", f"folder:{tmp_path}/f"), ("table:t.csv?label=y", f"table:{tmp_path}/t.csv?label=y"),
                      ("torchvision:MNIST@r", f"torchvision:MNIST@{tmp_path}/r"), ("hub:not/here", "hub:not/here")):
        assert new_run({"dataset": uri}, "").settings.run.dataset == told
        site = argparse.Namespace(site="clinic", state_dir=Path("s"), data=uri, device="", partition=None)
        assert f'data="{told}"' in node_config(site)


def test_options_stand_behind_the_place() -> None:
    assert options("a?b.csv?image=x%20y&split=") == ("a?b.csv", {"image": "x y", "split": ""})
    assert options("a.csv") == ("a.csv", {})


def test_a_folder_changes_with_the_files_in_its_class_folders(tmp_path: Path) -> None:
    (tmp_path / "train" / "a").mkdir(parents=True)
    os.utime(tmp_path, ns=(1, 1))
    os.utime(tmp_path / "train", ns=(2, 2))
    os.utime(tmp_path / "train" / "a", ns=(3, 3))
    assert changed(str(tmp_path)) == (3, 3)
    os.utime(tmp_path / "train" / "a", ns=(9, 9))
    assert changed(str(tmp_path)) == (9, 3)
    file = tmp_path / "t.csv"
    file.write_text("four")
    os.utime(file, ns=(5, 5))
    assert changed(str(file)) == (5, 4) and changed(str(tmp_path / "nowhere")) == changed("") == (0, 0)


def test_two_runs_of_one_second_have_two_folders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("deploy.launch.time.strftime", lambda _: "20260101-120000")
    names = []
    for _ in range(3):
        launch = new_run({"seed": 7}, "")
        launch.folder.mkdir(parents=True)
        names.append(launch.folder.name)
    assert names == [f"{names[0]}{end}" for end in ("", "-2", "-3")] and names[0].endswith("-7-20260101-120000")


def test_a_run_does_not_take_over_the_clients_of_another(tmp_path: Path) -> None:
    named = {"run-id": "trial", "state-dir": str(tmp_path / "state")}
    new_run(named, str(tmp_path / "first"))
    (tmp_path / "state" / "trial" / "site-0").mkdir(parents=True)
    with pytest.raises(ConfigError, match="already holds the clients of a run named trial; give another run-id or state-dir"):
        new_run(named, str(tmp_path / "second"))
    new_run({**named, "run-id": "other"}, str(tmp_path / "second"))
