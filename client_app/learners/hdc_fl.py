"""HDC-FL's client: FedPer's training, plus a signal of its head, plus a mixture to serve with.

The mixture never enters training (D2): it is scored and served, paired with the client's own unmodified head, while
training goes on from the shared encoder. With ``feature-cache`` it trains by FedCache's routes. What leaves is the encoder
and, in place of the head, a projected and normalised sketch of how far the head has moved (D1); the head itself only where
the run opts in.
"""

from __future__ import annotations

from collections.abc import Mapping

from client_app.cached_client import CachedClient
from client_app.data.client_data import ClientData
from client_app.learner import Reply, Trainer
from client_app.local.store import LocalStore
from strategies.cache_config import Config as CacheConfig
from strategies.hdc_config import DESCRIPTOR, Config
from strategies.head_descriptor import flat_signal, project
from strategies.movement import movement
from strategies.seeds import derive_seed
from strategies.types import Layout, Round, Slots, Tensors


class HdcLearner:
    """Train encoder and head together, send the encoder and the head's descriptor."""

    def __init__(self, trainer: Trainer, config: Config) -> None:
        self.trainer = trainer
        self.config = config

    @staticmethod
    def stacks(config: Config) -> bool:
        """Whether several clients can be trained at once: not where a cache of features decides what a step trains."""
        return not config.feature_cache

    @property
    def parts(self) -> Mapping[str, Layout]:
        return self.trainer.parts

    def train(self, inbound: Slots, data: ClientData, store: LocalStore, rnd: Round) -> Reply:
        head, first = own_heads(inbound, store, rnd)
        cache = self._cache(inbound, data, store, rnd)
        trainer, training = (cache.trainer, cache.training(inbound["encoder"])) if cache else (self.trainer, None)
        served = self._served(inbound, head, data, trainer)
        trained, metrics = trainer.train(inbound["encoder"], head, data, store, rnd, served=served, training=training)
        kept = {**cache.slots(), "came": inbound["encoder"]} if cache else {}
        store.commit(rnd.number, {"head": trained["head"], "initial-head": first, **kept}, base=rnd.acked)
        told = cache.metrics() if cache else {}
        return Reply({"encoder": trained["encoder"], **self._signal(trained["head"], first, rnd)}, metrics | told)

    def join(self, inbound: Slots, data: ClientData, store: LocalStore, rnd: Round) -> Reply:
        """Fit a head of its own on the frozen shared encoder, keep it, and send its signal, by which the mixture is found."""
        start, first = own_heads(inbound, store, rnd)
        cache = self._cache(inbound, data, store, rnd)
        trainer = cache.trainer if cache else self.trainer
        head, metrics = trainer.fit_head(inbound["encoder"], start, data, store, rnd)
        store.commit(rnd.number, {"head": head, "initial-head": first}, base=rnd.acked)
        return Reply(self._signal(head, first, rnd), metrics | (cache.metrics() if cache else {}))

    def evaluate(self, inbound: Slots, data: ClientData, store: LocalStore, rnd: Round) -> Reply:
        head, _ = own_heads(inbound, store, rnd)
        cache = self._cache(inbound, data, store, rnd)
        trainer = cache.trainer if cache else self.trainer
        reply = trainer.close(self._served(inbound, head, data, trainer), head, data, store, rnd)
        return Reply(metrics={**reply.metrics, **(cache.metrics() if cache else {})})

    def _cache(self, inbound: Slots, data: ClientData, store: LocalStore, rnd: Round) -> CachedClient | None:
        """The client's cache, if it has one. No version comes down, so its clock counts the moves between encoders that came."""
        if not self.config.feature_cache:
            return None
        borrowed = dict(self.trainer.made_by.borrowed) if self.trainer.made_by else {}
        kept = store.load(rnd.acked)
        client = CachedClient(self.trainer, borrowed.get("fed-cache", CacheConfig()), data, store, rnd, kept)
        if kept is not None and "came" in kept:
            client.clock = client.clock.moved(movement(kept["came"], inbound["encoder"]))
        return client

    def _signal(self, head: Tensors, first: Tensors, rnd: Round) -> Slots:
        if self.config.signal == "head":
            return {"head": head}
        seed = derive_seed(rnd.seed, "projection", self.config.projection_seed)
        return {DESCRIPTOR: {DESCRIPTOR: project(flat_signal(head, first), self.config.projection_dim, seed)}}

    def _served(self, inbound: Slots, head: Tensors, data: ClientData, trainer: Trainer) -> Tensors:
        """The mixture if one came (and, with ``serve = better``, if its own training loss is not the higher one)."""
        shared, mixture = inbound["encoder"], inbound.get("mixture")
        if mixture is None or self.config.serve == "mixture":
            return shared if mixture is None else mixture
        loss = {name: trainer.training_loss(encoder, head, data) for name, encoder in (("own", mixture), ("all", shared))}
        return mixture if loss["own"] <= loss["all"] else shared


def own_heads(inbound: Slots, store: LocalStore, rnd: Round) -> tuple[Tensors, Tensors]:
    """The client's head as of the last acknowledged round, and the common first head it is measured from."""
    kept = store.load(rnd.acked)
    if kept is None:
        return inbound["initial-head"], inbound["initial-head"]
    return kept["head"], kept["initial-head"]
