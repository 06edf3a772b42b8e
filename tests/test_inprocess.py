"""The in-process engine: Flower's grid without a network, in this process or in worker processes."""

from __future__ import annotations

import multiprocessing
import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from flwr.app import Context, Message, RecordDict
from flwr.common.serde import message_to_proto

from deploy.inprocess import InProcessGrid
from deploy.virtual_nodes import FIRST_NODE
from server_app.roster import Roster
from server_app.rounds import RunFailed
from strategies.wire import pack
from tests.flower_cases import app_of, good, light_app, tell, three

LIGHT = "tests.flower_cases:light_app"


def trains(*clients: int) -> list[Message]:
    return [Message(pack(three(1, 2, 3)), FIRST_NODE + i, "train", ttl=300.0) for i in clients]


def numbers(replies: Any) -> dict[int, tuple[list[float], int]]:
    """Client -> what it sent."""
    return {r.metadata.src_node_id - FIRST_NODE: (r.content["encoder"]["w"].numpy().tolist(), r.content["metrics"]["num-examples"])
            for r in replies}


def kill(worker: Any) -> None:
    os.kill(worker._process.pid, signal.SIGKILL)
    worker._process.join()


@pytest.fixture(scope="module")
def pair() -> Iterator[InProcessGrid]:
    with InProcessGrid({}, 5, workers=2, app=LIGHT) as grid:
        yield grid


def test_workers_say_the_same_as_this_process(pair: InProcessGrid) -> None:
    here = numbers(InProcessGrid({}, 5, app=LIGHT).send_and_receive(trains(*range(5))))
    assert here == numbers(pair.send_and_receive(trains(*range(5)))) and here[4] == ([5.0, 10.0, 15.0], 5)


def test_workers_that_die_unnoticed_are_replaced(pair: InProcessGrid) -> None:
    for worker in pair._workers:
        kill(worker)
    assert len(numbers(pair.send_and_receive(trains(*range(5))))) == 5


def test_a_worker_killed_in_mid_task_is_an_error_reply_and_is_replaced(tmp_path: Path) -> None:
    hang = tmp_path / "client-2"
    hang.write_text("")
    with InProcessGrid({"hang": str(hang)}, 4, workers=2, app=LIGHT) as grid:
        ids = list(grid.push_messages(trains(*range(4))))
        replies: dict[str, Message] = {}
        end, killed = time.monotonic() + 60, False
        while len(replies) < 4 and time.monotonic() < end:
            replies |= {r.metadata.reply_to_message_id: r for r in grid.pull_messages(ids)}
            if not killed and (pid := hang.read_text()):
                os.kill(int(pid), signal.SIGKILL)
                killed = True
        died = replies.pop(ids[2])
        assert died.error.code == 8 and died.error.reason.startswith("fedhearth:WorkerDied:")
        assert died.metadata.src_node_id == FIRST_NODE + 2 and sorted(numbers(replies.values())) == [0, 1, 3]
        assert len(numbers(grid.send_and_receive(trains(*range(4))))) == 4


def test_closing_leaves_no_process_even_at_work(tmp_path: Path) -> None:
    hang = tmp_path / "client-0"
    hang.write_text("")
    grid = InProcessGrid({"hang": str(hang)}, 4, workers=2, app=LIGHT)
    ids = [worker._process.pid for worker in grid._workers]
    grid.push_messages(trains(0))
    grid.close()
    grid.close()
    assert not {child.pid for child in multiprocessing.active_children()} & set(ids)
    for pid in ids:
        assert pid is not None
        with pytest.raises(ProcessLookupError):
            os.kill(pid, 0)


def test_send_and_receive_gives_every_reply() -> None:
    grid = InProcessGrid({}, 5, app=app_of(train=good))
    replies = list(grid.send_and_receive([Message(pack(three(1, 2, 3)), FIRST_NODE + i, "train") for i in range(5)]))
    assert [r.content["encoder"]["w"].numpy().tolist() for r in replies] == [[k, 2.0 * k, 3.0 * k] for k in (1.0, 2.0, 3.0, 4.0, 5.0)]  # type: ignore[index]
    assert [r.metadata.src_node_id for r in replies] == [FIRST_NODE + i for i in range(5)]


def test_send_and_receive_keeps_to_its_timeout() -> None:
    grid = InProcessGrid({}, 2, app=app_of(train=good))
    first = Message(pack(three(1, 2, 3)), FIRST_NODE, "train")
    assert list(grid.send_and_receive([first], timeout=0.0)) == []
    # what the first call no longer waited for is not taken for an answer of the second
    second = list(grid.send_and_receive([Message(pack(three(1, 2, 3)), FIRST_NODE + 1, "train")]))
    assert [r.metadata.src_node_id for r in second] == [FIRST_NODE + 1]


def test_an_app_that_raises_gives_flowers_error() -> None:
    def broken(message: Message, context: Context) -> Message:
        raise ValueError("/secret")

    grid = InProcessGrid({}, 1, app=app_of(train=broken))
    for kind in ("train", "evaluate"):  # the second has no handler at all
        (reply,) = grid.send_and_receive([Message(RecordDict(), FIRST_NODE, kind)])
        assert reply.error.code == 2 and b"/secret" not in message_to_proto(reply).SerializeToString()


def test_an_expired_message_runs_no_client() -> None:
    ran: list[int] = []

    def train(message: Message, context: Context) -> Message:
        ran.append(1)
        return good(message, context)

    grid = InProcessGrid({}, 1, app=app_of(train=train))
    stale = Message(pack(three(1, 2, 3)), FIRST_NODE, "train", ttl=5.0)
    stale.metadata.__dict__["_created_at"] = time.time() - 6
    (reply,) = grid.send_and_receive([stale])
    assert reply.error.code == 3 and ran == []


def test_clients_get_the_node_config_of_a_simulation() -> None:
    seen: list[Any] = []

    def train(message: Message, context: Context) -> Message:
        seen.append((dict(context.node_config), dict(context.run_config)))
        return good(message, context)

    list(InProcessGrid({"lr": 0.5}, 3, app=app_of(train=train)).send_and_receive([Message(RecordDict(), FIRST_NODE + 2, "train")]))
    assert seen == [({"partition-id": 2, "num-partitions": 3}, {"lr": 0.5})]


def test_every_message_gets_an_id_of_its_own() -> None:
    grid = InProcessGrid({}, 3, app=app_of(train=good))
    sent = [tell(RecordDict(), FIRST_NODE + i) for i in range(3)]
    ids = list(grid.push_messages(sent))
    assert ids == [m.metadata.message_id for m in sent] and len(set(ids)) == 3


@pytest.mark.parametrize(("clients", "workers", "app"), [(0, 1, LIGHT), (1, 0, LIGHT), (2, 2, light_app)])
def test_grids_that_cannot_be(clients: int, workers: int, app: Any) -> None:
    with pytest.raises(ValueError, match="workers"):
        InProcessGrid({}, clients, workers, app)


def test_a_bad_run_config_is_told_before_round_1() -> None:
    grid = InProcessGrid({"clients": 4, "dataset": "npz:nowhere.npz", "device": "cpu"}, 4)
    with pytest.raises(RunFailed, match="a client cannot take part"):
        Roster(0, 1.0).gather(grid, 4, wait=5.0, deadline=5.0)
