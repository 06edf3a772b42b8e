"""FedPR's client: FedVPT-D's, with steps that leave the leading directions of the received prompt alone."""

from __future__ import annotations

from collections.abc import Mapping

import torch

from client_app.data.client_data import ClientData
from client_app.learner import Reply
from client_app.local.store import LocalStore
from client_app.null_space import NullSpaceAdam
from client_app.prompt_trainer import PromptTrainer, personal_module
from strategies.fedpr import Config
from strategies.types import Layout, Round, Slots


class FedPrLearner:
    """Train deep prompts in the null space of what came, and the head freely."""

    trainer_class = PromptTrainer
    personal_module = staticmethod(personal_module)

    def __init__(self, trainer: PromptTrainer, config: Config) -> None:
        self.trainer, self.config = trainer, config

    @property
    def parts(self) -> Mapping[str, Layout]:
        return self.trainer.parts

    def train(self, inbound: Slots, data: ClientData, store: LocalStore, rnd: Round) -> Reply:
        received = torch.tensor(inbound["prompts"]["shared"], device=self.trainer.settings.torch_device)
        step = NullSpaceAdam(received, self.config.ratio)
        metrics = self.trainer.train(inbound, data, store, rnd, self.config.rates, {"shared": step})
        return Reply(self.trainer.trained("prompts", "head"), metrics)

    def join(self, inbound: Slots, data: ClientData, store: LocalStore, rnd: Round) -> Reply:
        """Nothing to prepare: a newcomer is served the shared model as it is."""
        return Reply(metrics=self.trainer.counts(data))

    def evaluate(self, inbound: Slots, data: ClientData, store: LocalStore, rnd: Round) -> Reply:
        return self.trainer.close(inbound, data, store, rnd)
