"""The contract: what fits goes through unchanged, every lie is refused under its kind."""

from __future__ import annotations

import io
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from flwr.app import Array, ArrayRecord, ConfigRecord, MetricRecord, RecordDict
from hypothesis import given
from hypothesis import strategies as st

from strategies.hdc_fl import Config
from strategies.types import Round
from strategies.wire import (
    WireViolation,
    bytes_of,
    decode,
    encode,
    pack,
    pack_round,
    unpack,
    unpack_hello,
    unpack_round,
)
from tests.flower_cases import METRICS, PARTS, START, WIRE, array, hello, spoilt, three

ENCODED = np.arange(3, dtype=np.float32)


def saved(tensor: np.ndarray, pickle: bool = False) -> bytes:
    file = io.BytesIO()
    np.save(file, tensor, allow_pickle=pickle)
    return file.getvalue()


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
@pytest.mark.parametrize("shape", [(), (0,), (3,), (0, 4), (2, 3), (2, 1, 3, 2)])
def test_encode_is_flowers_own_encoding(dtype: str, shape: tuple[int, ...]) -> None:
    tensor = np.asarray(np.random.default_rng(0).standard_normal(shape)).astype(dtype)
    mine, flowers = encode(tensor), Array(tensor)
    assert (mine.dtype, mine.shape, mine.stype, mine.data) == (flowers.dtype, flowers.shape, flowers.stype, flowers.data)
    back = decode(mine, shape, dtype)
    assert back.tobytes() == tensor.tobytes() and back.shape == shape and str(back.dtype) == dtype
    assert not back.flags.writeable
    assert np.array_equal(decode(flowers, shape, dtype), flowers.numpy())


def test_strided_tensors_keep_their_values() -> None:
    whole = np.arange(24, dtype=np.float32).reshape(4, 6)
    assert encode(whole[::2, 1::2]).data == Array(whole[::2, 1::2]).data
    for tensor in (whole[::2, 1::2], whole.T, np.asfortranarray(whole), whole[::-1]):
        assert np.array_equal(decode(encode(tensor), tensor.shape, "float32"), tensor)


def test_decoding_copies_nothing() -> None:
    wire = encode(np.zeros(1000, dtype=np.float32))
    assert np.shares_memory(decode(wire, (1000,), "float32"), np.frombuffer(wire.data, dtype=np.uint8))


LIES: dict[str, tuple[Array, str]] = {
    "another shape": (array(np.zeros(4, np.float32)), "shape"),
    "declares another shape": (array(ENCODED, shape=(4,)), "shape"),
    "header of another shape": (array(np.zeros((3, 1), np.float32), shape=(3,)), "shape"),
    "another dtype": (array(np.zeros(3, np.float64)), "dtype"),
    "declares another dtype": (array(ENCODED, dtype="float64"), "dtype"),
    "header of another dtype": (array(np.zeros(3, np.int32), dtype="float32"), "dtype"),
    "big endian": (array(ENCODED.astype(">f4"), dtype="float32"), "dtype"),
    "ten times the size": (array(ENCODED, data=saved(ENCODED) + b"\0" * 108), "size"),
    "far too long": (array(np.zeros(4000, np.float32), shape=(3,)), "size"),
    "truncated": (array(ENCODED, data=saved(ENCODED)[:-1]), "size"),
    "half a header": (array(ENCODED, data=saved(ENCODED)[:20]), "encoding"),
    "pickled": (array(ENCODED, data=saved(np.array([{}, 1, "x"], dtype=object), pickle=True)), "dtype"),
    "garbage": (array(ENCODED, data=b"not an array"), "encoding"),
    "nothing": (array(ENCODED, data=b""), "encoding"),
    "another version": (array(ENCODED, data=saved(ENCODED).replace(b"NUMPY\x01", b"NUMPY\x09")), "encoding"),
    "another serialisation": (array(ENCODED, stype="a secret"), "encoding"),
    "header that is no dict": (array(ENCODED, data=b"\x93NUMPY\x01\x00\x05\x00(1,)\n"), "encoding"),
    "empty descr": (array(ENCODED, data=saved(ENCODED).replace(b"'<f4'", b"()   ")), "encoding"),
    "NaN": (array(np.array([1, np.nan, 2], np.float32)), "non-finite"),
    "Inf": (array(np.array([1, np.inf, 2], np.float32)), "non-finite"),
    "-Inf": (array(np.array([1, -np.inf, 2], np.float32)), "non-finite"),
}


@pytest.mark.parametrize("lie", LIES)
def test_lies_about_a_tensor_are_refused(lie: str) -> None:
    wire, kind = LIES[lie]
    with pytest.raises(WireViolation) as refused:
        decode(wire, (3,), "float32")
    assert refused.value.kind == kind
    assert "secret" not in str(refused.value)


