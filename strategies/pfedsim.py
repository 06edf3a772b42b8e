"""pFedSim: encoders mixed by how much the heads resemble each other (Tan et al. 2023, arXiv 2305.15706; HDC-FL's nearest ancestor).

First a share ``warm_up`` of the rounds is FedAvg. From then on every client keeps its own head, and gets as encoder, to train from
and to serve with, a mix of all clients' encoders with weights ``-log(1 - s_ij)``, where s_ij is the mean cosine a class of two
heads' weights, 0 where it is negative, and .9999 with itself. Differences from HDC-FL: pairs and not clusters, no low-rank space,
and the mix does enter training.

Whole models, heads included, go to the server in every round: it keeps encoders on its shelf and heads in its state. From the
warm-up's end heads are neither averaged nor sent to anybody. Our own choices: cosines of .9999 and more count as .9999, so that
equal heads have a finite weight; all cached clients are compared, not only those asked in the same round. A held-out client fits
a head on the shared encoder of the warm-up's end, sends it, and gets its mix. Reduction: ``warm_up = 1`` is FedAvg, bit for bit.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from strategies.config import RunConfig, require
from strategies.contract import Slot, Wire
from strategies.mixture import LazyBlend
from strategies.reduce import make_mean
from strategies.types import Round, Shelf, Slots, Tensors, Update

MOST_ALIKE = 0.9999
HEAD_UP = Slot("head", "classes x dim, classes", "the locally trained head, which the server compares with others'", like="head")
WIRE = Wire(
    down=(Slot("encoder", "encoder tensors", "the shared encoder, while the run warms up and until a client has its own", like="encoder",
               optional=True),
          Slot("head", "classes x dim, classes", "the shared head, as long as the shared encoder", like="head", optional=True),
          Slot("own-encoder", "encoder tensors", "this client's own mix of all clients' encoders, after the warm-up", like="encoder",
               optional=True)),
    up=(Slot("encoder", "encoder tensors", "the locally trained encoder, kept on the server", like="encoder"), HEAD_UP),
    local=("data", "optimiser state"),
    join=(HEAD_UP,),
)


@dataclass(frozen=True)
class Config:
    """Settings of pFedSim.

    Attributes
    ----------
    warm_up : share of the rounds that are FedAvg, 0 to 1; FL-bench's default.
    """

    warm_up: float = 0.5

    def __post_init__(self) -> None:
        require(0 <= self.warm_up <= 1, "pfedsim.warm-up", "0 to 1", self.warm_up)

    def warms_up(self, number: int, total: int) -> bool:
        """Whether round ``number`` belongs to the warm-up."""
        return number <= int(total * self.warm_up + 1e-9)

    @property
    def wire(self) -> Wire:
        return WIRE


@dataclass(frozen=True)
class State:
    """The shared model as the warm-up left it; after that, of each client that sent something, round and head weight (C, D).

    ``joined`` : head weight of every client that joined after the last round.
    """

    encoder: Tensors
    head: Tensors
    rounds: Mapping[str, int] = field(default_factory=dict)
    heads: Mapping[str, np.ndarray] = field(default_factory=dict)
    joined: Mapping[str, np.ndarray] = field(default_factory=dict)


@dataclass(frozen=True)
class PfedSimRule:
    """FedAvg first, then a mix of encoders for every client."""

    config: Config
    run: RunConfig
    shelf: Shelf

    def init(self, start: Slots) -> State:
        return State(encoder=start["encoder"], head=start["head"])

    def downlink(self, state: State, client: str, rnd: Round) -> Slots:
        # a client that lost its state has no head any more, so it starts from the shared model again
        head = state.joined.get(client, state.heads.get(client)) if rnd.acked and state.heads else None
        if head is None:
            return {"encoder": state.encoder, "head": state.head}
        shares = mix(state.heads, head, client)
        parts = [(share, self.shelf.get(name, state.rounds[name])) for name, share in shares.items() if share > 0]
        return {"own-encoder": LazyBlend(parts, self.run.bn) if parts else state.encoder}

    def merge(self, state: State, updates: Iterable[Update], rnd: Round) -> State:
        if self.config.warms_up(rnd.number, rnd.total):
            encoder, head = make_mean(self.run.bn), make_mean(self.run.bn)
            for update in updates:
                encoder.add(update.slots["encoder"], update.weight)
                head.add(update.slots["head"], update.weight)
            return replace(state, encoder=encoder.result(), head=head.result())
        rounds, heads = dict(state.rounds), dict(state.heads)
        for update in updates:
            self.shelf.put(update.client, rnd.number, update.slots["encoder"])
            rounds[update.client], heads[update.client] = rnd.number, np.array(update.slots["head"]["weight"])
        return replace(state, rounds=rounds, heads=heads)

    def newcomers(self, state: State, updates: Iterable[Update], rnd: Round) -> State:
        """Keep the heads by which newcomers get their mixes; nobody else's changes."""
        joined = {update.client: np.array(update.slots["head"]["weight"]) for update in updates}
        return replace(state, joined={**state.joined, **joined})

    def diagnostics(self, state: State) -> Mapping[str, Any]:
        """Share of its own encoder in a client's mix, mean over clients; nothing during the warm-up."""
        own = [mix(state.heads, head, client)[client] for client, head in state.heads.items()]
        return {"own_share": float(np.mean(own))} if own else {}

    def shelved(self, state: State) -> dict[str, int]:
        """What must stay on the shelf for ``state`` to be usable: name -> round."""
        return dict(state.rounds)


def mix(heads: Mapping[str, np.ndarray], head: np.ndarray, client: str) -> dict[str, float]:
    """Share of each cached client's encoder for ``client``, whose head weight is (C, D); they sum to 1, or are all 0 if none is like it."""
    similar = np.array([MOST_ALIKE if name == client else likeness(head, other) for name, other in heads.items()])
    weights = -np.log1p(-np.minimum(similar, MOST_ALIKE))
    total = weights.sum()
    return dict(zip(heads, (weights / total if total > 0 else weights).tolist(), strict=True))


def likeness(one: np.ndarray, other: np.ndarray) -> float:
    """Mean over classes of the cosine of two heads' weights (C, D), 0 if negative; a row of length 0 is like none."""
    a, b = one.astype(np.float64), other.astype(np.float64)
    scale = np.linalg.norm(a, axis=1) * np.linalg.norm(b, axis=1)
    cosine = np.divide((a * b).sum(axis=1), scale, out=np.zeros(len(a)), where=scale > 0)
    return max(0.0, float(cosine.mean()))
