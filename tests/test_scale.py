"""What must not grow with the number of clients or of workers: what is written, read and asked for in a round."""

from __future__ import annotations

import json
import os
import pickle
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

import numpy as np
import pytest
from flwr.app import Array, ArrayRecord, ConfigRecord, Context, Error, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid

from client_app.data import ClientData, Split
from client_app.local import durable
from client_app.local.store import LocalStore
from deploy import inprocess, virtual_nodes
from deploy.bundles import bundled, bundled_replies, opened, opened_replies
from deploy.inprocess import InProcessGrid
from deploy.new_rounds import rounds_from
from deploy.ray_server import MOST, BundledGrid
from deploy.scratch import OWNER
from deploy.shared_records import SHARE_FROM, Lending, MappedFile, post
from deploy.simulate import resources
from deploy.virtual_nodes import FIRST_NODE
from server_app.main import serve
from server_app.rounds import Outcome, Plan, exchange

echo_app = ClientApp()


@pytest.fixture
def lending() -> Iterator[Lending]:
    lent = Lending()
    yield lent
    lent.close()


BIG = SHARE_FROM // 4 + 100


@echo_app.train()
def echo(message: Message, context: Context) -> Message:
    """Sends back what came, plus the client's own number, and tells how it came."""
    if message.content["encoder"]["w"].shape == (1,):
        raise ValueError("asked to fail")
    came = message.content["encoder"]["w"].data  # type: ignore[index]
    number = context.node_config["partition-id"]
    back = np.frombuffer(came, np.float32) + np.float32(number)  # type: ignore[arg-type]
    return Message(RecordDict({"encoder": record(back), "metrics": MetricRecord({"in-place": float(isinstance(came, memoryview))})}),
                   reply_to=message)


def record(values: np.ndarray) -> ArrayRecord:
    return ArrayRecord({"w": Array(str(values.dtype), values.shape, "numpy.ndarray", values.tobytes())})


def messages(payload: ArrayRecord, clients: int) -> Iterable[Message]:
    nodes = range(FIRST_NODE, FIRST_NODE + clients)
    return (Message(RecordDict({"encoder": payload, "round": ConfigRecord({"number": 1})}), node, "train") for node in nodes)


def values_of(reply: Message) -> np.ndarray:
    return np.frombuffer(reply.content["encoder"]["w"].data, np.float32)  # type: ignore[index]


def test_an_equal_payload_is_written_once_a_round_and_its_file_goes_with_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(Path(__file__).parents[1]), os.environ.get("PYTHONPATH", "")]))
    with InProcessGrid({}, 6, 2, app="tests.test_scale:echo_app") as grid:
        assert grid._lending is not None
        folder = grid._lending.folder
        for number in (1, 2):
            payload = record(np.full(BIG, number, np.float32))
            replies = list(exchange(grid, messages(payload, 6), Plan(2, 60.0, 1.0), Outcome(number, ArrayRecord())))
            # a view of the shared file there; plain bytes here, where a reply may have to be spooled
            assert [reply.content["metrics"]["in-place"] for reply in replies] == [1.0] * 6  # type: ignore[index]
            assert [values_of(reply).tolist() for reply in replies] == [[number + i] * BIG for i in range(6)]
            assert all(type(reply.content["encoder"]["w"].data) is bytes for reply in replies)  # type: ignore[index]
            assert grid._lending.written == number
            # the round's own; replies are taken away, and what was lent before is gone
            assert sorted(os.listdir(folder)) == [str(number - 1), OWNER]
    assert not os.path.exists(folder)


def test_a_message_that_names_its_payload_is_small_and_gives_the_same_record(lending: Lending) -> None:
    payload = record(np.arange(BIG, dtype=np.float32))
    payload["empty"] = Array("float32", (0,), "numpy.ndarray", b"")
    small = record(np.ones(3, np.float32))
    message = Message(RecordDict({"encoder": payload, "head": small}), FIRST_NODE, "train")
    lending.lend(message)
    pickled = pickle.dumps(message)
    assert len(pickled) < 3000 < SHARE_FROM
    there = pickle.loads(pickled)
    assert there.content["encoder"].keys() == payload.keys() and there.content["head"] == small
    for key, array in there.content["encoder"].items():
        assert (array.dtype, array.shape, array.stype, bytes(array.data)) == (
            payload[key].dtype, payload[key].shape, payload[key].stype, payload[key].data)
    assert there.content["encoder"]["w"].data.readonly
    again = Message(RecordDict({"encoder": payload}), FIRST_NODE + 1, "train")
    lending.lend(again)
    assert lending.written == 1
    equal = Message(RecordDict({"encoder": record(np.arange(BIG, dtype=np.float32))}), FIRST_NODE + 1, "train")
    lending.lend(equal)
    assert lending.written == 2  # another record, were it equal: found by identity, never by comparing


