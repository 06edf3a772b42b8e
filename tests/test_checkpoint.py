"""Checkpoints: what comes back is what was saved, and a stop at any moment leaves the one before."""

from __future__ import annotations

import dataclasses
import errno
import json
import logging
import math
import os
import tracemalloc
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np
import pytest

from server_app import checkpoint
from server_app.checkpoint import CheckpointError, Checkpoints, dump, restore, state_types


@dataclass(frozen=True)
class Cluster:
    centre: np.ndarray
    members: tuple[str, ...]


@dataclass(frozen=True)
class State:
    encoder: Mapping[str, np.ndarray]
    clusters: tuple[Cluster, ...] = ()
    best: Cluster | None = None
    history: list[dict[str, float]] = field(default_factory=list)
    round: int = 0
    size: int = field(init=False, default=0)

    def __post_init__(self) -> None:
        if self.round < 0:
            raise ValueError("a negative round")
        object.__setattr__(self, "size", len(self.clusters))


@dataclass(frozen=True)
class Outer:
    rule: Any


def state_of(number: int) -> State:
    rng = np.random.default_rng(number)
    centre = rng.normal(size=(2, 3))
    return State(
        encoder={
            "z": rng.normal(size=5).astype(np.float32),
            "a": np.arange(6).reshape(2, 3).T,
            "n": np.array(3),
        },
        clusters=(Cluster(centre, ("c1", "c0")), Cluster(np.zeros((0, 2), bool), ())),
        best=Cluster(centre, ("c1",)),
        history=[{"loss": 0.1, "bad": math.nan, "far": -math.inf}, {}],
        round=number,
    )


def assert_same(got: object, expected: object) -> None:
    if isinstance(expected, np.ndarray | np.generic):
        assert type(got) is type(expected) and got.dtype == expected.dtype and got.shape == expected.shape
        assert got.tobytes() == expected.tobytes()
    elif dataclasses.is_dataclass(expected):
        assert type(got) is type(expected)
        assert_same(vars(got), vars(expected))
    elif isinstance(expected, Mapping):
        assert type(got) is dict and list(got) == list(expected)
        for key in expected:
            assert_same(got[key], expected[key])
    elif isinstance(expected, list | tuple):
        assert type(got) is type(expected) and len(got) == len(expected)
        for one, other in zip(got, expected, strict=True):
            assert_same(one, other)
    else:
        assert type(got) is type(expected) and repr(got) == repr(expected)


@pytest.mark.parametrize(
    "value",
    [None, True, 7, -(2**70), 0.1, -0.0, math.inf, "é", [], (), {}, [1, (2, [3.0])], {"list": ["dict", "0"]},
     np.float32(0.1), np.int64(3), np.float64(2), np.bool_(True), np.array(2.5), np.zeros((0, 4), np.float16),
     MappingProxyType({"b": 1, "a": (np.arange(3),)}), np.arange(10)[::3], np.array([0, 255], np.uint8)],
)  # fmt: skip
def test_any_value_comes_back_as_it_was(value: object) -> None:
    arrays, tree = dump(value)
    assert_same(restore(json.loads(json.dumps(tree)), arrays), value)


def test_a_nested_state_survives_the_disk(tmp_path: Path) -> None:
    state = state_of(3)
    extra = {"acked": {"c0": 2}, "seconds": 1.5, "pair": (1, "x"), "sizes": np.arange(3)}
    Checkpoints(tmp_path / "new").save(3, state, extra)
    found = Checkpoints(tmp_path / "new").latest(State)
    assert found is not None and found[0] == 3
    assert_same(found[1], state)
    assert_same(found[2], extra)
    assert found[1].size == 2
    # one array in two places is written once and comes back as one
    assert found[1].best is not None and found[1].best.centre is found[1].clusters[0].centre
    assert len(dump(state)[0]) == 5


def test_arrays_made_on_the_fly_are_told_apart() -> None:
    class Fresh(Mapping):
        def __getitem__(self, key: str) -> np.ndarray:
            return np.full((2, 4), int(key))[:, ::2]

        def __iter__(self):
            return iter(map(str, range(50)))

        def __len__(self) -> int:
            return 50

    arrays, tree = dump(Fresh())
    assert [int(array[0, 0]) for array in restore(tree, arrays).values()] == list(range(50))


def test_dump_does_not_copy_and_restore_needs_a_listed_type() -> None:
    state = State({"w": np.zeros(1000)})
    arrays, tree = dump(state)
    assert np.shares_memory(arrays["0"], state.encoder["w"])
    assert state_types(State) == (State, Cluster)
    with pytest.raises(CheckpointError, match="got tests.test_checkpoint:State"):
        restore(tree, arrays, (Cluster,))
    arrays, tree = dump(Outer(state))
    assert_same(restore(tree, arrays, state_types(Outer, State)), Outer(state))


