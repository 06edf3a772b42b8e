"""A report drawn anew is the run's own: a folder whose files do not belong together leaves it as it was."""

from __future__ import annotations

import csv
import json
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from deploy.donor_swap import _report
from server_app.figures import client_bars, client_curves, every_client
from server_app.redraw import draw_again
from server_app.report import RunReport
from server_app.summary import ClientRow, findings
from tests.test_report import CONFIG, SERVED, final, five, record


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of the five-client run, two rounds long."""
    out = tmp_path_factory.mktemp("whole")
    five(out)
    return out


def lines_of(change: Callable[[list[str]], object], name: str) -> Callable[[Path], None]:
    def damage(folder: Path) -> None:
        lines = (folder / name).read_text().splitlines(keepends=True)
        change(lines)
        (folder / name).write_text("".join(lines))

    return damage


def cell(client: str, **changed: str) -> Callable[[Path], None]:
    """What replaces cells of one client."""
    def damage(folder: Path) -> None:
        with (folder / "clients.csv").open(newline="") as file:
            rows = list(csv.DictReader(file))
        with (folder / "clients.csv").open("w", newline="") as file:
            table = csv.DictWriter(file, list(rows[0]), lineterminator="\n")
            table.writeheader()
            table.writerows(row | changed if row["client"] == client else row for row in rows)

    return damage


def summary(**changed: object) -> Callable[[Path], None]:
    def damage(folder: Path) -> None:
        (folder / "summary.json").write_text(json.dumps(json.loads((folder / "summary.json").read_text()) | changed))

    return damage


ROUNDS = "rounds.jsonl should hold the rounds 1 to 2, each once, as summary.json says; it holds"


@pytest.mark.parametrize(("damage", "said"), [
    (lines_of(lambda lines: lines.pop(), "rounds.jsonl"), f"{ROUNDS} 1 records"),
    (lines_of(lambda lines: lines.pop(0), "rounds.jsonl"), f"{ROUNDS} 1 records"),
    (lines_of(lambda lines: lines.append(lines.pop()[:40]), "rounds.jsonl"), f"{ROUNDS} 1 records"),
    (lines_of(lambda lines: lines.reverse(), "rounds.jsonl"), f"{ROUNDS} 2 records"),
    (lines_of(lambda lines: lines.pop(), "clients.csv"),
     "clients.csv should hold 5 clients that trained and 0 kept out, as summary.json says; it holds 4 and 0"),
    (lines_of(lambda lines: lines.__delitem__(slice(1, None)), "clients.csv"), "it holds 0 and 0"),
    (cell("b", held_out="yes"), "it holds 4 and 1"),
    (cell("b", served="0.3"), "the mean of served scores is 0.62 by clients.csv and 0.6 by summary.json"),
    (cell("b", served=""), "the number of clients with served scores is 4 by clients.csv and 5 by summary.json"),
    (cell("b", served="nan"), "the number of clients with served scores is 4 by clients.csv and 5 by summary.json"),
    (cell("b", served_raw="0.2"), "the mean of served_raw scores is 0.52 by clients.csv and 0.5 by summary.json"),
    (cell("a", adapted="0.5"), "the mean of adapted scores is 0.4 by clients.csv and 0.5 by summary.json"),
    # weights 30, 10, 20, 20, 40: (.5 * 30 + .2 * 10 + .6 * 20 + .8 * 20 + .9 * 40) / 120
    (cell("a", n_test="30"), "the mean weighted by test images of served scores is 0.675 by clients.csv and 0.71 by summary.json"),
    (lines_of(lambda lines: lines.append(lines[-1]), "clients.csv"), "client 'e' has 2 rows, and should have one"),
    (lines_of(lambda lines: lines.append(lines.pop()[:9]), "clients.csv"), "row 5 has not as many cells as the header"),
    (summary(served=7), "AttributeError"),
    (summary(served={"mean": 0.6, "n": 5}), "KeyError"),
])
def test_a_damaged_folder_keeps_its_report(damage: Callable[[Path], None], said: str, whole: Path, tmp_path: Path,
                                           capsys: pytest.CaptureFixture[str]) -> None:
    folder = tmp_path / "copy"
    shutil.copytree(whole, folder)
    damage(folder)
    assert _report(folder) is None
    told = capsys.readouterr().err
    assert told.startswith("fedhearth: the report stays as it was, since the run's folder is incomplete or damaged (") and said in told
    assert (folder / "report.html").read_bytes() == (whole / "report.html").read_bytes()


def test_a_full_disk_is_not_told_as_damage(whole: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    def full(found: object) -> str:
        raise OSError(28, "No space left on device", "report.html")

    monkeypatch.setattr("server_app.redraw.page", full)
    assert _report(whole) is None
    assert capsys.readouterr().err == "fedhearth: the report stays as it was: report.html: No space left on device\n"


def test_arithmetic_that_fails_is_no_traceback(whole: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr("server_app.redraw.page", lambda found: 1 / 0)
    assert _report(whole) is None and "ZeroDivisionError" in capsys.readouterr().err


def reported(folder: Path) -> str:
    before = (folder / "report.html").read_text()
    assert draw_again(folder) == folder / "report.html"
    after = (folder / "report.html").read_text()
    assert after == before
    return after


def test_a_whole_folder_gives_the_same_report(whole: Path, tmp_path: Path) -> None:
    folder = tmp_path / "copy"
    shutil.copytree(whole, folder)
    page = reported(folder)
    # an older file has no column for raw scores
    with (folder / "clients.csv").open(newline="") as file:
        rows = [row[:-1] for row in csv.reader(file)]
    (folder / "clients.csv").write_text("".join(",".join(row) + "\n" for row in rows))
    draw_again(folder)
    assert (folder / "report.html").read_text() == page


def test_so_does_a_resumed_run_with_held_out_clients(tmp_path: Path) -> None:
    RunReport(tmp_path, CONFIG, "in-process").round(record(1))
    report = RunReport(tmp_path, CONFIG, "in-process", resume_from=1)
    report.round(record(2, adapted={"a": 0.7, "b": 0.3}))
    report.finish(final(held_out=["d", "e"]))
    assert "Held-out clients" in reported(tmp_path)
    cell("e", served="0.8")(tmp_path)
    # .85 over d and e, and .8 now; nothing of it is in the figures of the others
    with pytest.raises(ValueError, match="mean of held-out clients' served scores is 0.8 by clients.csv and 0.85 by summary.json"):
        draw_again(tmp_path)


def test_and_one_in_which_nobody_was_scored(tmp_path: Path) -> None:
    RunReport(tmp_path, CONFIG, "in-process").finish(final(served={}, served_raw={}, n_test={}))
    reported(tmp_path)


def test_one_client_is_named_in_the_singular() -> None:
    alone = ClientRow("a", "", 10, 5, 3, 0.5, None)
    assert client_bars([alone]).alt == ("Bars: served accuracy of 1 client, sorted from 50.0 % (a) to 50.0 % (a); "
                                        "the lowest is marked as the bottom 20 %.")
    assert client_curves([{"round": 1}], {"a": 0.5}).alt == "Lines: served accuracy of 1 client over 1 evaluation, and their mean."
    found = findings(CONFIG, "in-process", [], final(served=SERVED), None)
    assert every_client(found) and every_client(replace(found, rows=[])) == ""
