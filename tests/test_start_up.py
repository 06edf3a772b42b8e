"""What is imported, and when: seconds are the machine's business, but a module that is not loaded cannot take any.

benchmarks/start_up/measure.py has the seconds.
"""

from __future__ import annotations

import json
import multiprocessing as mp
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from deploy import fork_server
from deploy.cli import DEPLOYMENT

# each takes a tenth of a second or more to import
HEAVY = {"torch", "torchvision", "timm", "open_clip", "flwr", "ray", "grpc", "httpx", "fastapi", "sklearn", "scipy", "pandas", "pyarrow",
         "datasets", "matplotlib", "PIL", "tensorboard", "onnx", "onnxruntime", "rich"}
# what a message of training needs
TRAINING = {"torch", "flwr", "grpc", "httpx", "rich"}

EACH = """
import contextlib, io, json, sys
from deploy.cli import main
found = {}
for words in json.loads(sys.argv[1]):
    before = set(sys.modules)
    with contextlib.redirect_stdout(io.StringIO()) as told, contextlib.suppress(SystemExit):
        main(words)
    found[" ".join(words)] = [len(told.getvalue()), sorted({name.partition(".")[0] for name in set(sys.modules) - before})]
print(json.dumps(found))
"""

FIRST_TRAINING = """
import os, sys
from deploy.cli import main
from deploy.inprocess import InProcessGrid
push = InProcessGrid.push_messages
def watched(grid, messages):
    messages = list(messages)
    if messages and messages[0].metadata.message_type == "train":
        print("LOADED", *sorted({name.partition(".")[0] for name in sys.modules}), flush=True)
        os._exit(0)
    return push(grid, messages)
InProcessGrid.push_messages = watched
main(["run", "-c", "method=fedper", "-c", "clients=4", "-c", "rounds=1", "--quiet", "--workers", "1", "--out", sys.argv[1]])
"""


def printed(code: str, *words: str) -> str:
    ran = subprocess.run([sys.executable, "-c", code, *words], capture_output=True, text=True, env={**os.environ, "OMP_NUM_THREADS": "1"})
    assert ran.returncode == 0, ran.stderr
    return ran.stdout


def test_commands_that_only_tell_something_load_nothing_heavy() -> None:
    """One process for all of them: what none of them loads, each one does not."""
    commands = [["--help"], ["methods"], ["wire"], ["wire", "hdc-fl", "--markdown"], ["version"], ["run", "--help"], ["compare", "--help"],
                *([name, "--help"] for name in DEPLOYMENT), ["data", "check", "--help"], ["data", "split", "--help"],
                ["doctor", "site", "--help"], ["doctor", "server", "--help"]]
    found = json.loads(printed(EACH, json.dumps(commands)))
    assert len(found) == len(commands) and all(length > 4 for length, _ in found.values())
    heavy = {command: sorted(HEAVY.intersection(loaded)) for command, (_, loaded) in found.items()}
    assert not {command: names for command, names in heavy.items() if names}


def test_the_first_message_of_training_waits_for_torch_and_flower_alone(tmp_path: Path) -> None:
    loaded = next(line.split()[1:] for line in printed(FIRST_TRAINING, str(tmp_path / "run")).splitlines() if line.startswith("LOADED"))
    assert "torch" in loaded and HEAVY.intersection(loaded) <= TRAINING


def test_workers_come_from_the_fork_server_once_it_is_warm_and_as_long_as_the_environment_is_the_same(
        monkeypatch: pytest.MonkeyPatch) -> None:
    started: list[Any] = []
    monkeypatch.setattr(fork_server, "_environment", None)
    monkeypatch.setattr(fork_server.forkserver, "ensure_running", lambda: started.append(1))
    assert fork_server.context().get_start_method() == "spawn"
    monkeypatch.setattr(sys, "platform", "win32")
    fork_server.warm()
    assert started == [] and fork_server.context().get_start_method() == "spawn"
    monkeypatch.setattr(sys, "platform", "linux")
    if "forkserver" not in mp.get_all_start_methods():
        pytest.skip("no fork server on this system")
    fork_server.warm()
    fork_server.warm()
    assert started == [1] and fork_server.context().get_start_method() == "forkserver"
    monkeypatch.setenv("GRPC_VERBOSITY", "error")  # Flower sets it when it is imported, which may be after warm()
    assert fork_server.context().get_start_method() == "forkserver"
    monkeypatch.setenv("FEDHEARTH_WEIGHTS", "elsewhere")
    assert fork_server.context().get_start_method() == "spawn"
