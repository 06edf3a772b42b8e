"""FedPer's client: the encoder is shared, the head is its own and stays in the local store."""

from __future__ import annotations

from collections.abc import Mapping

from client_app.data.client_data import ClientData
from client_app.learner import Reply, Trainer
from client_app.local.store import LocalStore
from strategies.fedper import Config
from strategies.types import Layout, Round, Slots, Tensors


class FedPerLearner:
    """Train encoder and head together, send the encoder alone."""

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
        trained, metrics = self.trainer.train(inbound["encoder"], own_head(inbound, store, rnd), data, store, rnd)
        store.commit(rnd.number, {"head": trained["head"]}, base=rnd.acked)
        return Reply({"encoder": trained["encoder"]}, metrics)

    def join(self, inbound: Slots, data: ClientData, store: LocalStore, rnd: Round) -> Reply:
        """Fit a head of its own on the frozen shared encoder, and keep it."""
        head, metrics = self.trainer.fit_head(inbound["encoder"], own_head(inbound, store, rnd), data, store, rnd)
        store.commit(rnd.number, {"head": head}, base=rnd.acked)
        return Reply(metrics=metrics)

    def evaluate(self, inbound: Slots, data: ClientData, store: LocalStore, rnd: Round) -> Reply:
        return self.trainer.close(inbound["encoder"], own_head(inbound, store, rnd), data, store, rnd)


def own_head(inbound: Slots, store: LocalStore, rnd: Round) -> Tensors:
    """The head of the last acknowledged round, or the common first one if none has been acknowledged."""
    kept = store.load(rnd.acked)
    return inbound["initial-head"] if kept is None else kept["head"]
