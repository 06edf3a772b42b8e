"""A secured deployment on loopback, by ``fedhearth`` commands alone: one server, two sites, TLS and node keys.

What it computes must be what the in-process engine computes, bit for bit: the transport may not touch the numbers.
"""

from __future__ import annotations

import csv
import json
import os
import signal
import stat
import subprocess
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from tests.deployed import PATIENCE, Cluster, deployed, rounds_of
from tests.multihost import SERVER
from tests.running import contents

pytestmark = [pytest.mark.slow, pytest.mark.skipif(os.name == "nt", reason="Flower's SuperNode needs POSIX signals")]
SITES = ("client-000", "client-001")
RUN = ("-c", "clients=2", "-c", "rounds=3", "-c", "partition=iid", "-c", "width=4", "-c", "epochs=1", "-c", "device=cpu",
       "-c", "threads=1", "-c", "run-id=same")


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """A server with two sites connected."""
    with deployed(tmp_path_factory.mktemp("cluster"), len(SITES)) as made:
        yield made


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
    alone = cluster.run(SERVER, "run", *RUN, "--workers", "1", "--out", "alone")
    assert alone.returncode == 0, alone.stderr
    expected = cluster.root / "alone"
    assert len(state(folder)) > 10 and state(folder) == state(expected)
    assert figures(folder) == figures(expected) and set(figures(folder)) == set(SITES)
    for name in SITES:
        here, there = cluster.root / f"state-{name}" / "same" / name, expected / "clients" / "same" / name
        kept = {path.name: contents(path) for path in here.glob("*.safetensors")}
        assert kept == {path.name: contents(path) for path in there.glob("*.safetensors")} and kept
    assert json.loads((folder / "summary.json").read_text())["engine"] == "grpc"


@pytest.mark.drill
def test_a_held_out_site_is_served_as_in_one_process(cluster: Cluster, submitted: tuple[Path, Any]) -> None:
    """One of the two sites trains, the other is taken in after the last round; its name and its score are the same here and there."""
    words = [*RUN[:-1], "run-id=held", "-c", "held-out=0.5"]
    done = cluster.asked("submit", *words)
    assert done.returncode == 0, done.stdout + done.stderr
    assert cluster.run(SERVER, "run", *words, "--workers", "1", "--out", "alone-held").returncode == 0
    folders = cluster.root / "server" / "runs" / "held", cluster.root / "alone-held"
    here, there = (json.loads((folder / "summary.json").read_text()) for folder in folders)
    assert here["held_out"] == there["held_out"] and len(here["held_out"]["served"]) == 1
    assert here["served"] == there["served"] and here["served"]["n"] == 1 and here["dropped"] == {}
    name, = here["held_out"]["clients"]
    kept = [contents(root / "held" / name / "personal.safetensors") for root in (cluster.root / f"state-{name}", folders[1] / "clients")]
    assert kept[0] == kept[1]


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


def test_what_either_side_keeps_is_for_its_user_alone(cluster: Cluster) -> None:
    kept = [cluster.root / "server", *map(cluster.state_dir, SITES)]
    assert [stat.S_IMODE(folder.stat().st_mode) for folder in kept] == [0o700] * 3


def test_a_site_that_runs_already_is_refused(cluster: Cluster) -> None:
    second = cluster.run(SERVER, *cluster.site_words(SITES[0]))
    assert second.returncode == 2 and "client-000 runs on this machine already" in second.stderr


def test_another_authority_is_refused(cluster: Cluster) -> None:
    assert cluster.run(SERVER, "certs", "--out", "others", "--site", SITES[0]).returncode == 0
    refused = cluster.run(SERVER, *cluster.site_words("stranger", "--ca", "others/ca.crt", "--key", f"others/sites/{SITES[0]}"))
    assert refused.returncode == 2 and "not to be trusted" in refused.stderr
    asked = cluster.asked("status", "--certs", "others")
    assert asked.returncode == 2 and "another authority" in asked.stderr


def test_a_key_that_is_not_registered_is_refused_with_the_reason(cluster: Cluster) -> None:
    assert cluster.run(SERVER, "certs", "--site", "stranger").returncode == 0
    cluster.start("stranger", "stranger", *cluster.site_words("stranger"))
    cluster.until("stranger", "fedhearth: the server does not let this site in")
    cluster.until("stranger", "it is started again in 5 s")
    assert cluster.stop("stranger") == 0
    assert "stranger" not in cluster.asked("status").stdout


@pytest.mark.drill
def test_a_site_is_added_while_a_run_goes_on(cluster: Cluster) -> None:
    """The server is told by a signal and never restarted; the run goes on, with the site once it is there."""
    folder = cluster.submit("grows", rounds=100)
    cluster.until_round(folder, 1)
    heard = cluster.heard(SERVER)
    assert cluster.run(SERVER, "certs", "--site", "west").returncode == 0
    cluster.running[SERVER].send_signal(signal.SIGHUP)
    cluster.until(SERVER, "site west admitted", heard)
    cluster.start("west", "west", *cluster.site_words("west", "--partition", "0/2"))
    cluster.until("west", "fedhearth: west is connected")
    end = time.monotonic() + PATIENCE
    while "west" not in rounds_of(folder)[-1]["accepted"]:
        assert time.monotonic() < end, rounds_of(folder)
        time.sleep(0.2)
    rounds = rounds_of(folder)
    assert set(rounds[0]["accepted"]) == set(SITES) and all(set(SITES) <= set(record["accepted"]) for record in rounds)
    assert cluster.online() == {*SITES, "west"}
    assert cluster.asked("stop").returncode == 0 and cluster.finished("grows") == 1
    assert cluster.stop("west") == 0
