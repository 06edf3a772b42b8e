"""The one door out of a client.

``seal`` builds every record that leaves, from slots and scalars, after checking them against the method's contract;
``guard`` wraps every call of the app, checks the finished message once more, and turns exceptions into errors that
carry no value, path or label. No other file under ``client_app`` builds an ``ArrayRecord``.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping

from flwr.app import ConfigRecord, Context, Error, Message, RecordDict
from flwr.clientapp.typing import Mod

from client_app.learner import Reply
from client_app.thin_door import ThinDoor
from strategies.config import ConfigError
from strategies.types import Layout, Round, Slots
from strategies.wire import HELLO, Direction, Wire, WireViolation, pack, unpack, unpack_hello, unpack_round

log = logging.getLogger(__name__)

# Exceptions whose text we wrote ourselves and keep free of values, paths and labels. Matched by name, because the
# modules that define them need not be loaded for an exception of another kind; only ours, since pandas and sqlite
# have a DataError of their own.
SAFE_ERRORS = frozenset({"DataError", "PartitionError", "NodeError", "StoreError", "StoreBusy", "StoreFull", "StateLost",
                         "TrainingDiverged", "WireViolation", "ConfigError", "DeviceError", "OutOfDeviceMemory",
                         "ModelError", "BaseLost"})
OWN_PACKAGES = frozenset({"client_app", "strategies", "models"})
REASON_PREFIX = "fedhearth"
REASON_LIMIT = 500
# what may leave in reply to which message; to any other, scalars alone
DIRECTIONS: Mapping[str, Direction] = {"train": "up", "train.default": "up", "train.join": "join", "evaluate.donor": "swap-up"}
APP_RAISED = 2  # Flower's code for "the ClientApp raised", so that both engines look alike


def inbound(message: Message, wire: Wire, parts: Mapping[str, Layout], direction: Direction = "down") -> tuple[Slots, Round]:
    """What came down, checked: the slots and the round's position. Raises ``WireViolation``."""
    return unpack(wire, direction, message.content, parts), unpack_round(message.content)


def seal(reply: Reply, wire: Wire, parts: Mapping[str, Layout], direction: Direction = "up") -> RecordDict:
    """``reply`` as records, if the contract allows every slot, tensor and scalar in it; else ``WireViolation``.

    ``direction`` is ``up`` for a round of training, ``join`` for a held-out client that is taken in, ``closing`` for the last
    evaluation and ``swap-up`` for a donor's encoder, which carry scalars only.
    """
    content = pack(reply.slots, reply.metrics, travel=wire.travel)
    wire.check(direction, content, parts)
    return content


def seal_hello(facts: Mapping[str, str | int]) -> RecordDict:
    """The answer to the server's hello: who this client is and what its model must look like. No data value."""
    content = RecordDict({HELLO: ConfigRecord(dict(facts))})
    unpack_hello(content)
    return content


def make_guard(contract: Callable[[Context], tuple[Wire, Mapping[str, Layout]]], name: Callable[[Context], str] = lambda _: "",
               door: Callable[[Message, Context], ThinDoor | None] = lambda *_: None) -> Mod:
    """A Flower mod: let nothing out that the contract forbids, and no text of an exception that we did not write.

    What leaves is a new message with the checked content: metadata come from the question, never from a handler. An error
    says the client's ``name``, because before the first hello the server knows none. Where messages may be thinned, ``door`` gives
    what makes them whole before the handler and thins them after the check.
    """

    def guard(message: Message, context: Context, call_next: Callable[[Message, Context], Message]) -> Message:
        try:
            thin = door(message, context)
            if thin:
                thin.come_in(message.content)
            reply = call_next(message, context)
            _check_again(message, reply, lambda: contract(context))
            return Message(thin.go_out(reply.content) if thin else reply.content, reply_to=message)
        except Exception as fault:
            where = getattr(fault, "path", "")  # a DataError's, which no message carries
            log.exception("this client could not answer a %s message%s", message.metadata.message_type, f" [{where}]" if where else "")
            return Message(Error(APP_RAISED, describe(fault, name(context))), reply_to=message)

    return guard


def describe(fault: Exception, who: str = "") -> str:
    """An error text that is safe to send: ours as it is, any other by its type alone; ``who`` stands before it."""
    named = f"{who}: " if who else ""
    kind = type(fault).__name__
    ours = type(fault).__module__.partition(".")[0] in OWN_PACKAGES
    if ours and (kind in SAFE_ERRORS or isinstance(fault, ConfigError)):
        return f"{REASON_PREFIX}:{kind}: {named}{fault}"[:REASON_LIMIT]
    return f"{REASON_PREFIX}:{kind}: {named}the client's own log has the details"


def _check_again(message: Message, reply: Message, contract: Callable[[], tuple[Wire, Mapping[str, Layout]]]) -> None:
    """The finished message against the contract, in case something was added to it after ``seal``."""
    if reply.has_error():
        # errors are raised and worded by ``describe``; one that was made by hand could say anything
        raise WireViolation("text", "an error with a text of its own may not leave; raise an exception instead")
    if message.metadata.message_type.startswith("query"):
        unpack_hello(reply.content)
        return
    wire, parts = contract()
    wire.check(DIRECTIONS.get(message.metadata.message_type, "closing"), reply.content, parts)
