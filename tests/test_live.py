"""What is seen while a run goes on: bars with a countdown, and the sites of a deployment, read from hand-made records."""

from __future__ import annotations

import io
import json
import sys
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from rich.console import Console

from deploy import status_watch
from deploy.cli import parser
from deploy.link import FlowerRun, LinkError, Node
from deploy.live import Bars, Lines, Spent, display, minutes
from deploy.status import View, headline, look, look_again, page, sites
from server_app.progress import Progress
from strategies.data_warnings import counted

NOW = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)
NODES = (Node("north", 11, "online", NOW - timedelta(seconds=7), b""), Node("south", 12, "offline", None, b""),
         Node("", 13, "online", NOW, b""))
RECORDS = (
    {"round": 1, "seconds": 4.0, "bytes": {"up": {"encoder": 1_000_000}, "down": {"encoder": 2_500_000}},
     "served": {"north": 0.5, "south": 0.25}, "lost": {}, "dropped": {}},
    {"round": 2, "seconds": 5.0, "void": True, "bytes": {"up": {"encoder": 500_000}, "down": {"encoder": 2_500_000}},
     "served": {"north": 0.75}, "lost": {"south": "deadline"}, "dropped": {"deadline": 1}},
    {"round": 3, "seconds": 5.0, "bytes": {"up": {}, "down": {}}, "dropped": {"deadline": 1, "non-finite": 2}},
)
GOING = FlowerRun(99, "running", "", "", 10)
AT = Progress(4, 10, NOW.timestamp() - 20, 90.0, asked=2, replied=1)


def seen(renderable: object, width: int = 200) -> str:
    console = Console(file=io.StringIO(), width=width, force_terminal=False)
    console.print(renderable)
    return console.file.getvalue()  # type: ignore[attr-defined]


def test_what_rounds_have_spent() -> None:
    spent = Spent()
    assert spent.told() == ""
    for record in RECORDS:
        spent = spent.after(record)
    assert spent == Spent(1_500_000, 5_000_000, {"deadline": 2, "non-finite": 2}, 1)
    assert spent.told() == "sent 5.0 MB down, 1.5 MB up; dropped: 2 deadline, 2 non-finite; 1 round void"


def test_minutes() -> None:
    assert [minutes(s) for s in (0, 9.9, 65, 3600, 3661)] == ["0:00", "0:09", "1:05", "1:00:00", "1:01:01"]


def interrupt(seconds: float) -> None:
    raise KeyboardInterrupt


def test_counted() -> None:
    assert [counted(n, "round") for n in (0, 1, 2)] == ["0 rounds", "1 round", "2 rounds"]


