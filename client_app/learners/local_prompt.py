"""The client of the local prompt: a prompt of its own on cached features; nothing but scalars leaves."""

from __future__ import annotations

from dataclasses import replace

from client_app.data.client_data import ClientData
from client_app.learner import Reply
from client_app.learners.global_prompt import GlobalPromptLearner
from client_app.local.store import LocalStore
from strategies.types import Round, Slots


class LocalPromptLearner(GlobalPromptLearner):
    """Go on training the client's own prompt."""

    def join(self, inbound: Slots, data: ClientData, store: LocalStore, rnd: Round) -> Reply:
        """Train alone for as many rounds as the others had, and end where it would have ended among them."""
        client, metrics = self.opened(inbound, data, store, rnd), {}
        for number in range(1, rnd.total + 1):
            metrics = self.fit(client, data, store, replace(rnd, number=number, acked=0))
        self.keep(client, store, rnd)
        return Reply(metrics=self.trainer.counts(data) | metrics)
