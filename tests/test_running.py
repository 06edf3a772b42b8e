"""What ``fedhearth run`` says beside its rounds: warnings on a terminal, how it ended, and what its closing table lacks."""

from __future__ import annotations

import errno
import io
import logging
import re
import sys
import threading
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from deploy import running
from deploy.live import Display
from deploy.run_log import logged
from deploy.running import NO_SCORE, fault, outcome_table
from strategies.config import RunConfig

WARNINGS = [f"round {number} is void: 1 good reply to 3 messages" for number in range(1, 6)]
TAILS = {"mean": 0.5, "worst": 0.25, "bottom20": 0.3, "n": 4}
SUMMARY: dict[str, Any] = {"method": "fedper", "rounds": 5, "clients": 4, "served": TAILS, "adapted": TAILS, "void_rounds": 0,
                           "dropped": {}}
log = logging.getLogger("server_app.rounds")


class Terminal(io.StringIO):
    """What a program writes to a terminal, and by ``screen`` what is then to be seen."""

    def isatty(self) -> bool:
        return True

    def screen(self) -> list[str]:
        rows, row, column = [""], 0, 0
        for control, way, character in re.findall(r"\x1b\[([?\d;]*)([A-Za-z])|(.|\n)", self.getvalue()):
            if character == "\n":
                row, column = row + 1, 0
                rows += [""] * (row + 1 - len(rows))
            elif character == "\r":
                column = 0
            elif character:
                rows[row] = rows[row][:column].ljust(column) + character + rows[row][column + 1:]
                column += 1
            elif way == "A":
                row = max(0, row - int(control or 1))
            elif way == "K":
                rows[row] = ""
        return [text.rstrip() for text in rows]


def played(launch: Any, workers: int, shown: Any) -> dict[str, Any]:
    """A run that warns of every round; the bars are drawn after each, as they are twice a second."""
    for number, warning in enumerate(WARNINGS, start=1):
        log.warning(warning)
        shown.round({"round": number, "seconds": 1.0, "void": True})
        if live := getattr(shown, "_live", None):
            live.refresh()
    return {**SUMMARY, "void_rounds": 5}


def ran(folder: Path, monkeypatch: pytest.MonkeyPatch, stdout: io.StringIO, stderr: io.StringIO) -> None:
    monkeypatch.setattr(running, "_in_process", played)
    monkeypatch.setattr(sys, "stdout", stdout)
    monkeypatch.setattr(sys, "stderr", stderr)
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "100")
    launch: Any = SimpleNamespace(settings=SimpleNamespace(run=RunConfig(rounds=5, clients=4), method=SimpleNamespace(name="fedper")),
                                  folder=folder)
    assert running._supervised(launch, "inprocess", 1, 0, quiet=False) == 0


def test_bars_wipe_no_warning_away(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = Terminal()
    ran(tmp_path, monkeypatch, terminal, terminal)
    assert terminal.getvalue().count("━") >= len(WARNINGS)  # bars were drawn
    screen = terminal.screen()
    assert screen[2:7] == [f"fedhearth: {warning}" for warning in WARNINGS]
    assert screen[7:9] == ["", f"accuracy in %, over clients{'mean':>15}{'worst':>14}{'bottom 20 %':>14}"]  # the bars are gone
    assert screen[-2] == f"report: {tmp_path / 'report.html'}"


def test_warnings_go_where_stderr_leads_if_that_is_no_terminal(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    terminal, file = Terminal(), io.StringIO()
    ran(tmp_path, monkeypatch, terminal, file)
    assert file.getvalue() == "".join(f"fedhearth: {warning}\n" for warning in WARNINGS) and "is void" not in terminal.getvalue()


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="the device that is always full is Linux's")
def test_a_run_log_that_cannot_be_written_is_told_once(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "run.log").symlink_to("/dev/full")
    with logged(tmp_path / "run.log"):
        log.info("a")
        log.info("b")
    assert capsys.readouterr().err == f"fedhearth: {tmp_path / 'run.log'} is not written any more (No space left on device)\n"


def test_a_thread_that_fails_is_a_line_and_its_traceback_in_the_log(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    def fail() -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    before = threading.excepthook
    with logged(tmp_path / "run.log"):
        thread = threading.Thread(target=fail, name="writer")
        thread.start()
        thread.join()
    assert threading.excepthook is before
    assert capsys.readouterr().err == "fedhearth: the thread writer failed (OSError: [Errno 28] No space left on device)\n"
    assert "Traceback" in (tmp_path / "run.log").read_text(encoding="utf-8")


def test_a_disk_that_fails_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    full = OSError(errno.ENOSPC, "No space left on device")
    assert fault(full, Path("out")) == "out: No space left on device"
    assert fault(OSError(errno.ENOSPC, "No space left on device", "out/a.npz"), Path("out")) == "out/a.npz: No space left on device"
    assert fault(OSError(errno.ECONNREFUSED, "Connection refused"), Path("out")) == "[Errno 111] Connection refused"  # no disk's
    assert fault(RuntimeError("as it is"), Path("out")) == "as it is"

    def failing(launch: Any, workers: int, shown: Display) -> dict[str, Any]:
        raise full

    monkeypatch.setattr(running, "_in_process", failing)
    launch: Any = SimpleNamespace(settings=SimpleNamespace(run=RunConfig(), method=SimpleNamespace(name="fedper")), folder=tmp_path)
    assert running._supervised(launch, "inprocess", 1, 0, quiet=True) == 1
    assert capsys.readouterr().err == f"fedhearth: {tmp_path}: No space left on device\n"


def test_the_closing_table_tells_void_rounds() -> None:
    assert "void" not in outcome_table(SUMMARY, Path("out"))
    told = outcome_table({**SUMMARY, "void_rounds": 1}, Path("out"))
    assert "\nvoid rounds: 1 of 5 (too few valid replies; a void round changes nothing)\n" in told


def test_figures_over_fewer_clients_say_over_how_many() -> None:
    lines = outcome_table({**SUMMARY, "adapted": {**TAILS, "n": 1}}, Path("out")).splitlines()
    assert lines[2].endswith("30.0") and lines[3].endswith("30.0  1 of 4 clients")


def test_where_nobody_was_scored_the_table_is_one_line() -> None:
    unscored = {**SUMMARY, "served": None, "adapted": None}
    assert outcome_table(unscored, Path("out")) == f"\n{NO_SCORE}\nreport: {Path('out') / 'report.html'}\n"
    beside = outcome_table({**unscored, "held_out": {"tails": TAILS}}, Path("out")).splitlines()
    assert beside[1].startswith("accuracy in %") and beside[2].startswith("held-out clients, served") and beside[3] == NO_SCORE
