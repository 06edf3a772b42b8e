"""What a client says of its time: seconds trained and scored, scoring inside scoring counted once, nothing where no count leaves."""

from __future__ import annotations

from pathlib import Path

import pytest

import client_app.clock as clock_module
from client_app.clock import clock, scoring
from server_app.cost import seconds_of
from tests.running import run


@pytest.fixture
def time(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """A clock that stands still unless a test moves it."""
    now = [100.0]
    monkeypatch.setattr(clock_module, "perf_counter", lambda: now[0])
    return now


def test_scoring_is_told_apart_and_counted_once(time: list[float]) -> None:
    def spend(seconds: float) -> None:
        time[0] += seconds

    @scoring
    def inner() -> None:
        spend(2)

    @scoring
    def outer() -> str:
        inner()
        spend(1)
        return "kept"

    inner()  # outside of any round
    with clock() as mine:
        spend(4)
        assert outer() == "kept"
        spend(0.5)
        inner()
        assert mine.metrics() == {"train-seconds": 4.5, "score-seconds": 5.0}
    inner()
    assert mine.scored == 5.0


def test_a_score_that_fails_has_taken_its_time(time: list[float]) -> None:
    @scoring
    def broken() -> None:
        time[0] += 3
        raise ValueError

    with clock() as mine:
        with pytest.raises(ValueError):
            broken()
        assert mine.metrics() == {"train-seconds": 0.0, "score-seconds": 3.0} and not mine.scoring


@pytest.mark.parametrize("method", ["fedper", "pep-fedpt", "sgpt", "head-only", "fed-ia", "promptfl"])
def test_every_kind_of_model_tells_both_and_the_round_holds_them(method: str, tmp_path: Path) -> None:
    record = run(tmp_path, method, rounds=1).records[0]
    for key in ("train_seconds", "score_seconds"):
        assert record[key].keys() == set(record["accepted"]) and all(0 < seconds < record["seconds"] for seconds in record[key].values())
    parts = seconds_of(record)
    assert parts is not None and sum(parts.values()) == pytest.approx(record["seconds"]) and parts["rest"] > 0


def test_seconds_stay_at_home_where_counts_do(tmp_path: Path) -> None:
    record = run(tmp_path, "fedper", rounds=1, weighting="uniform").records[0]
    assert not {"train_seconds", "score_seconds", "n_train"} & {key for key, value in record.items() if value}
