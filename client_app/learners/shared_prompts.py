"""The client of FedVPT and FedVPT-D: load the shared prompts and head, train them, send them back. It keeps nothing."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from client_app.data.client_data import ClientData
from client_app.learner import Reply
from client_app.local.store import LocalStore
from client_app.prompt_trainer import PromptTrainer, personal_module
from strategies.types import Layout, Round, Slots


class SharedPromptLearner:
    """Train all prompts and the head. ``config`` has the prompts' learning ``rates``."""

    trainer_class = PromptTrainer
    personal_module = staticmethod(personal_module)

    def __init__(self, trainer: PromptTrainer, config: Any) -> None:
        self.trainer, self.config = trainer, config

    @property
    def parts(self) -> Mapping[str, Layout]:
        return self.trainer.parts

    def train(self, inbound: Slots, data: ClientData, store: LocalStore, rnd: Round) -> Reply:
        metrics = self.trainer.train(inbound, data, store, rnd, self.config.rates)
        return Reply(self.trainer.trained("prompts", "head"), metrics)

    def join(self, inbound: Slots, data: ClientData, store: LocalStore, rnd: Round) -> Reply:
        """Nothing to prepare: a newcomer is served the shared model as it is."""
        return Reply(metrics=self.trainer.counts(data))

    def evaluate(self, inbound: Slots, data: ClientData, store: LocalStore, rnd: Round) -> Reply:
        return self.trainer.close(inbound, data, store, rnd)
