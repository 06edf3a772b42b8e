"""Client data: what is refused, what the sources read, and that ``open_data`` and ``manifest`` agree."""

from __future__ import annotations

import hashlib
import json
import os
import pickle
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from client_app.data import (
    ClientData,
    DataError,
    PartitionError,
    data_digest,
    manifest,
    open_data,
    opening,
    simulated,
)
from client_app.data.byte_lru import ByteLru
from client_app.data.holdout import split_train_test
from client_app.data.partition import iid
from client_app.data.simulated import indices_of, plan_of
from client_app.data.sources import load_source, origin_of
from client_app.node import client_name
from strategies.config import RunConfig
from strategies.partition_names import NAMES
from strategies.seeds import derive_seed
from strategies.split_hash import combined_hash
from tests.data_cases import FakeNode, node, split, write_npz

PARTITIONS = ("iid", "label-subset", "dirichlet", "rotation", "quantity", "rotation+label-subset", "rotation+dirichlet")
REAL_DATA = "FEDHEARTH_DATA"


def forget() -> None:
    """Empty every cache, as a restarted worker would have it."""
    load_source.cache_clear()
    simulated._shares.cache_clear()
    opening._CACHE = ByteLru(opening.CACHE_BYTES)


# what a Split and a ClientData refuse


@pytest.mark.parametrize(("changes", "expected"), [
    ({"images": np.zeros((4, 2, 2), np.uint8)}, "4 axes"),
    ({"images": [[1]]}, "numpy array"),
    ({"images": np.zeros((4, 1, 2, 2))}, "uint8 or float32 images, got float64"),
    ({"images": np.zeros((4, 1, 2, 2), ">f4")}, "uint8 or float32"),
    ({"images": np.zeros((4, 2, 2, 5), np.uint8).transpose(0, 3, 1, 2)}, "1 to 4 channels.*got 5"),
    ({"images": np.zeros((4, 1, 0, 2), np.uint8)}, "one pixel"),
    ({"images": np.full((4, 1, 2, 2), np.nan, np.float32)}, "NaN or infinity"),
    ({"images": np.full((4, 1, 2, 2), np.inf, np.float32)}, "NaN or infinity"),
    ({"labels": np.zeros(4)}, "expected labels as a numpy array of integers"),
    ({"labels": np.zeros((4, 1), int)}, "one axis"),
    ({"labels": np.zeros(3, int)}, "4 images, 3 labels and 4 ids"),
    ({"ids": np.array([0, 1, 1, 2])}, "ids repeat"),
    ({"ids": np.array(["a", "b", "c", "d"])}, "expected ids as a numpy array of integers"),
])
def test_a_malformed_split_is_refused(changes: dict[str, Any], expected: str) -> None:
    with pytest.raises(DataError, match=expected):
        split(**changes)


@pytest.mark.parametrize(("labels", "classes"), [
    ([0, 2], ("a", "b")), ([-1, 0], ("a", "b")), ([0, 1], ("a",)),
    (np.array([2**63, 0], np.uint64), ("a", "b")),
])
def test_labels_out_of_range_are_refused_without_naming_them(labels: Any, classes: tuple[str, ...]) -> None:
    with pytest.raises(DataError) as caught:
        ClientData(split(2, labels=np.array(labels)), split(0), classes)
    assert str(caught.value) == "label out of range: expected 0..C-1, where C is the number of class names"
    with pytest.raises(DataError, match="label out of range"):
        ClientData(split(1, labels=np.array([0])), split(2, 1, labels=np.array(labels)), classes)


def test_parts_that_do_not_fit_are_refused() -> None:
    train, names = split(4), ("a", "b")
    with pytest.raises(DataError, match="at least one training sample"):
        ClientData(split(0), split(4), names)
    with pytest.raises(DataError, match="at least one class name"):
        ClientData(train, train.empty_like(), ())
    with pytest.raises(DataError, match="ids overlap"):
        ClientData(train, split(2, 3), names)
    with pytest.raises(DataError, match="one shape"):
        ClientData(train, split(1, 4, images=np.zeros((1, 1, 3, 3), np.uint8)), names)
    with pytest.raises(DataError, match="one dtype"):
        ClientData(train, split(1, 4, images=np.zeros((1, 1, 2, 2), np.float32)), names)


