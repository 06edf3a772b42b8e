"""A secured deployment on loopback, by ``fedhearth`` commands alone: one server, two sites, TLS and node keys.

What it computes must be what the in-process engine computes, bit for bit: the transport may not touch the numbers.
"""

from __future__ import annotations

import csv
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from deploy.simulate import free_ports
from tests.running import contents

pytestmark = [pytest.mark.slow, pytest.mark.skipif(os.name == "nt", reason="Flower's SuperNode needs POSIX signals")]
ROOT = Path(__file__).parent.parent
SITES = ("client-000", "client-001")
RUN = ("-c", "clients=2", "-c", "rounds=3", "-c", "partition=iid", "-c", "width=4", "-c", "epochs=1", "-c", "device=cpu",
       "-c", "threads=1", "-c", "run-id=same")
# this machine may be busy with other tests; an idle one needs a tenth
PATIENCE = 120.0


@dataclass
class Cluster:
    """What runs, with a log file each."""

    root: Path
    fleet: int
    port: int
    running: dict[str, subprocess.Popen[bytes]] = field(default_factory=dict)

    def run(self, *words: str, patience: float = PATIENCE) -> subprocess.CompletedProcess[str]:
        """A command of ours, to its end."""
        return subprocess.run([sys.executable, "-m", "deploy.cli", *words], cwd=self.root, env=self.environment, capture_output=True,
                              text=True, timeout=patience, stdin=subprocess.DEVNULL)

    def asked(self, *words: str) -> subprocess.CompletedProcess[str]:
        """A command that talks to the SuperLink."""
        return self.run(*words, "--link", f"127.0.0.1:{self.port}", patience=4 * PATIENCE)

    def start(self, name: str, *words: str) -> None:
        """A command of ours that goes on; its words are in ``NAME.log``."""
        with (self.root / f"{name}.log").open("wb") as log:
            self.running[name] = subprocess.Popen([sys.executable, "-m", "deploy.cli", *words], cwd=self.root, env=self.environment,
                                                  stdin=subprocess.DEVNULL, stdout=log, stderr=log)

    def site(self, name: str, *more: str) -> list[str]:
        """The words that start a SuperNode."""
        return ["supernode", "--superlink", f"127.0.0.1:{self.fleet}", "--site", name, "--state-dir", f"state-{name}",
                "--device", "cpu", *more]

    def told(self, name: str) -> str:
        return (self.root / f"{name}.log").read_text(errors="replace")

    def until(self, name: str, text: str) -> None:
        """Wait until ``name`` has said ``text``."""
        end = time.monotonic() + PATIENCE
        while text not in self.told(name):
            assert self.running[name].poll() is None and time.monotonic() < end, f"{name} never said {text!r}:\n{self.told(name)}"
            time.sleep(0.1)

    def stop(self, name: str) -> int:
        """End it as a service manager would; its exit code."""
        child = self.running.pop(name)
        child.send_signal(signal.SIGTERM)
        try:
            return child.wait(30)
        except subprocess.TimeoutExpired:
            child.kill()
            raise

    @property
    def environment(self) -> dict[str, str]:
        return {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """A server with two sites connected."""
    made = Cluster(tmp_path_factory.mktemp("cluster"), *free_ports(2))
    done = made.run("certs", "--server", "127.0.0.1", *(word for name in SITES for word in ("--site", name)))
    assert done.returncode == 0, done.stderr
    try:
        made.start("server", "superlink", "--fleet", f"127.0.0.1:{made.fleet}", "--port", str(made.port))
        made.until("server", "fedhearth: ready")
        for index, name in enumerate(SITES):
            made.start(name, *made.site(name, "--partition", f"{index}/2"))
        for name in SITES:
            made.until(name, f"fedhearth: {name} is connected")
        yield made
    finally:
        for child in made.running.values():
            child.send_signal(signal.SIGTERM)
        codes = {name: made.stop(name) for name in list(made.running)}
    assert set(codes.values()) == {0}, codes


@pytest.fixture(scope="module")
def submitted(cluster: Cluster) -> tuple[Path, subprocess.CompletedProcess[str]]:
    """The folder of a finished run, and what ``submit`` said."""
    done = cluster.asked("submit", *RUN)
    assert done.returncode == 0, done.stdout + done.stderr + cluster.told("server")
    return cluster.root / "server" / "runs" / "same", done


def figures(folder: Path) -> dict[str, tuple[str, str]]:
    """Served and adapted score by client, as written."""
    with (folder / "clients.csv").open(newline="") as file:
        return {row["client"]: (row["served"], row["adapted"]) for row in csv.DictReader(file)}


def state(folder: Path) -> Mapping[str, Any]:
    """The arrays of the last checkpoint."""
    return contents(max((folder / "checkpoints").glob("round-*.safetensors")))["tensors"]


def test_it_computes_what_one_process_computes(cluster: Cluster, submitted: tuple[Path, Any]) -> None:
    folder, _ = submitted
    alone = cluster.run("run", *RUN, "--workers", "1", "--out", "alone")
    assert alone.returncode == 0, alone.stderr
    expected = cluster.root / "alone"
    assert len(state(folder)) > 10 and state(folder) == state(expected)
    assert figures(folder) == figures(expected) and set(figures(folder)) == set(SITES)
    for name in SITES:
        here, there = cluster.root / f"state-{name}" / "same" / name, expected / "clients" / "same" / name
        kept = {path.name: contents(path) for path in here.glob("*.safetensors")}
        assert kept == {path.name: contents(path) for path in there.glob("*.safetensors")} and kept
    assert json.loads((folder / "summary.json").read_text())["engine"] == "grpc"


def test_submit_tells_the_rounds_and_leaves_no_app_behind(submitted: tuple[Path, subprocess.CompletedProcess[str]]) -> None:
    folder, done = submitted
    assert [f"round {n}/3" in done.stdout for n in (1, 2, 3)] == [True] * 3
    assert "flwr run" in done.stdout.replace(" \\\n  ", " ") and "report.html" in done.stdout
    assert not (folder / "flower").exists() and (folder / "report.html").exists()


def test_a_finished_run_is_not_resumed(cluster: Cluster, submitted: tuple[Path, Any]) -> None:
    again = cluster.asked("submit", "--resume", str(submitted[0]))
    assert again.returncode == 0 and "finished" in again.stdout


def test_a_run_that_fails_ends_with_1(cluster: Cluster, submitted: tuple[Path, Any]) -> None:
    # the sites were told of two partitions, so neither can take part in a run over one
    failed = cluster.asked("submit", "-c", "clients=1", "-c", "rounds=1", "-c", "run-id=fails")
    assert failed.returncode == 1 and "finished:failed" in failed.stderr and "--resume" not in failed.stderr
    assert "clients=1" in failed.stderr and (cluster.root / "server" / "runs" / "fails" / "flower.log").exists()


def test_status_names_the_sites_and_the_runs(cluster: Cluster, submitted: tuple[Path, Any]) -> None:
    told = cluster.asked("status")
    assert told.returncode == 0
    lines = {line.split()[0]: line.split()[1] for line in told.stdout.splitlines()}
    assert [lines[name] for name in SITES] == ["online", "online"]
    assert "finished:completed" in told.stdout and "3/3" in told.stdout and str(submitted[0]) in told.stdout


def test_nothing_to_stop_is_said(cluster: Cluster) -> None:
    told = cluster.asked("stop")
    assert told.returncode == 2 and "no run is going on" in told.stderr


def test_a_site_that_runs_already_is_refused(cluster: Cluster) -> None:
    second = cluster.run(*cluster.site(SITES[0]))
    assert second.returncode == 2 and "client-000 runs on this machine already" in second.stderr


def test_another_authority_is_refused(cluster: Cluster) -> None:
    assert cluster.run("certs", "--out", "others", "--site", SITES[0]).returncode == 0
    refused = cluster.run(*cluster.site("stranger", "--ca", "others/ca.crt", "--key", f"others/sites/{SITES[0]}"))
    assert refused.returncode == 2 and "not to be trusted" in refused.stderr
    asked = cluster.asked("status", "--certs", "others")
    assert asked.returncode == 2 and "another authority" in asked.stderr


def test_a_key_that_is_not_registered_is_refused_with_the_reason(cluster: Cluster) -> None:
    assert cluster.run("certs", "--site", "stranger").returncode == 0
    cluster.start("stranger", *cluster.site("stranger"))
    cluster.until("stranger", "fedhearth: the server does not let this site in")
    cluster.until("stranger", "it is started again in 5 s")
    assert cluster.stop("stranger") == 0
    assert "stranger" not in cluster.asked("status").stdout