@pytest.mark.parametrize(
    ("bad", "where"),
    [
        ({"a": {1: 2}}, r"state\['a'\]: expected string keys, got 1"),
        ([0, {1, 2}], r"state\[1\]: expected a dataclass.* got set"),
        (Outer(b"x"), r"state\.rule: .* got bytes"),
        (Outer(np.array([None])), r"state\.rule: expected numbers"),
        ((State,), r"state\[0\]: .* got type"),
    ],
)
def test_what_has_no_place_in_a_state_is_named(bad: object, where: str) -> None:
    with pytest.raises(CheckpointError, match=where):
        dump(bad)


def test_a_checkpoint_of_another_version_is_told() -> None:
    arrays, tree = dump(Cluster(np.zeros(2), ()))
    del tree[1][1]["members"]
    with pytest.raises(CheckpointError, match=r"fields \['centre', 'members'\], the checkpoint \['centre'\]"):
        restore(tree, arrays, (Cluster,))
    arrays, tree = dump(State({}))
    tree[1][1]["round"] = -1
    with pytest.raises(CheckpointError, match="refuses what the checkpoint holds: a negative round"):
        restore(tree, arrays, (State,))
    for damaged in (["list"], ["array", "9"], ["dict", 3], ["pickle", "x"]):
        with pytest.raises(CheckpointError):
            restore(damaged, {})


def test_two_are_kept_and_the_newest_is_the_latest(tmp_path: Path) -> None:
    checkpoints = Checkpoints(tmp_path)
    assert checkpoints.latest(State) is None
    for number in (1, 2, 3, 4):
        checkpoints.save(number, state_of(number))
    assert checkpoints.rounds() == (3, 4)
    (tmp_path / ".tmpXyz").write_bytes(b"half")
    # resumed from 3, round 4 is run again; later ones are of the run that was given up
    checkpoints.save(100_000, state_of(7))
    checkpoints.save(4, state_of(44))
    assert sorted(os.listdir(tmp_path)) == ["round-00004.safetensors"]
    found = checkpoints.latest(State)
    assert found is not None and found[0] == 4
    assert_same(found[1], state_of(44))


@pytest.mark.parametrize("damage", ["truncate", "flip", "garbage", "empty", "other"])
def test_a_damaged_newest_falls_back(tmp_path: Path, caplog: pytest.LogCaptureFixture, damage: str) -> None:
    checkpoints = Checkpoints(tmp_path)
    checkpoints.save(1, state_of(1), {"k": 1})
    checkpoints.save(2, state_of(2), {"k": 2})
    spoil(tmp_path / "round-00002.safetensors", damage)
    with caplog.at_level(logging.WARNING):
        found = checkpoints.latest(State)
    assert found is not None and (found[0], found[2]) == (1, {"k": 1})
    assert_same(found[1], state_of(1))
    assert "checkpoint of round 2 passed over" in caplog.text
    spoil(tmp_path / "round-00001.safetensors", "garbage")
    with pytest.raises(CheckpointError, match="no checkpoint in .* can be used"):
        checkpoints.latest(State)


def spoil(path: Path, damage: str) -> None:
    content = path.read_bytes()
    place = len(content) - 3
    changed = {
        "truncate": content[:place],
        "flip": content[:place] + bytes([content[place] ^ 1]) + content[place + 1 :],
        "garbage": b"\xff" * 300,
        "empty": b"",
    }
    path.write_bytes(
        changed[damage] if damage in changed else path.with_name("round-00001.safetensors").read_bytes()
    )


@pytest.mark.parametrize("call", ["fsync", "replace"])
def test_stopped_while_saving_the_one_before_stays(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, call: str
) -> None:
    checkpoints = Checkpoints(tmp_path)
    checkpoints.save(1, state_of(1))

    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as patch:
        patch.setattr(os, call, full)
        with pytest.raises(CheckpointError, match="round 2 could not be written .*No space left"):
            checkpoints.save(2, state_of(2))
    assert os.listdir(tmp_path) == ["round-00001.safetensors"]

    def stop(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(checkpoint, "save_file", stop)
    with pytest.raises(KeyboardInterrupt):
        checkpoints.save(2, state_of(2))
    found = checkpoints.latest(State)
    assert found is not None and found[0] == 1


def test_the_wrong_kind_of_state_is_told(tmp_path: Path) -> None:
    Checkpoints(tmp_path).save(1, Cluster(np.zeros(1), ()))
    with pytest.raises(CheckpointError, match="expected a State in .*, got Cluster"):
        Checkpoints(tmp_path).latest(State)


def test_saving_holds_no_second_copy(tmp_path: Path) -> None:
    state = State({str(i): np.ones(100_000) for i in range(10)})
    tracemalloc.start()
    try:
        Checkpoints(tmp_path).save(1, state)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    # the state is 8 MB
    assert peak < 800_000
