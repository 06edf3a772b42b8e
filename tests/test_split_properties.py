"""Every partition and combination, over random data and 1 to 500 clients: a split, or an error that had to be.

A split is disjoint, complete where that is promised, the same for the same seed, and gives every client a sample to
train on and a test part that follows its training part, by class and, where clients go by a column, by that column.
"""

from __future__ import annotations

import time
from collections import Counter
from contextlib import suppress
from dataclasses import dataclass, replace
from itertools import count

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from client_app.data import PartitionError, simulated
from client_app.data.rotation import angle_of
from client_app.data.simulated import Plan, group_of, indices_of, plan_of
from client_app.data.source import Source
from client_app.data.sources import Origin
from strategies.config import RunConfig
from strategies.partition_names import NAMES, parse_partition
from tests.data_cases import rng, seeds
from tests.thorough import THOROUGH

few = settings(max_examples=12 if THOROUGH else 8)
numbers = count()


@dataclass(frozen=True)
class Case:
    """A pool of ``size`` samples with rare and frequent classes, domains and owners; the last ``tests`` are official."""

    seed: int
    size: int
    tests: int
    classes: int
    domains: int
    owners: int
    clients: int
    k: int
    each: int
    alpha: float
    official: bool

    def source(self) -> Source:
        draw = rng(self.seed)

        def column(values: int, skew: float) -> np.ndarray:
            return draw.choice(values, self.size + self.tests, p=draw.dirichlet(np.full(values, skew)))

        meta = {"domain": column(self.domains, 3.0).astype(str), "client": column(self.owners, 3.0).astype(str)}
        pixels = np.zeros((self.size + self.tests, 1, 2, 2), np.uint8)
        return Source(pixels, column(self.classes, 0.7), tuple(map(str, range(self.classes))), self.size, meta)

    def plan(self, partition: str, source: Source, monkeypatch: pytest.MonkeyPatch) -> Plan:
        config = RunConfig(partition=partition, classes_per_client=self.k, domains_per_client=self.each, alpha=self.alpha,
                           clients=self.clients, seed=self.seed, test_split="official" if self.official else "own")
        monkeypatch.setattr(simulated, "load_source", lambda *_: source)
        return replace(plan_of(config, self.clients), origin=Origin(f"case {next(numbers)}", 0, 0))


@st.composite
def cases(draw: st.DrawFn) -> Case:
    size = draw(st.one_of(st.integers(1, 60), st.integers(60, 3000)))
    clients = draw(st.one_of(st.integers(1, 12), st.integers(1, 500)))
    return Case(draw(seeds), size, draw(st.integers(0, 500)), draw(st.sampled_from([1, 2, 10, 100])), draw(st.integers(1, 6)),
                draw(st.integers(1, 600)), clients, draw(st.integers(1, 3)), draw(st.integers(1, 3)),
                draw(st.sampled_from([0.01, 0.1, 1.0, 1e6])), draw(st.booleans()))


def holders(case: Case, domains: int) -> np.ndarray:
    """(D, N) whether a client draws from a domain, written out."""
    drawn = np.zeros((domains, case.clients), bool)
    for client in range(case.clients):
        for step in range(case.each):
            drawn[(client * case.each + step) % domains, client] = True
    return drawn