def test_without_room_on_the_disk_tensors_travel_as_before(lending: Lending, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def full(self: MappedFile, path: Path, datas: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(MappedFile, "__init__", full)
    monkeypatch.setattr("deploy.shared_records.Parcel.__init__", full)
    payload = record(np.ones(BIG, np.float32))
    message = Message(RecordDict({"encoder": payload}), FIRST_NODE, "train")
    lending.lend(message)
    assert message.content["encoder"] is payload
    assert post(message, str(tmp_path)).content["encoder"] is payload and not list(tmp_path.iterdir())


def test_a_bundle_gives_back_its_messages_and_each_its_own_reply() -> None:
    parts = list(messages(record(np.arange(3, dtype=np.float32)), 3))
    for place, message in enumerate(parts):
        message.metadata.__dict__["_message_id"] = f"m{place}"
    whole = bundled(parts, node=2**63 + 5, ttl=9.0)
    assert whole.metadata.dst_node_id == 2**63 + 5 and whole.metadata.ttl == 9.0
    for before, after in zip(parts, opened(whole), strict=True):
        assert before.content == after.content
        for name in ("message_id", "dst_node_id", "src_node_id", "message_type", "group_id", "ttl", "created_at", "run_id"):
            assert getattr(before.metadata, name) == getattr(after.metadata, name)
    replies = [Message(RecordDict({"metrics": MetricRecord({"served": 0.5})}), reply_to=parts[0]),
               Message(Error(2, "fedhearth:DataError: no"), reply_to=parts[1]), Message(RecordDict(), reply_to=parts[2])]
    back = opened_replies(Message(bundled_replies(replies), reply_to=whole), parts)
    assert [reply.metadata.reply_to_message_id for reply in back] == ["m0", "m1", "m2"]
    assert back[0].content == replies[0].content and (back[1].error.code, back[1].error.reason) == (2, "fedhearth:DataError: no")
    assert back[2].has_content() and not back[2].content
    lost = opened_replies(Message(Error(0, "ActorDiedError"), reply_to=whole), parts)
    assert [reply.error.code for reply in lost] == [0, 0, 0]  # the round loop ends the run at this code


class FewNodes(Grid):
    """Flower's side of the Ray engine: three nodes, whose bundles are answered when they are asked after."""

    run = None  # type: ignore[assignment]

    def __init__(self) -> None:
        self.waiting: dict[str, Message] = {}
        self.sizes: list[int] = []
        self.most = 0

    def set_run(self, run: object) -> None: ...
    def create_message(self, *a: object, **k: object) -> Message: ...  # type: ignore[override,empty-body]
    def get_nodes(self) -> Iterable[object]: ...  # type: ignore[override,empty-body]
    def send_and_receive(self, messages: object, *, timeout: float | None = None) -> Iterable[Message]: ...  # type: ignore[override,empty-body]

    def get_node_ids(self) -> Iterable[int]:
        return [7, 8, 9]

    def push_messages(self, messages: Iterable[Message]) -> Iterable[str]:
        for message in messages:
            key = f"bundle-{len(self.sizes)}"
            message.metadata.__dict__["_message_id"] = key
            assert message.metadata.dst_node_id not in {m.metadata.dst_node_id for m in self.waiting.values()}
            self.waiting[key] = message
            self.sizes.append(len(opened(message)))
            self.most = max(self.most, len(self.waiting))
            yield key

    def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Message]:
        key = next(iter(message_ids))
        bundle = pickle.loads(pickle.dumps(self.waiting.pop(key)))
        replies = [inprocess.answer(echo_app, message, {}, 50) for message in opened(bundle)]
        return [Message(bundled_replies(replies), reply_to=bundle)]


@pytest.mark.parametrize(("values", "largest"), [(4, MOST), (100_000, 5), (600_000, 1)])
def test_clients_on_ray_share_few_messages_and_are_told_apart(values: int, largest: int, lending: Lending) -> None:
    flower = FewNodes()
    grid = BundledGrid(flower, 50, lending)
    payload = record(np.zeros(values, np.float32))
    replies = list(exchange(grid, messages(payload, 50), Plan(1, 60.0, 1.0), Outcome(1, ArrayRecord())))
    assert [values_of(reply)[0] for reply in replies] == list(range(50))
    assert [reply.metadata.src_node_id for reply in replies] == list(grid.get_node_ids())
    assert sum(flower.sizes) == 50 and 1 <= max(flower.sizes) <= largest and flower.most == 3
    assert lending.written == (values >= BIG)


def test_one_client_that_fails_in_a_bundle_is_told_alone(lending: Lending) -> None:
    grid = BundledGrid(FewNodes(), 50, lending)
    both = [*messages(record(np.zeros(1, np.float32)), 1), *messages(record(np.ones(2, np.float32)), 2)]
    failed, *fine = exchange(grid, both, Plan(1, 60.0, 1.0), Outcome(1, ArrayRecord()))
    assert failed.error.code == virtual_nodes.RAISED and [values_of(reply).tolist() for reply in fine] == [[1, 1], [2, 2]]


def test_actors_share_all_gpus_of_a_machine_and_a_cluster_says_its_own_size() -> None:
    assert resources(8, 2, cluster=False) == {"num-supernodes": 32, "client-resources-num-cpus": 1, "client-resources-num-gpus": 0.25,
                                              "init-args-num-cpus": 8}
    assert resources(2, 4, cluster=False)["client-resources-num-gpus"] == 1.0
    assert resources(3, 1, cluster=False)["client-resources-num-gpus"] == 0.3333
    assert "init-args-num-cpus" not in resources(2, 0, cluster=True)


def test_the_rounds_of_a_long_run_are_read_once(tmp_path: Path) -> None:
    lines = tmp_path / "rounds.jsonl"
    assert rounds_from(lines, 0) == ([], 0)
    lines.write_text('{"round": 1}\n{"round": 2}\n{"rou')
    found, start = rounds_from(lines, 0)
    assert [r["round"] for r in found] == [1, 2] and start == 26
    with lines.open("a") as more:
        more.write('nd": 3}\n')
    assert rounds_from(lines, start) == ([{"round": 3}], 39)
    lines.write_text('{"round": 1}\n')  # a resumed run has cut it
    assert rounds_from(lines, 39) == ([{"round": 1}], 13)


def tiny(node: object, seed: int) -> ClientData:
    """Eight grey images of two classes."""
    rng = np.random.default_rng(node.index)  # type: ignore[attr-defined]
    images, labels = rng.integers(0, 255, (8, 1, 4, 4), np.uint8), np.arange(8) % 2
    return ClientData(Split(images[:6], labels[:6], np.arange(6)), Split(images[6:], labels[6:], np.arange(6, 8)), ("a", "b"))


def counted(monkeypatch: pytest.MonkeyPatch, module: str, name: str, size: Callable[..., int], counts: Counter[str]) -> None:
    import importlib

    real = getattr(importlib.import_module(module), name)

    def called(*arguments: object, **more: object) -> object:
        counts[f"{name} calls"] += 1
        counts[f"{name} bytes"] += size(*arguments)
        return real(*arguments, **more)

    monkeypatch.setattr(f"{module}.{name}", called)


def work_of_a_round(clients: int, folder: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[Counter[str], dict[str, object]]:
    """What is written, synced and sent in the second of two rounds that ask three clients, and the summary."""
    counts: Counter[str] = Counter()
    rounds: list[Counter[str]] = []
    with monkeypatch.context() as patched:
        counted(patched, "client_app.local.durable", "replace_durably", lambda path, content, *_: len(content), counts)
        patched.setattr("client_app.local.slot_file.replace_durably", durable.replace_durably)
        counted(patched, "os", "fsync", lambda _: 0, counts)
        counted(patched, "deploy.inprocess", "answer", lambda *_: 0, counts)
        config = {"method": "fedper", "dataset": "tests.test_scale:tiny", "partition": "iid", "model": "cnn", "width": 2,
                  "clients": clients, "fraction": 3 / clients, "rounds": 2, "batch": 6, "out": str(folder),
                  "state-dir": str(folder / "clients"), "run-id": "run", "score-adapted": "never", "device": "cpu"}
        grid = InProcessGrid(config, clients)
        summary = serve(grid, Context(1, 1, {}, RecordDict(), config), "inprocess", on_round=lambda _: rounds.append(Counter(counts)))
    return rounds[1] - rounds[0], summary


def test_a_round_of_three_clients_costs_the_same_among_six_and_among_a_hundred(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    few, _ = work_of_a_round(6, tmp_path / "few", monkeypatch)
    many, summary = work_of_a_round(100, tmp_path / "many", monkeypatch)
    assert few["answer calls"] == many["answer calls"] == 3
    assert few["replace_durably calls"] == many["replace_durably calls"] == 3  # one version a client that trained
    # but for the digits of the rounds in the file's header
    assert many["replace_durably bytes"] == pytest.approx(few["replace_durably bytes"], rel=0.01)
    # a simulation's clients do not wait for the disk one by one; what is synced is the server's own
    assert many["fsync calls"] == few["fsync calls"] <= 8
    assert summary["clients"] == 100 and summary["served"]["n"] == 100  # type: ignore[index]
    asked = [json.loads(line)["asked"] for line in (tmp_path / "many" / "rounds.jsonl").read_text().splitlines()]
    assert [len(names) for names in asked] == [3, 3]


def test_a_store_that_is_not_durable_does_not_wait_for_the_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    slots, synced = {"head": {"w": np.arange(3, dtype=np.float32)}}, []
    monkeypatch.setattr(os, "fsync", lambda descriptor: synced.append(descriptor))
    for name, waits in (("waits", True), ("leaves", False)):
        with LocalStore(tmp_path, "run", name, durable=waits) as store:
            store.commit(1, slots, base=0)
            assert (np.asarray(store.load(1)["head"]["w"]) == [0, 1, 2]).all()  # type: ignore[index]
        assert bool(synced) is waits
        synced.clear()
