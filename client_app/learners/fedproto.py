"""FedProto's client: a whole model of its own, its features pulled towards the global class prototypes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import partial

import numpy as np

from client_app.data.client_data import ClientData
from client_app.learner import Reply, Trainer, Training
from client_app.local.store import LocalStore
from client_app.loop import FitStats, array_on_device, fit
from client_app.phases import copied, reusing
from client_app.prototype_answers import AnswersByPrototype, class_means, nearest_prototype_head
from client_app.pulled_steps import PrototypeSgd
from models.split import SplitModel
from strategies.fedproto import Config
from strategies.types import Layout, Round, Slots, Tensors


class FedProtoLearner:
    """Train near the prototypes, keep the model, send class means."""

    def __init__(self, trainer: Trainer, config: Config) -> None:
        self.trainer, self.config = trainer, config

    @property
    def parts(self) -> Mapping[str, Layout]:
        return self.trainer.parts

    def train(self, inbound: Slots, data: ClientData, store: LocalStore, rnd: Round) -> Reply:
        trainer = reusing(self.trainer, store, rnd)
        own, metrics = self._round(trainer, own_model(inbound, store, rnd), inbound["prototypes"], data, store, rnd)
        store.commit(rnd.number, own, base=rnd.acked)
        return Reply({"prototypes": self._means(trainer, own, data)}, metrics)

    def join(self, inbound: Slots, data: ClientData, store: LocalStore, rnd: Round) -> Reply:
        """Train alone for as many rounds as all others had, pulled by the prototypes that they came to."""
        own, metrics = own_model(inbound, store, rnd), {}
        for number in range(1, rnd.total + 1):
            own, metrics = self._round(self.trainer, own, inbound["prototypes"], data, store, replace(rnd, number=number, acked=0))
        store.commit(rnd.number, own, base=rnd.acked)
        return Reply(metrics=metrics)

    def evaluate(self, inbound: Slots, data: ClientData, store: LocalStore, rnd: Round) -> Reply:
        own = own_model(inbound, store, rnd)
        head = self._head(inbound["prototypes"], data) or own["head"]
        return reusing(self.trainer, store, rnd).close(own["encoder"], head, data, store, rnd)

    def _round(self, trainer: Trainer, own: Slots, prototypes: Tensors, data: ClientData, store: LocalStore,
               rnd: Round) -> tuple[Slots, Mapping[str, float]]:
        head = self._head(prototypes, data)
        answering = replace(trainer, source=AnswersByPrototype(trainer.source, head)) if head else trainer
        pulled = pulled_to(trainer, prototypes, self.config.pull)
        trained, metrics = answering.train(own["encoder"], own["head"], data, store, rnd, training=pulled)
        return copied(trained), metrics

    def _head(self, prototypes: Tensors, data: ClientData) -> Tensors | None:
        """What the client answers with: the nearest of the prototypes that may be an answer; None if there is none."""
        known = prototypes["known"]
        if self.config.answers == "own":
            known = known * (np.bincount(data.train.labels, minlength=known.shape[1]) > 0)
        return nearest_prototype_head({"prototypes": prototypes["prototypes"], "known": known})

    def _means(self, trainer: Trainer, own: Slots, data: ClientData) -> dict[str, np.ndarray]:
        """What the contract's ``prototypes`` holds: class means (1, C, D), and counts (1, C) or, in their place, 1 a class it has."""
        model = trainer.model
        model.load("encoder", own["encoder"])
        trainer.source.recompute(model, data.train, trainer.settings)
        features = trainer.source.features(model, data.train, trainer.settings)
        means, counts = class_means(features, data.train.labels, model.head.out_features)
        if self.config.weighting == "uniform" or not trainer.send_counts:
            counts = np.minimum(counts, 1)
        return {"prototypes": means[None], "counts": counts[None].astype(np.float32)}


def pulled_to(trainer: Trainer, prototypes: Tensors, pull: float) -> Training:
    """Training with features pulled towards the known of ``prototypes``."""
    rows, known = (array_on_device(prototypes[name][0], trainer.settings) for name in ("prototypes", "known"))
    step = partial(PrototypeSgd, prototypes=rows, known=known, pull=pull)

    def train(model: SplitModel, data: ClientData, seed: int) -> FitStats:
        return fit(model, data.train.images, data.train.labels, trainer.settings, seed, step)

    return train


def own_model(inbound: Slots, store: LocalStore, rnd: Round) -> Slots:
    """The client's model of the last acknowledged round, or the common first one."""
    return store.load(rnd.acked) or {part: inbound[f"initial-{part}"] for part in ("encoder", "head")}