def possible(case: Case, division: str, labels: np.ndarray, owners: np.ndarray, clients: int) -> bool | None:
    """Whether ``division`` must succeed; None if it may either way."""
    if clients > len(labels):
        return False
    if division in ("dirichlet", "quantity"):
        return 2 * clients <= len(labels)
    if division == "natural":
        return clients <= len(np.unique(owners))
    if division == "label-subset":
        _, sizes = np.unique(labels, return_counts=True)
        if case.k > len(sizes):
            return False
        return True if sizes.min() >= -(-clients * case.k // len(sizes)) else None
    return True


def must_succeed(case: Case, partition: str, source: Source) -> bool | None:
    name = parse_partition(partition)
    assert name is not None
    own = case.size if case.official else len(source)
    labels, domain, owners = source.labels[:own], source.meta["domain"][:own], source.meta["client"][:own]
    if case.official and not case.tests:
        return False
    if "domain" not in name.groups:
        return possible(case, name.division, labels, owners, case.clients)
    names = np.unique(domain)
    if case.clients > own or not case.each <= len(names) <= case.clients * case.each:
        return False
    inside = [possible(case, name.division, labels[domain == value], owners, int(held.sum()))
              for value, held in zip(names, holders(case, len(names)), strict=True)]
    return False if False in inside else None if None in inside else True


def split_of(plan: Plan) -> list[tuple[np.ndarray, np.ndarray]]:
    return [indices_of(plan, client) for client in range(plan.clients)]


@pytest.mark.parametrize("partition", NAMES)
@few
@given(case=cases())
def test_every_partition_splits_or_says_why(partition: str, case: Case) -> None:
    with pytest.MonkeyPatch.context() as monkeypatch:
        source = case.source()
        plan = case.plan(partition, source, monkeypatch)
        expected = must_succeed(case, partition, source)
        try:
            split = split_of(plan)
        except ValueError as error:
            # an official test set may also share no class, domain or client with the training set
            assert not expected or "official test set" in str(error)
            return
        assert expected is not False
        check_split(case, partition, source, split)
        check_matched(case, plan, split)
        check_groups(case, partition, source, plan, split)
        assert as_lists(split_of(fresh(plan, plan.seed))) == as_lists(split)
        if case.size >= 60:  # another seed's split of a few samples may be the same, or none at all
            with suppress(PartitionError):
                assert as_lists(split_of(fresh(plan, plan.seed + 1))) != as_lists(split)


def fresh(plan: Plan, seed: int) -> Plan:
    """The same plan with that seed, as one that was never split."""
    return replace(plan, seed=seed, origin=Origin(f"case {next(numbers)}", 0, 0))


def as_lists(split: list[tuple[np.ndarray, np.ndarray]]) -> list[tuple[list[int], list[int]]]:
    return [(train.tolist(), test.tolist()) for train, test in split]


def check_split(case: Case, partition: str, source: Source, split: list[tuple[np.ndarray, np.ndarray]]) -> None:
    assert all(len(train) for train, _ in split)
    ids = np.concatenate([part for pair in split for part in pair])
    assert len(np.unique(ids)) == len(ids)
    used = np.concatenate([train for train, _ in split])
    own = case.size if case.official else len(source)
    if case.official:
        assert used.max() < own and all((test >= own).all() for _, test in split)
    division = parse_partition(partition).division  # type: ignore[union-attr]
    if division in ("iid", "dirichlet", "quantity"):
        assert len(used if case.official else ids) == own
    if division in ("dirichlet", "quantity"):
        assert min(len(train) + (0 if case.official else len(test)) for train, test in split) >= 2


def check_matched(case: Case, plan: Plan, split: list[tuple[np.ndarray, np.ndarray]]) -> None:
    strata = simulated._shares(plan).strata
    held = Counter(strata[np.concatenate([train for train, _ in split])].tolist())
    offered = Counter(strata[case.size:].tolist()) if case.official else Counter()
    for train, test in split:
        mine, tested = Counter(strata[train].tolist()), Counter(strata[test].tolist())
        assert tested.keys() <= mine.keys()
        for stratum, trained in mine.items():
            if case.official:
                assert abs(tested[stratum] - offered[stratum] * trained / held[stratum]) < 1
        if not case.official and min((mine + tested).values()) >= 4:
            for stratum, trained in mine.items():
                assert abs(tested[stratum] - 0.25 * (trained + tested[stratum])) <= 1


def check_groups(case: Case, partition: str, source: Source, plan: Plan, split: list[tuple[np.ndarray, np.ndarray]]) -> None:
    name = parse_partition(partition)
    assert name is not None
    for client, (train, test) in enumerate(split):
        words = group_of(plan, client).split("/")
        if "rotation" in name.groups:
            assert words.pop() == str(angle_of(client))
        if "domain" in name.groups:
            drawn = set(source.meta["domain"][np.concatenate([train, test])].tolist())
            assert drawn <= set(words[0].split("+")) and len(words[0].split("+")) == case.each
        if name.division == "natural":
            assert len(set(source.meta["client"][np.concatenate([train, test])].tolist())) == 1
        if name.groups == frozenset():
            assert words == [""]


@pytest.mark.parametrize("partition", [name for name in NAMES if name != "rotation+natural"])
def test_five_hundred_clients_of_200_classes_take_seconds(partition: str, monkeypatch: pytest.MonkeyPatch) -> None:
    # with alpha = 0.05 no draw of the Dirichlet partition gives all 500 clients a sample
    case = Case(0, 20_000, 0, 200, 4, 500, 500, 2, 1, 0.05, False)
    source = case.source()
    if "label-subset" in partition:  # its classes must not be rarer than their holders
        source = replace(source, labels=np.arange(20_000) // 4 % 200, meta={"domain": (np.arange(20_000) % 4).astype(str)})
    plan = case.plan(partition, source, monkeypatch)
    began = time.process_time()
    split = split_of(plan)
    assert time.process_time() - began < 20
    assert len(split) == 500 and all(len(train) for train, _ in split)


def test_an_official_test_set_without_a_common_class_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    source = Source(np.zeros((6, 1, 2, 2), np.uint8), np.array([0, 0, 0, 0, 1, 1]), ("a", "b"), 4)
    case = Case(0, 4, 2, 2, 1, 1, 2, 1, 1, 1.0, True)
    with pytest.raises(PartitionError, match="official test set .* use test-split=own"):
        split_of(case.plan("iid", source, monkeypatch))
