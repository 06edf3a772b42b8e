"""What TensorBoard's pictures and the trackers are told: the right numbers at the right round, and nothing that the report lacks."""

from __future__ import annotations

import io
import json
import logging
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from deploy.cli import main
from server_app import trackers, watch
from server_app.pictures import SHARES, SIGNED, UNKNOWN, colours, heat_map, served_png, similarity_png
from server_app.progress import NAME, Progress, ProgressFile, read_progress
from server_app.trackers import Patient, check_tracker, open_tracker
from server_app.watch import Watch, over_clients
from strategies.config import RunConfig
from strategies.registry import default_items
from tests.running import run as run_here

RECORDS = (
    {"round": 1, "seconds": 4.0, "void": False, "bytes": {"up": {"encoder": 300, "descriptor": 20}, "down": {"encoder": 500}},
     "dropped": {"non-finite": 2}, "accepted": ["a", "b"], "served": {"a": 0.5, "b": 0.9, "c": 0.7},
     "diagnostics": {"clusters": {"assignment": {"a": 1, "b": 0},
                                  "similarity": {"clients": ["a", "b"], "matrix": [[1, -0.5], [-0.5, 1]]}}}},
    {"round": 2, "seconds": 5.0, "void": True, "bytes": {"up": {}, "down": {"encoder": 10}}, "accepted": [],
     "adapted": {"a": 0.4, "b": 0.6}},
)
SUMMARY = {"rounds": 2, "served": {"mean": 0.6, "worst": 0.4, "bottom20": 0.4}, "adapted": None, "bytes": {"up": 320, "down": 510},
           "seconds": {"total": 11.0}}


class Told:
    """A tracker that remembers."""

    def __init__(self) -> None:
        self.calls: list[tuple[Any, ...]] = []

    def scalars(self, step: int, values: Mapping[str, float]) -> None:
        self.calls.append(("scalars", step, dict(values)))

    def image(self, step: int, name: str, png: bytes) -> None:
        self.calls.append(("image", step, name))

    def summary(self, values: Mapping[str, float]) -> None:
        self.calls.append(("summary", dict(values)))

    def close(self, finished: bool) -> None:
        self.calls.append(("close", finished))


def feed(to: Watch) -> None:
    to.begins(1, 2)
    for record in RECORDS:
        to.round(record)
        to.begins(record["round"] + 1, 2)


