"""What the tests of the Flower-facing core share: a contract of three numbers, a rule for it, grids that misbehave."""

from __future__ import annotations

import os
import time
import uuid
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from flwr.app import Array, ArrayRecord, ConfigRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp

from deploy.inprocess import InProcessGrid, identify
from deploy.virtual_nodes import FIRST_NODE
from strategies.config import RunConfig
from strategies.types import Layout, Round, Slots, Update, layout_of
from strategies.wire import Slot, Wire, pack

identify()

ENCODER = Slot("encoder", "3", "three numbers", like="encoder")
OWN = Slot("mixture", "3", "this client's own three numbers", like="encoder", optional=True, serves=True)
SKETCH = Slot("descriptor", "2", "two numbers", layout=(("descriptor", (2,), "float16"),), optional=True)
WIRE = Wire(down=(ENCODER, OWN), up=(ENCODER, SKETCH), local=("head",))
START: Slots = {"encoder": {"w": np.array([1.0, 2.0, 3.0], dtype=np.float32)}, "head": {"bias": np.zeros(2, dtype=np.float32)}}
PARTS: Mapping[str, Layout] = {part: layout_of(tensors) for part, tensors in START.items()}
METRICS = {"num-examples": 2, "num-test": 1, "loss": 0.5}


def three(*numbers: float) -> Slots:
    return {"encoder": {"w": np.array(numbers, dtype=np.float32)}}


def array(tensor: Any, **changed: Any) -> Array:
    """Flower's own ``Array`` of ``tensor``, with some of what it declares changed."""
    made = Array(np.asarray(tensor))
    for key, value in changed.items():
        setattr(made, key, value)
    return made


def tell(content: RecordDict, node: int = FIRST_NODE, kind: str = "train", ttl: float = 60.0) -> Message:
    """A message as if it had been sent."""
    message = Message(content, node, kind, ttl=ttl, group_id="1")
    message.metadata.__dict__["_message_id"] = str(uuid.uuid4())
    return message


def rnd(number: int = 1, total: int = 2, **more: Any) -> Round:
    return Round(number, total, 0, **more)


def hello(name: str, /, **changed: Any) -> RecordDict:
    facts = {"site": name, "classes": 10, "class-digest": "ab12", "input-shape": "1x8x8", "split-digest": "cd34",
             "warnings": "", "weights-digest": ""} | changed
    return RecordDict({"hello": ConfigRecord(facts)})


def app_of(train: Callable[[Message, Context], Message] | None = None, evaluate: Callable[[Message, Context], Message] | None = None,
           greet: Callable[[Message, Context], Message] | None = None, mods: list[Any] | None = None) -> ClientApp:
    """A ClientApp of the handlers given."""
    app = ClientApp(mods=mods or [])
    if train:
        app.train()(train)
    if evaluate:
        app.evaluate()(evaluate)
    if greet:
        app.query("hello")(greet)
    return app


@dataclass(frozen=True)
class SumRule:
    """State: three numbers; merge: the weighted mean of the encoders, and the order in which they came."""

    seen: list[str]
    mixtures: bool = False

    def init(self, start: Slots) -> Slots:
        return {"encoder": start["encoder"]}

    def downlink(self, state: Slots, client: str, rnd: Round) -> Slots:
        return {**state, "mixture": {"w": state["encoder"]["w"] + len(client)}} if self.mixtures else dict(state)

    def merge(self, state: Slots, updates: Iterable[Update], rnd: Round) -> Slots:
        total, weights = np.zeros(3), 0.0
        for update in updates:
            self.seen.append(update.client)
            total, weights = total + update.weight * update.slots["encoder"]["w"], weights + update.weight
        return three(*(total / weights))

    def diagnostics(self, state: Slots) -> Mapping[str, Any]:
        return {}


@dataclass
class Club:
    """Members a, b, c on nodes 1000.. in that order; ``offline`` ones have no node, ``outside`` ones are held out."""

    count: int = 3
    offline: tuple[str, ...] = ()
    outside: tuple[str, ...] = ()

    def names(self) -> tuple[str, ...]:
        return tuple("abcdefghij"[: self.count])

    def node_id(self, name: str) -> int | None:
        return None if name in self.offline else FIRST_NODE + self.names().index(name)

    def sample(self, round_number: int) -> tuple[str, ...]:
        return tuple(name for name in self.names() if name not in self.outside)

    def held_out(self) -> tuple[str, ...]:
        return self.outside


def run_config(**changed: Any) -> RunConfig:
    return replace(RunConfig(rounds=2, clients=3), **changed)


def good(message: Message, context: Context) -> Message:
    """Sends (1, 2, 3) times (partition + 1), with as many examples."""
    index = int(context.node_config["partition-id"])
    slots = three(*(float(n * (index + 1)) for n in (1, 2, 3)))
    return Message(pack(slots, METRICS | {"num-examples": index + 1}), reply_to=message)


def spoilt(change: Callable[[RecordDict], None]) -> RecordDict:
    """A valid way up after ``change``."""
    content = pack(three(1, 2, 3), METRICS)
    change(content)
    return content


def hanging(message: Message, context: Context) -> Message:
    """Like ``good``, but the client that "hang" names writes its process id there and then never answers."""
    path = Path(str(context.run_config.get("hang", "")))
    if path.name == f"client-{context.node_config['partition-id']}" and path.exists() and not path.read_text():
        path.write_text(str(os.getpid()))
        time.sleep(120)
    return good(message, context)


light_app = app_of(train=hanging)


class Scripted(InProcessGrid):
    """Takes every message at once, answers with ``app``, and hands out replies as ``order`` (a function on the list) says."""

    def __init__(self, app: ClientApp, clients: int, order: Callable[[list[Message]], list[Message]] = lambda r: r,
                 silent: Iterable[int] = ()) -> None:
        super().__init__({}, clients, app=app)
        self.window = 0
        self.order, self.silent = order, {FIRST_NODE + index for index in silent}
        self.done: list[Message] = []

    def push_messages(self, messages: Iterable[Message]) -> Iterable[str]:
        ids = list(super().push_messages(messages))
        while self._queue:
            message = self._queue.popleft()
            if message.metadata.dst_node_id not in self.silent:
                self.done.append(self._answer(message))
        return ids

    def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Message]:
        ids = set(message_ids)
        ready = self.order([r for r in self.done if r.metadata.reply_to_message_id in ids])
        self.done = [r for r in self.done if r not in ready]
        return ready


def one_number(value: float, count: int) -> RecordDict:
    """A reply as Flower's own FedAvg wants it."""
    arrays = ArrayRecord([np.array([value, -value, 0.5])])
    return RecordDict({"arrays": arrays, "metrics": MetricRecord({"num-examples": count, "x": value})})
