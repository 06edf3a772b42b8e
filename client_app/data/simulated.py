"""Which samples each client of a simulation gets, from a run's settings alone.

Every worker computes the same division by itself: seeds derive from (run's seed, purpose, client index), so
nothing depends on who asks first.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import lru_cache, partial
from pathlib import Path

import numpy as np

from client_app.data.client_data import ClientData, DataError, Split
from client_app.data.domains import column_of, domain, domains_of, natural
from client_app.data.holdout import official_test, split_train_test, strata
from client_app.data.library_partition import library_partition
from client_app.data.partition import Partition, PartitionError, iid, label_subset
from client_app.data.reading import reading_of
from client_app.data.rotation import angle_of, check_square, turned
from client_app.data.skewed import dirichlet, quantity
from client_app.data.source import Source
from client_app.data.sources import Origin, load_source, origin_of
from strategies.config import RunConfig
from strategies.partition_names import PartitionName, parse_partition
from strategies.seeds import derive_seed


@dataclass(frozen=True)
class Plan:
    """The settings that determine who gets which sample; a cache key. Values are those of ``RunConfig``."""

    origin: Origin
    partition: str
    clients: int
    classes_per_client: int
    alpha: float
    domains_per_client: int
    test_fraction: float
    test_split: str
    seed: int

    @property
    def name(self) -> PartitionName:
        """What ``partition`` is made of.

        Raises
        ------
        PartitionError
            If no partition is called so.
        """
        name = parse_partition(self.partition)
        if name is None:
            raise PartitionError(f"there is no partition {self.partition!r}")
        return name

    def rng(self, *purpose: str | int) -> np.random.Generator:
        """The generator for one purpose of this plan."""
        return np.random.default_rng(derive_seed(self.seed, *purpose))


def plan_of(config: RunConfig, clients: int, shelf: Path | None = None) -> Plan:
    """The plan that ``config`` asks for, among ``clients`` clients; ``shelf`` as in ``Reading``."""
    return Plan(
        origin=origin_of(config.dataset, reading_of(config, shelf)),
        partition=config.partition,
        clients=clients,
        classes_per_client=config.classes_per_client,
        alpha=config.alpha,
        domains_per_client=config.domains_per_client,
        test_fraction=config.test_fraction,
        test_split=config.test_split,
        seed=config.seed,
    )


@dataclass(frozen=True, eq=False)
class Shares:
    """A plan carried out.

    Attributes
    ----------
    own : each client's positions in the pool, or in the official training set.
    official : each client's positions in the pool of the official test set; None if its tests are held out of its own.
    strata : (n,) by which training and test samples of a client are matched.
    groups : each client's group: "90" turned by 90 degrees, "sketch" from that domain, "sketch/90" both, "" neither.
    """

    own: list[np.ndarray]
    official: list[np.ndarray] | None
    strata: np.ndarray
    groups: tuple[str, ...]


# division -> (plan -> partition with its settings bound)
DIVISIONS: dict[str, Callable[[Plan], Partition]] = {
    "iid": lambda plan: iid,
    "label-subset": lambda plan: partial(label_subset, classes_per_client=plan.classes_per_client),
    "dirichlet": lambda plan: partial(dirichlet, alpha=plan.alpha),
    "quantity": lambda plan: partial(quantity, alpha=plan.alpha),
    "natural": lambda plan: natural,
    "flwr-datasets": lambda plan: partial(library_partition, call=plan.name.library),
}


def partition_of(plan: Plan) -> Partition:
    """The partition that the plan names: its division, inside of each domain if it groups by domain.

    Rotation changes what clients see, not who gets which samples.
    """
    inside = DIVISIONS[plan.name.division](plan)
    if "domain" in plan.name.groups:
        return partial(domain, domains_per_client=plan.domains_per_client, inside=inside)
    return inside


def indices_of(plan: Plan, client: int) -> tuple[np.ndarray, np.ndarray]:
    """Train and test positions of one client in the pooled source."""
    shares = _shares(plan)
    if shares.official is not None:
        return shares.own[client], shares.official[client]
    return split_train_test(shares.strata, shares.own[client], plan.test_fraction, plan.rng("split", client))


def group_of(plan: Plan, client: int) -> str:
    """What sets the client apart by construction; see ``Shares.groups``."""
    return _shares(plan).groups[client]


def client_data(plan: Plan, client: int) -> ClientData:
    """The ``client``-th client's data.

    Raises
    ------
    DataError, PartitionError
        If the source cannot be read or divided as the plan says.
    """
    source = load_source(plan.origin)
    train, test = (source.take(indices) for indices in indices_of(plan, client))
    if "rotation" in plan.name.groups:
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
def _shares(plan: Plan) -> Shares:
    source = load_source(plan.origin)
    if "rotation" in plan.name.groups:
        check_square(source.image_shape)
    count = official_train_count(source, plan.test_split)
    meta = {name: column[:count] for name, column in source.meta.items()}
    own = partition_of(plan)(source.labels[:count], meta, plan.clients, plan.rng("partition"))
    column = "domain" if "domain" in plan.name.groups else "client" if plan.name.division == "natural" else ""
    matched = strata(source.labels, source.meta[column] if column else None)
    official = _official(plan, own, matched, count) if plan.test_split == "official" else None
    return Shares(own, official, matched, _groups(plan, meta, count))


def _official(plan: Plan, own: list[np.ndarray], matched: np.ndarray, count: int) -> list[np.ndarray]:
    """Each client's share of the official test set, which begins at ``count``."""
    test = official_test(matched[:count], own, matched[count:], plan.rng("official-test"))
    if not any(map(len, test)):
        raise PartitionError("no sample of the official test set has a class and a domain or client of the training set; "
                             "use test-split=own")
    return [indices + count for indices in test]


def _groups(plan: Plan, meta: Mapping[str, np.ndarray], count: int) -> tuple[str, ...]:
    groups = [""] * plan.clients
    if "domain" in plan.name.groups:
        names, _ = column_of(meta, "domain", count)
        codes = [domains_of(client, len(names), plan.domains_per_client) for client in range(plan.clients)]
        groups = ["+".join(str(names[code]) for code in found) for found in codes]
    if "rotation" in plan.name.groups:
        groups = [f"{group}/{angle_of(client)}".lstrip("/") for client, group in enumerate(groups)]
    return tuple(groups)
