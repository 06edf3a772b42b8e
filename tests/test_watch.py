"""A watcher that fails while a run goes on, or after it, costs a warning and nothing else."""

from __future__ import annotations

import errno
import logging
from pathlib import Path
from typing import Any

import pytest

from server_app import watch
from strategies.config import RunConfig
from strategies.registry import default_items
from tests.test_trackers import RECORDS, SUMMARY, Told, feed


class Full:
    """An event file on a full disk."""

    def __init__(self, folder: Path, first_step: int) -> None:
        self.pictures = 0

    def image(self, step: int, tag: str, png: bytes) -> None:
        self.pictures += 1
        raise OSError(errno.ENOSPC, "No space left on device")


def test_a_full_disk_costs_the_pictures_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    told = Told()
    monkeypatch.setattr(watch, "open_tracker", lambda *given: told)
    monkeypatch.setattr(watch, "ScalarLog", Full)
    (tmp_path / "split.png").write_bytes(b"png")
    with caplog.at_level(logging.WARNING), watch.watched(RunConfig(rounds=2)) as to:
        to.into(tmp_path, default_items())
        feed(to)
        to.finished(SUMMARY)
        pictures: Any = to._pictures
    assert [record.getMessage() for record in caplog.records] == [
        "TensorBoard's pictures failed (OSError: [Errno 28] No space left on device); no result depends on that"]
    assert pictures.pictures == 1
    # whoever else watches has all of it
    assert [call[:3] for call in told.calls if call[0] == "image"] == [("image", 1, "heads/similarity"), ("image", 0, "split")]
    assert told.calls[-2][0] == "summary" and told.calls[-1] == ("close", True)


def test_what_cannot_be_let_go_hides_no_other_failure(tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
                                                      caplog: pytest.LogCaptureFixture) -> None:
    told = Told()
    monkeypatch.setattr(watch, "open_tracker", lambda *given: told)

    def fail() -> None:
        raise OSError(errno.EROFS, "Read-only file system")

    with caplog.at_level(logging.WARNING), pytest.raises(ZeroDivisionError), watch.watched(RunConfig(rounds=2)) as to:
        to.into(tmp_path, default_items())
        monkeypatch.setattr(to._progress, "remove", fail)
        to.round(RECORDS[1])
        raise ZeroDivisionError
    assert [record.getMessage() for record in caplog.records] == [
        "progress.json failed (OSError: [Errno 30] Read-only file system); no result depends on that"]
    assert told.calls[-1] == ("close", False)
