"""The client of PromptFL, CoCoOp, FedOTP, FedPGP and the fixed mix: train the shared prompt, and what is its own, on cached features.

Parts of the model that the contract sends up are shared; all others are this client's, kept between rounds in its own store.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from client_app.clip_trainer import ClipClient, ClipTrainer, personal_module
from client_app.data.client_data import ClientData
from client_app.learner import Reply
from client_app.local.store import LocalStore
from strategies.seeds import derive_seed
from strategies.types import Layout, Round, Slots


class GlobalPromptLearner:
    """Train all prompts. ``config`` has the contract and the learning rates."""

    trainer_class = ClipTrainer
    personal_module = staticmethod(personal_module)

    def __init__(self, trainer: ClipTrainer, config: Any) -> None:
        self.trainer, self.config = trainer, config
        self.shared = tuple(slot.name for slot in config.wire.up)
        travels = {slot.name for slot in (*config.wire.down, *config.wire.up)}
        self.own = tuple(part for part in trainer.parts if part not in travels)

    @property
    def parts(self) -> Mapping[str, Layout]:
        return self.trainer.parts

    def train(self, inbound: Slots, data: ClientData, store: LocalStore, rnd: Round) -> Reply:
        client = self.opened(inbound, data, store, rnd)
        metrics = self.trainer.counts(data)
        if rnd.score_served:
            metrics |= self.scores(client, data, "served")
        metrics |= self.fit(client, data, store, rnd)
        if rnd.score_adapted:
            metrics |= self.scores(client, data, "adapted")
        self.keep(client, store, rnd)
        return Reply(client.tensors(*self.shared), metrics)

    def join(self, inbound: Slots, data: ClientData, store: LocalStore, rnd: Round) -> Reply:
        """A newcomer is served the global prompt, with what is its own as it stands in a client's first round."""
        self.keep(self.opened(inbound, data, store, rnd), store, rnd)
        return Reply(metrics=self.trainer.counts(data))

    def evaluate(self, inbound: Slots, data: ClientData, store: LocalStore, rnd: Round) -> Reply:
        client = self.opened(inbound, data, store, rnd)
        return self.trainer.leave(client, data, store, rnd, self.trainer.counts(data) | self.scores(client, data, "served"))

    def opened(self, inbound: Slots, data: ClientData, store: LocalStore, rnd: Round) -> ClipClient:
        """The client's model as it is served: what came down, and its own parts of the last acknowledged round."""
        client = self.trainer.open(inbound, data, store)
        kept = store.load(rnd.acked) if self.own else None
        if kept is None:
            client.net.start_local(derive_seed(rnd.seed, store.site, "local prompt"))
        for part, tensors in (kept or {}).items():
            client.net.load(part, tensors)
        return client

    def fit(self, client: ClipClient, data: ClientData, store: LocalStore, rnd: Round) -> dict[str, float]:
        """The round's training; the loss."""
        return client.fit(data.train, store, rnd, self.config.rates(self.trainer.run))

    def scores(self, client: ClipClient, data: ClientData, label: str) -> dict[str, float]:
        """What the present model scores on the client's test images."""
        return self.trainer.scored(client, data, label)

    def keep(self, client: ClipClient, store: LocalStore, rnd: Round) -> None:
        """Commit the client's own parts as this round's version."""
        if self.own:
            store.commit(rnd.number, client.tensors(*self.own), base=rnd.acked)