def test_fortran_order_is_refused() -> None:
    wire = array(np.asfortranarray(np.arange(6, dtype=np.float32).reshape(2, 3)))
    with pytest.raises(WireViolation, match="Fortran order") as refused:
        decode(wire, (2, 3), "float32")
    assert refused.value.kind == "shape"


@given(st.binary(max_size=200), st.integers(0, 139), st.binary(max_size=8))
def test_no_bytes_raise_anything_else(junk: bytes, at: int, patch: bytes) -> None:
    good = saved(ENCODED)
    for data in (junk, b"\x93NUMPY\x01\x00" + junk, good[:at] + patch + good[at + len(patch):], good[:10] + junk):
        try:
            assert np.isfinite(decode(array(ENCODED, data=data), (3,), "float32")).all()
        except WireViolation:
            pass


def record(tensors: dict[str, Any]) -> ArrayRecord:
    return ArrayRecord({name: array(tensor) for name, tensor in tensors.items()})


def put(name: str, made: Any) -> Callable[[RecordDict], None]:
    return lambda content: content.__setitem__(name, made)


def metrics(**changed: Any) -> Callable[[RecordDict], None]:
    return put("metrics", MetricRecord({**METRICS, **{k.replace("_", "-"): v for k, v in changed.items()}}))


BAD_UP: dict[str, tuple[Callable[[RecordDict], None], str]] = {
    "extra tensor": (put("encoder", record({"w": ENCODED, "head.weight": ENCODED})), "names"),
    "missing tensor": (put("encoder", ArrayRecord()), "names"),
    "another tensor": (put("encoder", record({"v": ENCODED})), "names"),
    "planted head": (put("head", record(dict(START["head"]))), "unknown-slot"),
    "slot that only goes down": (put("mixture", record({"w": ENCODED})), "unknown-slot"),
    "missing slot": (lambda content: content.__delitem__("encoder"), "missing-slot"),
    "planted text": (put("note", ConfigRecord({"label": "cat"})), "text"),
    "empty planted text": (put("note", ConfigRecord({"label": ""})), "text"),
    "text in the round's place": (put("round", ConfigRecord({"label": "cat"})), "text"),
    "a list of scalars": (metrics(loss=[0.1, 0.2]), "metrics"),
    "NaN": (metrics(loss=float("nan")), "metrics"),
    "Inf": (metrics(loss=float("inf")), "metrics"),
    "unknown scalar": (metrics(age=41), "metrics"),
    "scalars elsewhere": (put("more", MetricRecord({"loss": 1.0})), "metrics"),
    "score above 1": (metrics(served=1.5), "metrics"),
    "score below 0": (metrics(adapted_raw=-0.1), "metrics"),
    "negative count": (metrics(num_examples=-1), "metrics"),
    "half a count": (metrics(num_test=1.5), "metrics"),
    "wrong sketch": (put("descriptor", record({"descriptor": np.zeros(2, np.float32)})), "dtype"),
}


@pytest.mark.parametrize("case", BAD_UP)
def test_what_may_not_go_up(case: str) -> None:
    change, kind = BAD_UP[case]
    with pytest.raises(WireViolation) as refused:
        WIRE.check("up", spoilt(change), PARTS)
    assert refused.value.kind == kind
    assert "cat" not in str(refused.value) and "41" not in str(refused.value) and "head.weight" not in str(refused.value)


def test_what_may_go_up_comes_out_as_it_went_in() -> None:
    slots = {**three(1, 2, 3), "descriptor": {"descriptor": np.array([0.5, -2.0], np.float16)}}
    found = unpack(WIRE, "up", pack(slots, METRICS | {"served": 0.0, "adapted": 1.0}), PARTS)
    assert {s: {n: t.tolist() for n, t in named.items()} for s, named in found.items()} == {
        "encoder": {"w": [1.0, 2.0, 3.0]}, "descriptor": {"descriptor": [0.5, -2.0]}}
    assert set(unpack(WIRE, "up", pack(three(1, 2, 3), METRICS), PARTS)) == {"encoder"}


def test_the_closing_reply_has_scalars_only() -> None:
    WIRE.check("closing", pack({}, METRICS), PARTS)
    with pytest.raises(WireViolation, match="closing: none") as refused:
        WIRE.check("closing", pack(three(1, 2, 3), METRICS), PARTS)
    assert refused.value.kind == "unknown-slot"


def test_the_way_down_has_the_round_and_no_scalars() -> None:
    down = pack(three(1, 2, 3), rnd=Round(1, 2, 0))
    WIRE.check("down", down, PARTS)
    for planted in (pack(three(1, 2, 3), METRICS), pack({**three(1, 2, 3), **{"head": START["head"]}}, rnd=Round(1, 2, 0))):
        with pytest.raises(WireViolation):
            WIRE.check("down", planted, PARTS)


