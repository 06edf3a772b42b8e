"""The command line explains itself: examples that parse, exit codes, completion that completes, and codes that lead into the runbook."""

from __future__ import annotations

import argparse
import ast
import re
import shlex
import shutil
import subprocess
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

from deploy.cli import EVERY, parser
from deploy.completion import script
from deploy.examples import COMMANDS, commands_of
from deploy.overrides import parse_overrides
from strategies.registry import METHODS, parse_run_config

ROOT = Path(__file__).parents[1]
RUNBOOK = (ROOT / "deploy/RUNBOOK.md").read_text(encoding="utf-8")
CODE = re.compile(r"FH-\d{3}")
WHOLE = parser(EVERY)


def below(top: argparse.ArgumentParser, name: str = "") -> Iterator[tuple[str, argparse.ArgumentParser]]:
    """Every command under ``top``, at any depth, with its full name."""
    for word, found in commands_of(top).items():
        full = f"{name} {word}".strip()
        yield full, found
        yield from below(found, full)


ALL = dict(below(WHOLE))


@pytest.mark.parametrize("name", ALL)
def test_every_command_has_examples_and_exit_codes(name: str) -> None:
    told = ALL[name].format_help()
    assert name in COMMANDS, "give it an entry in deploy/examples.py"
    assert "\nexamples:\n  fedhearth " in told and re.search(r"\nexit codes: (0 |as those of )", told)
    assert max(map(len, told.splitlines())) <= 140


def test_no_examples_are_left_of_commands_that_are_gone() -> None:
    assert COMMANDS.keys() == ALL.keys()
    assert "exit codes: 0 done, 1 it failed, 2 " in WHOLE.format_help()


@pytest.mark.parametrize("example", [example for told in COMMANDS.values() for example in told.examples])
def test_every_example_is_understood(example: str) -> None:
    words = shlex.split(example.partition(" > ")[0])
    options = WHOLE.parse_args(words)
    parse_run_config(parse_overrides(getattr(options, "settings", [])))
    named = [name for name, told in COMMANDS.items() if example in told.examples]
    assert any(example.startswith(name) for name in named)


def completed(*words: str) -> list[str]:
    """What bash offers for the last of ``words``."""
    line = ["fedhearth", *words]
    asked = (f"{script('bash')}\nCOMP_WORDS=({' '.join(map(shlex.quote, line))}); COMP_CWORD={len(line) - 1}\n"
             "$(complete -p fedhearth | sed 's/.*-F \\([^ ]*\\).*/\\1/')\nprintf '%s\\n' \"${COMPREPLY[@]}\"")
    done = subprocess.run(["bash", "--norc", "-c", asked], capture_output=True, text=True, check=True)
    return sorted(word.strip() for word in done.stdout.split())


@pytest.mark.skipif(shutil.which("bash") is None, reason="bash is not here")
def test_bash_completes_commands_options_and_choices() -> None:
    assert completed("comp") == ["compare", "completion"]
    assert completed("doctor", "s") == ["server", "site"]
    assert completed("submit", "--qu") == ["--quiet"]
    assert completed("compare", "--format", "la") == ["latex"]
    assert completed("wire", "fedp") == sorted(method for method in METHODS if method.startswith("fedp"))
    assert completed("run", "-c", "round") == ["rounds=15"] and completed("submit", "-c", "hdc-fl.temp") == ["hdc-fl.temperature=0.3"]
    assert completed("run", "-c", "method=fedp") == sorted(f"method={method}" for method in METHODS if method.startswith("fedp"))
    assert completed("run", "-c", "rounds=5", "-c", "partition=nat") == ["partition=natural"]


@pytest.mark.parametrize("shell", ["zsh", "tcsh"])
def test_other_shells_get_all_commands(shell: str) -> None:
    told = script(shell)
    assert all(re.search(rf"\b{re.escape(name)}\b", told) for name in commands_of(WHOLE))


# --- error codes


def pages() -> dict[str, list[str]]:
    """Code -> the messages that its row of the runbook quotes."""
    table = RUNBOOK.split("## What each error means")[1].split("\n## ")[0]
    rows = [line.split("|")[1:3] for line in table.splitlines() if line.startswith("| FH-")]
    assert len({code for code, _ in rows}) == len(rows), "a code stands for one row"
    return {code.strip(): re.findall(r"`([^`]+)`", messages) for code, messages in rows}


PAGES = pages()


@cache
def texts() -> tuple[tuple[str, str], ...]:
    """Every string of our code as (file, text), an f-string's own words joined by a tab where a value goes."""
    found = []
    for package in ("client_app", "server_app", "strategies", "models", "deploy"):
        for path in (ROOT / package).rglob("*.py"):
            for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
                if isinstance(node, ast.Constant) and isinstance(node.value, str):
                    found.append((path.name, node.value))
                elif isinstance(node, ast.JoinedStr):
                    words = [part.value if isinstance(part, ast.Constant) else "\t" for part in node.values]
                    found.append((path.name, "".join(map(str, words))))
    return tuple(found)


@pytest.mark.parametrize("code", PAGES)
def test_the_message_carries_the_code_of_its_row(code: str) -> None:
    carrying = [text for _, text in texts() if f"({code})" in text]
    for message in PAGES[code]:
        assert any(message in text for text in carrying), f"no message with {message!r} ends with ({code})"


def test_every_code_in_a_message_has_a_row() -> None:
    used = {code for _, text in texts() for code in CODE.findall(text)} - {"FH-012"}  # named as an example in the help
    assert used <= PAGES.keys()
    assert "FH-012" in PAGES


def test_rows_without_a_code_quote_flower_alone() -> None:
    """Flower's own messages carry no code of ours; there may be no other row without one."""
    table = RUNBOOK.split("## What each error means")[1].split("\n## ")[0]
    assert [line.split("|")[2].strip() for line in table.splitlines() if line.startswith("| – ")] == [
        "`Attempted to register SuperNode` (server's log, an ERROR)", "`Invalid timestamp` (server's log)"]
