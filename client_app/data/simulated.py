"""Which samples each client of a simulation gets, from a run's settings alone.

Every worker computes the same division by itself: seeds derive from (run's seed, purpose, client index), so
nothing depends on who asks first.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache, partial

import numpy as np

from client_app.data.client_data import ClientData, DataError, Split
from client_app.data.holdout import official_test, split_train_test
from client_app.data.partition import (
    Partition,
    PartitionError,
    angle_of,
    check_square,
    dirichlet,
    iid,
    label_subset,
    rotation,
    turned,
)
from client_app.data.sources import Origin, Source, load_source, origin_of
from strategies.config import RunConfig
from strategies.seeds import derive_seed


@dataclass(frozen=True)
class Plan:
    """The settings that determine who gets which sample; a cache key. Values are those of ``RunConfig``."""

    origin: Origin
    partition: str
    clients: int
    classes_per_client: int
    alpha: float
    test_fraction: float
    test_split: str
    seed: int

    def rng(self, *purpose: str | int) -> np.random.Generator:
        """The generator for one purpose of this plan."""
        return np.random.default_rng(derive_seed(self.seed, *purpose))


def plan_of(config: RunConfig, clients: int) -> Plan:
    """The plan that ``config`` asks for, among ``clients`` clients."""
    return Plan(
        origin=origin_of(config.dataset),
        partition=config.partition,
        clients=clients,
        classes_per_client=config.classes_per_client,
        alpha=config.alpha,
        test_fraction=config.test_fraction,
        test_split=config.test_split,
        seed=config.seed,
    )


# partition name -> (plan -> partition with its settings bound)
PARTITIONS: dict[str, Callable[[Plan], Partition]] = {
    "iid": lambda plan: iid,
    "label-subset": lambda plan: partial(label_subset, classes_per_client=plan.classes_per_client),
    "dirichlet": lambda plan: partial(dirichlet, alpha=plan.alpha),
    "rotation": lambda plan: rotation,
}


def indices_of(plan: Plan, client: int) -> tuple[np.ndarray, np.ndarray]:
    """Train and test positions of one client in the pooled source."""
    own, official = _shares(plan)
    if official is not None:
        return own[client], official[client]
    labels = load_source(plan.origin).labels
    return split_train_test(labels, own[client], plan.test_fraction, plan.rng("split", client))


def group_of(plan: Plan, client: int) -> str:
    """"0", "90", "180" or "270" under rotation, else ""."""
    return str(angle_of(client)) if plan.partition == "rotation" else ""


def client_data(plan: Plan, client: int) -> ClientData:
    """The ``client``-th client's data.

    Raises
    ------
    DataError, PartitionError
        If the source cannot be read or divided as the plan says.
    """
    source = load_source(plan.origin)
    train, test = (source.take(indices) for indices in indices_of(plan, client))
    if plan.partition == "rotation":
        train, test = (Split(turned(s.images, angle_of(client)), s.labels, s.ids) for s in (train, test))
    return ClientData(train, test, source.classes, group_of(plan, client))


def official_train_count(source: Source, test_split: str) -> int:
    """How many samples, from the first, are divided among clients: all, unless the official test set is used.

    Raises
    ------
    DataError
        If the official test set is asked for and the source has none.
    """
    if test_split != "official":
        return len(source)
    if source.train_count == len(source):
        raise DataError("this dataset has no official test set; use test-split=own")
    return source.train_count


@lru_cache(maxsize=8)
def _shares(plan: Plan) -> tuple[list[np.ndarray], list[np.ndarray] | None]:
    """Each client's share of the pool (or of the official training set), and of the official test set."""
    source = load_source(plan.origin)
    if plan.partition not in PARTITIONS:
        raise PartitionError(f"expected partition one of {', '.join(PARTITIONS)}; got {plan.partition!r}")
    if plan.partition == "rotation":
        check_square(source.images)
    count = official_train_count(source, plan.test_split)
    labels = source.labels[:count]
    parts = PARTITIONS[plan.partition](plan)(labels, {}, plan.clients, plan.rng("partition"))
    if plan.test_split != "official":
        return parts, None
    test = official_test(labels, parts, source.labels[count:], plan.rng("official-test"))
    return parts, [indices + count for indices in test]
