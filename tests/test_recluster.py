"""Other clusters for a finished run: the figures are those of whole runs with these settings, and nothing of the run changes."""

from __future__ import annotations

import csv
import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from deploy.cli import main
from deploy.launch import locked
from deploy.recluster import FILE, note, table
from strategies.tails import spread
from tests.running import Ran, run

OTHERS = {"hdc-fl.grouping=random hdc-fl.temperature=0.7": {"hdc_fl__grouping": "random", "hdc_fl__temperature": 0.7},
          "hdc-fl.num-clusters=3 hdc-fl.shrink=true hdc-fl.temperature=0.1": {"hdc_fl__num_clusters": 3, "hdc_fl__shrink": True,
                                                                              "hdc_fl__temperature": 0.1}}


def scores(ran: Ran, key: str = "served") -> dict[str, float]:
    with (ran.folder / "clients.csv").open(newline="") as file:
        return {line["client"]: float(line[key]) for line in csv.DictReader(file)}


@pytest.fixture(scope="module")
def ran(tmp_path_factory: pytest.TempPathFactory) -> Ran:
    return run(tmp_path_factory.mktemp("reclustered") / "run", "hdc-fl", hdc_fl__num_clusters=2)


@pytest.fixture(scope="module")
def told(ran: Ran) -> list[dict[str, Any]]:
    before = ran.everything()
    tries = [word for text in OTHERS for word in ("--try", text)]
    assert main(["recluster", str(ran.folder), *tries, "--try", "hdc-fl.num-clusters=1", "--workers", "1"]) == 0
    assert ran.everything() == before  # personal models, heads, encoders and checkpoints among it
    return json.loads((ran.folder / "recluster.json").read_text())


def test_its_own_settings_give_the_runs_own_scores(ran: Ran, told: list[dict[str, Any]]) -> None:
    own = told[0]
    assert own["settings"] == {} and own["served"] == scores(ran) and own["clusters"] == 2
    assert own["served_tails"]["bottom20"] == ran.summary["served"]["bottom20"]
    assert own["served_raw_tails"]["mean"] == ran.summary["served_raw"]["mean"]


@pytest.mark.parametrize(("number", "settings"), list(enumerate(OTHERS.values(), 1)))
def test_other_settings_give_what_a_whole_run_with_them_gives(number: int, settings: dict[str, Any], told: list[dict[str, Any]],
                                                              tmp_path: Path) -> None:
    whole = run(tmp_path / "whole", "hdc-fl", **{"hdc_fl__num_clusters": 2, **settings})
    assert told[number]["served"] == scores(whole) and told[number]["clusters"] == whole.summary["clusters"]["k"]
    assert told[number]["silhouette"] == whole.summary["clusters"]["silhouette"]


def test_one_cluster_is_fedper(told: list[dict[str, Any]], tmp_path: Path) -> None:
    assert told[3]["clusters"] == 1 and told[3]["served"] == scores(run(tmp_path / "fedper", "fedper"))


def test_later_tries_are_added_and_the_table_shows_them(ran: Ran, told: list[dict[str, Any]], tmp_path: Path,
                                                        capsys: pytest.CaptureFixture[str]) -> None:
    folder = tmp_path / "copy"
    shutil.copytree(ran.folder, folder)
    assert main(["recluster", str(folder), "--try", "hdc-fl.temperature=5", "--try", "hdc-fl.num-clusters=1", "--workers", "1"]) == 0
    found = json.loads((folder / "recluster.json").read_text())
    assert [row["settings"] for row in found] == [*(row["settings"] for row in told[1:3]), {}, {"hdc-fl.temperature": 5},
                                                  {"hdc-fl.num-clusters": 1}]
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].split() == ["served,", "in", "%", "mean", "worst", "bottom", "20", "%", "clusters", "silhouette"]
    tail = spread(told[3]["served"])
    one = next(line for line in lines if line.startswith("num-clusters = 1"))
    assert one.split()[3:7] == [f"{100 * tail.mean:.1f}", f"{100 * tail.worst:.1f}", f"{100 * tail.bottom20:.1f}", "1"]
    assert [line.split("  ")[0] for line in lines[1:4]] == ["as it ran", "temperature = 5", "num-clusters = 1"]


