"""Partitions by columns: who draws from which domain by hand, natural clients, and what is said when they do not add up."""

from __future__ import annotations

from functools import partial

import numpy as np
import pytest

from client_app.data.domains import domain, domains_of, natural
from client_app.data.partition import PartitionError, label_subset
from client_app.data.skewed import dirichlet
from tests.data_cases import rng

FOUR = np.repeat(["art", "cartoon", "photo", "sketch"], 30)
LABELS = np.tile(np.arange(3), 40)


def drawn(parts: list[np.ndarray], column: np.ndarray = FOUR) -> list[list[str]]:
    return [sorted(set(column[part].tolist())) for part in parts]


def sizes(parts: list[np.ndarray]) -> list[int]:
    return [len(part) for part in parts]


def test_one_domain_a_client() -> None:
    parts = domain(LABELS, {"domain": FOUR}, 4, rng())
    assert drawn(parts) == [["art"], ["cartoon"], ["photo"], ["sketch"]]
    assert sorted(np.concatenate(parts).tolist()) == list(range(120))


def test_more_clients_than_domains_share_a_domain_evenly() -> None:
    parts = domain(LABELS, {"domain": FOUR}, 10, rng())
    # art and cartoon have the three clients 0, 4, 8 and 1, 5, 9; photo and sketch two each
    assert drawn(parts) == [[name] for name in ["art", "cartoon", "photo", "sketch"] * 2 + ["art", "cartoon"]]
    assert sizes(parts) == [10, 10, 15, 15, 10, 10, 15, 15, 10, 10]


def test_several_domains_a_client() -> None:
    assert [domains_of(client, 4, 3) for client in range(3)] == [[0, 1, 2], [0, 1, 3], [0, 2, 3]]
    parts = domain(LABELS, {"domain": FOUR}, 3, rng(), domains_per_client=3)
    assert drawn(parts) == [["art", "cartoon", "photo"], ["art", "cartoon", "sketch"], ["art", "photo", "sketch"]]
    # art is divided by three clients, the others by two
    assert sizes(parts) == [40, 40, 40]


def test_domains_are_taken_in_the_order_of_their_names() -> None:
    shuffled = rng(1).permutation(120)
    assert drawn(domain(LABELS[shuffled], {"domain": FOUR[shuffled]}, 4, rng()), FOUR[shuffled]) == [
        ["art"], ["cartoon"], ["photo"], ["sketch"]]


def test_a_division_inside_sees_one_domain_at_a_time() -> None:
    seen: list[tuple[int, list[str]]] = []

    def whole(labels: np.ndarray, meta: dict[str, np.ndarray], clients: int, generator: np.random.Generator) -> list[np.ndarray]:
        seen.append((clients, sorted(set(meta["domain"].tolist()))))
        return np.array_split(np.arange(len(labels)), clients)

    domain(LABELS, {"domain": FOUR}, 5, rng(), inside=whole)  # type: ignore[arg-type]
    assert seen == [(2, ["art"]), (1, ["cartoon"]), (1, ["photo"]), (1, ["sketch"])]


def test_labels_and_sizes_are_skewed_inside_a_domain() -> None:
    inside = partial(label_subset, classes_per_client=1)
    parts = domain(LABELS, {"domain": FOUR}, 12, rng(), inside=inside)
    assert [len(set(LABELS[part].tolist())) for part in parts] == [1] * 12
    assert sorted(np.concatenate(parts).tolist()) == list(range(120))
    skewed = domain(LABELS, {"domain": FOUR}, 12, rng(), inside=partial(dirichlet, alpha=0.05))
    assert drawn(skewed) == drawn(parts) and max(sizes(skewed)) > 15


@pytest.mark.parametrize(("clients", "each", "expected"), [
    (3, 1, "the data has 4 domains, but 3 clients with domains-per-client=1 cover 3; set domains-per-client=2 or clients=4"),
    (1, 3, "set domains-per-client=4 or clients=2"),
    (4, 5, r"domains-per-client in 1\.\.4, the number of domains in the data, got 5"),
    (4, 0, r"domains-per-client in 1\.\.4"),
    (0, 1, "at least 1 client"),
    (121, 1, "use fewer clients"),
])
def test_domains_that_do_not_add_up(clients: int, each: int, expected: str) -> None:
    with pytest.raises(PartitionError, match=expected):
        domain(LABELS, {"domain": FOUR}, clients, rng(), domains_per_client=each)


def test_a_domain_too_small_for_its_clients_is_told_without_its_name() -> None:
    column = np.array(["lab"] * 118 + ["ward"] * 2)
    with pytest.raises(PartitionError) as caught:
        domain(LABELS, {"domain": column}, 6, rng())
    assert str(caught.value) == ("one of the 2 domains, shared by 3 clients: 3 clients need at least as many samples, but the data "
                                 "has 2; use fewer clients")


def test_every_value_of_the_client_column_is_a_client() -> None:
    owners = np.array(["eve", "bob", "eve", "ada", "bob", "eve"])
    parts = natural(np.zeros(6, int), {"client": owners}, 3, rng())
    assert [sorted(part.tolist()) for part in parts] == [[3], [1, 4], [0, 2, 5]]
    assert all(part.dtype == np.int64 for part in parts)


def test_fewer_natural_clients_are_a_random_choice_in_order() -> None:
    owners = np.repeat([f"{n:02d}" for n in range(20)], 2)
    chosen = {tuple(owners[part][0] for part in natural(np.zeros(40, int), {"client": owners}, 5, rng(seed))) for seed in range(10)}
    assert len(chosen) > 5
    assert all(list(names) == sorted(names) for names in chosen)
    assert len({name for names in chosen for name in names}) > 15


def test_more_clients_than_natural_ones_are_refused() -> None:
    with pytest.raises(PartitionError, match="`client` column has 2 values, one a client, but clients=3; set clients=2 or fewer"):
        natural(np.zeros(4, int), {"client": np.array(["a", "a", "b", "b"])}, 3, rng())


@pytest.mark.parametrize("column", ["domain", "client"])
def test_a_missing_column_and_gaps_in_one_are_told(column: str) -> None:
    partition = domain if column == "domain" else natural
    with pytest.raises(PartitionError, match=f"needs a `{column}` column, which the data does not have"):
        partition(LABELS, {}, 1, rng())
    gaps = FOUR.copy()
    gaps[[3, 9]] = ""
    with pytest.raises(PartitionError, match=f"`{column}` column is empty for 2 of 120 samples"):
        partition(LABELS, {column: gaps}, 4, rng())
