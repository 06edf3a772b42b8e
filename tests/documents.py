"""The commands in our documents: where they stand, which of them no test runs and why, and how the others are run."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from importlib.util import find_spec
from itertools import takewhile
from pathlib import Path

import pytest

from deploy.cli import main

ROOT = Path(__file__).parents[1]
# a command of a shell's block: its words, and what it is given on standard input
Command = tuple[list[str], str]


def documents() -> dict[str, str]:
    """Every document with commands, by its path in the tree."""
    paths = (ROOT / "README.md", ROOT / "deploy/RUNBOOK.md", *sorted(ROOT.glob("*/pages/*.md")))
    return {path.relative_to(ROOT).as_posix(): path.read_text(encoding="utf-8") for path in paths}


DOCUMENTS = documents()
DEPLOYED = "needs a server and sites that go on running: tests/test_deploy_loopback.py starts the same commands on free ports"
ROOTED = "changes the machine it runs on, as root"
SERVICE = "needs a service that is not here"
INSTALLS = "makes or enters the environment that the tests run in"
WEIGHTS = "needs a real backbone's weights; the command of its method's page, with a random one, is run"
# document -> why -> how the commands begin that no test runs. All other commands are run, one after the other.
NOT_RUN: dict[str, dict[str, tuple[str, ...]]] = {
    "README.md": {
        "the tests themselves, and runs of minutes": ("make demo", "make test"),
        "A and B stand for the reader's runs; the tutorial's comparison is run": ("fedhearth compare runs/A runs/B",),
        "takes seconds and needs an extra; tests/test_export.py exports to all formats": ("fedhearth export --run shapes-run --client "
                                                                                         "client-003 --format onnx",),
        DEPLOYED: ("fedhearth superlink", "fedhearth supernode", "fedhearth status", "fedhearth submit", "fedhearth predict --state-dir",
                   "fedhearth doctor site"),
    },
    "deploy/pages/tutorial.md": {INSTALLS: ("make install", "source")},
    "deploy/pages/reference.md": {
        "sets the environment of `flwr run`": ("export FLWR_TELEMETRY_ENABLED",),
        WEIGHTS: ("fedhearth run -c method=pep-fedpt", "fedhearth run -c method=fed-ia"),
        "needs several machines": ("ray start", "RAY_ADDRESS=FIRST:6379"),
    },
    "deploy/RUNBOOK.md": {
        INSTALLS: ("make install", "source"),
        DEPLOYED: ("fedhearth superlink", "fedhearth supernode", "fedhearth status", "fedhearth submit", "cd /var/lib/fedhearth",
                   "sudo -u fedhearth /opt/fedhearth/bin/fedhearth status", "sudo -u fedhearth /opt/fedhearth/bin/fedhearth submit",
                   "curl -s http://127.0.0.1:9464/metrics"),
        ROOTED: ("python3 -m venv /opt", "useradd", "chown", "cp deploy/systemd", "systemctl", "install", "journalctl"),
        "tests/test_doctor.py runs both doctors": ("cd /srv/fedhearth/north",),
        SERVICE: ("docker", "mkdir certs/public", "SITE=north", "kubectl", "flwr", "export FLWR_HOME", "mkdir -p $FLWR_HOME", "printf",
                  "sqlite3", "rsync"),
    },
}


def blocks(language: str, text: str) -> list[str]:
    """The fenced blocks of one language, also those that are indented as part of a list."""
    return re.findall(rf"^ *```{language}\n(.*?)^ *```", text, flags=re.DOTALL | re.MULTILINE)


def section(title: str, text: str) -> str:
    """What stands between the heading ``title`` and the next one."""
    return re.split(r"\n##+ ", text.partition(f"# {title}\n")[2])[0]


def commands(text: str) -> Iterator[Command]:
    """The commands of a document's shell blocks, without what follows a ``>``."""
    for block in blocks("bash", text):
        lines = iter(block.replace("\\\n", " ").splitlines())
        for line in lines:
            words = shlex.split(line, comments=True)
            given = ""
            if words and words[-1] == "<<EOF":
                words.pop()
                given = "\n".join(takewhile(lambda line: line != "EOF", lines))
            if words[-1:] == ["&"]:
                words.pop()
            if ">" in words:
                words = words[:words.index(">")]
            if words:
                yield words, given


def reason_not_to_run(document: str, words: list[str]) -> str:
    """Why no test runs the command; "" if one does."""
    line = " ".join(words)
    return next((why for why, starts in NOT_RUN.get(document, {}).items() if line.startswith(starts)), "")


def to_run(document: str) -> list[Command]:
    """The commands of a document that its test runs, in order."""
    return [(words, given) for words, given in commands(DOCUMENTS[document]) if not reason_not_to_run(document, words)]


def enter(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Make ``folder`` the present one, as for a new user: nothing is found elsewhere, and what a run changes is undone."""
    monkeypatch.chdir(folder)
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.setenv("PYTHONPATH", os.environ.get("PYTHONPATH", ""))
    for name, value in {"HF_HOME": str(folder / "hub"), "HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1", "MPLBACKEND": "Agg"}.items():
        monkeypatch.setenv(name, value)


def save_files(document: str) -> None:
    """The Python files that a document asks its reader to save, into the present folder."""
    for name, source in re.findall(r"[Ss]ave this as `(\w+\.py)`:\n\n```python\n(.*?)```", DOCUMENTS[document], flags=re.DOTALL):
        Path(name).write_text(source, encoding="utf-8")


def run_all(found: Iterable[Command], smaller: Callable[[list[str]], list[str]], paths: Mapping[str, str] | None = None) -> None:
    """Run the commands in the present folder, ``fedhearth`` in this process, and expect every one to succeed.

    ``smaller`` gives a command less work; ``paths`` maps beginnings of paths that are not the test's to ones that are.
    """
    for words, given in found:
        if not find_spec("datasets") and "load_dataset" in " ".join(words) + "hub:" * ("hub:" in " ".join(words)):
            continue
        for there, here in (paths or {}).items():
            words = [word.replace(there, here) for word in words]
        if words[:3] == ["sudo", "-u", "fedhearth"]:
            words = words[3:]
        if words[0] == "python":
            subprocess.run([sys.executable, *words[1:]], input=given, text=True, check=True, capture_output=True)
        else:
            assert words[0] == "fedhearth", f"neither run nor listed with a reason: {shlex.join(words)}"
            assert main(smaller(words[1:])) == 0, words
