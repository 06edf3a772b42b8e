"""The README's tables are the code's, and its examples run."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from deploy.privacy import HELLO_MEANS, contracts, hello, markdown, scalars, warnings
from strategies.data_warnings import MEANING
from strategies.partition_names import DIVISIONS, GROUPS
from strategies.registry import METHODS
from strategies.wire import HELLO_FACTS
from tests.documents import DOCUMENTS, ROOT, enter, run_all, save_files, section, to_run

README, REFERENCE = DOCUMENTS["README.md"], DOCUMENTS["deploy/pages/reference.md"]


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

    assert all(re.search(rf"`{kind}[:`]", section("Data sets", REFERENCE)) for kind in (*READERS, "module"))
    assert all(re.search(rf"^\| `{name}[`:]", section("Partitions", REFERENCE), re.M) for name in (*DIVISIONS, *GROUPS, "flwr-datasets"))
    rows = [line.split("|")[1] for line in section("Findings of the data check", REFERENCE).splitlines() if line.startswith("| `")]
    found = {kind for path in ("client_app/data/checks.py", "deploy/checks/data_findings.py")
             for kind in re.findall(r'(?:"(?:STOP|WARN|PASS)", |_not_opened\(.*)"([a-z-]+)"', (ROOT / path).read_text(encoding="utf-8"))}
    assert found >= {"reading", "division", "agreement", "shared", "model", "rows"}
    assert {name for row in rows for name in re.findall(r"`([a-z-]+)`", row)} == found


def small(words: list[str]) -> list[str]:
    """The same command with a small model and few rounds."""
    return [*words, "--workers", "1", "-c", "width=4", "-c", "rounds=2"] if words[0] == "run" else words


def test_the_examples_run_one_after_the_other_as_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    enter(tmp_path, monkeypatch)
    save_files("README.md")
    run_all(to_run("README.md"), small)

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
    own = told("stripes-run/summary.json")
    assert own["clients"] == 4 and own["clusters"]["adjusted_rand"] is not None
