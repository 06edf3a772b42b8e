"""``fedhearth status`` of a run that is over, of one round and one site, and of a folder whose files are damaged."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from deploy.link import FlowerRun, Node
from deploy.status import headline, look, page, sites
from deploy.status_records import rounds_of
from deploy.status_watch import panel
from server_app.progress import NAME, read_progress
from server_app.report import DamagedRecords
from tests.test_live import seen

NOW = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)
NODES = [Node(name, number, "online", NOW, b"") for number, name in enumerate(("east", "north", "south", "west"), start=1)]
RECORD: dict[str, Any] = {"round": 1, "seconds": 4.0, "served": {"east": 0.25, "north": 0.5}, "lost": {"south": "deadline"},
                          "dropped": {"deadline": 1}, "bytes": {"up": {"encoder": 10}, "down": {}}}
PROGRESS: dict[str, Any] = {"round": 4, "rounds": 10, "began": 1.0, "deadline": 90.0}


class Server:
    """A SuperLink with one run, whose folder is ``out``."""

    def __init__(self, out: Path, status: str, nodes: list[Node] = NODES) -> None:
        self._nodes, self._run = nodes, FlowerRun(99, status, "", str(out), 1)

    def nodes(self) -> list[Node]:
        return self._nodes

    def runs(self) -> list[FlowerRun]:
        return [self._run]


def served(server: Any) -> dict[str, str]:
    return {site.name: site.served for site in sites(look(server), NOW)}


def close(folder: Path, **summary: Any) -> None:
    tails = {"mean": 0.8, "worst": 0.7, "bottom20": 0.7, "n": 2}
    (folder / "summary.json").write_text(json.dumps({"method": "fedper", "seed": 0, "served": tails, "split_hash": "", "run_config": {},
                                                     "held_out": {"served": {"west": 0.125}}, **summary}))
    (folder / "clients.csv").write_text("client,served,adapted,held_out\nnorth,0.9,,no\nsouth,0.7,,no\nwest,0.125,,yes\n")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "rounds.jsonl").write_text(json.dumps(RECORD) + "\n")
    return tmp_path


def test_a_finished_run_shows_its_closing_scores(folder: Path) -> None:
    server: Any = Server(folder, "finished:completed")
    close(folder)
    assert served(server) == {"east": "25.0 % (before round 1)",  # it did not answer the closing evaluation
                              "north": "90.0 % (at the end)", "south": "70.0 % (at the end)", "west": "12.5 % (at the end)"}
    assert headline(look(server), 0.0) == ("run 99 finished:completed, 1 round done, served mean 80.0 %, bottom-20 % 70.0 % at the end, "
                                           "sent 0 bytes down, 10 bytes up; dropped: 1 deadline")


def test_a_run_that_was_stopped_says_which_round_its_scores_are_from(folder: Path) -> None:
    server: Any = Server(folder, "finished:stopped")
    assert served(server) == {"east": "25.0 % (before round 1)", "north": "50.0 % (before round 1)", "south": "-", "west": "-"}
    assert "served mean 37.5 %, bottom-20 % 25.0 % before round 1, " in headline(look(server), 0.0) and look(server).fault == ""


def test_a_run_of_which_nobody_was_scored_is_no_fault(folder: Path) -> None:
    close(folder, served=None)
    found = look(Server(folder, "finished:completed"))  # type: ignore[arg-type]
    assert (found.closing, found.fault) == (None, "")


def test_a_damaged_summary_is_told_beside_the_rounds(folder: Path) -> None:
    close(folder, served="good")
    found = look(Server(folder, "finished:completed"))  # type: ignore[arg-type]
    assert "summary.json is damaged: 'served' must hold numbers" in found.fault and found.records == [RECORD] and found.closing is None


@pytest.mark.parametrize("changed", [
    {"round": "2"}, {"round": None}, {"round": True}, {"round": 1.5}, {"seconds": "soon"}, {"served": [1]}, {"served": {"north": "good"}},
    {"served": {"north": 10**400}}, {"lost": ["north"]}, {"lost": {"south": 5}}, {"dropped": 3}, {"dropped": {"deadline": "1"}},
    {"bytes": {"up": 5}}, {"bytes": {"up": {"encoder": None}}},
], ids=str)
def test_a_value_of_a_wrong_kind_is_named_and_a_watch_goes_on(changed: dict[str, Any], folder: Path) -> None:
    with (folder / "rounds.jsonl").open("a") as lines:
        lines.write(json.dumps({**RECORD, "round": 2, **changed}) + "\n")
    server: Any = Server(folder, "running")
    found, key = look(server), next(iter(changed))
    assert all(word in found.fault for word in ("rounds.jsonl", "line 2", key, "estore the file")) and found.records == ()
    assert f"fedhearth: {found.fault}\n" in page(found, NOW) and "rounds.jsonl" in seen(panel(found, NOW))


def test_what_is_unknown_is_not_damaged(folder: Path) -> None:
    sparse = {"round": 2, "seconds": 1, "served": {"north": None}, "lost": None, "bytes": {}, "void": True}
    (folder / "rounds.jsonl").write_text(json.dumps(sparse) + "\n")
    assert rounds_of(folder) == [sparse]
    (folder / "rounds.jsonl").write_text('{"round": 1, "seconds": 1, "served": {"north": 1e400}}\n')
    told = "rounds.jsonl is damaged: served in line 1 must be an accuracy for each client, got {\"north\": Infinity}; restore the file"
    with pytest.raises(DamagedRecords, match=told):
        rounds_of(folder)


@pytest.mark.parametrize("text", [json.dumps({**PROGRESS, **changed}) for changed in (
    {"round": "4"}, {"rounds": None}, {"began": "now"}, {"deadline": [1]}, {"asked": 1.5}, {"replied": {}}, {"closing": 1}, {"more": 1},
    {"began": 10**400})] + [json.dumps(PROGRESS).replace("1.0", "1e400"), "[1, 2]", "{"])
def test_damaged_progress_is_none(text: str, tmp_path: Path) -> None:
    (tmp_path / NAME).write_text(json.dumps(PROGRESS))
    assert read_progress(tmp_path) is not None
    (tmp_path / NAME).write_text(text)
    assert read_progress(tmp_path) is None


def test_one_site_and_one_round_are_counted_as_one(folder: Path) -> None:
    server: Any = Server(folder, "running", NODES[:1])
    shown = seen(panel(look(server), NOW))
    assert "1 of 1 site online" in shown and "run 99 running, 1 round done, " in shown
