"""What engines that simulate clients have in common: a node a client, and a queue of numbered messages to them."""

from __future__ import annotations

import time
import uuid
from collections import deque
from collections.abc import Iterable, Mapping
from typing import Any

from flwr.app import Context, Error, Message, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid

RUN_ID = 1
FIRST_NODE = 1000
POLL = 0.5
# Flower's codes: the app raised, the message expired
RAISED, EXPIRED = 2, 3


class VirtualNodes(Grid):
    """A grid of ``clients`` nodes. An engine says what it does with a message that comes (``_accept``), and when there may be work."""

    def __init__(self, clients: int) -> None:
        self.clients = clients
        self._queue: deque[Message] = deque()

    def create_message(self, content: RecordDict, message_type: str, dst_node_id: int, group_id: str,  # type: ignore[override]
                       ttl: float | None = None) -> Message:
        return Message(content, dst_node_id, message_type, ttl=ttl, group_id=group_id)

    def get_node_ids(self) -> Iterable[int]:
        return [FIRST_NODE + index for index in range(self.clients)]

    def push_messages(self, messages: Iterable[Message]) -> Iterable[str]:
        ids = []
        for message in messages:
            message.metadata.__dict__["_message_id"] = str(uuid.uuid4())
            ids.append(message.metadata.message_id)
            self._accept(message)
            self._queue.append(message)
        self._feed()
        return ids

    def _accept(self, message: Message) -> None:
        """Make ``message`` ready to be queued."""

    def _feed(self) -> None:
        """Hand on what can be handed on."""

    def _overdue(self) -> list[Message]:
        """An error reply to the next message, taken out of the queue, if its time is over; else nothing."""
        if self._queue and expired(self._queue[0]):
            return [Message(Error(EXPIRED, "the message expired before its turn came"), reply_to=self._queue.popleft())]
        return []


def expired(message: Message) -> bool:
    """Whether its time to live is over: nobody waits for the reply, so no client need run."""
    return time.time() > message.metadata.created_at + message.metadata.ttl


def answer(app: ClientApp, message: Message, run_config: Mapping[str, Any], clients: int,
           node_config: Mapping[str, Any] | None = None) -> Message:
    """What the client that ``message`` is for replies; ``node_config`` is that of a site with data of its own."""
    node = message.metadata.dst_node_id
    config: dict[str, Any] = {"partition-id": node - FIRST_NODE, "num-partitions": clients} if node_config is None else dict(node_config)
    context = Context(run_id=RUN_ID, node_id=node, node_config=config, state=RecordDict(), run_config=dict(run_config))
    try:
        return app(message, context)
    except Exception as fault:  # as Flower does; an app with a guard never gets here
        return Message(Error(RAISED, f"ClientApp raised {type(fault).__name__}"), reply_to=message)
