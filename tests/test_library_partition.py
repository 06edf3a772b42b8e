"""Partitioners of flwr-datasets by name: the same split as calling them, seeded, and clear errors for the rest."""

from __future__ import annotations

import sys

import numpy as np
import pytest

from client_app.data.library_partition import arguments_of, library_partition
from client_app.data.partition import PartitionError
from tests.data_cases import rng

pytest.importorskip("flwr_datasets")
LABELS = rng(1).integers(0, 5, 600)
OWNERS = np.repeat(["ada", "bob", "eve"], 200)


def parts_of(call: str, clients: int, seed: int = 0) -> list[np.ndarray]:
    return library_partition(LABELS, {"client": OWNERS}, clients, rng(seed), call=call)


@pytest.mark.parametrize("call", [
    "IidPartitioner", "DirichletPartitioner?alpha=0.5", "DirichletPartitioner?alpha=0.5&partition_by=label&min_partition_size=2",
    'DirichletPartitioner?{"alpha": 0.5, "partition_by": "label"}', "ShardPartitioner?num_shards_per_partition=2",
    "PathologicalPartitioner?num_classes_per_partition=2&class_assignment_mode=deterministic", "LinearPartitioner", "SquarePartitioner",
])
def test_a_partitioner_divides_all_samples_by_the_runs_seed(call: str) -> None:
    parts = parts_of(call, 5)
    assert sorted(np.concatenate(parts).tolist()) == list(range(600))
    assert all(part.dtype == np.int64 for part in parts)
    assert [part.tolist() for part in parts_of(call, 5)] == [part.tolist() for part in parts]
    assert [part.tolist() for part in parts_of(call, 5, seed=1)] != [part.tolist() for part in parts]


def test_sizes_and_labels_are_those_the_partitioner_promises() -> None:
    assert [len(part) for part in parts_of("IidPartitioner", 4)] == [150] * 4
    assert [len(part) for part in parts_of("LinearPartitioner", 4)] == [60, 120, 180, 240]
    assert [len(set(LABELS[part].tolist())) for part in parts_of("PathologicalPartitioner?num_classes_per_partition=2", 5)] == [2] * 5


def test_columns_of_the_data_can_be_named() -> None:
    parts = parts_of("NaturalIdPartitioner?partition_by=client", 3)
    assert [set(OWNERS[part].tolist()) for part in parts] == [{"ada"}, {"bob"}, {"eve"}]
    with pytest.raises(PartitionError, match="NaturalIdPartitioner makes 3 parts of these data, but clients=4; set clients=3"):
        parts_of("NaturalIdPartitioner?partition_by=client", 4)


@pytest.mark.parametrize(("call", "expected"), [
    ("DirichletPartitionr?alpha=1", "no partitioner 'DirichletPartitionr'; it has .*DirichletPartitioner"),
    ("Partitioner", "no partitioner 'Partitioner'"),
    ("IidPartitioner?alpha=1", "IidPartitioner takes num_partitions; got alpha"),
    ("DirichletPartitioner", r"alpha must be given: \.\.\.\?alpha=VALUE"),
    ("DirichletPartitioner?alpha=x", "DirichletPartitioner of flwr-datasets failed with"),
    ("DirichletPartitioner?alpha=1&partition_by=colour", "failed with"),
    ("IidPartitioner?num_partitions", "key=value joined by '&'"),
    ("IidPartitioner?{num", "no JSON object"),
    ("SizePartitioner?partition_sizes=[600, 0, 0]", "SizePartitioner"),
])
def test_what_cannot_be_done_is_told(call: str, expected: str) -> None:
    with pytest.raises(PartitionError, match=expected):
        parts_of(call, 3)


def test_more_clients_than_samples_are_refused_before_the_library_is_asked() -> None:
    with pytest.raises(PartitionError, match="use fewer clients"):
        library_partition(LABELS[:2], {}, 3, rng(), call="NoSuchPartitioner")


def test_without_the_extra_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "flwr_datasets", None)
    with pytest.raises(PartitionError, match=r"pip install 'fedhearth\[hub\]'"):
        parts_of("IidPartitioner", 3)


def test_arguments_are_json_where_they_can_be() -> None:
    assert arguments_of("a=0.5&b=label&c=true&d=[1,2]") == {"a": 0.5, "b": "label", "c": True, "d": [1, 2]}
    assert arguments_of('{"a": 0.5, "b": "x&y"}') == {"a": 0.5, "b": "x&y"}
    assert arguments_of("") == {}