@pytest.mark.parametrize(("term", "columns", "kind"), [("xterm", "60", Bars), ("xterm", "59", Lines), ("dumb", "100", Lines)])
def test_bars_where_they_can_be_drawn_and_have_room(term: str, columns: str, kind: type, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdout", Terminal())
    monkeypatch.setenv("TERM", term)
    monkeypatch.setenv("COLUMNS", columns)
    assert type(display(3, 4, quiet=False)) is kind
    assert type(display(3, 4, quiet=True)) is Lines
    assert status_watch.watch(View(), lambda before: before, 1.0, interrupt) == 0
    assert ("--- " in sys.stdout.getvalue()) == (kind is Lines)  # type: ignore[attr-defined]


def test_the_narrowest_bars_keep_their_counts() -> None:
    bars = Bars(1000, 2000, 90.0)
    bars.round({**RECORDS[0], "round": 12})
    bars.reply(13, 1234, 2000)
    shown = seen(bars.shown(), 60).splitlines()
    assert "12/1000" in shown[0] and "1234/2000" in shown[1] and "round 13" in shown[1]
    assert "before round 12: served mean 37.5 %" in " ".join(line.strip() for line in shown)


def test_bars_count_down_to_the_deadline_of_the_round() -> None:
    now = [100.0]
    bars = Bars(3, 4, 90.0, clock=lambda: now[0])
    assert "deadline" not in seen(bars.shown())  # the clients are not yet here
    bars.reply(0, 1, 4)  # their hello
    assert "deadline" not in seen(bars.shown())
    bars.reply(1, 1, 4)
    now[0] = 110.0
    shown = seen(bars.shown())
    assert "1/4" in shown and "0/3" in shown and "round 1" in shown and "deadline of this round in 1:20" in shown
    bars.round(RECORDS[0])
    now[0] = 300.0  # long past it
    shown = seen(bars.shown())
    assert "1/3" in shown and "0/4" in shown and "round 2" in shown and "in 0:00" in shown and "served mean 37.5 %" in shown
    assert "sent 2.5 MB down, 1.0 MB up" in shown
    bars.round({**RECORDS[2], "round": 3})
    bars.reply(3, 1, 4)  # the clients' answers after the last round carry its number
    assert "closing evaluation" in seen(bars.shown()) and "dropped: 1 deadline, 2 non-finite" in seen(bars.shown())


def test_sites_with_what_the_run_knows_of_them() -> None:
    found = sites(View(NODES, (GOING,), RECORDS, AT), NOW)
    assert [(site.name, site.status, site.seen, site.served, site.lost, site.node) for site in found] == [
        ("north", "online", "7 s ago", "75.0 % (before round 2)", "-", "11"),
        ("south", "offline", "never", "25.0 % (before round 1)", "deadline (round 2)", "12"),
        ("(no name)", "online", "0 s ago", "-", "-", "13")]


def test_the_headline_of_a_run() -> None:
    now = NOW.timestamp()
    assert headline(View(NODES, (GOING,), RECORDS, AT), now) == (
        "run 99 running, round 4/10, 1 of 2 replied, deadline in 1:10, served mean 75.0 %, bottom-20 % 75.0 % before round 2, "
        "sent 5.0 MB down, 1.5 MB up; dropped: 2 deadline, 2 non-finite; 1 round void")
    closing = Progress(10, 10, now, 90.0, closing=True)
    assert headline(View(NODES, (GOING,), (), closing), now) == "run 99 running, 0 rounds done, closing evaluation"
    assert headline(View(), now) == "no runs yet"


def test_the_plain_page_keeps_the_nodes_number_last() -> None:
    lines = page(View(NODES, (GOING,), RECORDS, AT), NOW).splitlines()
    assert [line.split()[0] for line in lines[:3]] == ["site", "north", "south"] and lines[1].split()[1] == "online"
    assert [line.split()[-1] for line in lines[1:4]] == ["11", "12", "13"]
    assert lines[4].startswith("run 99 running, round 4/10") and lines[5].startswith("run  ") and lines[6].startswith("99  ")


class Server:
    """A SuperLink that answers, or does not."""

    def __init__(self, out: str) -> None:
        self.answers, self.out = True, out

    def nodes(self) -> list[Node]:
        if not self.answers:
            raise LinkError("no SuperLink answers")
        return list(NODES)

    def runs(self) -> list[FlowerRun]:
        return [FlowerRun(100, "finished:completed", "", "", 3), FlowerRun(99, "running", "", self.out, 10)]


def test_a_look_reads_the_folder_of_the_run_that_goes_on(tmp_path: Path) -> None:
    server = Server(str(tmp_path))
    assert look(server).records == []  # type: ignore[arg-type]
    (tmp_path / "rounds.jsonl").write_text("".join(json.dumps(record) + "\n" for record in RECORDS))
    (tmp_path / "progress.json").write_text(json.dumps({"round": 4, "rounds": 10, "began": 1.0, "deadline": 90.0}))
    found = look(server)  # type: ignore[arg-type]
    assert found.run is not None and found.run.id == 99 and found.records == list(RECORDS)
    assert found.progress == Progress(4, 10, 1.0, 90.0) and found.fault == ""
    server.answers = False
    later = look_again(server, found)  # type: ignore[arg-type]
    assert (later.nodes, later.progress, later.fault) == (found.nodes, None, "no SuperLink answers")
    assert page(later, NOW).endswith("fedhearth: no SuperLink answers\n")
    server.answers = True
    (tmp_path / "rounds.jsonl").write_text("torn\n" + json.dumps(RECORDS[0]) + "\n")
    assert "line 1 of rounds.jsonl" in look(server).fault  # type: ignore[arg-type]


def test_watching_looks_again_until_ctrl_c(capsys: pytest.CaptureFixture[str]) -> None:
    waits = []

    def sleep(seconds: float) -> None:
        waits.append(seconds)
        if len(waits) == 3:
            raise KeyboardInterrupt

    views = iter([View(NODES, (GOING,), RECORDS[:2]), View(NODES, (GOING,), RECORDS)])
    assert status_watch.watch(View(NODES, (GOING,), RECORDS[:1]), lambda before: next(views), 5.0, sleep) == 0
    told = capsys.readouterr().out
    assert waits == [5.0] * 3 and told.count("--- ") == 3
    assert all(f"{done} done" in told for done in ("1 round", "2 rounds", "3 rounds"))


def test_on_a_terminal_the_latest_look_is_drawn(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdout", terminal := Terminal())
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "140")
    views = iter([View(NODES, (GOING,), RECORDS, AT, "gone")] * 2)

    def again(before: View) -> View:
        try:
            return next(views)
        except StopIteration:
            raise KeyboardInterrupt from None

    assert status_watch.watch(View(), again, 1.0, lambda seconds: None) == 0
    drawn = terminal.getvalue()
    assert "no runs yet" in drawn.split("south")[0] and "75.0 % (before round 2)" in drawn and "fedhearth: gone" in drawn


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_the_panel_says_how_many_are_online() -> None:
    shown = seen(status_watch.panel(View(NODES, (GOING,), RECORDS, AT), NOW))
    assert "2 of 3 sites online" in shown and "deadline in 1:10" in shown and "deadline (round 2)" in shown and "Ctrl-C" in shown


def test_the_option_takes_seconds_or_none() -> None:
    def asked(*words: str) -> float:
        return parser("status").parse_args(["status", *words]).watch

    assert (asked(), asked("--watch"), asked("--watch", "0.5")) == (0.0, 2.0, 0.5)
    for wrong in ("0", "nan", "-1", "soon"):
        with pytest.raises(SystemExit):
            asked("--watch", wrong)
