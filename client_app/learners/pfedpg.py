"""pFedPG's client: prompts come down, are trained with its own head, and their change goes up. The head stays here."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from client_app.data.client_data import ClientData
from client_app.learner import Reply
from client_app.local.store import LocalStore
from client_app.prompt_trainer import PromptTrainer, personal_module
from strategies.pfedpg import Config
from strategies.types import Layout, Round, Slots, Tensors


class PfedPgLearner:
    """Train the prompts it was given, and a head of its own."""

    trainer_class = PromptTrainer
    personal_module = staticmethod(personal_module)

    def __init__(self, trainer: PromptTrainer, config: Config) -> None:
        self.trainer, self.config = trainer, config

    @property
    def parts(self) -> Mapping[str, Layout]:
        return self.trainer.parts

    def train(self, inbound: Slots, data: ClientData, store: LocalStore, rnd: Round) -> Reply:
        given = {"prompts": inbound["prompts"], "head": self._head(store, rnd)}
        metrics = self.trainer.train(given, data, store, rnd, self.config.rates)
        trained = self.trainer.trained("prompts", "head")
        store.commit(rnd.number, {"head": trained["head"]}, base=rnd.acked)
        change = {name: tensor - inbound["prompts"][name] for name, tensor in trained["prompts"].items()}
        return Reply({"prompt-change": change}, metrics)

    def join(self, inbound: Slots, data: ClientData, store: LocalStore, rnd: Round) -> Reply:
        """Never asked: the server has no prompts for a client it has not trained with."""
        raise NotImplementedError

    def evaluate(self, inbound: Slots, data: ClientData, store: LocalStore, rnd: Round) -> Reply:
        return self.trainer.close({"prompts": inbound["prompts"], "head": self._head(store, rnd)}, data, store, rnd)

    def _head(self, store: LocalStore, rnd: Round) -> Tensors:
        """The head of the last acknowledged round, or zeros, from which every head starts."""
        kept = store.load(rnd.acked)
        if kept is not None:
            return kept["head"]
        return {name: np.zeros(shape, dtype) for name, (shape, dtype) in self.parts["head"].items()}
