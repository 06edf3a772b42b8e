"""Slots of many tensors travel as one array: same bits, fewer objects, and no way to disagree unnoticed."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import numpy as np
import pytest

from strategies.packing import PACK_FROM, flat_of, key_of, packs, split
from strategies.types import layout_of
from strategies.wire import Slot, Wire, WireViolation, pack, pack_slot, sent_views, unpack

WIRE = Wire(down=(), up=(Slot("encoder", "", "", like="encoder"),), local=())


def tensors(count: int = PACK_FROM) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(count)
    return {f"layer{i}.weight": rng.normal(size=(i + 1, 2)).astype(np.float32) for i in range(count)}


def test_a_flat_array_is_cut_where_its_tensors_end() -> None:
    layout = {"a": ((2, 2), "float32"), "b": ((), "float32"), "c": ((0, 3), "float32"), "d": ((3,), "float32")}
    assert flat_of(layout) == ((8,), "float32")
    parts = split(np.arange(8, dtype=np.float32), layout)
    assert parts["a"].tolist() == [[0, 1], [2, 3]] and parts["b"] == 4 and parts["c"].shape == (0, 3) and parts["d"].tolist() == [5, 6, 7]


@pytest.mark.parametrize("travel", ["float32", "float16", "bfloat16"])
def test_many_tensors_are_one_object_and_come_back_as_they_were(travel: str) -> None:
    sent = {name: np.float32(np.round(t * 4) / 4) for name, t in tensors(20).items()}  # exact in every precision
    record = pack_slot(sent, travel)
    (only,) = record.values()
    size = sum(t.size for t in sent.values())
    assert list(record) == [key_of(layout_of(sent))] and len(only.data) == 128 + size * (4 if travel == "float32" else 2)
    wire = Wire(down=(), up=WIRE.up, local=(), travel=travel)
    back = unpack(wire, "up", pack({"encoder": sent}, travel=travel), {"encoder": layout_of(sent)})["encoder"]
    assert list(back) == list(sent)
    for name, tensor in sent.items():
        np.testing.assert_array_equal(back[name], tensor)


def test_few_tensors_or_mixed_dtypes_keep_their_names() -> None:
    assert list(pack_slot(tensors(PACK_FROM - 1))) == list(tensors(PACK_FROM - 1))
    mixed = tensors() | {"sketch": np.zeros(3, np.float16)}
    assert not packs(layout_of(mixed)) and list(pack_slot(mixed)) == list(mixed)


def test_tensors_that_are_computed_when_asked_for_are_asked_for_once() -> None:
    class Computed(Mapping[str, np.ndarray]):
        asked: list[str] = []

        def __getitem__(self, name: str) -> np.ndarray:
            self.asked.append(name)
            return tensors()[name]

        def __iter__(self) -> Iterator[str]:
            return iter(tensors())

        def __len__(self) -> int:
            return PACK_FROM

    computed = Computed()
    (lazy,), (eager,) = pack_slot(computed).values(), pack_slot(tensors()).values()
    assert lazy.data == eager.data and computed.asked == list(tensors())


def swapped(sent: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    return dict(reversed(sent.items()))


@pytest.mark.parametrize("change", [
    swapped,
    lambda sent: {f"other.{name}": t for name, t in sent.items()},
    lambda sent: {name: t.T for name, t in sent.items()},
    lambda sent: {name: t.astype(np.float64) for name, t in sent.items()},
    lambda sent: sent | {"head.weight": np.zeros((2, 2), np.float32)},
    lambda sent: dict(list(sent.items())[:-1]) | {"tail": np.zeros((1, 1), np.float32)},
], ids=["order", "names", "shapes", "dtype", "one too many", "another last one"])
def test_sides_that_disagree_do_not_find_each_others_key(change) -> None:  # type: ignore[no-untyped-def]
    content = pack({"encoder": change(tensors())})
    with pytest.raises(WireViolation) as refused:
        unpack(WIRE, "up", content, {"encoder": layout_of(tensors())})
    assert refused.value.kind == "names"


def test_a_nan_deep_inside_is_found() -> None:
    bad = tensors()
    bad["layer4.weight"][3, 1] = np.nan
    with pytest.raises(WireViolation) as refused:
        unpack(WIRE, "up", pack({"encoder": bad}), {"encoder": layout_of(bad)})
    assert refused.value.kind == "non-finite"


def test_what_is_sent_can_be_read_without_a_copy() -> None:
    sent = tensors()
    record = pack_slot(sent)
    views = sent_views(record, layout_of(sent))
    (only,) = record.values()
    assert all(np.shares_memory(view, np.frombuffer(only.data, np.uint8)) for view in views.values())
    for name, tensor in sent.items():
        np.testing.assert_array_equal(views[name], tensor)
