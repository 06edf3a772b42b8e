"""The README's tables are the code's, its examples run, and it says nothing of one machine's folders."""

from __future__ import annotations

import json
import os
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path

import pytest

from deploy.cli import main
from deploy.overrides import parse_overrides
from deploy.privacy import HELLO_MEANS, contracts, hello, markdown, scalars, warnings
from strategies.data_warnings import MEANING
from strategies.partition_names import DIVISIONS, GROUPS
from strategies.registry import METHODS, parse_run_config
from strategies.wire import HELLO_FACTS

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text(encoding="utf-8")


# the sections whose commands a new user can type one after the other
TRIED = ("Your data", "Clients who come later", "The model in your hands")


def blocks(language: str, text: str = README) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", text, flags=re.DOTALL)


def section(title: str) -> str:
    return re.split(r"\n##+ ", README.partition(f"# {title}\n")[2])[0]


def commands(block: str) -> Iterator[tuple[list[str], str]]:
    """The commands of a shell's block as (words, standard input)."""
    lines = iter(block.replace("\\\n", " ").splitlines())
    for line in lines:
        words = shlex.split(line, comments=True)
        given = ""
        if words and words[-1] == "<<EOF":
            words.pop()
            given = "\n".join(iter(lambda: next(lines), "EOF"))
        if words[-1:] == ["&"]:
            words.pop()
        if ">" in words:
            words = words[:words.index(">")]
        if words:
            yield words, given


def test_the_privacy_table_is_what_the_contracts_say() -> None:
    told = README.partition("<!-- wire -->\n")[2].partition("<!-- /wire -->")[0]
    assert told == markdown(contracts()), "run: fedhearth wire --markdown"
    assert all(f"| {method} " in told for method in METHODS)


def test_the_privacy_table_leaves_no_number_and_no_fact_out() -> None:
    for contract in contracts():
        row = markdown([contract]).splitlines()[2]
        assert all(f"`{name}`" in row + scalars() for name in contract.wire.metrics), contract.label
    assert HELLO_MEANS.keys() == HELLO_FACTS.keys() and all(f"`{fact}`" in hello() for fact in HELLO_FACTS)
    assert all(f"`{kind}` ({meaning})" in warnings() for kind, meaning in MEANING.items())


def test_the_lists_of_the_reference_are_complete() -> None:
    from client_app.data.sources import READERS

    assert all(re.search(rf"`{kind}[:`]", section("Data sets")) for kind in (*READERS, "module"))
    assert all(re.search(rf"^\| `{name}[`:]", section("Partitions"), re.M) for name in (*DIVISIONS, *GROUPS, "flwr-datasets"))
    rows = [line.split("|")[1] for line in section("Findings of the data check").splitlines() if line.startswith("| `")]
    found = {kind for path in ("client_app/data/checks.py", "deploy/checks/data_findings.py")
             for kind in re.findall(r'(?:"(?:STOP|WARN|PASS)", |_not_opened\(.*)"([a-z-]+)"', (ROOT / path).read_text(encoding="utf-8"))}
    assert found >= {"reading", "division", "agreement", "shared", "model", "rows"}
    assert {name for row in rows for name in re.findall(r"`([a-z-]+)`", row)} == found


@pytest.fixture
def empty_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.setenv("PYTHONPATH", os.environ.get("PYTHONPATH", ""))
    for name, value in {"HF_HOME": str(tmp_path / "hub"), "HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1"}.items():
        monkeypatch.setenv(name, value)
    return tmp_path


def small(words: list[str]) -> list[str]:
    """The same command with a small model and few rounds."""
    return [*words, "--workers", "1", "-c", "width=4", "-c", "rounds=2"] if words[0] == "run" else words


def left_to_others(words: list[str]) -> bool:
    """What takes long and has a test of its own, or needs an extra that is not here."""
    return "onnx" in words or not find_spec("datasets") and "load_dataset" in " ".join(words) + "hub:" * ("hub:" in " ".join(words))


def test_the_examples_run_one_after_the_other_as_written(empty_folder: Path) -> None:
    for words, given in (command for title in TRIED for block in blocks("bash", section(title)) for command in commands(block)):
        if left_to_others(words):
            continue
        if words[0] == "python":
            subprocess.run([sys.executable, *words[1:]], input=given, text=True, check=True, capture_output=True)
        else:
            assert main(small(words[1:])) == 0, words

    def told(name: str) -> dict:
        return json.loads(Path(name).read_text(encoding="utf-8"))

    run, split = told("shapes-run/summary.json"), told("split/split.json")
    assert run["clients"] == 6 and run["rounds"] == 2 and run["model"]["input-shape"] == [1, 28, 28]
    assert split["hash"] == told("shapes-run/split.json")["hash"] == run["split_hash"]
    assert sum(map(sum, (*split["train"].values(), *split["test"].values()))) == 300
    assert set(told("split-by-pen/split.json")["natural"].values()) == {f"pen-{n}" for n in range(6)}
    assert sorted(told("domain-run/split.json")["groups"].values()) == ["day", "day", "night", "night"]
    assert len(told("held-out-run/summary.json")["held_out"]["clients"]) == 1
    (line,) = told("shapes-run/joined.json")
    assert (line["client"], line["n_train"], line["n_test"]) == ("west", 68, 22) and 0 <= line["served"] <= 1
    rows = Path("answers.csv").read_text(encoding="utf-8").splitlines()
    assert rows[0] == "file,class,probability,p(disc),p(ring),p(square),error" and len(rows) == 1 + 30 + 1
    assert Path("client-003.safetensors").is_file()


def test_the_example_of_own_data_runs_as_written(empty_folder: Path) -> None:
    (source,) = (block for block in blocks("python") if "def load(" in block)
    Path("stripes.py").write_text(source, encoding="utf-8")
    (line,) = (line for block in blocks("bash") for line in block.splitlines() if "stripes:load" in line)
    assert main([*shlex.split(line)[1:], "--workers", "1", "-c", "width=4"]) == 0
    summary = json.loads(Path("stripes-run/summary.json").read_text(encoding="utf-8"))
    assert summary["clients"] == 4 and summary["rounds"] == 3
    assert summary["clusters"]["adjusted_rand"] is not None


def test_every_command_parses() -> None:
    from deploy.cli import parser

    typed = [words for block in blocks("bash") for words, _ in commands(block)]
    quoted = map(shlex.split, re.findall(r"`(fedhearth (?:run|wire|submit) [^`]+)`", README))
    found = [words[1:] for words in (*typed, *quoted) if words[0] == "fedhearth"]
    assert len(found) >= 25
    for words in found:
        options = parser(words[0]).parse_args(words)
        parse_run_config(parse_overrides(getattr(options, "settings", [])))


def test_what_it_names_is_there() -> None:
    for path in re.findall(r"`((?:client_app|server_app|strategies|models|deploy|tests)/[\w/.]*)`", README):
        if "mine" not in path:
            assert (ROOT / path).exists(), path
    targets = re.findall(r"(?:`|^)make (\w+)", README, re.M)
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    assert targets and all(f"\n{target}:" in makefile for target in targets)
    assert not re.search(r"(?<![\w.~])/(?:home|root|work|tmp|Users)/", README)
