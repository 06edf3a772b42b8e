"""CFL's client: FedAvg's, with its cluster's model for the shared one; a newcomer trains once, so that the server can place it."""

from __future__ import annotations

from client_app.data.client_data import ClientData
from client_app.learner import Reply
from client_app.learners.fedavg import FedAvgLearner
from client_app.local.store import LocalStore
from strategies.types import Round, Slots


class CflLearner(FedAvgLearner):
    """Train whatever model the server has for this client's cluster."""

    def join(self, inbound: Slots, data: ClientData, store: LocalStore, rnd: Round) -> Reply:
        """Train from the model that came as in a round, and send the result; it is served with what comes then."""
        return self.train(inbound, data, store, rnd)
