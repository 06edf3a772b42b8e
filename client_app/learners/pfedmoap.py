"""pFedMoAP's client: its own prompt comes back from the server with other clients' prompts; the gate over them stays here."""

from __future__ import annotations

from client_app.clip_trainer import EXPERTS
from client_app.data.client_data import ClientData
from client_app.learner import Reply
from client_app.learners.global_prompt import GlobalPromptLearner
from client_app.local.store import LocalStore
from strategies.types import Round, Slots


class PfedMoapLearner(GlobalPromptLearner):
    """Train the own prompt and the gate; keep the experts that the served model was scored with."""

    def evaluate(self, inbound: Slots, data: ClientData, store: LocalStore, rnd: Round) -> Reply:
        client = self.opened(inbound, data, store, rnd)
        metrics = self.trainer.counts(data) | self.scores(client, data, "served")
        return self.trainer.leave(client, data, store, rnd, metrics, {EXPERTS: inbound[EXPERTS]})
