"""The ClientApp: five kinds of messages, a few lines each. Everything that leaves goes through ``boundary``."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import replace

from flwr.app import Context, Message
from flwr.clientapp import ClientApp

from client_app.boundary import inbound, make_guard, seal, seal_hello
from client_app.clock import clock
from client_app.data import DataError, PartitionError, data_digest, write_manifest
from client_app.data.class_names import class_digest, numbered
from client_app.data.opening import left_out
from client_app.data.start_check import check_at_start
from client_app.device import memory_told
from client_app.donor import score_donor
from client_app.node import name_of
from client_app.session import Session, open_session
from client_app.thin_door import ThinDoor
from client_app.weights_digest import frozen_parts, reads_names, weights_digest
from strategies.contract import Wire
from strategies.types import Layout

log = logging.getLogger(__name__)


def contract(context: Context) -> tuple[Wire, Mapping[str, Layout]]:
    """What the run's method lets leave this client."""
    _, wire, parts = _open(context)
    return wire, parts


def door(message: Message, context: Context) -> ThinDoor | None:
    """What thins this message and its reply, if the run wants that and slots travel in it."""
    if message.metadata.message_type.startswith("query"):
        return None
    session, wire, parts = _open(context)
    return ThinDoor(wire, parts, session.store()) if wire.delta == "lossless" else None


app = ClientApp(mods=[make_guard(contract, lambda context: name_of(context.node_config), door), memory_told])


@app.train()
def train(message: Message, context: Context) -> Message:
    """One round: score what is served, train, commit local state, send what the contract allows."""
    session, wire, parts = _open(context)
    slots, rnd = inbound(message, wire, parts)
    with session.store() as store, clock() as spent:
        reply = session.learner.train(slots, session.data, store, rnd)
    told = {name: seconds for name, seconds in spent.metrics().items() if name in wire.metrics}
    return Message(seal(replace(reply, metrics={**reply.metrics, **told}), wire, parts), reply_to=message)


@app.train("join")
def join(message: Message, context: Context) -> Message:
    """After the last round, to a client that was held out: make a client of it, by the method's own cold-start rule."""
    session, wire, parts = _open(context)
    slots, rnd = inbound(message, wire, parts)
    with session.store() as store:
        reply = session.learner.join(slots, session.data, store, rnd)
    return Message(seal(reply, wire, parts, "join"), reply_to=message)


@app.evaluate()
def evaluate(message: Message, context: Context) -> Message:
    """After the last round: score the model this client serves with, and leave it in its own hands."""
    session, wire, parts = _open(context)
    slots, rnd = inbound(message, wire, parts)
    with session.store() as store:
        reply = session.learner.evaluate(slots, session.data, store, rnd)
    return Message(seal(reply, wire, parts, "closing"), reply_to=message)


@app.evaluate("donor")
def donor(message: Message, context: Context) -> Message:
    """After the closing evaluation, if the run has a donor swap: score another client's encoder with this client's own head."""
    session, wire, parts = _open(context)
    slots, _ = inbound(message, wire, parts, "swap-down")
    with session.store() as store:
        reply = score_donor(session.learner, slots, session.data, store)
    return Message(seal(reply, wire, parts, "swap-up"), reply_to=message)


@app.query("hello")
def hello(message: Message, context: Context) -> Message:
    """Before round 1: who this client is, and what its data need of the model. Opens and checks the data, so bad data
    show now."""
    session = open_session(context)
    run = session.settings.run
    noted = {"skipped": left_out(run, session.node), "numbered": reads_names(session.learner) and numbered(session.data.classes)}
    warnings = check_at_start(session.data, run.batch, session.node.simulated, tuple(kind for kind, holds in noted.items() if holds))
    if session.node.simulated and session.node.index == 0 and session.settings.run.out:
        # class counts are local on separate machines; in a simulation all clients are the same user's
        try:
            write_manifest(session.settings.run)
        except (DataError, PartitionError):
            log.warning("no split.json: another client's data cannot be opened, which that client will say itself")
    classes = session.data.classes
    facts: dict[str, str | int] = {
        "site": session.node.name,
        "classes": len(classes),
        "class-digest": class_digest(classes),
        "input-shape": "x".join(map(str, session.data.input_shape)),
        # a digest over a site's own labels would let the server confirm a guess of them
        "split-digest": data_digest(session.data) if session.node.simulated else "",
        "warnings": warnings,
        # a simulation's clients have one user's files
        "weights-digest": "" if session.node.simulated else weights_digest(frozen_parts(session.learner)),
    }
    return Message(seal_hello(facts), reply_to=message)


def _open(context: Context) -> tuple[Session, Wire, Mapping[str, Layout]]:
    session = open_session(context)
    return session, session.settings.wire, session.learner.parts