def test_hdc_fl_sends_the_head_only_if_asked_to() -> None:
    head = {"weight": ((10, 4), "float32"), "bias": ((10,), "float32")}
    parts = {"encoder": PARTS["encoder"], "head": head}
    planted = {"weight": np.zeros((10, 4), np.float32), "bias": np.zeros(10, np.float32)}
    sketch = {"descriptor": np.zeros(8, np.float16)}
    sketching, sending = Config(projection_dim=8).wire, Config(signal="head").wire
    sketching.check("up", pack({**three(1, 2, 3), "descriptor": sketch}, METRICS), parts)
    sending.check("up", pack({**three(1, 2, 3), "head": planted}, METRICS), parts)
    assert "head" in sketching.local and "head" not in sending.local
    for wire, slots, kind in ((sketching, {"descriptor": sketch, "head": planted}, "unknown-slot"),
                              (sketching, {"head": planted}, "unknown-slot"),
                              (sending, {"descriptor": sketch}, "unknown-slot"), (sending, {}, "missing-slot"),
                              (sketching, {"descriptor": {"descriptor": np.zeros(9, np.float16)}}, "shape")):
        with pytest.raises(WireViolation) as refused:
            wire.check("up", pack({**three(1, 2, 3), **slots}, METRICS), parts)
        assert refused.value.kind == kind


def test_the_round_comes_back_as_it_went() -> None:
    sent = Round(3, 7, 2**63 - 1, acked=2, score_served=True, closing=True)
    assert unpack_round(RecordDict({"round": pack_round(sent)})) == sent


@pytest.mark.parametrize("changed", [
    {"number": "3"}, {"number": 1.5}, {"number": True}, {"acked": "1"}, {"closing": 1}, {"seed": 0.0}, {"number": [1]},
    {"number": 0}, {"number": 9}, {"acked": 4}, {"acked": -1}, {"label": "cat"}, {"number": None}, {"score-served": "yes"},
])
def test_a_round_of_other_fields_is_refused(changed: dict[str, Any]) -> None:
    fields = {**pack_round(Round(3, 7, 0)), **changed}
    made = ConfigRecord({k: v for k, v in fields.items() if v is not None})
    with pytest.raises(WireViolation) as refused:
        unpack_round(RecordDict({"round": made}))
    assert refused.value.kind == "text" and "cat" not in str(refused.value)


def test_a_message_without_its_round_is_refused() -> None:
    for content in (RecordDict(), RecordDict({"round": MetricRecord({"number": 1})})):
        with pytest.raises(WireViolation, match="round's position"):
            unpack_round(content)


@pytest.mark.parametrize("changed", [
    {"site": "prototype 0"}, {"site": "_prototype-0"}, {"site": ".."}, {"site": "a" * 65}, {"site": 5}, {"site": "a\n"}, {"classes": 0},
    {"classes": "10"}, {"classes": True}, {"class-digest": "cat,dog"}, {"input-shape": "8x8"}, {"input-shape": "1x8x0"},
    {"split-digest": "cat"}, {"weights-digest": "cat"}, {"num-examples": 3}, {"label": "cat"}, {"site": ["a"]},
])
def test_a_hello_says_nothing_else(changed: dict[str, Any]) -> None:
    with pytest.raises(WireViolation) as refused:
        unpack_hello(hello("a", **changed))
    assert refused.value.kind == "text" and "cat" not in str(refused.value)


def test_a_hello_is_one_complete_record() -> None:
    assert unpack_hello(hello("site-1.a", **{"split-digest": ""}))["site"] == "site-1.a"
    more, fewer = hello("a"), hello("a")
    more["note"] = ConfigRecord({"x": 1})
    del fewer["hello"]["classes"]  # type: ignore[union-attr]
    for content in (more, fewer, RecordDict(), RecordDict({"hello": MetricRecord({"classes": 1})})):
        with pytest.raises(WireViolation):
            unpack_hello(content)


def test_bytes_are_what_travels() -> None:
    content = pack({**three(1, 2, 3), "descriptor": {"descriptor": np.zeros(2, np.float16)}}, {"loss": 0.5, "num-test": 1}, Round(1, 2, 0))
    content["empty"] = ConfigRecord({"x": "", "y": ["ab", "c"], "z": b"1234"})
    sizes = bytes_of(content)
    assert sizes["encoder"] == 128 + 12 and sizes["descriptor"] == 128 + 4
    assert sizes["metrics"] == 8 + 8 + len("loss") + len("num-test")
    assert sizes["round"] == content["round"].count_bytes() == 4 * 8 + 4 + sum(map(len, content["round"]))
    assert sizes["empty"] == 3 + 0 + 3 + 4
