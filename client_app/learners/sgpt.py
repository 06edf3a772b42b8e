"""SGPT's client: shared prompts first, then the groups that its samples pick; everything goes back to be averaged."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from client_app.clock import scoring
from client_app.data.client_data import ClientData
from client_app.frozen_features import FrozenFeatures
from client_app.grouped_fit import Stage, fit_stage, grouped_logits
from client_app.learner import Reply
from client_app.local.store import LocalStore
from client_app.prompt_trainer import PromptTrainer, personal_module
from strategies.sgpt import Config
from strategies.types import Layout, Round, Slots


class SgptLearner:
    """Two stages a round; queries are features of the frozen backbone, computed once and kept at home."""

    trainer_class = PromptTrainer
    personal_module = staticmethod(personal_module)

    def __init__(self, trainer: PromptTrainer, config: Config) -> None:
        self.trainer, self.config = trainer, config

    @property
    def parts(self) -> Mapping[str, Layout]:
        return self.trainer.parts

    def train(self, inbound: Slots, data: ClientData, store: LocalStore, rnd: Round) -> Reply:
        self.trainer.fill(inbound, data)
        frozen = FrozenFeatures(self.trainer.model.plain, self.trainer.settings, store)
        metrics: dict[str, float] = self.trainer.counts(data) | (self._scores(frozen, data, "served") if rnd.score_served else {})
        queries = frozen.of(data.train)
        for stage in self._stages(rnd):
            metrics["loss"] = fit_stage(self.trainer.model, data.train, queries, self.trainer.settings, stage, store.site, rnd)
        if rnd.score_adapted:
            metrics |= self._scores(frozen, data, "adapted")
        return Reply(self.trainer.trained("prompts", "head"), metrics)

    def join(self, inbound: Slots, data: ClientData, store: LocalStore, rnd: Round) -> Reply:
        """Nothing to prepare: a newcomer is served the shared model as it is."""
        return Reply(metrics=self.trainer.counts(data))

    def evaluate(self, inbound: Slots, data: ClientData, store: LocalStore, rnd: Round) -> Reply:
        return self.trainer.close(inbound, data, store, rnd)

    def _stages(self, rnd: Round) -> list[Stage]:
        """Stage 1 has the first half of the epochs, rounded up; of one epoch, every other round."""
        epochs, config, head = self.trainer.settings.epochs, self.config, self.trainer.settings.lr
        keys: dict[str, Any] = {"keys": config.key_lr} if rnd.number <= config.key_rounds else {}
        first = Stage("shared", {"shared": config.prompt_lr, "head": head}, (epochs + 1) // 2)
        second = Stage("groups", {"groups": config.prompt_lr, "head": head, **keys}, epochs // 2)
        if epochs > 1:
            return [first, second]
        return [first if rnd.number % 2 else Stage(second.name, second.rates, 1)]

    @scoring
    def _scores(self, frozen: FrozenFeatures, data: ClientData, label: str) -> dict[str, float]:
        logits = grouped_logits(self.trainer.model, data.test, frozen.of(data.test), self.trainer.settings)
        return self.trainer.accuracies(logits, data, label)
