"""CFL: one model until clients disagree, then two (Sattler, Mueller, Samek 2021, arXiv 1910.01991, algorithm 1).

FedAvg within each cluster. A cluster is split in two, by the cosine similarity of its members' weight changes and complete
linkage, when it has come to rest as a whole while single members have not: ``||mean change|| < eps1`` and
``max ||change|| > eps2``, after round ``split_after``. Both halves go on from the parent's model, as in the paper.

Whole models, heads included, go to the server, which keeps each client's last change on its shelf. The two thresholds are
absolute lengths, so they depend on model, learning rate and epochs. Our own choices: the mean is weighted as the run's average
is; a member that was not asked this round counts with its last change; the larger half keeps the cluster's number, and clients
that have not been seen belong to the first cluster. The paper's further test of the separation (its gamma) is left out, as in the
public implementations.

A held-out client trains once from the model of the first split, and joins the cluster to whose members' changes of that round its
own is most similar on average (the paper walks down the tree of splits, a round of messages a level; we ask once). Reduction:
without a split this is FedAvg, bit for bit.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from strategies import fedavg
from strategies.client_models import PARTS, as_one, cosines, flat_weights, products
from strategies.config import RunConfig, require
from strategies.contract import Slot, Wire
from strategies.reduce import Mean, make_mean
from strategies.types import Round, Shelf, Slots, Tensors, Update

UP = (Slot("encoder", "encoder tensors", "the locally trained encoder; how far it moved is kept on the server", like="encoder"),
      Slot("head", "classes x dim, classes", "the locally trained head; how far it moved is kept on the server", like="head"))
DOWN = tuple(replace(slot, purpose=f"the {slot.name} of this client's cluster") for slot in fedavg.WIRE.down)
WIRE = Wire(down=DOWN, up=UP, local=("data", "optimiser state"), join=UP)


@dataclass(frozen=True)
class Config:
    """Settings of CFL; values of its authors' demonstration and FL-bench (METHODS 1.7).

    Attributes
    ----------
    eps1, eps2 : lengths of weight changes: the mean's must be below the first, the largest above the second.
    min_size : clusters of so many members or fewer are not split.
    split_after : no split before this round has passed; 0 scales with the run: min(20, rounds/2) (our choice: the usual 20 is
        more than a short run has).
    """

    eps1: float = 0.4
    eps2: float = 1.6
    min_size: int = 2
    split_after: int = 0

    def __post_init__(self) -> None:
        for key in ("eps1", "eps2"):
            require(getattr(self, key) >= 0, f"cfl.{key}", "0 or more (inf is allowed)", getattr(self, key))
        require(self.min_size >= 1, "cfl.min-size", "1 or more", self.min_size)
        require(self.split_after >= 0, "cfl.split-after", "0 (scales with the run) or a round", self.split_after)

    def may_split(self, number: int, total: int) -> bool:
        """Whether clusters may be split at the end of round ``number``."""
        return number > (self.split_after or min(20, total // 2))

    @property
    def wire(self) -> Wire:
        return WIRE


@dataclass(frozen=True)
class Root:
    """The first split: its round, the model that was trained in it, and whose changes of it are on the shelf, in order."""

    round: int
    model: Slots
    clients: tuple[str, ...]


@dataclass(frozen=True)
class State:
    """A model a cluster, the cluster of every client that has sent something, the round of its last change, the first split."""

    models: tuple[Slots, ...]
    members: Mapping[str, int] = field(default_factory=dict)
    changed: Mapping[str, int] = field(default_factory=dict)
    root: Root | None = None
    joined: Mapping[str, int] = field(default_factory=dict)

    def cluster_of(self, client: str) -> int:
        return self.members.get(client, self.joined.get(client, 0))


@dataclass(frozen=True)
class CflRule:
    """FedAvg a cluster, and bipartition where a cluster is at rest and its members are not."""

    config: Config
    run: RunConfig
    shelf: Shelf

    def init(self, start: Slots) -> State:
        return State(models=({part: start[part] for part in PARTS},))

    def downlink(self, state: State, client: str, rnd: Round) -> Slots:
        return state.root.model if rnd.joining and state.root else state.models[state.cluster_of(client)]

    def merge(self, state: State, updates: Iterable[Update], rnd: Round) -> State:
        means: dict[int, dict[str, Mean]] = {}
        members, changed, lengths = dict(state.members), dict(state.changed), dict[int, list[float]]()
        for update in updates:
            k = state.cluster_of(update.client)
            mean = means.setdefault(k, {part: make_mean(self.run.bn) for part in PARTS})
            for part in PARTS:
                mean[part].add(update.slots[part], update.weight)
            change = difference(as_one(update.slots), as_one(state.models[k]))
            self.shelf.put(update.client, rnd.number, change)
            lengths.setdefault(k, []).append(float(np.linalg.norm(flat_weights(change))))
            members[update.client], changed[update.client] = k, rnd.number
        models = list(state.models)
        for k, mean in means.items():
            models[k] = {part: mean[part].result() for part in PARTS}
        merged = replace(state, models=tuple(models), members=members, changed=changed)
        return self._split(state, merged, lengths, rnd) if self.config.may_split(rnd.number, rnd.total) else merged

    def newcomers(self, state: State, updates: Iterable[Update], rnd: Round) -> State:
        """The cluster whose members moved as the newcomer does, from the model of the first split."""
        joined = dict(state.joined)
        for update in updates:
            joined[update.client] = self._placed(state, update) if state.root else 0
        return replace(state, joined=joined)

    def diagnostics(self, state: State) -> Mapping[str, Any]:
        return {"groups": {"k": len(state.models), "assignment": dict(sorted({**state.members, **state.joined}.items()))}}

    def shelved(self, state: State) -> dict[str, int]:
        """What must stay on the shelf for ``state`` to be usable: name -> round."""
        root = state.root
        return dict(state.changed) | ({f"_root-{n}": root.round for n in range(len(root.clients))} if root else {})

    def _split(self, before: State, state: State, lengths: Mapping[int, list[float]], rnd: Round) -> State:
        for k, found in sorted(lengths.items()):
            clients = sorted(client for client, cluster in state.members.items() if cluster == k)
            rest = float(np.linalg.norm(flat_weights(difference(as_one(state.models[k]), as_one(before.models[k])))))
            if not (rest < self.config.eps1 and max(found) > self.config.eps2 and len(clients) > self.config.min_size):
                continue
            gram = products(len(clients), lambda i: self._change(state, clients[i]), range(len(clients)))  # noqa: B023
            leaving = smaller_half(bipartition(cosines(gram)))
            new = len(state.models)
            moved = {client: new for client, leaves in zip(clients, leaving, strict=True) if leaves}
            root = state.root or self._root(state, before.models[k], clients, rnd)
            state = replace(state, models=(*state.models, state.models[k]), members=dict(state.members) | moved, root=root)
        return state

    def _root(self, state: State, model: Slots, clients: list[str], rnd: Round) -> Root:
        for n, client in enumerate(clients):
            self.shelf.put(f"_root-{n}", rnd.number, dict(self.shelf.get(client, state.changed[client])))
        return Root(rnd.number, model, tuple(clients))

    def _placed(self, state: State, update: Update) -> int:
        assert state.root is not None
        change = flat_weights(difference(as_one(update.slots), as_one(state.root.model)))
        found: dict[int, list[float]] = {}
        for n, client in enumerate(state.root.clients):
            other = flat_weights(self.shelf.get(f"_root-{n}", state.root.round))
            scale = float(np.linalg.norm(change) * np.linalg.norm(other))
            found.setdefault(state.members[client], []).append(float(change @ other) / scale if scale else 0.0)
        return max(sorted(found), key=lambda k: float(np.mean(found[k])))

    def _change(self, state: State, client: str) -> np.ndarray:
        return flat_weights(self.shelf.get(client, state.changed[client]))


def difference(new: Tensors, old: Tensors) -> dict[str, np.ndarray]:
    """``new - old``, tensor by tensor, in float32."""
    return {name: np.subtract(new[name], old[name], dtype=np.float32) for name in new}


def bipartition(similarity: np.ndarray) -> np.ndarray:
    """Two clusters (m,), 0 or 1, of m >= 2 clients by similarities (m, m): agglomerative, complete linkage."""
    from sklearn.cluster import AgglomerativeClustering  # takes a second to import

    return AgglomerativeClustering(n_clusters=2, metric="precomputed", linkage="complete").fit(1.0 - similarity).labels_


def smaller_half(labels: np.ndarray) -> np.ndarray:
    """(m,) whether a client is in the smaller of two clusters; of equal ones, in the one without the first client."""
    leaving = labels != labels[0]
    return ~leaving if 2 * leaving.sum() > len(labels) else leaving
