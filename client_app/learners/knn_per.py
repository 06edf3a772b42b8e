"""kNN-Per's client: FedAvg's training; it answers with the help of its own training images' features, which stay at home."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import torch

from client_app.data.client_data import ClientData, Split
from client_app.learner import Reply, Trainer
from client_app.learners.fedavg import FedAvgLearner
from client_app.local.store import LocalStore
from client_app.loop import LoopSettings, array_on_device, place
from client_app.personal import PersonalError, split_module
from client_app.personal_facts import PersonalFacts
from client_app.phases import reusing
from client_app.reuse import FeatureSource
from models.neighbours import NeighbourModel
from models.split import SplitModel
from strategies.knn_per import Config
from strategies.seeds import derive_seed
from strategies.types import Round, Slots

MEMORY = "memory"


class KnnPerLearner(FedAvgLearner):
    """Train the shared model; answer by it and by the nearest neighbours."""

    def __init__(self, trainer: Trainer, config: Config) -> None:
        self.config = config
        self.model = neighbour_model(trainer.model, config)
        self.trainer = replace(trainer, model=self.model)

    @staticmethod
    def stacks(config: Config) -> bool:
        """Not at once: what a client's model remembers is as large as its data."""
        return False

    def train(self, inbound: Slots, data: ClientData, store: LocalStore, rnd: Round) -> Reply:
        trainer = self._answering(data, store, rnd)
        return Reply(*trainer.train(inbound["encoder"], inbound["head"], data, store, rnd))

    def evaluate(self, inbound: Slots, data: ClientData, store: LocalStore, rnd: Round) -> Reply:
        trainer = self._answering(data, store, rnd)
        return trainer.close(inbound["encoder"], inbound["head"], data, store, rnd, beside=lambda: {MEMORY: self.model.memory()})

    @staticmethod
    def personal_module(kept: Slots, facts: PersonalFacts) -> NeighbourModel:
        """The kept model with what it remembers; see ``client_app.personal``."""
        model = neighbour_model(split_module(kept, facts), facts.parsed.own)
        if MEMORY not in kept:
            raise PersonalError("this personal model lacks its memory; restore the file, or finish the run again")
        model.remember(kept[MEMORY]["features"], kept[MEMORY]["labels"])
        return model

    def _answering(self, data: ClientData, store: LocalStore, rnd: Round) -> Trainer:
        # the model is every client's skeleton: nothing of another may be remembered
        self.model.remember(np.zeros((0, self.model.feature_dim), np.float32), np.zeros(0, np.int64))
        trainer = reusing(self.trainer, store, rnd)
        seed = derive_seed(rnd.seed, store.site, MEMORY)
        return replace(trainer, source=AnswersByNeighbours(trainer.source, to_remember(data.train, self.config.capacity, seed)))


class AnswersByNeighbours:
    """A ``FeatureSource`` that fills a ``NeighbourModel``'s memory with the features of ``split`` before it scores."""

    def __init__(self, inner: FeatureSource, split: Split) -> None:
        self.inner, self.split = inner, split

    def recompute(self, model: SplitModel, split: Split, settings: LoopSettings) -> bool:
        return self.inner.recompute(model, split, settings)

    def score(self, model: SplitModel, split: Split, settings: LoopSettings) -> float | None:
        assert isinstance(model, NeighbourModel)
        place(model, settings)
        # also where there is nothing to score: the personal model has the memory of the statistics it serves with
        model.remember(self.inner.features(model, self.split, settings), self.split.labels)
        if not len(split):
            return None
        features = array_on_device(self.inner.features(model, split, settings), settings)
        with torch.inference_mode():
            found = torch.cat([model.answer(chunk).argmax(1) for chunk in torch.split(features, settings.score_batch)])
        return float((found.cpu().numpy() == split.labels).mean())

    def mean_loss(self, model: SplitModel, split: Split, settings: LoopSettings) -> float:
        return self.inner.mean_loss(model, split, settings)

    def features(self, model: SplitModel, split: Split, settings: LoopSettings) -> np.ndarray:
        return self.inner.features(model, split, settings)

    def every_epoch(self, model: SplitModel, split: Split, settings: LoopSettings) -> np.ndarray | Callable[[], np.ndarray]:
        return self.inner.every_epoch(model, split, settings)


def neighbour_model(split: SplitModel, config: Config) -> NeighbourModel:
    return NeighbourModel(split, config.neighbours, config.weight, config.scale)


def to_remember(split: Split, capacity: int, seed: int) -> Split:
    """The samples whose features are kept: all, or ``capacity`` of them drawn by ``seed``, in their order."""
    if capacity == 0 or len(split) <= capacity:
        return split
    kept = np.sort(np.random.default_rng(seed).permutation(len(split))[:capacity])
    return Split(split.images[kept], split.labels[kept], split.ids[kept])
