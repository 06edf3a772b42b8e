"""The clients of zero-shot and of local logistic regression: frozen towers, cached features, no steps; nothing but scalars leaves."""

from __future__ import annotations

import numpy as np

from client_app.clip_trainer import ClipClient
from client_app.data.client_data import ClientData
from client_app.learners.global_prompt import GlobalPromptLearner
from client_app.local.store import LocalStore
from client_app.loop import check_labels
from models.frozen_classifiers import LocalLogistic
from models.prompt_classifier import LOCAL
from strategies.types import Round, Slots


class ZeroShotLearner(GlobalPromptLearner):
    """Score the towers as they are, with the client's own classes alone if the settings say so."""

    def opened(self, inbound: Slots, data: ClientData, store: LocalStore, rnd: Round) -> ClipClient:
        client = self.trainer.open({}, data, store)
        if self.config.own_classes:
            client.net.load(LOCAL, {"present": (data.class_counts() > 0).astype(np.float32)})
        return client

    def fit(self, client: ClipClient, data: ClientData, store: LocalStore, rnd: Round) -> dict[str, float]:
        """Nothing to train; images that cannot be used show here as elsewhere."""
        check_labels(data.train.images, data.train.labels, len(data.classes))
        client.features.cls(data.train)
        return {}

    def keep(self, client: ClipClient, store: LocalStore, rnd: Round) -> None:
        """Nothing: all that is the client's own follows from its data."""


class LogisticLearner(GlobalPromptLearner):
    """Fit in the first round; afterwards there is nothing to add."""

    def opened(self, inbound: Slots, data: ClientData, store: LocalStore, rnd: Round) -> ClipClient:
        client = super().opened(inbound, data, store, rnd)
        if rnd.joining:
            self.fit(client, data, store, rnd)
        return client

    def fit(self, client: ClipClient, data: ClientData, store: LocalStore, rnd: Round) -> dict[str, float]:
        """Fit, unless an earlier round's fit was accepted; it would be the same."""
        assert isinstance(client.net, LocalLogistic)
        check_labels(data.train.images, data.train.labels, len(data.classes))
        if not rnd.acked:
            client.net.fit(client.features.cls(data.train), data.train.labels)
        return {}
