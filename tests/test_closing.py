"""A run whose closing evaluation nobody answers has no result: it fails, loses nothing, and can be finished afterwards."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from flwr.app import Error, Message

from server_app.rounds import RunFailed
from tests.running import about, run


def silent(message: Message, reply: Callable[[], Message]) -> Message:
    return Message(Error(4, "lost"), reply_to=message) if about(message)[0] == "evaluate" else reply()


def test_it_says_so_and_resuming_asks_again(tmp_path: Path) -> None:
    with pytest.raises(RunFailed, match="none of the 4 clients that were asked for the closing evaluation"):
        run(tmp_path / "run", "fedper", silent)
    assert not (tmp_path / "run" / "summary.json").exists()
    whole, again = run(tmp_path / "whole", "fedper"), run(tmp_path / "run", "fedper", resume=True)
    assert again.everything() == whole.everything() and again.summary["served"] == whole.summary["served"]


def test_one_good_reply_is_a_result(tmp_path: Path) -> None:
    def nearly(message: Message, reply: Callable[[], Message]) -> Message:
        return reply() if about(message)[1] == "client-002" else silent(message, reply)

    assert run(tmp_path, "fedper", nearly).summary["served"]["n"] == 1
