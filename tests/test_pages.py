"""What our documents say holds: commands run or are listed with a reason, generated parts are the code's, links lead somewhere."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Iterator
from itertools import count
from pathlib import Path
from statistics import mean

import pytest
from PIL import Image

from deploy.cli import parser
from deploy.method_pages import INDEX, PAGES, page, renewed, renewed_index, settings_table
from deploy.overrides import parse_overrides
from strategies.config import ConfigError, items_of
from strategies.registry import METHODS, SPLIT_MODEL, Method, parse_run_config
from tests.documents import DOCUMENTS, NOT_RUN, ROOT, blocks, commands, enter, reason_not_to_run, run_all, section, to_run

OF_METHOD = {name: f"strategies/pages/{name}.md" for name in METHODS}
HEADINGS = ["When to use it", "When not", "Settings", "What leaves the client", "Results here", "Limits"]
REWRITE = "run: python -m deploy.method_pages"
# little data, few clients, one round
TINY = ["--workers", "1", "--quiet", "-c", "dataset=tests.running:few_digits", "-c", "clients=2", "-c", "rounds=1", "-c", "epochs=1"]


# --- the commands


def test_a_command_that_no_test_runs_is_listed_with_the_reason() -> None:
    left = [(document, shlex.join(words)) for document, text in DOCUMENTS.items() for words, _ in commands(text)
            if not reason_not_to_run(document, words) and words[0] not in ("fedhearth", "python")
            and not any(word.endswith("bin/fedhearth") for word in words)]
    assert not left, "give it a line in tests/documents.py: NOT_RUN"


@pytest.mark.parametrize("document", NOT_RUN)
def test_no_reason_is_left_of_commands_that_are_gone(document: str) -> None:
    typed = [" ".join(words) for words, _ in commands(DOCUMENTS[document])]
    starts = [start for beginnings in NOT_RUN[document].values() for start in beginnings]
    assert not [start for start in starts if not any(line.startswith(start) for line in typed)]


def test_every_command_is_understood() -> None:
    """Also those that no test runs, and whole commands in the text."""
    typed = [words for document, text in DOCUMENTS.items() if document != "deploy/RUNBOOK.md" for words, _ in commands(text)]
    quoted = map(shlex.split, re.findall(r"`(fedhearth (?:run|wire|submit) [^`]+)`", DOCUMENTS["README.md"] +
                                         DOCUMENTS["deploy/pages/reference.md"]))
    found = [words[1:] for words in (*typed, *quoted) if words[0] == "fedhearth"]
    assert len(found) >= 70
    for words in found:
        options = parser(words[0]).parse_args(words)
        parse_run_config(parse_overrides(getattr(options, "settings", [])))


@pytest.mark.parametrize("method", METHODS)
def test_the_commands_of_a_method_s_page_run(method: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    enter(tmp_path, monkeypatch)
    monkeypatch.setattr("server_app.report.write_split_png", lambda *_, **__: None)  # longer than such a run; the tutorial's are drawn
    typed = to_run(OF_METHOD[method])
    assert all(f"method={method}" in words for words, _ in typed) and typed
    numbers, narrow = count(), ["-c", "width=4"] if METHODS[method].model == SPLIT_MODEL else []
    run_all(typed, lambda words: [*words, *TINY, *narrow, "--out", f"runs/{next(numbers)}"])
    told = [json.loads(path.read_text(encoding="utf-8")) for path in tmp_path.glob("runs/*/summary.json")]
    assert [(run["method"], run["clients"], run["dropped"]) for run in told] == [(method, 2, {})] * len(typed)


def test_the_tutorial_ends_in_a_plot(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    enter(tmp_path, monkeypatch)
    run_all(to_run("deploy/pages/tutorial.md"), lambda words: [*words, "--workers", "1", "--quiet", "-c", "width=4", "-c", "rounds=1"]
            if words[0] == "run" else words)
    with Image.open("mine/who-gains.png") as plot:
        assert plot.size == (960, 720) and len(plot.convert("RGB").getcolors(2**16) or ()) > 50
    hashes = {json.loads(path.read_text(encoding="utf-8"))["hash"] for path in (*tmp_path.glob("mine/*/split.json"),
                                                                               tmp_path / "mysplit/split.json")}
    assert len(hashes) == 1, "all runs and the split that was looked at are the same"
    assert len(Path("answers.csv").read_text(encoding="utf-8").splitlines()) == 1 + 183  # the threes among scikit-learn's digits


@pytest.mark.parametrize("document", ["deploy/pages/reference.md", "deploy/pages/coming-from.md", "strategies/pages/README.md"])
def test_the_commands_of_other_pages_run(document: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
                                         capsys: pytest.CaptureFixture[str]) -> None:
    enter(tmp_path, monkeypatch)
    run_all(to_run(document), lambda words: [*words, *TINY, "-c", "width=4"] if words[0] == "run" else words)
    assert capsys.readouterr().out


def test_the_runbook_s_commands_run_that_need_no_other_machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    enter(tmp_path, monkeypatch)
    for n, label in enumerate(("benign", "malignant") * 40):
        path = tmp_path / f"srv/north/scans/{label}/{n}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.linear_gradient("L").rotate(4 * n).resize((72, 64)).save(path)
    run_all(to_run("deploy/RUNBOOK.md"), list, {"/opt/fedhearth/bin/fedhearth": "fedhearth", "/etc/fedhearth": f"{tmp_path}/etc",
                                                "/srv/fedhearth": f"{tmp_path}/srv"})
    assert {path.name for path in (tmp_path / "etc/certs/sites").glob("*.pub")} == {"north.pub", "south.pub", "west.pub"}


# --- the pages


def test_every_method_has_a_page_and_every_page_a_method() -> None:
    assert {path.stem for path in PAGES.glob("*.md")} == {*METHODS, INDEX.stem}


@pytest.mark.parametrize("method", METHODS.values(), ids=lambda method: method.name)
def test_a_page_says_what_the_code_says(method: Method) -> None:
    written = DOCUMENTS[OF_METHOD[method.name]]
    assert written == renewed(written, method), REWRITE
    assert written.startswith(f"# {method.name}\n") and re.findall(r"^## (.*)$", written, re.M) == HEADINGS
    by_hand = re.sub(r"(<!-- (\w+) -->).*?(<!-- /\2 -->)", r"\1\3", written, flags=re.DOTALL)
    assert 25 <= len(by_hand.splitlines()) <= 70
    assert all(section(heading, written).strip() for heading in HEADINGS) and ("arXiv" in written or "control" in written)


def test_the_index_lists_the_methods_of_today() -> None:
    assert DOCUMENTS["strategies/pages/README.md"] == renewed_index(DOCUMENTS["strategies/pages/README.md"]), REWRITE
    choice = section("Which method should I use?", DOCUMENTS["strategies/pages/README.md"].replace("\n### ", "\n"))
    assert not [name for name in METHODS if f"({name}.md)" not in choice], "no advice says when to use it"


@pytest.mark.parametrize("method", METHODS.values(), ids=lambda method: method.name)
def test_every_setting_has_a_row_and_a_meaning(method: Method) -> None:
    table = settings_table(method)
    rows = [line.split(" | ") for line in table.splitlines() if line.startswith("| `")]
    told = [key for row in rows for key in re.findall(r"`([\w.-]+)`", row[0])]
    assert sorted(told) == sorted(items_of(method.config_class()(), f"{method.name}."))
    assert all(row[2].rstrip(" |") for row in rows), "describe it in the docstring of its Config"


def test_a_page_can_be_read_in_a_terminal() -> None:
    told = page("ditto")
    assert "  ditto.pull = 1.0\n" in told and "pull: lambda of the paper" in told and "<!--" not in told
    assert "  strictly local    personal model, data, optimiser state\n" in told and "| setting |" not in told
    with pytest.raises(ConfigError, match="did you mean 'ditto'"):
        page("dito")


def test_a_method_without_a_page_still_has_its_settings_and_contract(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr("deploy.method_pages.PAGES", tmp_path)
    told = page("fedbn")
    assert told.startswith("# fedbn\n\none shared model, but for private BatchNorm layers.\n")
    assert "None of its own." in told and "strictly local    BatchNorm weights and statistics" in told


# --- figures and links


def figures_of(path: Path) -> str:
    """A result file's text; of JSON also the means of its lists of numbers, to four places."""
    text = path.read_text(encoding="utf-8")
    return text if path.suffix != ".json" else text + " ".join(f"{number:.4f}" for number in means(json.loads(text)))


