"""Ditto's client: it trains the global model for the others, and a personal one near it for itself."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import partial

from client_app.data.client_data import ClientData
from client_app.learner import Reply, Trainer, Training
from client_app.local.store import LocalStore
from client_app.loop import FitStats, fit
from client_app.phases import copied
from client_app.pulled_steps import ProximalSgd
from models.split import SplitModel
from strategies.ditto import Config
from strategies.types import Layout, Round, Slots


class DittoLearner:
    """Send the trained global model; keep the personal one and serve with it."""

    def __init__(self, trainer: Trainer, config: Config) -> None:
        self.trainer, self.config = trainer, config

    @property
    def parts(self) -> Mapping[str, Layout]:
        return self.trainer.parts

    def train(self, inbound: Slots, data: ClientData, store: LocalStore, rnd: Round) -> Reply:
        silent = replace(rnd, score_served=False, score_adapted=False)
        shared = copied(self.trainer.train(inbound["encoder"], inbound["head"], data, store, silent)[0])
        own = own_model(inbound, store, rnd)
        pulled = pulled_to(self.trainer, inbound, self.config.pull, self.config.epochs)
        trained, metrics = self.trainer.train(own["encoder"], own["head"], data, store, rnd, training=pulled)
        store.commit(rnd.number, trained, base=rnd.acked)
        return Reply(shared, metrics)

    def join(self, inbound: Slots, data: ClientData, store: LocalStore, rnd: Round) -> Reply:
        """Make a personal model from the final global one."""
        pulled = pulled_to(self.trainer, inbound, self.config.pull, self.trainer.settings.join_epochs)
        trained, metrics = self.trainer.train(inbound["encoder"], inbound["head"], data, store, rnd, training=pulled)
        store.commit(rnd.number, trained, base=rnd.acked)
        return Reply(metrics=metrics)

    def evaluate(self, inbound: Slots, data: ClientData, store: LocalStore, rnd: Round) -> Reply:
        own = own_model(inbound, store, rnd)
        return self.trainer.close(own["encoder"], own["head"], data, store, rnd)


def own_model(inbound: Slots, store: LocalStore, rnd: Round) -> Slots:
    """The personal model of the last acknowledged round; before there is one, the global model that came."""
    return store.load(rnd.acked) or {part: inbound[part] for part in ("encoder", "head")}


def pulled_to(trainer: Trainer, anchor: Slots, pull: float, epochs: int = 0) -> Training:
    """Training with a proximal term around ``anchor`` (encoder and head); 0 epochs are the run's."""
    def train(model: SplitModel, data: ClientData, seed: int) -> FitStats:
        settings = replace(trainer.settings, epochs=epochs or trainer.settings.epochs)
        return fit(model, data.train.images, data.train.labels, settings, seed, partial(ProximalSgd, anchor=anchor, pull=pull))

    return train
