"""The ServerApp of the Ray engine: Flower's grid, with a few nodes that stand for all clients, as a grid of the clients.

What is equal for many clients goes once into Ray's object store, which every machine of a cluster can read.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
from flwr.app import Context, Message, RecordDict
from flwr.serverapp import Grid, ServerApp

from deploy.bundles import bundled, opened_replies
from deploy.shared_records import Lending
from deploy.virtual_nodes import POLL, VirtualNodes, expired
from server_app.main import serve
from server_app.memory import give_back_freed_memory
from strategies.wire import bytes_of

app = ServerApp()
MOST = 16
MOST_BYTES = 2 << 20
# seconds between two looks for replies, longer the longer none comes, since looking costs the workers CPU time
LOOK_FIRST, LOOK_LAST, LOOK_LONGER = 0.01, 0.05, 1.2


@app.main()
def main(grid: Grid, context: Context) -> None:
    """Flower's entry point in a simulation."""
    give_back_freed_memory()
    serve(BundledGrid(grid, int(context.run_config["clients"])), context, engine="ray")


class InObjectStore:
    """A record's bytes in Ray's object store."""

    def __init__(self, datas: list[Any]) -> None:
        import ray

        self._object = ray.put([np.frombuffer(data, np.uint8) for data in datas])

    def buffers(self) -> Sequence[memoryview]:
        import ray

        return [data.data for data in ray.get(self._object)]


class BundledGrid(VirtualNodes):
    """Every client a node, as the other engines have it, over the few nodes of Flower's ``grid``.

    A bundle holds at most ``MOST`` clients, ``MOST_BYTES`` of content (one client, if that is more), and a fair share of what
    there is to do. A node works on one bundle at a time.
    """

    def __init__(self, grid: Grid, clients: int, lending: Lending | None = None) -> None:
        super().__init__(clients)
        self._grid, self._lending = grid, lending or Lending(InObjectStore)
        self._free = sorted(grid.get_node_ids())
        self._nodes = len(self._free)
        self._out: dict[str, tuple[int, list[Message]]] = {}
        self._each = MOST

    @property
    def window(self) -> int:
        """Messages to have at once: enough for a bundle a node, judging by the size of those before."""
        return self._nodes * self._each

    def set_run(self, run: Any) -> None:
        self._grid.set_run(run)

    @property
    def run(self) -> Any:
        return self._grid.run

    def get_nodes(self) -> Iterable[Any]:
        raise NotImplementedError("the Ray engine has node ids only")

    def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Message]:
        """Replies that are there; waits until a bundle is done."""
        end, look = time.monotonic() + POLL, LOOK_FIRST
        while time.monotonic() < end:
            if overdue := self._overdue():
                return overdue
            answered = self._grid.pull_messages(list(self._out)) if self._out else ()
            replies = [reply for whole in answered for reply in self._opened(whole)]
            self._feed()
            if replies:
                return replies
            time.sleep(look)
            look = min(LOOK_LAST, look * LOOK_LONGER)
        return []

    def send_and_receive(self, messages: Iterable[Message], *, timeout: float | None = None) -> Iterable[Message]:
        raise NotImplementedError("the round loop pushes and pulls")

    def _opened(self, reply: Message) -> list[Message]:
        node, asked = self._out.pop(reply.metadata.reply_to_message_id)
        self._free.append(node)
        return opened_replies(reply, asked)

    def _accept(self, message: Message) -> None:
        self._each = max(1, min(MOST, MOST_BYTES // (_size(message) + 1)))
        self._lending.lend(message)

    def _feed(self) -> None:
        while self._queue and self._free and not expired(self._queue[0]):
            taken = self._next_bundle()
            bundle = bundled(taken, node := self._free.pop(0), taken[0].metadata.ttl)
            for sent in self._grid.push_messages([bundle]):
                # the content may be a model each: only what a reply needs is kept
                self._out[sent] = node, [Message(RecordDict(), metadata=m.metadata) for m in taken]  # type: ignore[call-overload]

    def _next_bundle(self) -> list[Message]:
        most, size, taken = min(MOST, -(-len(self._queue) // len(self._free))), 0, list[Message]()
        while self._queue and len(taken) < most and (not taken or size + _size(self._queue[0]) <= MOST_BYTES):
            taken.append(self._queue.popleft())
            size += _size(taken[-1])
        return taken


def _size(message: Message) -> int:
    return sum(bytes_of(message.content).values())
