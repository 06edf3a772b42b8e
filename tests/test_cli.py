"""``fedhearth`` from the outside: exit codes, words on stderr, and the folder that a run leaves."""

from __future__ import annotations

import csv
import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from deploy.cli import main
from deploy.launch import locked
from deploy.live import Lines, dropped, figures
from deploy.running import outcome_table

TINY = ("-c", "clients=2", "-c", "rounds=1", "-c", "epochs=1", "-c", "width=4", "--workers", "1")


@pytest.fixture(autouse=True)
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An empty current folder, and the search path back afterwards."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.setenv("PYTHONPATH", os.environ.get("PYTHONPATH", ""))


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A tiny finished run."""
    folder = tmp_path_factory.mktemp("runs") / "tiny run"
    assert main(["run", *TINY, "--out", str(folder)]) == 0
    yield folder


def summary_of(folder: Path) -> dict[str, Any]:
    return json.loads((folder / "summary.json").read_text(encoding="utf-8"))


@pytest.mark.parametrize(("settings", "expected"), [
    (["clinets=3"], "did you mean 'clients'?"),
    (["method=hdcfl"], "did you mean 'hdc-fl'?"),
    (["clients=three"], "clients must be a whole number, got 'three' (text)"),
    (["clients"], "KEY=VALUE"),
    (["alpha=0"], "alpha must be a finite number above 0"),
    (["partition=label-subset", "classes-per-client=11"], "classes-per-client in 1..10"),
    (["clients=2000"], ""),
    (["dataset=npz:nowhere.npz"], "nowhere.npz does not exist"),
    (["dataset=cifar10:nowhere"], "nowhere does not exist"),
    (["dataset=digit"], "unknown dataset"),
    (["dataset=no_such_module:load"], "cannot be imported"),
])
def test_bad_input_ends_with_2_before_anything_starts(settings: list[str], expected: str, capsys: pytest.CaptureFixture[str]) -> None:
    given = [word for setting in settings for word in ("-c", setting)]
    assert main(["run", *given, "--out", "out"]) == 2
    told = capsys.readouterr()
    assert told.out == ""
    assert told.err.startswith("fedhearth: ") and expected in told.err and told.err.count("\n") == 1
    assert not Path("out").exists()


def test_a_damaged_file_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    Path("bad.npz").write_bytes(b"PK\x03\x04 not a zip")
    assert main(["run", "-c", "dataset=npz:bad.npz"]) == 2
    assert "bad.npz" in capsys.readouterr().err


def test_argparse_refuses_with_2(capsys: pytest.CaptureFixture[str]) -> None:
    for words in (["run", "--workers", "0"], ["run", "--engine", "spark"], ["walk"], []):
        with pytest.raises(SystemExit) as ended:
            main(words)
        assert ended.value.code == 2
    assert "whole number, 1 or more" in capsys.readouterr().err


def test_a_run_says_at_once_how_its_data_are_divided(capsys: pytest.CaptureFixture[str]) -> None:
    """The default turns images, which nobody wants without knowing."""
    assert main(["run", *TINY, "--out", "out"]) == 0
    assert capsys.readouterr().out.startswith("hdc-fl on digits, partition rotation, 2 clients, 1 round, inprocess engine, 1 worker\n")


def test_a_run_leaves_what_the_readme_says(finished: Path) -> None:
    found = {path.name for path in finished.iterdir()}
    assert found >= {"run.json", "rounds.jsonl", "summary.json", "clients.csv", "report.html", "split.json", "tensorboard", "clients",
                     "checkpoints", "run.log"}
    summary = summary_of(finished)
    assert summary.keys() >= {"method", "dataset", "partition", "clients", "rounds", "seed", "engine", "served", "adapted", "bytes",
                              "seconds", "server_peak_rss_mib", "dropped", "split_hash", "versions", "clusters"}
    for kind in ("served", "adapted"):
        assert summary[kind].keys() >= {"mean", "std", "worst", "bottom20", "weighted_mean"}
    assert summary["bytes"].keys() >= {"up", "down", "by_slot"} and summary["seconds"].keys() >= {"total", "round_median"}
    assert summary["clusters"].keys() >= {"k", "silhouette", "assignment"}
    assert (summary["clients"], summary["rounds"], summary["engine"]) == (2, 1, "inprocess")
    with (finished / "clients.csv").open(encoding="utf-8", newline="") as lines:
        rows = list(csv.DictReader(lines))
    assert list(rows[0]) == ["client", "group", "n_train", "n_test", "classes", "served", "adapted", "held_out", "served_raw"]
    assert [(row["client"], row["group"]) for row in rows] == [("client-000", "0"), ("client-001", "90")]
    assert len((finished / "rounds.jsonl").read_text(encoding="utf-8").splitlines()) == 1
    page = (finished / "report.html").read_text(encoding="utf-8")
    assert "http://" not in page.replace("http://www.w3.org", "") and "<script src" not in page
    assert Path(summary["personal_models"]).is_dir()


def test_a_finished_run_says_so(finished: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["run", "--resume", str(finished)]) == 0
    assert "finished" in capsys.readouterr().out


def test_a_folder_that_holds_a_run_takes_no_other(finished: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["run", *TINY, "--out", str(finished)]) == 2
    assert "already holds a run" in capsys.readouterr().err


def interrupted(finished: Path, folder: Path) -> Path:
    """``finished`` as if it had been killed after its last round, moved to ``folder``."""
    import shutil

    shutil.copytree(finished, folder)
    (folder / "summary.json").unlink()
    return folder


def test_an_interrupted_run_goes_on_where_it_was_even_if_moved(finished: Path, tmp_path: Path) -> None:
    folder = interrupted(finished, tmp_path / "moved")
    assert main(["run", "--resume", str(folder), "--workers", "1", "-c", "threads=1"]) == 0
    again, before = summary_of(folder), summary_of(finished)
    for key in ("served", "served_raw", "adapted", "split_hash", "bytes"):
        assert again[key] == before[key]
    assert Path(again["personal_models"]).is_relative_to(folder)


def test_a_resumed_run_keeps_its_settings(finished: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = interrupted(finished, tmp_path / "moved")
    assert main(["run", "--resume", str(folder), "-c", "rounds=5"]) == 2
    assert "rounds cannot change" in capsys.readouterr().err
    assert main(["run", "--resume", str(folder), "--out", "other"]) == 2
    assert main(["run", "--resume", str(tmp_path / "nothing")]) == 2
    assert not (tmp_path / "nothing").exists()
    (folder / "run.json").write_text("{", encoding="utf-8")
    assert main(["run", "--resume", str(folder)]) == 2
    assert "damaged" in capsys.readouterr().err


def test_two_writers_are_refused(finished: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = interrupted(finished, tmp_path / "moved")
    with locked(folder):
        assert main(["run", "--resume", str(folder)]) == 2
    assert "another process is writing" in capsys.readouterr().err


@pytest.mark.parametrize(("fault", "code", "told"), [(KeyboardInterrupt(), 130, "interrupted; go on with: fedhearth run --resume"),
                                                     (RuntimeError("RunFailed"), 1, "no clients left")])
def test_how_a_run_can_end(fault: BaseException, code: int, told: str, monkeypatch: pytest.MonkeyPatch,
                           capsys: pytest.CaptureFixture[str]) -> None:
    import server_app.main
    from server_app.rounds import RunFailed

    def serve(*arguments: Any) -> None:
        raise fault if isinstance(fault, KeyboardInterrupt) else RunFailed("no clients left")

    monkeypatch.setattr(server_app.main, "serve", serve)
    assert main(["run", *TINY, "--out", "out"]) == code
    assert told in capsys.readouterr().err


def test_data_from_a_function_in_the_current_folder() -> None:
    Path("spots.py").write_text(
        "import numpy as np\nfrom client_app.data import ClientData, Split\n\n\n"
        "def load(node, seed):\n"
        "    rng = np.random.default_rng([seed, node.index])\n    labels = rng.integers(0, 2, 24)\n"
        "    images = (rng.random((24, 1, 8, 8)) + labels[:, None, None, None]).astype('float32')\n"
        "    ids = np.arange(24)\n"
        "    return ClientData(Split(images[:16], labels[:16], ids[:16]), Split(images[16:], labels[16:], ids[16:]), ('dark', 'bright'))\n",
        encoding="utf-8")
    assert main(["run", *TINY, "-c", "dataset=spots:load", "--out", "out"]) == 0
    summary = summary_of(Path("out"))
    assert summary["clients"] == 2 and 0 <= summary["served"]["worst"] <= 1


def test_one_line_a_round_off_a_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    record = {"round": 2, "seconds": 1.25, "served": {f"c{i}": i / 10 for i in range(10)}, "dropped": {"non-finite": 2}}
    with Lines(5) as shown:
        shown.reply(2, 1, 2)
        shown.round(record)
    # bottom 20 % of 0, 0.1, ... 0.9 are the two lowest
    assert capsys.readouterr().out == ("round 2/5  1.2 s  before it: served mean 45.0 %, bottom-20 % 5.0 %  "
                                       "2 replies dropped (non-finite)\n")
    assert figures({}) == "" and dropped({}) == "" and dropped({"dropped": {"late": 1}}) == "1 reply dropped (late)"


def test_the_closing_table() -> None:
    served = {"mean": 0.5, "worst": 0.25, "bottom20": 0.3}
    text = outcome_table({"served": served, "served_raw": {**served, "mean": 0.4}, "dropped": {"late": 2}, "adapted": None,
                          "clusters": {"k": 4, "silhouette": 0.5, "adjusted_rand": 1.0}}, Path("out"))
    assert "50.0 (40.0)" in text and "25.0 (25.0)" in text and "adapted" not in text
    assert "clusters: 4, silhouette 0.50, agreement with the true groups 1.00" in text and "2 late" in text


@pytest.mark.parametrize(("method", "prior", "cells", "words"), [
    ("pfedpg", True, "50.0 (40.0)", "in brackets: without the client's class prior\n"),
    ("pfedpg", False, "          50.0          50.0", "cannot serve a client that it has not trained with\nreport: "),
    ("fedper", False, "50.0 (40.0)", "in brackets: with BatchNorm statistics as averaged\n"),
])
def test_the_closing_table_says_what_is_in_brackets(method: str, prior: bool, cells: str, words: str) -> None:
    served, raw = dict.fromkeys(("mean", "worst", "bottom20"), 0.5), dict.fromkeys(("mean", "worst", "bottom20"), 0.4)
    text = outcome_table({"method": method, "run_config": {"logit-prior": prior}, "served": served, "served_raw": raw, "dropped": {},
                          "held_out": {"tails": None, "cannot_serve": True}}, Path("out"))
    assert cells in text and words in text and text.count("in brackets") == (prior or method == "fedper")
    assert "held-out clients, served                 –  this method cannot serve" in text


def test_methods_lists_every_key(capsys: pytest.CaptureFixture[str]) -> None:
    from strategies.registry import METHODS, known_keys

    assert main(["methods"]) == 0
    told = capsys.readouterr().out
    assert all(f"  {key} = " in told for key in known_keys())
    assert all(method.summary in told for method in METHODS.values())


def test_methods_says_what_every_common_setting_means(capsys: pytest.CaptureFixture[str]) -> None:
    from strategies.config import RunConfig, items_of

    assert main(["methods"]) == 0
    _, _, told = capsys.readouterr().out.partition("Settings of every method")
    notes = "\n".join(line for line in told.splitlines() if line.startswith("    "))
    without = [key for key in items_of(RunConfig()) if not re.search(rf"(?<![\w-]){re.escape(key)}(?![\w-])", notes)]
    assert without == [], "a setting is listed, but no line says what it is for"
    assert "_" not in re.sub(r"FEDHEARTH_\w+|client_app\S*|vit_base\S*|open_clip\S*", "", notes)  # keys are written with dashes


def test_wire_shows_contracts(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["wire", "hdc-fl"]) == 0
    told = capsys.readouterr().out
    default, opt_in = told.split("hdc-fl (signal = head, opt-in)")
    assert "strictly local    head," in default and "strictly local    head" not in opt_in.partition("\n\n")[0]
    assert main(["wire", "hdc"]) == 2


def test_compare_and_version(finished: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["compare", str(finished), "--markdown"]) == 0
    assert "| hdc-fl | 0 | 2 |" in capsys.readouterr().out
    assert main(["compare", "nowhere"]) == 2
    assert "no summary.json" in capsys.readouterr().err
    assert main(["version"]) == 0


def test_images_of_a_wrong_shape_are_refused(capsys: pytest.CaptureFixture[str]) -> None:
    np.savez("flat.npz", images=np.zeros((8, 64), np.uint8), labels=np.zeros(8, np.int64))
    assert main(["run", "-c", "dataset=npz:flat.npz", "-c", "clients=2"]) == 2
    assert "flat.npz" in capsys.readouterr().err


def test_a_reader_that_has_had_enough_gets_no_traceback() -> None:
    done = subprocess.run(f"{sys.executable} -m deploy.cli methods | head -n 1", shell=True, capture_output=True, text=True, check=False)
    assert done.stdout.count("\n") == 1 and done.stderr == ""
