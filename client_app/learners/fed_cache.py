"""FedCache's client: FedPer's or FedAvg's training with a feature cache, and an encoder that is sent only where it is due."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial

from client_app.cache_clock import Clock
from client_app.cached_client import CachedClient
from client_app.data.client_data import ClientData
from client_app.first_head import nearest_mean_head
from client_app.learner import Reply, Trainer
from client_app.local.store import LocalStore, StateLost
from strategies.fed_cache import VERSION, Config
from strategies.movement import movement
from strategies.types import Layout, Round, Slots, Tensors


class FedCacheLearner:
    """Train encoder and head by routes; keep head, cache and gate at home; send the encoder when it is due."""

    def __init__(self, trainer: Trainer, config: Config) -> None:
        self.trainer, self.config = trainer, config

    @property
    def parts(self) -> Mapping[str, Layout]:
        return self.trainer.parts

    def train(self, inbound: Slots, data: ClientData, store: LocalStore, rnd: Round) -> Reply:
        client, encoder, head = self._open(inbound, data, store, rnd)
        training = client.training(encoder, self.config.frozen(rnd.number, rnd.total))
        trained, metrics = client.trainer.train(encoder, head, data, store, rnd, training=training)
        slots: dict[str, Tensors] = {"head": trained["head"]} if self.config.heads == "shared" else {}
        if self._sends(client, encoder, trained["encoder"]):
            slots["encoder"] = trained["encoder"]
        kept = dict(client.slots())
        if self.config.heads == "private":
            kept["head"] = trained["head"]
        if self.config.keeps_encoder(rnd.number, rnd.total):
            kept["encoder"] = trained["encoder"]
        store.commit(rnd.number, kept, base=rnd.acked)
        return Reply(slots, metrics | client.metrics())

    def join(self, inbound: Slots, data: ClientData, store: LocalStore, rnd: Round) -> Reply:
        """One pass fills the cache; from these features a nearest-mean head, then the head's training. A shared head is served as it is."""
        client, encoder, head = self._open(inbound, data, store, rnd)
        kept = client.slots()
        if self.config.heads == "shared":
            store.commit(rnd.number, kept, base=rnd.acked)
            return Reply(metrics=client.trainer.counts(data))
        first = partial(nearest_mean_head, classes=len(data.classes))
        head, metrics = client.trainer.fit_head(encoder, head, data, store, rnd, first)
        store.commit(rnd.number, {**kept, "head": head}, base=rnd.acked)
        return Reply(metrics=metrics | client.metrics())

    def evaluate(self, inbound: Slots, data: ClientData, store: LocalStore, rnd: Round) -> Reply:
        client, encoder, head = self._open(inbound, data, store, rnd)
        reply = client.trainer.close(encoder, head, data, store, rnd)
        return Reply(metrics={**reply.metrics, **client.metrics()})

    def _open(self, inbound: Slots, data: ClientData, store: LocalStore, rnd: Round) -> tuple[CachedClient, Tensors, Tensors]:
        """The client, and the encoder and head it has now."""
        kept = store.load(rnd.acked)
        client = CachedClient(self.trainer, self.config, data, store, rnd, kept)
        encoder, client.clock = current_encoder(inbound, kept, client.clock)
        if self.config.heads == "shared":
            return client, encoder, inbound["head"]
        return client, encoder, inbound["initial-head"] if kept is None else kept["head"]

    def _sends(self, client: CachedClient, before: Tensors, after: Tensors) -> bool:
        """Whether this round's encoder goes to the server; the client's clock learns what that means for it."""
        number, total = client.rnd.number, client.rnd.total
        if not self.config.uploads(number, total):
            if not self.config.frozen(number, total):
                # it trains on from its own, which the server's path knows nothing of
                client.clock = client.clock.moved(movement(before, after))
            return False
        if not self.config.lazy_upload:
            return True
        norm = movement(before, after)
        keeps = client.clock.keeps_update(norm, self.config.lazy_share, self.config.lazy_rounds)
        client.clock = client.clock.updated(norm, keeps)
        return not keeps


def current_encoder(inbound: Slots, kept: Slots | None, clock: Clock) -> tuple[Tensors, Clock]:
    """The encoder to go on from: the one that came or, if the client is current, its own; and the clock after that.

    Raises ``StateLost`` if neither is there: the server then starts again with this client.
    """
    version, path = inbound[VERSION][VERSION].tolist()
    if "encoder" in inbound:
        return inbound["encoder"], clock.told(int(version), path)
    if kept is None or "encoder" not in kept or clock.version != int(version):
        raise StateLost("this site does not hold the encoder that it is said to hold; this site starts again from the initial state")
    return kept["encoder"], clock
