"""One configuration gives the same numbers whoever carries the messages: one process, two, or Ray."""

from __future__ import annotations

import csv
import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import psutil
import pytest
from safetensors.numpy import load_file

ROOT = Path(__file__).parents[1]
SETTINGS = "method='hdc-fl' clients=4 held-out=0.25 rounds=2 epochs=1 width=4 seed=3"


def run(folder: Path, *engine: str) -> None:
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    ended = subprocess.run([sys.executable, "-m", "deploy.cli", "run", "-c", SETTINGS, "--out", str(folder), *engine],
                           env=environment, cwd=folder.parent, capture_output=True, text=True, timeout=300)
    assert ended.returncode == 0, ended.stderr


def server_state(folder: Path) -> dict[str, np.ndarray]:
    return load_file(max((folder / "checkpoints").glob("*.safetensors")))


def scores(folder: Path) -> list[tuple[str, str, str]]:
    with (folder / "clients.csv").open(encoding="utf-8", newline="") as lines:
        return [(row["client"], row["served"], row["adapted"]) for row in csv.DictReader(lines)]


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("engines") / "alone"
    run(folder, "--workers", "1")
    return folder


def assert_same(folder: Path, reference: Path) -> None:
    ours, theirs = server_state(folder), server_state(reference)
    assert ours.keys() == theirs.keys() and len(ours) > 3
    assert all(np.array_equal(ours[name], theirs[name]) for name in theirs)
    assert scores(folder) == scores(reference)
    mine, other = (json.loads((f / "summary.json").read_text(encoding="utf-8")) for f in (folder, reference))
    for key in ("served", "served_raw", "adapted", "bytes", "split_hash", "clusters", "dropped", "held_out"):
        assert mine[key] == other[key]
    assert mine["held_out"]["tails"]["n"] == 1 and mine["served"]["n"] == 3


def test_two_processes(alone: Path, tmp_path: Path) -> None:
    run(tmp_path / "two", "--workers", "2")
    assert_same(tmp_path / "two", alone)


@pytest.mark.slow
def test_ray(alone: Path, tmp_path: Path) -> None:
    folder = tmp_path / "on ray"
    run(folder, "--engine", "ray", "--workers", "2")
    assert json.loads((folder / "summary.json").read_text(encoding="utf-8"))["engine"] == "ray"
    assert_same(folder, alone)
    # nothing that was started for this run is left behind
    left = [p for p in psutil.process_iter(["environ"]) if str(folder) in str(p.info["environ"])]
    _, alive = psutil.wait_procs(left, timeout=30)  # Ray's own processes take a moment to notice that theirs has ended
    assert not alive
