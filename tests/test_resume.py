"""A run that died goes on as if it had not: kill -9 at random and at chosen moments, damaged and lost files, wrong folders."""

from __future__ import annotations

import logging
import shutil
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
from flwr.app import Message

from strategies.config import ConfigError
from tests.kills import Moment, finish, kill_and_resume, start
from tests.running import Ran, about, run, slot_of, tensor_bytes


@pytest.mark.slow
def test_killed_at_random_moments(tmp_path: Path) -> None:
    """Once in each third of the run; the benchmark does ten (benchmarks/resume/kill.py)."""
    killed = kill_and_resume(tmp_path, count=3, seed=1)
    assert [k.same for k in killed] == [True] * 3, killed
    # how far a run has come after so many seconds is the machine's business; the chosen moments below leave nothing to it
    assert any(k.running for k in killed)


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Ran:
    return finish(tmp_path_factory.mktemp("whole") / "run")


# 6 clients: the 9th commit is the third client's of round 2
@pytest.mark.parametrize(("moment", "left"), [
    (Moment("client_app.local.store:LocalStore.commit", 9, after=True), 1),
    (Moment("os:replace", 9, about="clients/test"), 1),
    (Moment("strategies.hdc_fl:HdcRule._refresh", 1), 1),
    (Moment("server_app.encoder_shelf:EncoderShelf.sync", 3, after=True), 2),
    (Moment("os:replace", 3, about="checkpoints"), 2),
    (Moment("server_app.checkpoint:Checkpoints._forget_all_but", 3), 3),
    (Moment("server_app.report:RunReport.round", 3, after=True), 2),
    (Moment("server_app.encoder_shelf:EncoderShelf.prune", 3), 3),
    (Moment("server_app.report:write_findings", 1), 4),
], ids=["committed, not replied", "committing", "merging", "shelf synced", "checkpoint half written", "checkpoint new, old ones there",
        "line, no checkpoint", "shelf unpruned", "closing"])
def test_killed_at_a_chosen_moment(moment: Moment, left: int, whole: Ran, tmp_path: Path) -> None:
    """``left`` is the round whose checkpoint is there to resume from."""
    process, _ = start(tmp_path, moment)
    process.join()
    assert process.exitcode == -9
    assert max(int(p.stem[-5:]) for p in (tmp_path / "checkpoints").glob("round-*")) == left
    assert finish(tmp_path).everything() == whole.everything()


def test_a_client_ahead_of_the_server_goes_back_to_what_was_acknowledged(tmp_path: Path) -> None:
    """Killed between its commit of round 2 and the reply: it has both versions, and keeps the first until the second counts."""
    process, _ = start(tmp_path, Moment("client_app.local.store:LocalStore.commit", 9, after=True))
    process.join()
    files = tmp_path / "clients" / "test"
    assert sorted(p.stem for p in (files / "client-002").glob("v*")) == ["v1", "v2"]
    assert sorted(p.stem for p in (files / "client-003").glob("v*")) == ["v1"]


# --- in this process


class Stop(Exception):
    """Ends a run from within."""


def stopped(folder: Path, after: int, **settings: Any) -> None:
    """A run of HDC-FL that ends after round ``after`` of three."""

    def stop(record: Mapping[str, Any]) -> None:
        if record["round"] == after:
            raise Stop

    with pytest.raises(Stop):
        run(folder, "hdc-fl", on_round=stop, rounds=3, **settings)


@pytest.mark.parametrize("how", ["cut", "changed", "emptied"])
def test_a_damaged_newest_checkpoint_falls_back_to_the_one_before(how: str, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    undisturbed = run(tmp_path / "undisturbed", "hdc-fl", rounds=3)
    stopped(tmp_path / "run", after=2)
    newest = tmp_path / "run" / "checkpoints" / "round-00002.safetensors"
    good = newest.read_bytes()
    newest.write_bytes({"cut": good[:-100], "changed": good[:-1] + bytes([good[-1] ^ 1]), "emptied": b""}[how])
    with caplog.at_level(logging.INFO):
        again = run(tmp_path / "run", "hdc-fl", rounds=3, resume=True)
    assert "checkpoint of round 2 passed over" in caplog.text and "resuming after round 1" in caplog.text
    assert again.everything() == undisturbed.everything()


def test_a_finished_run_resumes_to_the_same_result(tmp_path: Path) -> None:
    first = run(tmp_path, "hdc-fl").everything()
    assert run(tmp_path, "hdc-fl", resume=True).everything() == first


def test_other_settings_are_refused_by_name(tmp_path: Path) -> None:
    stopped(tmp_path, after=1)
    with pytest.raises(ConfigError, match=r"different now: hdc-fl\.temperature, lr \(FH-032\)$"):
        run(tmp_path, "hdc-fl", rounds=3, resume=True, lr=0.01, hdc_fl__temperature=1.0)
    with pytest.raises(ConfigError, match="different now: .*method"):
        run(tmp_path, "fedper", rounds=3, resume=True)
    # how patiently it runs may change
    run(tmp_path, "hdc-fl", rounds=3, resume=True, deadline=100.0, max_void_rounds=2)


def test_a_folder_is_used_for_one_run_and_resumed_only_if_it_has_one(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="out holds no run; give the folder of the run"):
        run(tmp_path, "hdc-fl", resume=True)
    stopped(tmp_path, after=1)
    with pytest.raises(ConfigError, match="already holds a run; .* resume = true"):
        run(tmp_path, "hdc-fl", rounds=3)


@pytest.mark.parametrize("how", ["deleted", "damaged"])
def test_a_client_that_lost_its_state_starts_again_from_the_common_head(how: str, tmp_path: Path) -> None:
    """Its reply of round 2 is dropped and counted; in round 3 it gets what everyone got in round 1."""
    first: list[Message] = []

    def keep_first(message: Message, reply: Callable[[], Message]) -> Message:
        first.extend([message] * (about(message) == ("train", "client-002", 1)))
        return reply()

    with pytest.raises(Stop):
        run(tmp_path, "hdc-fl", keep_first, rounds=4, on_round=lambda record: (_ for _ in ()).throw(Stop))
    state = tmp_path / "clients" / "test" / "client-002"
    if how == "deleted":
        shutil.rmtree(state)
    else:
        (state / "v1.safetensors").write_bytes(b"nonsense")
    sent: dict[int, Message] = {}

    def keep(message: Message, reply: Callable[[], Message]) -> Message:
        if about(message)[:2] == ("train", "client-002"):
            sent[about(message)[2]] = message
        return reply()

    ran = run(tmp_path, "hdc-fl", keep, rounds=4, resume=True)
    assert [r["dropped"] for r in ran.records] == [{}, {"StateLost": 1}, {}, {}]
    assert [sent[n].content["round"]["acked"] for n in (2, 3, 4)] == [1, 0, 3]
    heads = [{k: v for k, v in tensor_bytes(message).items() if k[0] == "initial-head"} for message in (first[0], *sent.values())]
    assert heads[0] == heads[2] and heads[1] == heads[3] == {}
    assert all(ran.served.values()) and len(slot_of(state / "v4.safetensors", "head")) == 2
