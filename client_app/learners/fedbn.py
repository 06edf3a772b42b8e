"""FedBN's client: its BatchNorm layers are its own and stay in the local store; all else is shared."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from client_app.data.client_data import ClientData
from client_app.learner import Reply, Trainer
from client_app.local.store import LocalStore
from client_app.loop import FitStats, fit
from client_app.phases import training_only
from models.split import SplitModel, batchnorms
from strategies.fedbn import Config, parted
from strategies.types import Layout, Round, Slots, Tensors


class FedBnLearner:
    """Train everything, send all but BatchNorm."""

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
        trained, metrics = self.trainer.train(whole_encoder(inbound, store, rnd), inbound["head"], data, store, rnd)
        shared, norm = parted(trained["encoder"])
        store.commit(rnd.number, {"norm": norm}, base=rnd.acked)
        return Reply({"encoder": shared, "head": trained["head"]}, metrics)

    def join(self, inbound: Slots, data: ClientData, store: LocalStore, rnd: Round) -> Reply:
        """Train BatchNorm layers of its own, from the common first ones, under the shared weights; keep them."""
        if not batchnorms(self.trainer.model.encoder):
            store.commit(rnd.number, {"norm": {}}, base=rnd.acked)
            return Reply(metrics=self.trainer.counts(data))
        encoder = whole_encoder(inbound, store, rnd)
        trained, metrics = self.trainer.train(encoder, inbound["head"], data, store, rnd, training=self._norms_alone)
        store.commit(rnd.number, {"norm": parted(trained["encoder"])[1]}, base=rnd.acked)
        return Reply(metrics=metrics)

    def evaluate(self, inbound: Slots, data: ClientData, store: LocalStore, rnd: Round) -> Reply:
        return self.trainer.close(whole_encoder(inbound, store, rnd), inbound["head"], data, store, rnd)

    def _norms_alone(self, model: SplitModel, data: ClientData, seed: int) -> FitStats:
        settings = replace(self.trainer.settings, epochs=self.trainer.settings.join_epochs)
        with training_only(model, (weight for layer in batchnorms(model) for weight in layer.parameters())):
            return fit(model, data.train.images, data.train.labels, settings, seed)


def whole_encoder(inbound: Slots, store: LocalStore, rnd: Round) -> Tensors:
    """The shared encoder with the client's own BatchNorm, or the common first one if none has been acknowledged."""
    # a model without BatchNorm has neither
    norm = inbound.get("initial-norm", {}) if rnd.acked == 0 else (store.load(rnd.acked) or {}).get("norm", {})
    return {**inbound["encoder"], **norm}