def test_a_tracker_is_told_figures_over_clients_and_no_more(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    told, asked = Told(), []
    monkeypatch.setattr(watch, "check_tracker", lambda name: None)
    monkeypatch.setattr(watch, "open_tracker", lambda *given: asked.append(given) or told)
    settings = {**default_items(), "out": "/secret/out", "state-dir": "/secret/state", "weights-dir": "/secret/w", "method": "hdc-fl"}
    with watch.watched(RunConfig(rounds=2, tracker="mlflow")) as to:
        to.into(tmp_path, settings)
        feed(to)
        to.finished(SUMMARY)
    name, folder, kept, resumed = asked[0]
    assert (name, folder, resumed) == ("mlflow", tmp_path, False) and "secret" not in str(kept)
    assert kept["lr"] == 0.01 and "hdc-fl.temperature" in kept and not [key for key in kept if key.startswith("fedrep.")]
    assert told.calls == [
        # scored before the round's training: of the state after the round before
        ("scalars", 0, {"served/mean": pytest.approx(0.7), "served/worst": 0.5, "served/bottom20": 0.5}),
        ("scalars", 1, {"bytes/up": 320, "bytes/down": 500, "seconds": 4.0, "replies/accepted": 2, "replies/dropped": 2, "void": 0}),
        ("image", 1, "heads/similarity"),
        ("scalars", 2, {"bytes/up": 0, "bytes/down": 10, "seconds": 5.0, "replies/accepted": 0, "replies/dropped": 0, "void": 1,
                        "adapted/mean": 0.5, "adapted/worst": 0.4, "adapted/bottom20": 0.4}),
        ("summary", {"served-mean": 0.6, "served-worst": 0.4, "served-bottom20": 0.4, "bytes-up": 320, "bytes-down": 510, "seconds": 11.0}),
        ("close", True)]
    assert over_clients("served", {}) == {}


def test_a_run_that_fails_is_closed_as_failed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    told = Told()
    monkeypatch.setattr(watch, "open_tracker", lambda *given: told)
    with pytest.raises(ZeroDivisionError), watch.watched(RunConfig(rounds=2)) as to:
        to.into(tmp_path, default_items())
        to.begins(1, 2)
        assert read_progress(tmp_path) is not None
        raise ZeroDivisionError
    assert told.calls == [("close", False)] and read_progress(tmp_path) is None


def test_a_tracker_that_fails_is_left_out_and_the_run_goes_on(caplog: pytest.LogCaptureFixture) -> None:
    class Broken(Told):
        def scalars(self, step: int, values: Mapping[str, float]) -> None:
            raise OSError("no route\nto host")

    broken = Broken()
    to = Patient(broken, "mlflow")
    with caplog.at_level(logging.WARNING):
        to.scalars(1, {})
        to.scalars(2, {})
        to.close(True)
    assert broken.calls == [] and [record.getMessage().split(" and gets")[0] for record in caplog.records] == [
        "mlflow failed (OSError: no route to host)"]


def test_a_tracker_that_is_not_installed_ends_a_run_before_it_begins(tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
                                                                     capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(trackers, "find_spec", lambda name: None)
    assert main(["run", "-c", "tracker=wandb", "--out", str(tmp_path / "out")]) == 2
    told = capsys.readouterr().err
    assert "pip install 'fedhearth[trackers]'" in told and "(FH-042)" in told and not (tmp_path / "out").exists()
    assert main(["run", "-c", "tracker=mlfow", "--out", str(tmp_path / "out")]) == 2
    assert "did you mean 'mlflow'?" in capsys.readouterr().err
    check_tracker("none")


def test_mlflow_holds_what_it_was_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("mlflow")
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    from mlflow.tracking import MlflowClient

    opened = open_tracker("mlflow", tmp_path, {"method": "fedper", "lr": 0.01}, resumed=False)
    assert opened is not None
    opened.scalars(1, {"served/mean": 0.7, "bytes/up": 320.0})
    opened.close(False)
    again = open_tracker("mlflow", tmp_path, {"method": "fedper", "lr": 0.01}, resumed=True)
    assert again is not None
    again.scalars(2, {"served/mean": 0.8})
    again.image(2, "heads/similarity", heat_map(np.eye(2), 0, 1, SHARES, ["a", "b"]))
    again.summary({"served-mean": 0.8})
    again.close(True)
    client = MlflowClient(tracking_uri=(tmp_path / "mlruns").as_uri())
    experiment = client.get_experiment_by_name("fedhearth")
    run, = client.search_runs([experiment.experiment_id])
    assert run.info.status == "FINISHED" and run.info.run_name == tmp_path.name and run.data.params == {"method": "fedper", "lr": "0.01"}
    assert [(m.step, m.value) for m in client.get_metric_history(run.info.run_id, "served/mean")] == [(1, 0.7), (2, 0.8)]
    assert run.data.metrics["bytes/up"] == 320 and run.data.metrics["final/served-mean"] == 0.8
    assert [file.path for file in client.list_artifacts(run.info.run_id, "images")] == ["images/heads-similarity-00002.png"]


def test_a_whole_run_in_mlflow(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("mlflow")
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    ran = run_here(tmp_path / "run", "fedavg", tracker="mlflow")
    from mlflow.tracking import MlflowClient

    client = MlflowClient(tracking_uri=(tmp_path / "run" / "mlruns").as_uri())
    run, = client.search_runs([client.get_experiment_by_name("fedhearth").experiment_id])
    assert run.data.metrics["final/served-mean"] == pytest.approx(ran.summary["served"]["mean"])
    history = [(m.step, m.value) for m in client.get_metric_history(run.info.run_id, "bytes/up")]
    assert history == [(record["round"], sum(record["bytes"]["up"].values())) for record in ran.records]
    assert not {"out", "state-dir", "weights-dir"} & run.data.params.keys() and run.data.params["method"] == "fedavg"


def test_wandb_stays_on_this_machine_unless_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("wandb")
    for name in ("WANDB_MODE", "WANDB_API_KEY"):
        monkeypatch.delenv(name, raising=False)
    opened = open_tracker("wandb", tmp_path, {"method": "fedper", "lr": 0.01}, resumed=False)
    assert opened is not None
    opened.scalars(0, {"served/mean": 0.734375})
    opened.scalars(1, {"seconds": 4.0})
    opened.image(1, "split", heat_map(np.eye(2), 0, 1, SHARES, ["a", "b"]))
    opened.summary({"served-mean": 0.8})
    opened.close(True)
    place, = (tmp_path / "wandb").glob("offline-run-*")
    noted = json.loads((tmp_path / "tracker.json").read_text())["wandb"]
    content = (place / f"run-{noted}.wandb").read_bytes()
    assert b"served/mean" in content and b"0.734375" in content and b"final/served-mean" in content
    assert len(list(place.glob("files/media/images/split_1_*.png"))) == 1


def test_colours_go_from_one_end_to_the_other() -> None:
    found = colours(np.array([[-1.0, 0.0, 1.0], [-0.5, 7.0, np.nan]]), -1, 1, SIGNED)
    assert found[0].tolist() == [list(colour) for colour in SIGNED]
    # half way between orange (217, 119, 43) and white
    assert found[1].tolist() == [[236, 187, 149], list(SIGNED[2]), list(UNKNOWN)]


def pixels(png: bytes) -> np.ndarray:
    with Image.open(io.BytesIO(png)) as picture:
        return np.asarray(picture)


def test_rows_are_sorted_by_cluster_and_named() -> None:
    clusters = {"assignment": {"a": 1, "b": 0, "c": 1},
                "similarity": {"clients": ["a", "b", "c"], "matrix": [[1, 0, -1], [0, 1, 0], [-1, 0, 1]]}}
    shown = pixels(similarity_png(clusters))
    assert shown.shape == (72, 72 + 7 + 8, 3)
    centres = shown[12::24, 7 + 8 + 12::24]
    # b stands alone in cluster 0, then a and c, which are opposites
    blue, white, orange = list(SIGNED[2]), list(SIGNED[1]), list(SIGNED[0])
    assert centres.tolist() == [[blue, white, white], [white, blue, orange], [white, orange, blue]]
    assert (shown[:, :15] < 128).any()
    many = pixels(heat_map(np.zeros((100, 100)), 0, 1, SHARES, [f"client-{n:03}" for n in range(100)]))
    assert many.shape == (700, 700, 3)


def test_served_accuracy_by_client_and_round() -> None:
    png = served_png([{"served": {"a": 0.0, "b": 1.0}}, {}, {"served": {"b": 0.5}}], {"a": 1.0, "b": None})
    assert png is not None
    centres = pixels(png)[12::24, 7 + 8 + 12::24]
    red, middle, blue = (list(colour) for colour in SHARES)
    assert centres.tolist() == [[red, list(UNKNOWN), blue], [blue, middle, list(UNKNOWN)]]
    assert served_png([{}]) is None


def test_tensorboard_gets_the_pictures_beside_the_scalars(tmp_path: Path) -> None:
    from tensorboard.backend.event_processing.event_file_loader import LegacyEventFileLoader

    with watch.watched(RunConfig(rounds=2)) as to:
        to.into(tmp_path, default_items())
        feed(to)
    file, = (tmp_path / "tensorboard" / "images").iterdir()
    found = [(event.step, value.tag, value.image) for event in LegacyEventFileLoader(str(file)).Load() for value in event.summary.value]
    assert [(step, tag, image.width, image.height) for step, tag, image in found] == [(1, "heads/similarity", 63, 48)]
    assert found[0][2].encoded_image_string == similarity_png(RECORDS[0]["diagnostics"]["clusters"])


def test_progress_tells_the_round_and_what_is_left_of_it(tmp_path: Path) -> None:
    now = [100.0]
    file = ProgressFile(tmp_path, 3, 60.0, clock=lambda: now[0])
    file.begins(2)
    now[0] = 110.0
    file.reply(1, 3)
    found = read_progress(tmp_path)
    assert found == Progress(2, 3, 100.0, 60.0, asked=3, replied=1) and found.left(115.0) == 45.0 and found.left(999.0) == 0.0
    now[0] = 110.1
    file.reply(2, 3)  # too soon to be written
    assert read_progress(tmp_path) == found
    file.reply(3, 3)
    file.begins(4)
    assert read_progress(tmp_path) == Progress(3, 3, 110.1, 60.0, closing=True)
    file.remove()
    assert read_progress(tmp_path) is None
    (tmp_path / NAME).write_text('{"round": 1}')
    assert read_progress(tmp_path) is None
