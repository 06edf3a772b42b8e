"""HDC-FL: head-derived clustering (arXiv 2610.30075, abstract). Private heads are the signal of who resembles whom.

Facts from the abstract: a shared encoder and private heads; at refresh rounds the server turns cached heads into
normalised low-rank descriptors, clusters them, builds one encoder prototype a cluster from cached client encoders, and
gives each client a soft mixture of prototypes, paired with its own unmodified head. Heads are never averaged and never
sent to another client; the shared trajectory is unchanged. Everything else here (rank rule, k-means, temperature,
refresh schedule, staleness, projection) is our own choice, as METHODS.md sections 0 and 1.8 say; no published figure
exists to compare with.

Shared: encoder weights and BatchNorm running mean and variance (by the run's ``bn`` rule); integer counters never
travel. Degenerate cases: one cluster serves what FedPer serves, up to staleness weights; an infinite temperature gives
every client the plain mean of the prototypes.

A held-out client (cold start, our own choice) fits a head on the frozen shared encoder, sends that head's signal, and is
placed among the clusters of the last refresh, whose mean, basis and centroids stay as they are; it gets a mixture, and
nobody else's changes.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from strategies.config import RunConfig
from strategies.donor_swap import Donors, untrained_similarity
from strategies.fedper import shared_encoder
from strategies.hdc_config import DESCRIPTOR, Config
from strategies.head_clusters import cluster, permute
from strategies.head_descriptor import flat_signal
from strategies.head_space import HeadSpace
from strategies.mixture import LazyBlend, blend, cluster_shares, member_weights, mixture_weights, shrink
from strategies.reduce import make_mean
from strategies.seeds import derive_seed
from strategies.types import Round, Shelf, Slots, Tensors, Update

MOST_PICTURED = 500


@dataclass(frozen=True)
class Cached:
    """What the server remembers of one client: its signal (P,), and round and weight of its encoder on the shelf."""

    signal: np.ndarray
    round: int
    weight: float


@dataclass(frozen=True)
class Groups:
    """Outcome of the last refresh, for ``clients`` in that order.

    Attributes
    ----------
    round : the refresh round; prototype k lies on the shelf under (``_prototype-k``, round); no site may have such a name.
    assignment (N,), weights (N, K) : cluster and mixture of each client.
    similarity (N, N) : inner products of the unit descriptors.
    space, centroids (K, R), shares (K,) : what places a newcomer: the descriptor space, the clusters in it, and their
        shares in the weight of all clients.
    """

    round: int
    clients: tuple[str, ...]
    assignment: np.ndarray
    weights: np.ndarray
    similarity: np.ndarray
    silhouette: float
    rank: int
    space: HeadSpace
    centroids: np.ndarray
    shares: np.ndarray


@dataclass(frozen=True)
class State:
    """The shared trajectory (``encoder``), the common first head, what is cached of each client, the last refresh.

    ``joined`` : mixture (K,) over the clusters of that refresh, of every client that joined after the last round.
    """

    encoder: Tensors
    initial_head: Tensors
    cache: Mapping[str, Cached] = field(default_factory=dict)
    groups: Groups | None = None
    joined: Mapping[str, np.ndarray] = field(default_factory=dict)


@dataclass(frozen=True)
class HdcRule:
    """FedPer's average, and beside it, at refresh rounds, a mixture to serve for every client."""

    config: Config
    run: RunConfig
    shelf: Shelf

    def init(self, start: Slots) -> State:
        return State(encoder=start["encoder"], initial_head=start["head"])

    def downlink(self, state: State, client: str, rnd: Round) -> Slots:
        slots = shared_encoder(state.encoder, state.initial_head, rnd)
        groups = state.groups
        # a stale mixture (old encoders, newer head) serves worse than the shared encoder: only a fresh one is sent
        if groups is not None and groups.round == rnd.completed:
            if (mixture := self.mixture_of(state, client)) is not None:
                slots["mixture"] = mixture
        return slots

    def mixture_of(self, state: State, client: str) -> Tensors | None:
        """The client's own mixture of the last refresh; None for whoever was not there and has not joined since."""
        if (groups := state.groups) is None:
            return None
        row = groups.weights[groups.clients.index(client)] if client in groups.clients else state.joined.get(client)
        return None if row is None else self._mixture(groups, row)

    def refreshed(self, state: State, number: int) -> State:
        """``state`` with a refresh at the end of round ``number``: clusters of the cached signals, their prototypes, all mixtures."""
        return self._refresh(state, Round(number, self.run.rounds, self.run.seed))

    def merge(self, state: State, updates: Iterable[Update], rnd: Round) -> State:
        encoder, cache = make_mean(self.run.bn), dict(state.cache)
        for update in updates:
            encoder.add(update.slots["encoder"], update.weight)
            self.shelf.put(update.client, rnd.number, update.slots["encoder"])
            cache[update.client] = Cached(self._signal(state, update), rnd.number, update.weight)
        state = replace(state, encoder=encoder.result(), cache=cache)
        return self._refresh(state, rnd) if self.config.refreshes(rnd.number, rnd.total) else state

    def newcomers(self, state: State, updates: Iterable[Update], rnd: Round) -> State:
        """Give every client that joins its mixture over the clusters of the last refresh, which stay as they are."""
        joined = dict(state.joined)
        for update in updates:
            if state.groups is not None:
                joined[update.client] = self._placed(state.groups, self._signal(state, update), update.client, rnd)
        return replace(state, joined=joined)

    def diagnostics(self, state: State) -> Mapping[str, Any]:
        """The last refresh as JSON-able data (empty before it), and the mixtures of those who joined since."""
        g = state.groups
        if g is None:
            return {}
        rows = g.weights.tolist()
        newcomers = {"newcomers": {client: row.tolist() for client, row in state.joined.items()}} if state.joined else {}
        return {**newcomers, "clusters": {
            "round": g.round, "k": g.weights.shape[1], "silhouette": g.silhouette, "rank": g.rank,
            "assignment": dict(zip(g.clients, g.assignment.tolist(), strict=True)),
            "weights": dict(zip(g.clients, rows, strict=True)),
            # N x N numbers in every line that tells of a refresh; of so many clients no picture shows them one by one
            **({"similarity": {"clients": list(g.clients), "matrix": np.round(g.similarity, 4).tolist()}}
               if len(g.clients) <= MOST_PICTURED else {})}}

    def shelved(self, state: State) -> dict[str, int]:
        """What must stay on the shelf for ``state`` to be usable: name -> round."""
        kept = {client: cached.round for client, cached in state.cache.items()}
        if state.groups is not None:
            kept |= {f"_prototype-{k}": state.groups.round for k in range(state.groups.weights.shape[1])}
        return kept

    def donors(self, state: State) -> Donors | None:
        """Who can swap encoders, and how alike the heads were at the last refresh (METHODS.md 1.4); None before it."""
        if (g := state.groups) is None:
            return None
        own, seed, kept = self.config, self.run.seed, {client: state.cache[client] for client in g.clients}
        sketch = (own.projection_dim, derive_seed(seed, "projection", own.projection_seed)) if own.signal == "descriptor" else None
        return Donors(g.clients, {client: c.round for client, c in kept.items()}, g.similarity, lambda draw: untrained_similarity(
            state.initial_head, g.clients, own.clustering, seed, draw, sketch), g.round, np.array([c.weight for c in kept.values()]))

    def _signal(self, state: State, update: Update) -> np.ndarray:
        if self.config.signal == "descriptor":
            return np.array(update.slots[DESCRIPTOR][DESCRIPTOR])
        return flat_signal(update.slots["head"], state.initial_head)

    def _refresh(self, state: State, rnd: Round) -> State:
        """Cluster the cached signals, put the prototypes on the shelf, note every client's mixture (METHODS.md 1.2)."""
        clients = tuple(sorted(state.cache))
        cached = [state.cache[c] for c in clients]
        found = cluster(np.stack([c.signal for c in cached]).astype(np.float64), self.config.clustering,
                        derive_seed(rnd.seed, "refresh", rnd.number) % 2**32)
        weights = mixture_weights(found.embedding, found.centroids, self.config.temperature)
        assignment = found.assignment
        if self.config.grouping == "random":
            deal = permute(len(clients), derive_seed(rnd.seed, "random-groups", rnd.number) % 2**32)
            assignment, weights = assignment[deal], weights[deal]
        counts, ages = np.array([c.weight for c in cached]), np.array([rnd.number - c.round for c in cached])
        members = member_weights(assignment, counts, self.config.staleness, ages)
        for k in range(members.shape[1]):
            self.shelf.put(f"_prototype-{k}", rnd.number, blend(self._donors(clients, cached, members[:, k]), self.run.bn))
        shares = cluster_shares(assignment, counts, self.config.staleness, ages)
        weights = self._shrunk(weights, shares, found.silhouette)
        return replace(state, groups=Groups(rnd.number, clients, assignment, weights, found.embedding @ found.embedding.T,
                                            found.silhouette, found.rank, found.space, found.centroids, shares))

    def _placed(self, groups: Groups, signal: np.ndarray, client: str, rnd: Round) -> np.ndarray:
        """The mixture (K,) of a client that was not there at the refresh, by its signal (P,)."""
        if self.config.grouping == "random":
            # the control deals a newcomer somebody's mixture, as it dealt all others theirs
            dealt = np.random.default_rng(derive_seed(rnd.seed, "random-newcomer", client)).integers(len(groups.weights))
            return groups.weights[dealt]
        place = groups.space.place(signal[None].astype(np.float64))
        return self._shrunk(mixture_weights(place, groups.centroids, self.config.temperature), groups.shares, groups.silhouette)[0]

    def _shrunk(self, weights: np.ndarray, shares: np.ndarray, silhouette: float) -> np.ndarray:
        """Mixtures (N, K), with ``shrink`` drawn towards the mean of all cached encoders, the more the weaker the silhouette."""
        return shrink(weights, shares, 1.0 - min(1.0, max(0.0, silhouette))) if self.config.shrink else weights

    def _donors(self, clients: tuple[str, ...], cached: list[Cached], shares: np.ndarray) -> Iterator[tuple[float, Tensors]]:
        for client, entry, share in zip(clients, cached, shares, strict=True):
            if share > 0:
                yield float(share), self.shelf.get(client, entry.round)

    def _mixture(self, groups: Groups, row: np.ndarray) -> Tensors:
        prototypes = [(float(a), self.shelf.get(f"_prototype-{k}", groups.round)) for k, a in enumerate(row) if a > 0]
        return LazyBlend(prototypes, self.run.bn)
