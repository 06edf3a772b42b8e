"""FedAvg with fine-tuning, the client's half: FedAvg's training, and a fine-tuned copy in the closing evaluation."""

from __future__ import annotations

from client_app.data.client_data import ClientData
from client_app.learner import Reply, Trainer
from client_app.learners.fedavg import FedAvgLearner
from client_app.local.store import LocalStore
from client_app.phases import fine_tuned, reusing
from strategies.fedavg_ft import Config
from strategies.types import Round, Slots


class FineTuningLearner(FedAvgLearner):
    """Train the shared model; serve with a copy that is fine-tuned at the end."""

    def __init__(self, trainer: Trainer, config: Config) -> None:
        self.trainer, self.config = trainer, config

    def evaluate(self, inbound: Slots, data: ClientData, store: LocalStore, rnd: Round) -> Reply:
        trainer = reusing(self.trainer, store, rnd)
        model = fine_tuned(trainer, self.config.part, self.config.tune_epochs, inbound, data, store, rnd)
        return trainer.close(model["encoder"], model["head"], data, store, rnd)
