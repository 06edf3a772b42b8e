"""FedCache, the server's half: FedPer's or FedAvg's average, and an encoder that travels only where it is news.

METHODS sections 2.2 and 2.6. Clients keep features of their own samples and reuse them; nothing of that comes here. This is
the *client-local* feature cache of this project, not the server-side knowledge cache published under the name FedCache
(arXiv:2308.07816). The server adds a version and how far the encoder has moved in all (one number a version), from which
clients judge the age of their features; it knows which version each client holds, and sends a current client nothing but
that. All numerics are this project's own choice.

Lazy upload (after the lazily aggregated gradients of Chen et al. 2018, arXiv:1805.09965): of a client that keeps its update,
the last one counts again, weaker by ``lazy_decay`` a round. Its BatchNorm statistics count as last sent, not as a change.

Shared: encoder weights and BatchNorm running mean and variance (by the run's ``bn`` rule), the head with ``heads = shared``.
Degenerate cases: ``routes = off`` without head phase is FedPer, or FedAvg, bit for bit.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from strategies.cache_config import VERSION, Config
from strategies.config import RunConfig
from strategies.movement import is_statistic, movement
from strategies.reduce import make_mean
from strategies.types import Round, Shelf, Slots, Tensors, Update

__all__ = ["VERSION", "Config", "FedCacheRule", "State"]


@dataclass(frozen=True)
class State:
    """The shared encoder, and who has which one.

    Attributes
    ----------
    encoder : the shared encoder.
    head : the shared head, or the one that every client starts from.
    clock : ``{"version": (2,)}`` float64: the encoder's version, and the length of the path it has come.
    moved : relative length of its last step.
    held : the version that each client was last known to start from.
    sent : lazy upload: the round of each client's last update, which lies on the shelf as a change.
    silent : lazy upload: how often each client kept its update.
    """

    encoder: Tensors
    head: Tensors
    clock: Tensors
    moved: float = 0.0
    held: Mapping[str, int] = field(default_factory=dict)
    sent: Mapping[str, int] = field(default_factory=dict)
    silent: Mapping[str, int] = field(default_factory=dict)

    @property
    def version(self) -> int:
        return int(self.clock[VERSION][0])


@dataclass(frozen=True)
class FedCacheRule:
    """Average what was sent, count how far it moved, and remember who holds it."""

    config: Config
    run: RunConfig
    shelf: Shelf | None = None

    def init(self, start: Slots) -> State:
        return State(start["encoder"], start["head"], {VERSION: np.zeros(2)})

    def downlink(self, state: State, client: str, rnd: Round) -> Slots:
        slots: dict[str, Tensors] = {VERSION: state.clock}
        # a client that has lost its state is back at acked = 0, whatever it held
        if not rnd.acked or state.held.get(client) != state.version:
            slots["encoder"] = state.encoder
        if self.config.heads == "shared":
            slots["head"] = state.head
        elif not rnd.acked:
            slots["initial-head"] = state.head
        return slots

    def merge(self, state: State, updates: Iterable[Update], rnd: Round) -> State:
        encoder, head = make_mean(self.run.bn), make_mean(self.run.bn)
        held, sent, silent, moved = dict(state.held), dict(state.sent), dict(state.silent), False
        for update in updates:
            held[update.client] = state.version
            if self.config.lazy_upload:
                silent[update.client] = silent.get(update.client, 0) + ("encoder" not in update.slots)
            tensors = self._encoder_of(state, update, sent, rnd)
            if tensors is not None:
                encoder.add(tensors, update.weight)
                moved = True
            if self.config.heads == "shared":
                head.add(update.slots["head"], update.weight)
        if self.config.heads == "shared":
            state = replace(state, head=head.result())
        state = replace(state, held=held, sent=sent, silent=silent)
        return _moved_to(state, encoder.result()) if moved else state

    def diagnostics(self, state: State) -> Mapping[str, Any]:
        """Where the encoder stands, for the report."""
        size = sum(tensor.nbytes for tensor in state.encoder.values())
        silent = {"silent": dict(state.silent)} if self.config.lazy_upload else {}
        return {"cache": {"version": state.version, "drift": float(state.clock[VERSION][1]), "moved": state.moved, "encoder_bytes": size,
                          **silent}}

    def shelved(self, state: State) -> dict[str, int]:
        """What must stay on the shelf for ``state`` to be usable: name -> round."""
        return dict(state.sent)

    def _encoder_of(self, state: State, update: Update, sent: dict[str, int], rnd: Round) -> Tensors | None:
        """What ``update`` adds to the average: its encoder, or its client's last change once more; None for nothing."""
        tensors = update.slots.get("encoder")
        if not self.config.lazy_upload or self.shelf is None:
            return tensors
        if tensors is not None:
            self.shelf.put(update.client, rnd.number, change_of(tensors, state.encoder))
            sent[update.client] = rnd.number
            return tensors
        if update.client not in sent:
            return None
        last = sent[update.client]
        return repeated(state.encoder, self.shelf.get(update.client, last), self.config.lazy_decay ** (rnd.number - last))


def change_of(tensors: Tensors, start: Tensors) -> dict[str, np.ndarray]:
    """What is kept of an update: weights as the change from ``start``, BatchNorm statistics as they are."""
    return {name: tensor.copy() if is_statistic(name) else tensor - start[name] for name, tensor in tensors.items()}


def repeated(encoder: Tensors, change: Tensors, decay: float) -> dict[str, np.ndarray]:
    """``encoder`` with ``decay`` times the weights' ``change``, and the statistics of ``change``."""
    return {name: change[name] if is_statistic(name) else tensor + np.float32(decay) * change[name] for name, tensor in encoder.items()}


def _moved_to(state: State, encoder: Tensors) -> State:
    """``state`` with the next version of the encoder."""
    moved = movement(state.encoder, encoder)
    version, path = state.clock[VERSION]
    return replace(state, encoder=encoder, moved=moved, clock={VERSION: np.array([version + 1, path + moved])})
