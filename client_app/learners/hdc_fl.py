"""HDC-FL's client: FedPer's training, plus a signal of its head, plus a mixture to serve with.

The mixture never enters training (D2): it is scored and served, paired with the client's own unmodified head, while
training goes on from the shared encoder. What leaves is the encoder and, in place of the head, a projected and
normalised sketch of how far the head has moved (D1); the head itself only where the run opts in.
"""

from __future__ import annotations

from collections.abc import Mapping

from client_app.data.client_data import ClientData
from client_app.learner import Reply, Trainer
from client_app.local.store import LocalStore
from strategies.hdc_fl import DESCRIPTOR, Config
from strategies.head_descriptor import flat_signal, project
from strategies.seeds import derive_seed
from strategies.types import Layout, Round, Slots, Tensors


class HdcLearner:
    """Train encoder and head together, send the encoder and the head's descriptor."""

    def __init__(self, trainer: Trainer, config: Config) -> None:
        self.trainer = trainer
        self.config = config

    @property
    def parts(self) -> Mapping[str, Layout]:
        return self.trainer.parts

    def train(self, inbound: Slots, data: ClientData, store: LocalStore, rnd: Round) -> Reply:
        head, first = own_heads(inbound, store, rnd)
        served = self._served(inbound, head, data)
        trained, metrics = self.trainer.train(inbound["encoder"], head, data, store, rnd, served=served)
        store.commit(rnd.number, {"head": trained["head"], "initial-head": first}, base=rnd.acked)
        return Reply({"encoder": trained["encoder"], **self._signal(trained["head"], first, rnd)}, metrics)

    def evaluate(self, inbound: Slots, data: ClientData, store: LocalStore, rnd: Round) -> Reply:
        head, _ = own_heads(inbound, store, rnd)
        return self.trainer.close(self._served(inbound, head, data), head, data, store)

    def _signal(self, head: Tensors, first: Tensors, rnd: Round) -> Slots:
        if self.config.signal == "head":
            return {"head": head}
        seed = derive_seed(rnd.seed, "projection", self.config.projection_seed)
        return {DESCRIPTOR: {DESCRIPTOR: project(flat_signal(head, first), self.config.projection_dim, seed)}}

    def _served(self, inbound: Slots, head: Tensors, data: ClientData) -> Tensors:
        """The mixture if one came (and, with ``serve = better``, if its own training loss is not the higher one)."""
        shared, mixture = inbound["encoder"], inbound.get("mixture")
        if mixture is None or self.config.serve == "mixture":
            return shared if mixture is None else mixture
        loss = {name: self.trainer.training_loss(encoder, head, data) for name, encoder in (("own", mixture), ("all", shared))}
        return mixture if loss["own"] <= loss["all"] else shared


def own_heads(inbound: Slots, store: LocalStore, rnd: Round) -> tuple[Tensors, Tensors]:
    """The client's head as of the last acknowledged round, and the common first head it is measured from."""
    kept = store.load(rnd.acked)
    if kept is None:
        return inbound["initial-head"], inbound["initial-head"]
    return kept["head"], kept["initial-head"]
