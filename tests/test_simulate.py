"""How a failed run on Ray is told from its log: which line says why, and whether the input or the run was at fault."""

from __future__ import annotations

from pathlib import Path

import pytest

from deploy.simulate import failure
from server_app.roster import CannotStart
from server_app.rounds import RunFailed

NOISE = "\x1b[92mINFO\x1b[0m :      Starting Flower SuperLink\n"
UNFIT = "server_app.roster.CannotStart: clients differ in their number of classes\n"
CLIENTS = "ClientAppActor pid=7 strategies.config.ConfigError: width must be 1 or more\n"
VOID = "server_app.rounds.RunFailed: 3 rounds in a row were void\n"
DISK = "OSError: [Errno 28] No space left on device\n"


@pytest.mark.parametrize(("log", "played", "kind", "said"), [
    (UNFIT, 0, CannotStart, "clients differ in their number of classes"),
    ("strategies.config.ConfigError: out already holds a run\n", 0, CannotStart, "out already holds a run"),
    (CLIENTS + UNFIT, 0, CannotStart, "clients differ in their number of classes"),
    (CLIENTS + VOID, 0, RunFailed, "3 rounds in a row were void"),
    (CLIENTS + DISK, 2, RunFailed, "width must be 1 or more"),
    (DISK, 0, RunFailed, "OSError: [Errno 28] No space left on device"),
    ("", 0, RunFailed, "INFO :      Starting Flower SuperLink"),
])
def test_the_log_tells_why_and_whose_fault_it_was(log: str, played: int, kind: type[RunFailed], said: str, tmp_path: Path) -> None:
    path = tmp_path / "flower.log"
    path.write_text(NOISE + log)
    found = failure(path, 0, played, "finished:failed")
    assert type(found) is kind and str(found) == f"{said} (status finished:failed; the whole log is {path})"


def test_an_earlier_attempt_in_the_same_log_does_not_count(tmp_path: Path) -> None:
    path = tmp_path / "flower.log"
    path.write_text(NOISE + UNFIT + NOISE + DISK)
    found = failure(path, len(NOISE + UNFIT), 0, "finished:failed")
    assert type(found) is RunFailed and str(found).startswith("OSError: [Errno 28]")
    assert str(failure(path, len(NOISE + UNFIT + NOISE + DISK), 0, "unknown")).startswith("nothing was logged")
