"""FedBABU's client: it trains the encoder under the common first head, and fine-tunes at the end."""

from __future__ import annotations

from collections.abc import Mapping

from client_app.data.client_data import ClientData
from client_app.learner import Reply, Trainer
from client_app.local.store import LocalStore
from client_app.loop import FitStats, fit
from client_app.phases import fine_tuned, reusing, training_only
from models.split import SplitModel
from strategies.fedbabu import Config
from strategies.types import Layout, Round, Slots, Tensors


class FedBabuLearner:
    """Train the encoder alone, send it; what is fine-tuned stays here."""

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
        head = first_head(inbound, store.load(rnd.acked))
        trained, metrics = self.trainer.train(inbound["encoder"], head, data, store, rnd, training=self._encoder_alone)
        store.commit(rnd.number, {"initial-head": head}, base=rnd.acked)
        return Reply({"encoder": trained["encoder"]}, metrics)

    def join(self, inbound: Slots, data: ClientData, store: LocalStore, rnd: Round) -> Reply:
        """Fine-tune as all others do at the end, and keep the result."""
        model = self._fine_tuned(inbound, None, data, store, rnd)
        store.commit(rnd.number, model, base=rnd.acked)
        return Reply(metrics=self.trainer.counts(data))

    def evaluate(self, inbound: Slots, data: ClientData, store: LocalStore, rnd: Round) -> Reply:
        kept = store.load(rnd.acked)
        # who joined after training has fine-tuned already
        model = kept if kept and "head" in kept else self._fine_tuned(inbound, kept, data, store, rnd)
        return reusing(self.trainer, store, rnd).close(model["encoder"], model["head"], data, store, rnd)

    def _fine_tuned(self, inbound: Slots, kept: Slots | None, data: ClientData, store: LocalStore, rnd: Round) -> Slots:
        model = {"encoder": inbound["encoder"], "head": first_head(inbound, kept)}
        return fine_tuned(reusing(self.trainer, store, rnd), self.config.part, self.config.tune_epochs, model, data, store, rnd)

    def _encoder_alone(self, model: SplitModel, data: ClientData, seed: int) -> FitStats:
        with training_only(model, model.encoder.parameters()):
            return fit(model, data.train.images, data.train.labels, self.trainer.settings, seed)


def first_head(inbound: Slots, kept: Slots | None) -> Tensors:
    """The common first head: the client keeps it from its first round on."""
    return inbound["initial-head"] if kept is None else kept["initial-head"]