def means(content: object) -> Iterator[float]:
    """The mean of every list of numbers, at any depth."""
    if isinstance(content, list) and content and all(isinstance(each, int | float) for each in content):
        yield mean(content)
    elif isinstance(content, list | dict):
        for each in content.values() if isinstance(content, dict) else content:
            yield from means(each)


@pytest.mark.parametrize("document", [*OF_METHOD.values(), "strategies/pages/README.md"])
def test_no_figure_stands_without_a_result_file(document: str) -> None:
    text = DOCUMENTS[document]
    told = section("What is measured here" if document.endswith("README.md") else "Results here", text)
    files = [ROOT / "strategies/pages" / target for target in re.findall(r"\((\.\./\.\./benchmarks/[^)]+\.(?:md|json))\)", told)]
    known = "".join(map(figures_of, files))
    numbers = re.findall(r"(?<!Dirichlet )\b\d+\.\d+", told)
    assert not [number for number in numbers if number not in known]
    assert numbers and files or "Not measured here yet." in told


def anchors(text: str) -> set[str]:
    """The headings of a document as a browser's address has them."""
    prose = re.sub(r"^ *```.*?^ *```", "", text, flags=re.DOTALL | re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in re.findall(r"^#+ (.+)$", prose, re.M)}


@pytest.mark.parametrize("document", DOCUMENTS)
def test_links_lead_to_files_and_headings(document: str) -> None:
    here = ROOT / document
    for target in re.findall(r"\]\(([^)\s]+)\)", DOCUMENTS[document]):
        if target.startswith("http"):
            continue
        name, _, anchor = target.partition("#")
        file = (here.parent / name).resolve() if name else here
        assert file.exists() and file.is_relative_to(ROOT), target
        assert not anchor or anchor in anchors(file.read_text(encoding="utf-8")), target


@pytest.mark.parametrize("document", DOCUMENTS)
def test_what_is_named_is_there(document: str) -> None:
    text = DOCUMENTS[document]
    for path in re.findall(r"`((?:client_app|server_app|strategies|models|deploy|tests)/[\w/.]*)`", text):
        assert "mine" in path or (ROOT / path).exists(), path
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    assert all(f"\n{target}:" in makefile for target in re.findall(r"(?:`|^)make (\w+)", text, re.M))
    assert not re.search(r"(?<![\w.~])/(?:home|root|work|tmp|Users)/", text)
    assert blocks("bash", text) or not text.count("```bash")