def test_the_smallest_client_has_one_sample_of_one_class_and_no_test() -> None:
    train = split(1, labels=np.array([0], np.uint8))
    data = ClientData(train, train.empty_like(), ("only",))
    assert data.input_shape == (1, 2, 2)
    assert (len(data.train), len(data.test), data.test.images.shape) == (1, 0, (0, 1, 2, 2))
    assert data.class_counts().tolist() == [1]
    assert data.train.labels.dtype == data.train.ids.dtype == np.int64
    assert data.nbytes == data.train.nbytes == 4 + 8 + 8


def test_class_counts_are_of_train_and_cover_absent_classes() -> None:
    data = ClientData(split(5), split(2, 5), ("a", "b", "c"))
    assert data.class_counts().tolist() == [3, 2, 0]


def test_read_only_leaves_the_owner_its_arrays() -> None:
    images = np.zeros((4, 1, 2, 2), np.uint8)
    data = ClientData(split(images=images), split(0), ("a", "b")).read_only()
    with pytest.raises(ValueError, match="read-only"):
        data.train.images[0] = 1
    images[0] = 1
    assert data.train.images[0].tolist() == [[[1, 1], [1, 1]]]


def test_a_data_error_travels_with_its_path_apart() -> None:
    error = pickle.loads(pickle.dumps(DataError("what went wrong", "/home/secret")))
    assert (str(error), error.path) == ("what went wrong", "/home/secret")


# the whole split of a simulation


@pytest.mark.parametrize("test_split", ["own", "official"])
@pytest.mark.parametrize("partition", [name for name in NAMES if "natural" not in name])
def test_open_data_and_manifest_agree(tmp_path: Path, partition: str, test_split: str) -> None:
    rng = np.random.default_rng(0)
    spec = write_npz(
        tmp_path / "a.npz", ("class_names",),
        x_train=rng.integers(0, 256, (120, 4, 4), np.uint8), y_train=np.arange(120) % 6,
        x_test=rng.integers(0, 256, (60, 4, 4), np.uint8), y_test=np.arange(60) % 6,
        domain=np.repeat(["lab", "ward"], 90)[rng.permutation(180)],
    )
    config = RunConfig(dataset=spec, partition=partition, clients=5, alpha=0.5, test_split=test_split)
    record = manifest(config)
    clients = [open_data(config, node(index, 5)) for index in range(5)]
    digests = {client_name(index): data_digest(data) for index, data in enumerate(clients)}
    assert record["hash"] == combined_hash(dict(reversed(digests.items())))
    ids = np.concatenate([part.ids for data in clients for part in (data.train, data.test)])
    assert len(np.unique(ids)) == len(ids) == 180 - record["unused"]
    # two or three clients of two classes each cannot cover a domain's six
    assert (record["unused"] == 0) == ("domain" not in partition or "label-subset" not in partition)
    for index, data in enumerate(clients):
        name = client_name(index)
        assert record["train"][name] == data.class_counts().tolist()
        assert record["test"][name] == np.bincount(data.test.labels, minlength=6).tolist()
        assert record["groups"][name] == data.group
        assert np.isin(data.test.labels, data.train.labels).all()
        if test_split == "official":
            assert (data.train.ids < 120).all() and (data.test.ids >= 120).all()
        elif "dirichlet" not in partition and "domain" not in partition:  # there, a stratum of one is only trained on
            assert len(data.test) == round(0.25 * (len(data.train) + len(data.test)))
    assert json.loads(json.dumps(record)) == record


def test_unused_counts_the_classes_nobody_holds(tmp_path: Path) -> None:
    spec = write_npz(tmp_path / "a.npz")
    config = RunConfig(dataset=spec, partition="label-subset", clients=2, classes_per_client=1)
    assert manifest(config)["unused"] == 6  # one of three classes, 18 samples in all


def ward_and_lab(path: Path, **changes: Any) -> str:
    """12 training images of the owners a, b, c and a; 6 test images of a, b, b, c, c and c; all but owner c are of the ward."""
    train, test = np.repeat(["a", "b", "c", "a"], 3), np.array(["a", "b", "b", "c", "c", "c"])
    owners = np.concatenate([train, test])
    return write_npz(path, y_train=np.zeros(12, int), y_test=np.zeros(6, int), class_names=np.array(["only"]),
                     **{"client": owners, "domain": np.where(owners == "c", "lab", "ward"), **changes})


