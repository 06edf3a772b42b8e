"""Local-only's client: the whole model is its own; nothing but scalars leaves."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from client_app.data.client_data import ClientData
from client_app.learner import Reply, Trainer
from client_app.local.store import LocalStore
from strategies.local_only import Config
from strategies.types import Layout, Round, Slots


class LocalOnlyLearner:
    """Go on training the client's own model."""

    def __init__(self, trainer: Trainer, config: Config) -> None:
        self.trainer = trainer

    @staticmethod
    def stacks(config: Config) -> bool:
        """Whether several clients can be trained at once: a round is one plain fit."""
        return True

    @property
    def parts(self) -> Mapping[str, Layout]:
        return self.trainer.parts

    def train(self, inbound: Slots, data: ClientData, store: LocalStore, rnd: Round) -> Reply:
        own = own_model(inbound, store, rnd)
        trained, metrics = self.trainer.train(own["encoder"], own["head"], data, store, rnd)
        store.commit(rnd.number, trained, base=rnd.acked)
        return Reply(metrics=metrics)

    def join(self, inbound: Slots, data: ClientData, store: LocalStore, rnd: Round) -> Reply:
        """Train alone for as many rounds as the others had, and end where it would have ended among them."""
        own, metrics = own_model(inbound, store, rnd), {}
        for number in range(1, rnd.total + 1):
            trained, metrics = self.trainer.train(own["encoder"], own["head"], data, store, replace(rnd, number=number, acked=0))
            # the live model's own tensors, into which the next round loads what it starts from
            own = {part: {name: tensor.copy() for name, tensor in tensors.items()} for part, tensors in trained.items()}
        store.commit(rnd.number, own, base=rnd.acked)
        return Reply(metrics=metrics)

    def evaluate(self, inbound: Slots, data: ClientData, store: LocalStore, rnd: Round) -> Reply:
        own = own_model(inbound, store, rnd)
        return self.trainer.close(own["encoder"], own["head"], data, store, rnd)


def own_model(inbound: Slots, store: LocalStore, rnd: Round) -> Slots:
    """The model of the last acknowledged round, or the common first one if none has been acknowledged."""
    kept = store.load(rnd.acked)
    return {"encoder": inbound["initial-encoder"], "head": inbound["initial-head"]} if kept is None else kept
