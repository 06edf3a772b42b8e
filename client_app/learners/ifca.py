"""IFCA's client: of the K models that come, it takes the one with the lowest loss on its own training images."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import numpy as np

from client_app.data.client_data import ClientData
from client_app.learner import Reply, Trainer
from client_app.local.store import LocalStore
from strategies.ifca import PARTS, Config, slot_of
from strategies.types import Layout, Round, Slots


class IfcaLearner:
    """Pick a model, train it, send it back as its cluster's; nothing is kept."""

    def __init__(self, trainer: Trainer, config: Config) -> None:
        self.trainer, self.config = trainer, config

    @staticmethod
    def stacks(config: Config) -> bool:
        """Whether several clients can be trained at once: a round is one plain fit."""
        return True

    @property
    def parts(self) -> Mapping[str, Layout]:
        return self.trainer.parts

    def train(self, inbound: Slots, data: ClientData, store: LocalStore, rnd: Round) -> Reply:
        k = self.picked(inbound, data)
        trained, metrics = self.trainer.train(*pair(inbound, k), data, store, rnd)
        return Reply({slot_of(part, k): trained[part] for part in PARTS}, metrics)

    def join(self, inbound: Slots, data: ClientData, store: LocalStore, rnd: Round) -> Reply:
        """Nothing to prepare: a newcomer picks a model as all others do."""
        return Reply(metrics=self.trainer.counts(data))

    def evaluate(self, inbound: Slots, data: ClientData, store: LocalStore, rnd: Round) -> Reply:
        return self.trainer.close(*pair(inbound, self.picked(inbound, data)), data, store, rnd)

    def picked(self, inbound: Slots, data: ClientData) -> int:
        """The model of the lowest training loss; of equal ones the first."""
        judge = replace(self.trainer, settings=replace(self.trainer.settings, bn="recompute"))
        losses = [judge.training_loss(*pair(inbound, k), data) for k in range(self.config.num_clusters)]
        return int(np.argmin(np.nan_to_num(losses, nan=np.inf)))


def pair(inbound: Slots, k: int) -> tuple[Mapping[str, np.ndarray], Mapping[str, np.ndarray]]:
    """Encoder and head of cluster ``k``."""
    return inbound[slot_of("encoder", k)], inbound[slot_of("head", k)]