def test_what_is_not_the_runs_any_more_is_told_and_not_kept(ran: Ran, told: list[dict[str, Any]], tmp_path: Path,
                                                            capsys: pytest.CaptureFixture[str]) -> None:
    """A client without its personal model, and one that now scores otherwise: what was kept before stays as it was."""
    for fault, said in (("lost", "no answer came from client-002 (why: above), and these figures are without"),
                        ("other", "must give its own scores again, and 1 of 4 differ, such as client-002's")):
        folder = tmp_path / fault
        shutil.copytree(ran.folder, folder)
        if fault == "lost":
            (folder / "clients" / "test" / "client-002" / "personal.safetensors").unlink()
        else:
            path, score = folder / "clients.csv", str(scores(ran)["client-002"])
            before, name, row = path.read_text().partition("client-002,")
            path.write_text(before + name + row.replace(f",{score},", ",0.0625,", 1))
        assert main(["recluster", str(folder), "--try", "hdc-fl.num-clusters=1", "--workers", "1"]) == 1
        err = capsys.readouterr().err
        assert said in err and err.endswith("nothing is kept of this\n")
        assert json.loads((folder / "recluster.json").read_text()) == told


def test_repeated_and_infinite_tries_are_one_row_of_json(ran: Ran, tmp_path: Path) -> None:
    folder = tmp_path / "copy"
    shutil.copytree(ran.folder, folder, ignore=shutil.ignore_patterns("recluster.json"))
    for _ in range(2):
        assert main(["recluster", str(folder), *["--try", "hdc-fl.temperature=inf"] * 2, "--workers", "1"]) == 0
    found = json.loads((folder / "recluster.json").read_text(), parse_constant=lambda word: pytest.fail(f"{word} is no JSON"))
    assert [row["settings"] for row in found] == [{}, {"hdc-fl.temperature": "inf"}]
    assert "weighted_mean" not in found[0]["served_tails"]


def test_a_client_that_no_refresh_knows_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """With half the clients a round, one has never trained: the run served it the shared encoder."""
    some = run(tmp_path / "run", "hdc-fl", rounds=1, fraction=0.5)
    assert main(["recluster", str(some.folder), "--try", "hdc-fl.temperature=1", "--workers", "1"]) == 0
    outside = sorted(scores(some).keys() - set(some.records[0]["accepted"]))
    assert len(outside) == 2 and f"without {', '.join(outside)}, whom the run served the shared encoder" in capsys.readouterr().out


def test_a_row_without_scores_has_none() -> None:
    assert "as it ran        –      –            –" in table([{"settings": {}, "clusters": 2, "silhouette": 0.5}])


@pytest.mark.parametrize(("words", "said"), [
    (["--try", "hdc-fl.signal=head"], "hdc-fl.signal has a say in training or in what clients send, so it needs a run of its own"),
    (["--try", "lr=0.1"], "lr has a say in training"),
    (["--try", "hdc-fl.temperature=-1"], "hdc-fl.temperature must be 0 or more"),
    (["--try", "hdc-fl.colour=1"], "unknown key 'hdc-fl.colour'"),
    (["--try", "temperature=1"], "did you mean 'hdc-fl.temperature'"),
    (["--try", "hdc-fl.temperature"], "--try expects KEY=VALUE, got 'hdc-fl.temperature'"),
])
def test_what_cannot_be_tried_says_why(words: list[str], said: str, ran: Ran, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["recluster", str(ran.folder), *words]) == 2 and said in capsys.readouterr().err


def test_runs_that_cannot_be_looked_at_again_say_why(ran: Ran, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["recluster", str(tmp_path)]) == 2 and "holds no run" in capsys.readouterr().err
    for missing, said in (("clients", "it stays at the sites"), ("summary.json", "is not finished")):
        apart = tmp_path / missing
        shutil.copytree(ran.folder, apart, ignore=shutil.ignore_patterns(missing))
        assert main(["recluster", str(apart)]) == 2 and said in capsys.readouterr().err
    with locked(tmp_path / "summary.json"):
        assert main(["recluster", str(tmp_path / "summary.json")]) == 2 and "still at work" in capsys.readouterr().err
    other = run(tmp_path / "other", "fedper").folder
    assert main(["recluster", str(other)]) == 2 and "only hdc-fl has clusters to make anew" in capsys.readouterr().err
    damaged = tmp_path / "damaged"
    shutil.copytree(ran.folder, damaged)
    (damaged / "recluster.json").write_text("{")
    assert main(["recluster", str(damaged), "--workers", "1"]) == 2 and "recluster.json is damaged" in capsys.readouterr().err
    shutil.rmtree(damaged / "shelf")
    (damaged / "recluster.json").unlink()
    assert main(["recluster", str(damaged), "--workers", "1"]) == 1 and "is not on the shelf" in capsys.readouterr().err


def test_a_full_disk_is_told_as_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """With exit code 1, since nothing is wrong with what was asked for; earlier figures stay."""
    def full(path: Path, text: str) -> None:
        raise OSError(28, "No space left on device")

    (tmp_path / FILE).write_text("[]")
    monkeypatch.setattr("server_app.report.replace_text", full)
    with pytest.raises(OSError, match="kept nowhere") as told:
        note(tmp_path, [], [{"settings": {}}])
    assert told.value.filename == str(tmp_path / FILE) and (tmp_path / FILE).read_text() == "[]"
