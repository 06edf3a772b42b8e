"""Whole runs in this process, small enough for tests: run a config, then look at everything it left behind.

``SMALL`` is four clients with 32 digits each (``few_digits``), two rounds, and a CNN of width 4. A ``Watched`` grid sees every
message and its reply, and may change, lose or break the reply; a ``Shuffled`` one answers out of turn.
"""

from __future__ import annotations

import csv
import json
import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
from flwr.app import ArrayRecord, Context, Error, Message, RecordDict
from safetensors import safe_open

import client_app.data.opening as opening
import client_app.session as session
from client_app.data import digits
from client_app.data.byte_lru import ByteLru
from client_app.data.client_data import ClientData, Split
from client_app.data.sources import DataNode
from client_app.node import client_name
from deploy.inprocess import InProcessGrid
from deploy.virtual_nodes import FIRST_NODE
from server_app.main import serve
from strategies.registry import CLIP_MODELS, SPLIT_MODEL, find_method, parse_run_config
from strategies.types import Layout, layout_of

SMALL: Mapping[str, Any] = {
    "dataset": "tests.running:few_digits", "clients": 4, "rounds": 2, "model": "cnn", "width": 4, "epochs": 1, "batch": 8, "lr": 0.05,
    "device": "cpu", "run-id": "test", "max-void-rounds": 1, "hdc-fl.restarts": 5,
}
# what a method with prompts has in place of the CNN: 8 blocks of width 32, one patch of 16 pixels
SMALL_VIT: Mapping[str, Any] = {"model": "vit-tiny-random", "width": 0}
# a method on CLIP-like towers: 12 blocks of width 64, and a text tower of 2
SMALL_CLIP: Mapping[str, Any] = {"model": "clip-tiny-random", "width": 0, "text-tower": "text-tiny-random"}
TRAIN, TEST = 24, 8

# (message, the client's own answer) -> what the server gets
Hook = Callable[[Message, Callable[[], Message]], Message]


def digits_of(index: int, count: int = TRAIN + TEST, turns: int | None = None) -> tuple[np.ndarray, np.ndarray]:
    """Images (count, 1, 8, 8) uint8 and labels (count,) of the ``index``-th client; odd clients' digits stand on their heads."""
    every, cut = digits.load(), slice(index * 40, index * 40 + count)
    images = np.rot90(every.images[cut], 2 * index if turns is None else turns, axes=(2, 3))
    return np.array(images, order="C"), every.labels[cut].copy()


def client_of(images: np.ndarray, labels: np.ndarray, train: int = TRAIN, group: str = "") -> ClientData:
    """The first ``train`` samples to train with, the others to test with."""
    ids = np.arange(len(labels))
    return ClientData(Split(images[:train], labels[:train], ids[:train]), Split(images[train:], labels[train:], ids[train:]),
                      tuple("0123456789"), group)


def few_digits(node: DataNode, seed: int) -> ClientData:
    """24 digits to train with and 8 to test with, other ones on every client; two groups."""
    return client_of(*digits_of(node.index), group=str(180 * (node.index % 2)))


@dataclass(frozen=True)
class Ran:
    """A finished run: its summary, and its folder to look into."""

    folder: Path
    summary: Mapping[str, Any]

    @property
    def records(self) -> list[dict[str, Any]]:
        """The lines of rounds.jsonl."""
        return [json.loads(line) for line in (self.folder / "rounds.jsonl").read_text().splitlines()]

    @property
    def rounds(self) -> list[dict[str, Any]]:
        """The records without what no two runs share: seconds."""
        return [{k: v for k, v in r.items() if "seconds" not in k} for r in self.records]

    @property
    def served(self) -> dict[str, str]:
        """Closing score by client, as clients.csv says it."""
        with (self.folder / "clients.csv").open(newline="") as file:
            return {row["client"]: row["served"] for row in csv.DictReader(file)}

    @property
    def state(self) -> Any:
        """The final checkpoint: round, state and acknowledged rounds."""
        return contents(max((self.folder / "checkpoints").glob("round-*.safetensors")))

    @property
    def stores(self) -> dict[str, Any]:
        """What every client keeps: versions and personal model, by client and file."""
        root = self.folder / "clients" / "test"
        return {str(path.relative_to(root)): contents(path) for path in sorted(root.glob("*/*.safetensors"))}

    def everything(self) -> dict[str, Any]:
        """All that must not differ between two runs that are the same."""
        return {"state": self.state, "stores": self.stores, "served": self.served, "rounds": self.rounds}


def contents(path: Path) -> dict[str, Any]:
    """A safetensors file as something that ``==`` compares bit for bit.

    Not its bytes: the order of the entries in the header is another one every time.
    """
    with safe_open(path, framework="numpy") as file:
        tensors = {key: file.get_tensor(key) for key in file.keys()}  # noqa: SIM118
        return {"meta": dict(file.metadata() or {}), "tensors": {k: (t.shape, str(t.dtype), t.tobytes()) for k, t in tensors.items()}}