def test_domains_group_their_clients_and_keep_their_official_tests(tmp_path: Path) -> None:
    config = RunConfig(dataset=ward_and_lab(tmp_path / "a.npz"), partition="domain", clients=3, test_split="official")
    record = manifest(config)
    # lab: client 0 and 2 divide its 3 and 3; ward: client 1 has all 9 and 3
    assert record["groups"] == {"client-000": "lab", "client-001": "ward", "client-002": "lab"}
    assert record["domains"] == {"client-000": {"lab": sum(record["train"]["client-000"] + record["test"]["client-000"])},
                                 "client-001": {"ward": 12},
                                 "client-002": {"lab": sum(record["train"]["client-002"] + record["test"]["client-002"])}}
    assert (record["train"]["client-001"], record["test"]["client-001"]) == ([9], [3])
    assert sorted(record["train"][c][0] for c in ("client-000", "client-002")) == [1, 2]
    assert record["unused"] == 0 and "natural" not in record
    assert open_data(config, node(1, 3)).group == "ward"


def test_natural_clients_keep_their_own_official_tests(tmp_path: Path) -> None:
    config = RunConfig(dataset=ward_and_lab(tmp_path / "a.npz"), partition="natural", clients=3, test_split="official")
    record = manifest(config)
    assert record["natural"] == {"client-000": "a", "client-001": "b", "client-002": "c"}
    assert list(record["train"].values()) == [[6], [3], [3]] and list(record["test"].values()) == [[1], [2], [3]]
    assert set(record["groups"].values()) == {""}
    two = manifest(replace(config, clients=2))
    left_out = ({"a", "b", "c"} - set(two["natural"].values())).pop()
    assert two["unused"] == {"a": 7, "b": 5, "c": 6}[left_out]


def test_rotation_goes_on_top_of_any_division(tmp_path: Path) -> None:
    plain, on_top = (RunConfig(partition=partition, alpha=0.5) for partition in ("dirichlet", "rotation+dirichlet"))
    for index in (0, 5):
        data, turned = (open_data(config, node(index, 20)) for config in (plain, on_top))
        np.testing.assert_array_equal(data.train.ids, turned.train.ids)
        np.testing.assert_array_equal(np.rot90(data.test.images, index % 4, axes=(2, 3)), turned.test.images)
        assert (data.group, turned.group) == ("", str(90 * (index % 4)))
    both = manifest(RunConfig(dataset=ward_and_lab(tmp_path / "a.npz"), partition="rotation+domain", clients=3))
    assert list(both["groups"].values()) == ["lab/0", "ward/90", "lab/180"]


def test_the_hash_covers_who_is_held_out() -> None:
    config = RunConfig(held_out=0.2)
    record, nobody = manifest(config), manifest(replace(config, held_out=0.0))
    assert len(record["held_out"]) == 4 and record["held_out"] == sorted(record["held_out"])
    assert set(record["held_out"]) < set(record["train"]) and nobody["held_out"] == []
    assert {**record, "held_out": [], "hash": ""} == {**nobody, "hash": ""}
    assert record["hash"] != nobody["hash"]
    assert manifest(config)["held_out"] == record["held_out"] != manifest(replace(config, seed=1))["held_out"]


def test_the_flower_library_divides_by_name() -> None:
    pytest.importorskip("flwr_datasets")
    config = RunConfig(partition="rotation+flwr-datasets:ShardPartitioner?num_shards_per_partition=2", clients=8)
    record = manifest(config)
    assert record["unused"] == 1797 - 16 * 112 and record["groups"]["client-005"] == "90"
    assert open_data(config, node(5, 8)).class_counts().tolist() == record["train"]["client-005"]
    # two shards of labels in order: two classes, or three where a border runs through a shard
    assert max(np.count_nonzero(counts) for counts in record["train"].values()) <= 4


