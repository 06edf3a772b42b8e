"""Everything one message needs on a client: parsed settings, the node, its data, the learner.

A client process may be new for every message, or serve many clients in turn (Ray actors, the in-process engine). So
what is kept between messages is only what no client owns: parsed settings and the model skeleton that is filled
anew for every message. Data are cached by ``client_app.data`` under the client's own key.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

from flwr.app import Context

from client_app.cohort import seated
from client_app.data import open_data
from client_app.data.client_data import ClientData
from client_app.learner import Learner, Trainer
from client_app.local.store import LocalStore
from client_app.loop import LoopSettings, threads
from client_app.node import Node, open_node
from strategies.registry import Settings, parse_run_config


@dataclass(frozen=True)
class Session:
    """One client at one message."""

    settings: Settings
    node: Node
    data: ClientData
    learner: Learner

    def store(self) -> LocalStore:
        """The client's local state; use it as a context manager, which holds its lock."""
        return LocalStore(self.node.state_dir, self.settings.run.run_id or "run", self.node.name, durable=not self.node.simulated)


def open_session(context: Context) -> Session:
    """The session that Flower's ``context`` describes. Raises ``ConfigError``, ``NodeError`` or ``DataError``."""
    settings = _settings(tuple(sorted(context.run_config.items())))
    node = open_node(context.node_config, settings.run)
    if node.device:
        settings = replace(settings, run=replace(settings.run, device=node.device))
    data = open_data(settings.run, node)
    return Session(settings, node, data, _learner_here(settings, len(data.classes), data.input_shape))


@lru_cache(maxsize=8)
def _settings(items: tuple[tuple[str, Any], ...]) -> Settings:
    return parse_run_config(dict(items))


def _learner_here(settings: Settings, classes: int, in_shape: tuple[int, int, int]) -> Learner:
    """The run's learner; a client that waits for others while it is answered has one that none of those uses."""
    if seat := seated():
        return seat.keep((settings, classes, in_shape), lambda: _made(settings, classes, in_shape))
    return _learner(settings, classes, in_shape)


@lru_cache(maxsize=2)
def _learner(settings: Settings, classes: int, in_shape: tuple[int, int, int]) -> Learner:
    if settings.run.cohort > 1:
        from client_app.cohort_check import check_cohort

        check_cohort(settings, classes, in_shape)
    return _made(settings, classes, in_shape)


def _made(settings: Settings, classes: int, in_shape: tuple[int, int, int]) -> Learner:
    run = settings.run
    loop = LoopSettings.from_config(run)
    threads(loop)
    _ = loop.torch_device  # a device that is not there shows at the hello, not in every round
    # the seed only fills the skeleton; every weight a client uses comes down or from its own store
    model = settings.build_model(classes, in_shape)
    learner = settings.method.learner_class()
    trainer = getattr(learner, "trainer_class", Trainer)
    return learner(trainer(model, loop, send_counts=run.weighting == "examples", made_by=settings), settings.own)