def slot_of(path: Path, slot: str) -> dict[str, np.ndarray]:
    """The tensors of one slot of a client's file."""
    with safe_open(path, framework="numpy") as file:
        return {k.partition("/")[2]: file.get_tensor(k) for k in file.keys() if k.startswith(f"{slot}/")}  # noqa: SIM118


class Watched(InProcessGrid):
    """The in-process grid, with ``hook`` between every message and its reply."""

    def __init__(self, run_config: Mapping[str, Any], clients: int, hook: Hook | None = None) -> None:
        super().__init__(run_config, clients)
        self.hook = hook or (lambda message, reply: reply())

    def _answer(self, message: Message) -> Message:
        return self.hook(message, lambda: super(Watched, self)._answer(message))


class Shuffled(Watched):
    """Takes all messages at once and answers them in a seeded random order."""

    def __init__(self, run_config: Mapping[str, Any], clients: int, hook: Hook | None = None) -> None:
        super().__init__(run_config, clients, hook)
        self.window, self.order = 0, random.Random(7)

    def pull_messages(self, message_ids: Any) -> list[Message]:
        if self._queue:
            self._queue.rotate(self.order.randrange(len(self._queue)))
        return list(super().pull_messages(message_ids))


def run(folder: Path, method: str, hook: Hook | None = None, grid: type[Watched] = Watched,
        on_round: Callable[[dict[str, Any]], None] | None = None, **settings: Any) -> Ran:
    """One run of ``method`` with ``SMALL`` and ``settings`` (``hdc_fl__signal`` for ``hdc-fl.signal``), as if in a new process."""
    forget()
    changed = {key.replace("__", ".").replace("_", "-"): value for key, value in settings.items()}
    config = {**small(method), "method": method, "out": str(folder), "state-dir": str(folder / "clients"), **changed}
    context = Context(1, 1, {}, RecordDict(), config)
    # the pictures of the report take longer than the run, and test_report.py and test_split_png.py look at them
    with patch("server_app.report.page", lambda found: ""), patch("server_app.report.write_split_png", lambda split, path: None):
        return Ran(folder, serve(grid(config, config["clients"], hook), context, engine="inprocess", on_round=on_round))


def small(method: str) -> Mapping[str, Any]:
    """``SMALL`` with a model that ``method`` can have."""
    model = find_method(method).model
    return SMALL if model == SPLIT_MODEL else {**SMALL, **(SMALL_CLIP if model.startswith(CLIP_MODELS) else SMALL_VIT)}


@cache
def layouts(method: str, **settings: Any) -> Mapping[str, Layout]:
    """What the parts of that model look like, for digits."""
    model = parse_run_config({**small(method), "method": method, **settings}).build_model(10, (1, 8, 8), weights=False)
    return {part: layout_of(model.tensors(part)) for part in model.parts}


def forget() -> None:
    """Empty what a client process keeps between messages; a new process has none of it."""
    session._learner.cache_clear()
    session._settings.cache_clear()
    opening._CACHE = ByteLru(opening.CACHE_BYTES)


def about(message: Message) -> tuple[str, str, int]:
    """Kind ("train", "join", "evaluate", "query"), client and round of a message that goes down."""
    kind, _, action = message.metadata.message_type.partition(".")
    kind = "join" if action == "join" else kind
    number = message.content["round"]["number"] if "round" in message.content else 0
    return kind, client_name(message.metadata.dst_node_id - FIRST_NODE), int(number)  # type: ignore[arg-type]


def failing(*where: tuple[str, int], after: bool = False) -> Hook:
    """A hook: the named (client, round) do not train, or (``after``) train, and their reply is lost."""

    def hook(message: Message, reply: Callable[[], Message]) -> Message:
        kind, client, number = about(message)
        if kind != "train" or (client, number) not in where:
            return reply()
        if after:
            reply()
        return Message(Error(4, "lost"), reply_to=message)

    return hook


def tensor_bytes(message: Message) -> dict[tuple[str, str], tuple[tuple[int, ...], bytes]]:
    """(slot, tensor) -> (declared shape, the bytes that travel); nothing for an error."""
    if message.has_error():
        return {}
    content = message.content
    return {(slot, name): (tuple(array.shape), array.data) for slot, record in content.items() if isinstance(record, ArrayRecord)
            for name, array in record.items()}


@dataclass
class Spy:
    """Keeps every (message, reply) of a run, and every head any client ever had."""

    folder: Path
    seen: list[tuple[Message, Message]] = field(default_factory=list)
    heads: dict[tuple[str, int], dict[str, np.ndarray]] = field(default_factory=dict)

    def __call__(self, message: Message, reply: Callable[[], Message]) -> Message:
        answer = reply()
        self.seen.append((message, answer))
        for path in (self.folder / "clients" / "test").glob("*/v*.safetensors"):
            self.heads[path.parent.name, int(path.stem[1:])] = slot_of(path, "head")
        return answer
