"""IFCA: K models; each client trains the one that fits it best (Ghosh et al. 2020, arXiv 2006.04088, algorithm 1, model averaging).

Every client gets all K models, picks the one with the lowest loss on its own training images, trains it and sends it back; the
server averages within each cluster. A cluster nobody picked stays as it was. A client serves with the model it would pick.

Which model a client picks does leave it: the update comes back in that model's slots. All K models go to every client in every
round, so the downlink is K times FedAvg's; nothing of a single client stays on the server. Our own choices: the first model is
the run's, and each other one has the same numbers in another order, tensor by tensor (for weights drawn independently that is
another draw of the same distribution); the loss is taken with BatchNorm statistics of the client's own images, whatever the
``bn`` rule; of equal losses the first wins. A held-out client picks like all others, which is the paper's rule.

Reduction: one cluster is FedAvg, bit for bit.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from strategies.config import RunConfig, require
from strategies.contract import Slot, Wire
from strategies.reduce import Mean, make_mean
from strategies.seeds import derive_seed
from strategies.types import Round, Shelf, Slots, Tensors, Update

MOST_CLUSTERS = 64
PARTS = ("encoder", "head")
SHAPES = {"encoder": "encoder tensors", "head": "classes x dim, classes"}


def slot_of(part: str, cluster: int) -> str:
    """The slot of one cluster's encoder or head."""
    return f"{part}-{cluster}"


@dataclass(frozen=True)
class Config:
    """Settings of IFCA.

    Attributes
    ----------
    num_clusters : K; 2 as in its authors' CIFAR configuration.
    """

    num_clusters: int = 2

    def __post_init__(self) -> None:
        require(1 <= self.num_clusters <= MOST_CLUSTERS, "ifca.num-clusters", f"in 1..{MOST_CLUSTERS}", self.num_clusters)

    @property
    def wire(self) -> Wire:
        pairs = [(part, k) for k in range(self.num_clusters) for part in PARTS]
        down = tuple(Slot(slot_of(part, k), SHAPES[part], f"the {part} of cluster {k}", like=part) for part, k in pairs)
        up = tuple(Slot(slot_of(part, k), SHAPES[part], f"the locally trained {part}, if this client picks cluster {k}", like=part,
                        optional=True) for part, k in pairs)
        return Wire(down=down, up=up, local=("losses", "data", "optimiser state"))


@dataclass(frozen=True)
class State:
    """The K models, and which of them each client picked last."""

    models: tuple[Slots, ...]
    picked: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True)
class IfcaRule:
    """Average within the clusters that the clients pick."""

    config: Config
    run: RunConfig
    shelf: Shelf | None = None

    def init(self, start: Slots) -> State:
        others = (redrawn(start, derive_seed(self.run.seed, "ifca", k)) for k in range(1, self.config.num_clusters))
        return State(models=(dict(start), *others))

    def downlink(self, state: State, client: str, rnd: Round) -> Slots:
        return {slot_of(part, k): model[part] for k, model in enumerate(state.models) for part in PARTS}

    def merge(self, state: State, updates: Iterable[Update], rnd: Round) -> State:
        means: dict[int, dict[str, Mean]] = {}
        picked = dict(state.picked)
        for update in updates:
            k = picked_by(update.slots, len(state.models))
            if k is None:
                continue
            mean = means.setdefault(k, {part: make_mean(self.run.bn) for part in PARTS})
            for part in PARTS:
                mean[part].add(update.slots[slot_of(part, k)], update.weight)
            picked[update.client] = k
        models = list(state.models)
        for k, mean in means.items():
            models[k] = {part: mean[part].result() for part in PARTS}
        return replace(state, models=tuple(models), picked=picked)

    def diagnostics(self, state: State) -> Mapping[str, Any]:
        return {"groups": {"k": len(state.models), "assignment": dict(sorted(state.picked.items()))}}


def picked_by(slots: Slots, clusters: int) -> int | None:
    """The one cluster whose encoder and head came back; None for a reply with none or several, which then counts for nothing."""
    found = [k for k in range(clusters) if any(slot_of(part, k) in slots for part in PARTS)]
    whole = len(found) == 1 and all(slot_of(part, found[0]) in slots for part in PARTS)
    return found[0] if whole else None


def redrawn(model: Slots, seed: int) -> dict[str, dict[str, np.ndarray]]:
    """``model`` with the numbers of every tensor in another order."""
    rng = np.random.default_rng(seed)

    def shuffled(tensors: Tensors) -> dict[str, np.ndarray]:
        return {name: rng.permutation(tensor.reshape(-1)).reshape(tensor.shape) for name, tensor in tensors.items()}

    return {part: shuffled(model[part]) for part in PARTS}
