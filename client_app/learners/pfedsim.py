"""pFedSim's client: FedAvg's while the run warms up, then its own head on the encoder that was mixed for it."""

from __future__ import annotations

from collections.abc import Mapping

from client_app.data.client_data import ClientData
from client_app.learner import Reply, Trainer
from client_app.local.store import LocalStore
from strategies.pfedsim import Config
from strategies.types import Layout, Round, Slots, Tensors


class PfedSimLearner:
    """Train encoder and head, keep the head, send both."""

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
        trained, metrics = self.trainer.train(*own_pair(inbound, store, rnd), data, store, rnd)
        store.commit(rnd.number, {"head": trained["head"]}, base=rnd.acked)
        return Reply(trained, metrics)

    def join(self, inbound: Slots, data: ClientData, store: LocalStore, rnd: Round) -> Reply:
        """Fit a head of its own on the frozen shared encoder, and send it: by it the mix is found."""
        head, metrics = self.trainer.fit_head(*own_pair(inbound, store, rnd), data, store, rnd)
        store.commit(rnd.number, {"head": head}, base=rnd.acked)
        return Reply({"head": head}, metrics)

    def evaluate(self, inbound: Slots, data: ClientData, store: LocalStore, rnd: Round) -> Reply:
        return self.trainer.close(*own_pair(inbound, store, rnd), data, store, rnd)


def own_pair(inbound: Slots, store: LocalStore, rnd: Round) -> tuple[Tensors, Tensors]:
    """The encoder that came, the client's own if there is one; the head that came with it, else the client's own."""
    if "own-encoder" not in inbound:
        return inbound["encoder"], inbound["head"]
    kept = store.load(rnd.acked)
    assert kept is not None  # an own encoder comes only to who has been acknowledged
    return inbound["own-encoder"], kept["head"]
