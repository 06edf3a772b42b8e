"""Warm client processes: a script hands its work to a fork, and behaves as the command it stands for."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from deploy.warm import COMMAND, WarmClients, usable

pytestmark = pytest.mark.skipif(not usable(), reason="forks, passed descriptors and abstract sockets are needed")

# stands for Flower's command inside the warm process: it tells what it is, and then does as its first word says
FAKE = """
import json, os, signal, sys, time
def flwr_clientapp():
    print(json.dumps({"argv": sys.argv, "ppid": os.getppid(), "pid": os.getpid(), "cwd": os.getcwd(), "mark": os.environ.get("MARK"),
                      "torch": "torch" in sys.modules, "path0": sys.path[0]}), flush=True)
    print("to the log", file=sys.stderr, flush=True)
    if sys.argv[1] == "exit":
        sys.exit(int(sys.argv[2]))
    if sys.argv[1] == "die":
        os.kill(os.getpid(), signal.SIGKILL)
    if sys.argv[1] == "wait":
        time.sleep(60)
"""


@pytest.fixture
def warm(tmp_path: Path) -> Iterator[WarmClients]:
    """A warm process in which Flower's command is ours, and in place of the real one a script that says so."""
    package = tmp_path / "fake" / "flwr" / "supernode"
    package.mkdir(parents=True)
    for folder in (package, package.parent):
        (folder / "__init__.py").touch()
    (package / "cli.py").write_text(FAKE)
    real = tmp_path / "real"
    real.write_text("#!/bin/sh\necho the real one \"$@\"\nexit 5\n")
    real.chmod(0o700)
    with WarmClients(tmp_path / "site", str(real), {"PYTHONPATH": str(tmp_path / "fake")}) as opened:
        until_listening(opened)
        yield opened


def until_listening(opened: WarmClients) -> None:
    end = time.monotonic() + 60
    while b"fedhearth-" + str(os.getpid()).encode() not in Path("/proc/net/unix").read_bytes():
        assert time.monotonic() < end, "the warm process never listened"
        time.sleep(0.05)
    assert opened.scripts.stat().st_mode


def call(warm: WarmClients, *words: str, **environment: str) -> subprocess.Popen[str]:
    return subprocess.Popen([str(warm.scripts / COMMAND), *words], env={**os.environ, **environment}, text=True, stdout=subprocess.PIPE,
                            stderr=subprocess.PIPE, stdin=subprocess.DEVNULL)


def test_the_fork_is_the_command_with_the_scripts_words_environment_folder_and_output(warm: WarmClients, tmp_path: Path) -> None:
    child = subprocess.Popen([str(warm.scripts / COMMAND), "exit", "3", "--token", "t"], env={**os.environ, "MARK": "here"}, text=True,
                             cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    out, err = child.communicate(timeout=60)
    said = json.loads(out)
    assert child.returncode == 3 and err == "to the log\n"
    assert said["argv"] == [COMMAND, "exit", "3", "--token", "t"] and said["mark"] == "here" and said["cwd"] == str(tmp_path)
    assert said["torch"] and said["pid"] != child.pid
    # a module of the folder where warm.py lies must not hide one of the app's
    assert said["path0"] != str(Path(__file__).parent.parent / "deploy")


def test_every_call_has_a_process_of_its_own(warm: WarmClients) -> None:
    said = [json.loads(call(warm, "exit", "0").communicate(timeout=60)[0]) for _ in range(2)]
    assert said[0]["pid"] != said[1]["pid"] and said[0]["ppid"] == said[1]["ppid"]


def test_a_killed_script_takes_its_fork_along(warm: WarmClients) -> None:
    child = call(warm, "wait")
    assert child.stdout is not None
    fork = psutil.Process(json.loads(child.stdout.readline())["pid"])
    child.send_signal(signal.SIGKILL)
    child.communicate(timeout=30)
    assert not psutil.wait_procs([fork], timeout=30)[1]


def test_a_fork_that_dies_is_not_tried_again_by_the_real_command(warm: WarmClients) -> None:
    """It may have begun: a second start could do the same work twice."""
    child = call(warm, "die")
    out, _ = child.communicate(timeout=60)
    assert child.returncode == 1 and "the real one" not in out


def test_without_a_warm_process_the_script_is_the_real_command(tmp_path: Path) -> None:
    real = tmp_path / "real"
    real.write_text("#!/bin/sh\necho the real one \"$@\"\nexit 5\n")
    real.chmod(0o700)
    with WarmClients(tmp_path / "site", str(real), {}) as opened:
        pass
    child = call(opened, "a", "b c")
    assert child.communicate(timeout=60)[0] == "the real one a b c\n" and child.returncode == 5


def test_the_warm_process_ends_with_its_owner(tmp_path: Path) -> None:
    owner = subprocess.Popen([sys.executable, "-c", (
        "import sys, time; from pathlib import Path; from deploy.warm import WarmClients\n"
        f"with WarmClients(Path({str(tmp_path)!r}), '/bin/true', {{}}) as w: print(w._child.pid, flush=True); time.sleep(60)")],
        stdout=subprocess.PIPE, text=True, cwd=Path(__file__).parent.parent)
    assert owner.stdout is not None
    warm = psutil.Process(int(owner.stdout.readline()))
    owner.kill()
    owner.communicate()
    assert not psutil.wait_procs([warm], timeout=60)[1]
