"""FedAvg's client: load the shared model, train it, send it back. It keeps nothing."""

from __future__ import annotations

from collections.abc import Mapping

from client_app.data.client_data import ClientData
from client_app.learner import Reply, Trainer
from client_app.local.store import LocalStore
from strategies.fedavg import Config
from strategies.types import Layout, Round, Slots


class FedAvgLearner:
    """Train the whole shared model."""

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
        return Reply(*self.trainer.train(inbound["encoder"], inbound["head"], data, store, rnd))

    def join(self, inbound: Slots, data: ClientData, store: LocalStore, rnd: Round) -> Reply:
        """Nothing to prepare: a newcomer is served the shared model as it is."""
        return Reply(metrics=self.trainer.counts(data))

    def evaluate(self, inbound: Slots, data: ClientData, store: LocalStore, rnd: Round) -> Reply:
        return self.trainer.close(inbound["encoder"], inbound["head"], data, store, rnd)

