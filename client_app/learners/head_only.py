"""Head-only's client: features of the frozen backbone, computed once and kept on its own disk; the head is trained on them."""

from __future__ import annotations

from collections.abc import Mapping

from client_app.clock import scoring
from client_app.data.client_data import ClientData
from client_app.frozen_features import FrozenFeatures
from client_app.learner import Reply
from client_app.local.store import LocalStore
from client_app.prompt_trainer import PromptTrainer, personal_module
from strategies.head_only import Config
from strategies.types import Layout, Round, Slots


class HeadOnlyLearner:
    """Train the head on cached features, send it back."""

    trainer_class = PromptTrainer
    personal_module = staticmethod(personal_module)

    def __init__(self, trainer: PromptTrainer, config: Config) -> None:
        self.trainer, self.config = trainer, config

    @property
    def parts(self) -> Mapping[str, Layout]:
        return self.trainer.parts

    def train(self, inbound: Slots, data: ClientData, store: LocalStore, rnd: Round) -> Reply:
        self.trainer.fill(inbound, data)
        features = FrozenFeatures(self.trainer.model, self.trainer.settings, store, self.config.reuse)
        metrics = self.trainer.counts(data)
        if rnd.score_served:
            metrics |= self._scores(features, data, "served")
        metrics |= features.fit_head(data.train, rnd)
        if rnd.score_adapted:
            metrics |= self._scores(features, data, "adapted")
        return Reply(self.trainer.trained("head"), metrics)

    def join(self, inbound: Slots, data: ClientData, store: LocalStore, rnd: Round) -> Reply:
        """Nothing to prepare: a newcomer is served the shared head as it is."""
        return Reply(metrics=self.trainer.counts(data))

    def evaluate(self, inbound: Slots, data: ClientData, store: LocalStore, rnd: Round) -> Reply:
        return self.trainer.close(inbound, data, store, rnd)

    @scoring
    def _scores(self, features: FrozenFeatures, data: ClientData, label: str) -> dict[str, float]:
        return self.trainer.accuracies(features.logits(data.test), data, label)
