"""The README's table is the code's, its example runs, and it says nothing of one machine's folders."""

from __future__ import annotations

import json
import os
import re
import shlex
import sys
from pathlib import Path

import pytest

from deploy.cli import main
from deploy.overrides import parse_overrides
from deploy.privacy import contracts, markdown
from strategies.registry import METHODS, parse_run_config

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text(encoding="utf-8")


def blocks(language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", README, flags=re.DOTALL)


def test_the_privacy_table_is_what_the_contracts_say() -> None:
    told = README.partition("<!-- wire -->\n")[2].partition("<!-- /wire -->")[0]
    assert told == markdown(contracts()), "run: fedhearth wire --markdown"
    assert all(f"| {method} " in told for method in METHODS)


def test_the_example_of_own_data_runs_as_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.setenv("PYTHONPATH", os.environ.get("PYTHONPATH", ""))
    (source,) = (block for block in blocks("python") if "def load(" in block)
    Path("stripes.py").write_text(source, encoding="utf-8")
    (line,) = (line for block in blocks("bash") for line in block.splitlines() if "stripes:load" in line)
    assert main([*shlex.split(line)[1:], "--workers", "1", "-c", "width=4"]) == 0
    summary = json.loads(Path("stripes-run/summary.json").read_text(encoding="utf-8"))
    assert summary["clients"] == 4 and summary["rounds"] == 3
    assert summary["clusters"]["adjusted_rand"] is not None


def test_every_command_parses() -> None:
    from deploy.cli import parser

    lines = [line.partition("#")[0] for block in blocks("bash") for line in block.splitlines()]
    commands = [*(line for line in lines if line.startswith("fedhearth ")), *re.findall(r"`(fedhearth (?:run|wire|compare)[^`]*)`", README)]
    assert len(commands) >= 6
    for command in commands:
        options = parser().parse_args(shlex.split(command)[1:])
        parse_run_config(parse_overrides(getattr(options, "settings", [])))


def test_what_it_names_is_there() -> None:
    for path in re.findall(r"`((?:client_app|server_app|strategies|models|deploy|tests)/[\w/.]*)`", README):
        if "mine" not in path:
            assert (ROOT / path).exists(), path
    targets = re.findall(r"`?make (\w+)", README)
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    assert targets and all(f"\n{target}:" in makefile for target in targets)
    assert not re.search(r"(?<![\w.~])/(?:home|root|work|tmp|Users)/", README)
