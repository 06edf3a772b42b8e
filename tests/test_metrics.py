"""The Prometheus page: the numbers of hand-made rounds, a bounded number of series, and what is refused before a run."""

from __future__ import annotations

import socket
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest

pytest.importorskip("prometheus_client")
from deploy.cli import main
from server_app.metrics import MOST_REASONS, Metrics
from strategies.config import ConfigError, RunConfig
from tests.running import run as run_here

FIRST = {"round": 1, "seconds": 4.0, "void": False, "bytes": {"up": {"encoder": 300, "descriptor": 20}, "down": {"encoder": 500}},
         "dropped": {"non-finite": 2}, "served": {"a": 0.5, "b": 0.9, "c": 0.7}}
SECOND = {"round": 2, "seconds": 40.0, "void": True, "bytes": {"up": {"encoder": 1}, "down": {}},
          "dropped": {"deadline": 3, "non-finite": 1}}


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def scraped(port: int) -> dict[str, float]:
    """Series -> value, as Prometheus would read them."""
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=5) as answer:
        lines = answer.read().decode().splitlines()
    return {name: float(value) for name, _, value in (line.rpartition(" ") for line in lines if not line.startswith("#"))}


@pytest.fixture
def page() -> Iterator[tuple[Metrics, int]]:
    port = free_port()
    metrics = Metrics(RunConfig(metrics_port=port, rounds=9, deadline=60.0))
    yield metrics, port
    metrics.close()


def test_the_page_holds_what_happened(page: tuple[Metrics, int]) -> None:
    metrics, port = page
    metrics.begins(1, 1000.0)
    metrics.online(3)
    metrics.round(FIRST)
    metrics.begins(2, 1005.0)
    metrics.online(2)
    metrics.round(SECOND)
    metrics.begins(3, 1050.0)
    metrics.reply(1, 2)
    found = scraped(port)
    assert {name.removeprefix("fedhearth_"): value for name, value in found.items() if "_created" not in name and "bucket" not in name} == {
        'rounds_total{outcome="merged"}': 1, 'rounds_total{outcome="void"}': 1,
        "round_seconds_count": 2, "round_seconds_sum": 44,
        'dropped_replies_total{reason="non-finite"}': 3, 'dropped_replies_total{reason="deadline"}': 3,
        'payload_bytes_total{direction="up"}': 321, 'payload_bytes_total{direction="down"}': 500,
        "round": 3, "rounds_planned": 9, "round_start_timestamp_seconds": 1050, "round_deadline_seconds": 60,
        "round_asked": 2, "round_replied": 1, "sites_online": 2,
        # the second round scored nobody, so the figures of the first stay
        'served_accuracy{figure="mean"}': pytest.approx(0.7), 'served_accuracy{figure="worst"}': 0.5,
        'served_accuracy{figure="bottom20"}': 0.5}
    assert found['fedhearth_round_seconds_bucket{le="5.0"}'] == 1 and found['fedhearth_round_seconds_bucket{le="60.0"}'] == 2


def test_no_client_is_named(page: tuple[Metrics, int]) -> None:
    metrics, port = page
    metrics.round({**FIRST, "served": {"hospital-7": 0.5}, "lost": {"hospital-8": "deadline"}})
    assert not [series for series in scraped(port) if "hospital" in series]


def test_invented_reasons_do_not_make_endless_series(page: tuple[Metrics, int]) -> None:
    metrics, port = page
    for number in range(MOST_REASONS + 20):
        metrics.exchange({"dropped": {f"Kind{number}": 1}})
    found = {series: value for series, value in scraped(port).items() if series.startswith("fedhearth_dropped_replies_total")}
    assert len(found) == MOST_REASONS + 1 and found['fedhearth_dropped_replies_total{reason="other"}'] == 20


def test_two_runs_cannot_share_a_port(page: tuple[Metrics, int]) -> None:
    _, port = page
    with pytest.raises(ConfigError, match=f"metrics-port {port} at 127.0.0.1 cannot be opened .*FH-041"):
        Metrics(RunConfig(metrics_port=port))


def test_an_address_of_another_machine_is_refused() -> None:
    with pytest.raises(ConfigError, match="192.0.2.1 cannot be opened"):
        Metrics(RunConfig(metrics_port=free_port(), metrics_host="192.0.2.1"))


@pytest.mark.parametrize("host", ["a..b", "x" * 64])
def test_an_address_that_is_no_name_is_refused(host: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
                                               capsys: pytest.CaptureFixture[str]) -> None:
    port = free_port()
    assert main(["run", "-c", f"metrics-port={port}", "-c", f"metrics-host={host}", "--out", str(tmp_path / "out")]) == 2
    expected = f"metrics-port {port} at {host} cannot be opened (not the name of a machine); another run may hold it: "
    assert capsys.readouterr().err.startswith(f"fedhearth: {expected}") and not (tmp_path / "out").exists()
    monkeypatch.setattr("server_app.metrics.check_metrics", lambda run: None)  # as if the name had been good a moment before
    with pytest.raises(ConfigError, match="FH-041"):
        Metrics(RunConfig(metrics_port=port, metrics_host=host))


def test_a_port_that_is_taken_ends_a_run_before_it_begins(page: tuple[Metrics, int], tmp_path: Path,
                                                          capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["run", "-c", f"metrics-port={page[1]}", "--out", str(tmp_path / "out")]) == 2
    assert "(FH-041)" in capsys.readouterr().err and not (tmp_path / "out").exists()


def test_without_the_library_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(ConfigError, match=r"pip install 'fedhearth\[metrics\]'.*FH-040"):
        Metrics(RunConfig(metrics_port=1))


def test_a_run_can_be_read_while_it_goes_on_and_frees_the_port(tmp_path: Path) -> None:
    port, seen = free_port(), []
    ran = run_here(tmp_path, "fedavg", on_round=lambda record: seen.append(scraped(port)), metrics_port=port)
    rounds = ran.records
    assert [found['fedhearth_rounds_total{outcome="merged"}'] for found in seen] == list(range(1, len(rounds) + 1))
    up = [sum(sum(record["bytes"]["up"].values()) for record in rounds[:done + 1]) for done in range(len(rounds))]
    assert [found['fedhearth_payload_bytes_total{direction="up"}'] for found in seen] == up
    assert {found["fedhearth_sites_online"] for found in seen} == {float(len(rounds[0]["asked"]))}
    assert seen[0]["fedhearth_round"] == 2  # the next one has begun
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        probe.bind(("127.0.0.1", port))