def test_seeds_are_named_by_purpose_and_client() -> None:
    labels = load_source(origin_of("digits")).labels
    parts = iid(labels, {}, 20, np.random.default_rng(derive_seed(3, "partition")))
    for index in (0, 7):
        rng = np.random.default_rng(derive_seed(3, "split", index))
        train, test = split_train_test(labels, parts[index], 0.25, rng)
        data = open_data(RunConfig(partition="iid", seed=3), node(index, 20))
        np.testing.assert_array_equal(data.train.ids, train)
        np.testing.assert_array_equal(data.test.ids, test)


@pytest.mark.parametrize("partition", PARTITIONS)
def test_twenty_clients_share_the_digits(partition: str) -> None:
    record = manifest(RunConfig(partition=partition))
    sizes = np.array([sum(record["train"][c]) + sum(record["test"][c]) for c in record["train"]])
    assert sizes.sum() == 1797 and record["unused"] == 0 and len(sizes) == 20
    if partition in ("iid", "rotation"):
        assert sorted(sizes) == [89] * 3 + [90] * 17
    if "label-subset" in partition:
        assert all(np.count_nonzero(counts) == 2 for counts in record["train"].values())
    groups = Counter(record["groups"].values())
    assert groups == ({"0": 5, "90": 5, "180": 5, "270": 5} if "rotation" in partition else {"": 20})


