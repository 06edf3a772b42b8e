"""FedAMP's client: it goes on from its own model, pulled towards the mix that the server made for it."""

from __future__ import annotations

from collections.abc import Mapping

from client_app.data.client_data import ClientData
from client_app.learner import Reply, Trainer
from client_app.learners.ditto import pulled_to
from client_app.local.store import LocalStore
from strategies.fedamp import Config
from strategies.types import Layout, Round, Slots

PARTS = ("encoder", "head")


class FedAmpLearner:
    """Train the client's own model near its mix, keep it, and send it."""

    def __init__(self, trainer: Trainer, config: Config) -> None:
        self.trainer, self.config = trainer, config

    @property
    def parts(self) -> Mapping[str, Layout]:
        return self.trainer.parts

    def train(self, inbound: Slots, data: ClientData, store: LocalStore, rnd: Round) -> Reply:
        return self._near(inbound, own_model(inbound, store, rnd), data, store, rnd)

    def join(self, inbound: Slots, data: ClientData, store: LocalStore, rnd: Round) -> Reply:
        """Make a model of its own from the mean of all others', near it; nothing is sent."""
        start = cloud(inbound) or own_model(inbound, store, rnd)
        return Reply(metrics=self._near(inbound, start, data, store, rnd, self.trainer.settings.join_epochs).metrics)

    def evaluate(self, inbound: Slots, data: ClientData, store: LocalStore, rnd: Round) -> Reply:
        own = own_model(inbound, store, rnd)
        return self.trainer.close(own["encoder"], own["head"], data, store, rnd)

    def _near(self, inbound: Slots, own: Slots, data: ClientData, store: LocalStore, rnd: Round, epochs: int = 0) -> Reply:
        anchor = cloud(inbound)
        pull = self.config.pull / self.config.alpha if anchor else 0.0
        trained, metrics = self.trainer.train(own["encoder"], own["head"], data, store, rnd,
                                              training=pulled_to(self.trainer, anchor or own, pull, epochs))
        store.commit(rnd.number, trained, base=rnd.acked)
        return Reply(trained, metrics)


def own_model(inbound: Slots, store: LocalStore, rnd: Round) -> Slots:
    """The client's model of the last acknowledged round, or the common first one."""
    return store.load(rnd.acked) or {part: inbound[f"initial-{part}"] for part in PARTS}


def cloud(inbound: Slots) -> Slots | None:
    """The mix that came, if one did."""
    return {part: inbound[f"cloud-{part}"] for part in PARTS} if "cloud-encoder" in inbound else None
