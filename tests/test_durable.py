"""Files are put in place whole, or not at all."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from server_app import durable
from server_app.durable import replacing


def test_the_old_content_stays_until_the_new_one_is_whole(tmp_path: Path) -> None:
    path = tmp_path / "state"
    path.write_text("old")
    with replacing(path) as torn:
        torn.write_text("ne")
        assert path.read_text() == "old" and torn.parent == tmp_path
        torn.write_text("new")
    assert path.read_text() == "new" and os.listdir(tmp_path) == ["state"]


@pytest.mark.parametrize("fault", [KeyboardInterrupt(), OSError(28, "No space left on device")])
def test_what_fails_leaves_the_old_content_and_nothing_else(fault: BaseException, tmp_path: Path) -> None:
    path = tmp_path / "state"
    path.write_text("old")
    with pytest.raises(type(fault)), replacing(path) as torn:
        torn.write_text("ne")
        raise fault
    assert path.read_text() == "old" and os.listdir(tmp_path) == ["state"]


def test_content_is_on_the_disk_before_its_name_and_the_name_before_it_returns(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path, seen = tmp_path / "state", []
    monkeypatch.setattr(durable, "sync_to_disk", lambda what: seen.append((what.name, path.exists())))
    with replacing(path) as torn:
        torn.write_text("new")
    assert seen == [(".tmp-state", False), (tmp_path.name, True)]
    with replacing(path, durable=False) as torn:
        torn.write_text("newer")
    assert len(seen) == 2 and path.read_text() == "newer"
