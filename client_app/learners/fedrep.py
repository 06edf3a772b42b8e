"""FedRep's client: its own head first, on the standing shared encoder, then the encoder under the standing head."""

from __future__ import annotations

from dataclasses import replace

from client_app.data.client_data import ClientData
from client_app.head_phase import fit_head
from client_app.learner import Reply, Trainer, Training
from client_app.learners.fedper import FedPerLearner, own_head
from client_app.local.store import LocalStore
from client_app.loop import FitStats, fit
from client_app.phases import reusing, training_only
from models.split import SplitModel
from strategies.fedrep import Config
from strategies.seeds import derive_seed
from strategies.types import Round, Slots, Tensors


class FedRepLearner(FedPerLearner):
    """Alternate, keep the head, send the encoder. Joining and serving are FedPer's."""

    def __init__(self, trainer: Trainer, config: Config) -> None:
        self.trainer, self.config = trainer, config

    def train(self, inbound: Slots, data: ClientData, store: LocalStore, rnd: Round) -> Reply:
        trainer = reusing(self.trainer, store, rnd)
        alternating = alternation(trainer, inbound["encoder"], self.config)
        trained, metrics = trainer.train(inbound["encoder"], own_head(inbound, store, rnd), data, store, rnd, training=alternating)
        store.commit(rnd.number, {"head": trained["head"]}, base=rnd.acked)
        return Reply({"encoder": trained["encoder"]}, metrics)


def alternation(trainer: Trainer, encoder: Tensors, config: Config) -> Training:
    """How a round trains from ``encoder``; the loss is the encoder phase's."""
    def train(model: SplitModel, data: ClientData, seed: int) -> FitStats:
        settings, images, labels = trainer.settings, data.train.images, data.train.labels
        trainer.source.recompute(model, data.train, settings)
        features = trainer.source.every_epoch(model, data.train, settings)
        fit_head(model, features, labels, settings, derive_seed(seed, "head-phase"), config.head_epochs)
        model.load("encoder", encoder)
        with training_only(model, model.encoder.parameters()):
            return fit(model, images, labels, replace(settings, epochs=config.body_epochs or settings.epochs), seed)

    return train
