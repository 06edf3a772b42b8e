"""FedAMP: each client is pulled towards a mix of the models that resemble its own (Huang et al. 2021, arXiv 2007.03797, algorithm 1).

The server mixes, for client i, ``u_i = xi_ii w_i + sum_j xi_ij w_j`` with ``xi_ij = alpha / sigma * exp(-||w_i - w_j||^2 / sigma)``
and ``xi_ii`` what is missing to 1. The client goes on from its own w_i with ``pull / (2 alpha) ||w - u_i||^2`` beside its loss and
serves with it.

Whole models, heads included, go to the server, which keeps the last one of every client on its shelf; a client gets mixes of
others' heads. Our own choices: where the others of a row would weigh more than (N - 1) / N together (models that lie close), they
are scaled down to that, so that rows stay on the simplex and equal models give the plain mean (a public library lets ``xi_ii``
become negative there); BatchNorm statistics are mixed but count in no distance; a client that was not asked is mixed in as it
was. A held-out client starts from the plain mean of all cached models and trains ``join-epochs`` with the pull towards it.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from strategies.client_models import PARTS, Part, as_one, flat_weights, products, squared_distances
from strategies.config import RunConfig, require
from strategies.contract import Slot, Wire
from strategies.mixture import LazyBlend
from strategies.types import Round, Shelf, Slots, Tensors, Update

WIRE = Wire(
    down=(Slot("initial-encoder", "encoder tensors", "the common first encoder, until a client's first update is accepted",
               like="encoder", optional=True),
          Slot("initial-head", "classes x dim, classes", "the common first head, until a client's first update is accepted",
               like="head", optional=True),
          Slot("cloud-encoder", "encoder tensors", "this client's mix of all clients' encoders, which pulls at its own",
               like="encoder", optional=True),
          Slot("cloud-head", "classes x dim, classes", "this client's mix of all clients' heads, which pulls at its own",
               like="head", optional=True)),
    up=(Slot("encoder", "encoder tensors", "this client's encoder, kept on the server", like="encoder"),
        Slot("head", "classes x dim, classes", "this client's head, kept on the server", like="head")),
    local=("data", "optimiser state"),
)


@dataclass(frozen=True)
class Config:
    """Settings of FedAMP; the defaults are METHODS 1.7's. Distances grow with the model, so ``sigma`` is what to tune.

    Attributes
    ----------
    alpha : step of the server's mix, above 0.
    pull : lambda of the paper, 0 or more; the client's pull is ``pull / alpha``.
    sigma : squared distance at which attention has fallen to 1 / e.
    """

    alpha: float = 1.0
    pull: float = 1.0
    sigma: float = 1.0

    def __post_init__(self) -> None:
        for key in ("alpha", "sigma"):
            value = getattr(self, key)
            require(value > 0 and math.isfinite(value), f"fedamp.{key}", "a finite number above 0", value)
        require(self.pull >= 0 and math.isfinite(self.pull), "fedamp.pull", "a finite number of 0 or more", self.pull)

    @property
    def wire(self) -> Wire:
        return WIRE


@dataclass(frozen=True)
class State:
    """The common start; whose model is on the shelf, of which round; inner products (N, N) of their weights and mixes (N, N)."""

    start_encoder: Tensors
    start_head: Tensors
    clients: tuple[str, ...] = ()
    rounds: Mapping[str, int] = field(default_factory=dict)
    gram: np.ndarray = field(default_factory=lambda: np.zeros((0, 0)))
    attention: np.ndarray = field(default_factory=lambda: np.zeros((0, 0)))


@dataclass(frozen=True)
class FedAmpRule:
    """Keep every client's model, hand out a mix to each."""

    config: Config
    run: RunConfig
    shelf: Shelf

    def init(self, start: Slots) -> State:
        return State(start_encoder=start["encoder"], start_head=start["head"])

    def downlink(self, state: State, client: str, rnd: Round) -> Slots:
        first = {} if rnd.acked else {"initial-encoder": state.start_encoder, "initial-head": state.start_head}
        count = len(state.clients)
        if client in state.clients:
            row = state.attention[state.clients.index(client)]
        elif rnd.joining and count:
            row = np.full(count, 1 / count)
        else:
            return first
        whole = [(float(share), self.shelf.get(name, state.rounds[name]))
                 for name, share in zip(state.clients, row, strict=True) if share > 0]
        return {**first, **{f"cloud-{part}": LazyBlend([(share, Part(model, part)) for share, model in whole], self.run.bn)
                            for part in PARTS}}

    def merge(self, state: State, updates: Iterable[Update], rnd: Round) -> State:
        rounds, fresh = dict(state.rounds), set()
        for update in updates:
            self.shelf.put(update.client, rnd.number, as_one(update.slots))
            rounds[update.client] = rnd.number
            fresh.add(update.client)
        clients = tuple(sorted(rounds))
        known = np.zeros((len(clients), len(clients)))
        old = [clients.index(client) for client in state.clients]
        known[np.ix_(old, old)] = state.gram
        gram = products(len(clients), lambda i: flat_weights(self.shelf.get(clients[i], rounds[clients[i]])),
                        [i for i, client in enumerate(clients) if client in fresh], known)
        mixes = attention(squared_distances(gram), self.config.alpha, self.config.sigma)
        return replace(state, clients=clients, rounds=rounds, gram=gram, attention=mixes)

    def diagnostics(self, state: State) -> Mapping[str, Any]:
        """How much of a client's mix is its own model, mean over clients."""
        return {"own_share": float(np.diag(state.attention).mean())} if state.clients else {}

    def shelved(self, state: State) -> dict[str, int]:
        """What must stay on the shelf for ``state`` to be usable: name -> round."""
        return dict(state.rounds)


def attention(squared: np.ndarray, alpha: float, sigma: float) -> np.ndarray:
    """Mixes (N, N), rows on the simplex, from squared distances (N, N); see the module's docstring."""
    count = len(squared)
    others = alpha * np.exp(-squared / sigma) / sigma
    np.fill_diagonal(others, 0.0)
    total = others.sum(axis=1, keepdims=True)
    most = (count - 1) / count
    others *= np.minimum(1.0, np.divide(most, total, out=np.ones_like(total), where=total > 0))
    return others + np.diag(1.0 - others.sum(axis=1))