def test_rotation_turns_train_and_test_of_a_client() -> None:
    source = load_source(origin_of("digits"))
    config = RunConfig(partition="rotation")
    for index, group in ((0, "0"), (1, "90"), (6, "180"), (19, "270")):
        data = open_data(config, node(index, 20))
        assert data.group == group
        for part in (data.train, data.test):
            back = np.rot90(part.images, -int(group) // 90, axes=(2, 3))
            np.testing.assert_array_equal(back, source.images[part.ids])
            np.testing.assert_array_equal(part.labels, source.labels[part.ids])


def test_the_same_seed_gives_the_same_split_in_a_fresh_worker() -> None:
    config = RunConfig(partition="dirichlet")
    first, digest = manifest(config), data_digest(open_data(config, node(3, 20)))
    forget()
    assert data_digest(open_data(config, node(3, 20))) == digest  # before anything else is opened
    assert manifest(config) == first
    hashes = {manifest(replace(config, **change))["hash"] for change in (
        {}, {"seed": 1}, {"alpha": 0.2}, {"clients": 19}, {"test_fraction": 0.3}, {"partition": "iid"},
        {"partition": "rotation"})}
    assert len(hashes) == 7


def test_the_digest_covers_ids_labels_and_group_but_no_pixels() -> None:
    data = ClientData(split(4), split(2, 4), ("a", "b"))
    images = ClientData(split(4, images=np.ones((4, 1, 2, 2), np.uint8)), split(2, 4), ("a", "b"))
    assert data_digest(data) == data_digest(images)
    others = [ClientData(split(4), split(2, 5), ("a", "b")),
              ClientData(split(4), split(2, 4), ("a", "b"), "90"),
              ClientData(split(4, labels=np.zeros(4, int)), split(2, 4), ("a", "b")),
              ClientData(split(3), split(3, 3), ("a", "b"))]
    assert len({data_digest(d) for d in (data, *others)}) == 5


def test_combined_hash_by_hand() -> None:
    expected = hashlib.sha256(b"client-000\taa\nclient-001\tbb\n").hexdigest()
    assert combined_hash({"client-001": "bb", "client-000": "aa"}) == expected
    assert combined_hash({"client-001": "aa", "client-000": "bb"}) != expected
    outside = hashlib.sha256(b"client-000\taa\nclient-001\tbb\n\theld out\tclient-001\n").hexdigest()
    assert combined_hash({"client-001": "bb", "client-000": "aa"}, ("client-001",)) == outside


@pytest.mark.parametrize(("changes", "error", "expected"), [
    ({"partition": "label-subset", "classes_per_client": 4, "clients": 4}, PartitionError, r"in 1\.\.3"),
    ({"clients": 19}, PartitionError, "use fewer clients"),
    ({"partition": "dirichlet", "clients": 10}, PartitionError, "10 clients need 20 samples"),
])
def test_impossible_splits_are_refused(
    tmp_path: Path, changes: dict[str, Any], error: type[Exception], expected: str
) -> None:
    config = replace(RunConfig(dataset=write_npz(tmp_path / "a.npz"), partition="iid"), **changes)
    with pytest.raises(error, match=expected):
        open_data(config, node(0, config.clients))
    with pytest.raises(error, match=expected):
        manifest(config)


def test_rotation_needs_square_images(tmp_path: Path) -> None:
    spec = write_npz(tmp_path / "a.npz", ("x_test", "y_test"), x_train=np.zeros((12, 4, 5), np.uint8))
    with pytest.raises(PartitionError, match="square"):
        manifest(RunConfig(dataset=spec, partition="rotation", clients=4))


def test_an_official_test_set_must_exist() -> None:
    with pytest.raises(DataError, match="no official test set; use test-split=own"):
        open_data(RunConfig(dataset="digits", test_split="official"), node(0, 20))


def test_a_partition_beyond_the_count_is_refused() -> None:
    with pytest.raises(DataError, match=r"0\.\.19, got 20"):
        open_data(RunConfig(), node(20, 20))


# a site's own file, and the caches


def test_a_site_keeps_its_whole_file_and_the_runs_partition_does_not_apply(tmp_path: Path) -> None:
    clinic = FakeNode("clinic", data=write_npz(tmp_path / "a.npz"))
    data = open_data(RunConfig(dataset="digits", partition="rotation"), clinic)
    assert sorted([*data.train.ids, *data.test.ids]) == list(range(18))
    assert (len(data.train), len(data.test), data.group) == (14, 4, "")  # round(4.5) is 4
    assert data.classes == ("ant", "bee", "cat")
    official = open_data(RunConfig(dataset="digits", test_split="official"), clinic)
    assert sorted(official.train.ids) == list(range(12))
    assert sorted(official.test.ids) == list(range(12, 18))


def test_a_site_with_one_sample_trains_on_it(tmp_path: Path) -> None:
    spec = write_npz(tmp_path / "a.npz", ("x_test", "y_test"), x_train=np.zeros((1, 4, 4), np.uint8),
                     y_train=np.array([2]))
    data = open_data(RunConfig(), FakeNode("clinic", data=spec))
    assert (len(data.train), len(data.test)) == (1, 0)
    assert data.class_counts().tolist() == [0, 0, 1]


def test_data_is_kept_read_only_and_read_anew_when_the_file_changes(tmp_path: Path) -> None:
    path = tmp_path / "a.npz"
    clinic = FakeNode("clinic", data=write_npz(path))
    config = RunConfig()
    first = open_data(config, clinic)
    assert open_data(config, clinic) is first
    assert open_data(replace(config, lr=0.5), clinic) is first
    assert open_data(replace(config, seed=1), clinic) is not first
    for array in (first.train.images, first.train.labels, first.test.ids):
        assert not array.flags.writeable
    write_npz(path, y_train=np.zeros(12, int))
    os.utime(path, ns=(1, 1))
    assert open_data(config, clinic).class_counts()[0] > first.class_counts()[0]


def test_the_cache_drops_the_longest_unused_beyond_its_bytes() -> None:
    data = ClientData(split(4), split(0), ("a", "b"))  # 16 + 32 + 32 bytes
    made: list[str] = []

    def get(cache: ByteLru, key: str) -> None:
        cache.get(key, lambda: made.append(key) or data)

    cache = ByteLru(limit=160)
    for key in ("a", "b", "a", "c", "a", "b"):
        get(cache, key)
    assert made == ["a", "b", "c", "b"] and len(cache) == 2
    tiny = ByteLru(limit=79)
    get(tiny, "a")
    assert len(tiny) == 0


@pytest.mark.skipif(REAL_DATA not in os.environ, reason=f"{REAL_DATA} does not name the folder of real data")
def test_real_cifar_images_are_divided_evenly() -> None:
    spec = f"npz:{Path(os.environ[REAL_DATA]) / 'cifar10_sub12k.npz'}"
    config = RunConfig(dataset=spec, partition="label-subset")
    record = manifest(config)
    assert all(sum(counts) == 450 for counts in record["train"].values())
    assert all(sum(counts) == 150 for counts in record["test"].values())
    data = open_data(config, node(0, 20))
    assert data.input_shape == (3, 32, 32) and data.train.images.dtype == np.uint8
    train, _ = indices_of(plan_of(config, 20), 0)
    np.testing.assert_array_equal(data.train.ids, train)
