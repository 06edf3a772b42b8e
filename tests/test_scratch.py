"""Folders under the system's temporary one: they end with their process, or with the next one if it was killed."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from deploy.scratch import OWNER, PREFIX, Scratch

OWNING = "import sys; from deploy.scratch import Scratch; kept = Scratch(); print(kept.name, flush=True); sys.stdin.read()"


@pytest.fixture
def temporary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    return tmp_path


def test_a_folder_goes_with_its_owner(temporary: Path) -> None:
    scratch = Scratch()
    Path(scratch.name, "0").write_bytes(b"weights")
    assert [path.name for path in temporary.iterdir()] == [Path(scratch.name).name]
    scratch.close()
    assert list(temporary.iterdir()) == []


def test_what_a_killed_process_left_goes_with_the_next_and_what_a_living_one_has_stays(temporary: Path) -> None:
    owners = [subprocess.Popen([sys.executable, "-c", OWNING], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
                               env=os.environ | {"TMPDIR": str(temporary), "TEMP": str(temporary)}) for _ in range(2)]
    left, living = (Path(owner.stdout.readline().strip()) for owner in owners if owner.stdout)
    (left / "0").write_bytes(b"weights")
    owners[0].kill()
    owners[0].communicate()
    assert left.exists()
    with_ours = Scratch()
    assert {path for path in temporary.iterdir()} == {living, Path(with_ours.name)}
    owners[1].communicate("")  # it ends, and its folder with it
    assert {path for path in temporary.iterdir()} == {Path(with_ours.name)}
    with_ours.close()


def test_nothing_else_is_swept(temporary: Path) -> None:
    young, elsewhere, link = temporary / f"{PREFIX}young", temporary / "elsewhere", temporary / f"{PREFIX}link"
    for folder in (young, elsewhere):
        folder.mkdir()
    (elsewhere / OWNER).touch()
    link.symlink_to(elsewhere)
    Scratch().close()
    assert {path.name for path in temporary.iterdir()} == {young.name, "elsewhere", link.name} and (elsewhere / OWNER).exists()
