"""Messages as records, and the check that nothing crosses the wire but what the contract allows.

``strategies.contract`` says what a contract is. A tensor travels as ``.npy`` bytes in a Flower ``Array``, a whole model part as
one (``strategies.packing``). Declared dtype and shape are not trusted: the header inside the bytes and the number of bytes are
compared with the contract before anything is read.
"""

from __future__ import annotations

import io
import math
import re
from collections.abc import Mapping
from dataclasses import fields
from functools import lru_cache

import numpy as np
from flwr.app import Array, ArrayRecord, ConfigRecord, MetricRecord, RecordDict

from strategies.contract import HELLO_FACTS, Direction, Wire
from strategies.contract import Slot as Slot
from strategies.contract import WireViolation as WireViolation
from strategies.packing import PACK_FROM, flat_of, key_of, packs, split
from strategies.precision import TRAVEL, from_travel, to_travel
from strategies.scalars import fault_of
from strategies.types import Layout, Round, Slots, Tensors, dtype_name

METRICS, ROUND, HELLO = "metrics", "round", "hello"
_HEADER_LIMIT = 1024
_FLAT_HEADER = 128  # bytes that NumPy's header of a one-dimensional array takes, whatever its length
_ROUND_TYPES = {"int": int, "bool": bool}


def pack(slots: Slots, metrics: Mapping[str, float] | None = None, rnd: Round | None = None, travel: str = "float32") -> RecordDict:
    """Slots (and scalars, and the round) as the records of one message."""
    content = RecordDict({name: pack_slot(tensors, travel) for name, tensors in slots.items()})
    if metrics is not None:
        content[METRICS] = MetricRecord({k: v if isinstance(v, int) else float(v) for k, v in metrics.items()})
    if rnd is not None:
        content[ROUND] = pack_round(rnd)
    return content


def pack_slot(tensors: Tensors, travel: str = "float32") -> ArrayRecord:
    """A slot's tensors as a record, float32 ones in the travelling precision; many of them as one array."""
    if len(tensors) < PACK_FROM:
        return ArrayRecord({name: encode(tensor, travel) for name, tensor in tensors.items()})
    body, layout = io.BytesIO(), {}
    body.seek(_FLAT_HEADER)
    # one tensor at a time: they may be computed only as they are asked for
    for name, tensor in tensors.items():
        layout[name] = (tuple(tensor.shape), dtype_name(tensor.dtype))
        if tensor.size:
            body.write(np.ascontiguousarray(to_travel(tensor, travel)).reshape(-1).data.cast("B"))
    if not packs(layout):
        return ArrayRecord({name: encode(tensor, travel) for name, tensor in tensors.items()})
    shape, dtype = flat_of(layout)
    declared, carried = (travel, TRAVEL[travel]) if dtype == "float32" else (dtype, dtype)
    body.seek(0)
    np.lib.format.write_array_header_1_0(body, {"descr": np.dtype(carried).str, "fortran_order": False, "shape": shape})
    assert body.tell() == _FLAT_HEADER
    return ArrayRecord({key_of(layout): Array(declared, shape, "numpy.ndarray", body.getvalue())})


def sent_views(record: ArrayRecord, layout: Layout) -> dict[str, np.ndarray]:
    """The tensors of a record we packed ourselves (as float32), as read-only views of its bytes."""
    views = {}
    for name, array in record.items():
        shape, _, dtype, start = _header(array.data[:_HEADER_LIMIT])
        views[name] = np.frombuffer(array.data, dtype=dtype, offset=start).reshape(shape)
    return split(views[key_of(layout)], layout) if packs(layout) else views


def unpack(wire: Wire, direction: Direction, content: RecordDict, parts: Mapping[str, Layout]) -> dict[str, dict[str, np.ndarray]]:
    """The slots of a message, after the contract's check. The arrays are read-only views of the message's bytes."""
    slots = wire.slots(direction)
    found: dict[str, dict[str, np.ndarray]] = {}
    for name, record in content.items():
        if isinstance(record, ArrayRecord):
            if name not in slots:
                # the name itself stays out of the text: this may run on a client, where anything can be planted in it
                raise WireViolation("unknown-slot", f"a slot outside the contract ({direction}: {', '.join(slots) or 'none'})")
            found[name] = _unpack_slot(name, record, slots[name].expected(parts), wire.travel)
        elif isinstance(record, MetricRecord):
            _check_metrics(name, record, wire.scalars(direction))
        else:
            _check_text(name, record, direction)
    missing = [name for name, slot in slots.items() if name not in found and not slot.optional]
    if missing:
        raise WireViolation("missing-slot", f"the contract expects slot {missing[0]!r} ({direction}); it did not come")
    return found


def _unpack_slot(slot: str, record: ArrayRecord, expected: Layout, travel: str) -> dict[str, np.ndarray]:
    if packs(expected):
        key, (shape, dtype) = key_of(expected), flat_of(expected)
        return split(_unpack_slot(slot, record, {key: (shape, dtype)}, travel)[key], expected)
    if record.keys() != expected.keys():
        extra, lacking = sorted(record.keys() - expected.keys()), sorted(expected.keys() - record.keys())
        raise WireViolation("names", f"slot {slot!r}: {len(extra)} tensors too many and {len(lacking)} too few against the contract")
    out = {}
    for name, (shape, dtype) in expected.items():
        try:
            out[name] = decode(record[name], shape, dtype, travel)
        except WireViolation as wrong:
            raise WireViolation(wrong.kind, f"slot {slot!r}, tensor {name!r}: {wrong}") from None
    return out


def _check_metrics(name: str, record: MetricRecord, allowed: frozenset[str]) -> None:
    if name != METRICS or not record.keys() <= allowed:
        raise WireViolation("metrics", f"scalars outside the contract; allowed: {', '.join(sorted(allowed)) or 'none'}")
    for key, value in record.items():
        if fault := fault_of(key, value):
            raise WireViolation("metrics", f"metric {key!r} {fault}")


def _check_text(name: str, record: object, direction: Direction) -> None:
    """Text goes down only, and only as the round's position: nothing a client writes as text may leave it."""
    if direction not in ("down", "swap-down") or name != ROUND or not isinstance(record, ConfigRecord):
        raise WireViolation("text", f"a {type(record).__name__} outside the contract may not travel {direction}")


def encode(tensor: np.ndarray, travel: str = "float32") -> Array:
    """A tensor as Flower's ``Array`` (``.npy`` bytes), with one copy where Flower makes three."""
    declared = travel if tensor.dtype == np.float32 else dtype_name(tensor.dtype)
    tensor = to_travel(tensor, travel)
    contiguous = np.ascontiguousarray(tensor).reshape(tensor.shape)
    header = io.BytesIO()
    np.lib.format.write_array_header_1_0(header, np.lib.format.header_data_from_array_1_0(contiguous))
    body = contiguous.reshape(-1).data.cast("B") if contiguous.size else b""
    return Array(declared, tuple(tensor.shape), "numpy.ndarray", b"".join((header.getvalue(), body)))


def decode(array: Array, shape: tuple[int, ...], dtype: str, travel: str = "float32") -> np.ndarray:
    """The tensor inside ``array``, if it is what the contract says; else ``WireViolation``.

    A read-only view of the message's bytes, unless it travelled in another precision than it has here.
    """
    travel = travel if dtype == "float32" else "float32"
    declared, dtype = (travel, TRAVEL[travel]) if travel != "float32" else (dtype, dtype)
    size = math.prod(shape) * np.dtype(dtype).itemsize
    if array.stype != "numpy.ndarray":
        raise WireViolation("encoding", "expected the serialisation 'numpy.ndarray', got another")
    if len(array.data) > size + _HEADER_LIMIT:
        raise WireViolation("size", f"expected about {size} bytes, got {len(array.data)}")
    got_shape, fortran, got_dtype, start = _header(array.data[:_HEADER_LIMIT])
    if dtype_name(got_dtype) != dtype or array.dtype != declared:
        raise WireViolation("dtype", f"expected {declared}, got {got_dtype}{', and another is declared' * (array.dtype != declared)}")
    if got_shape != shape or array.shape != shape or (fortran and len(shape) > 1):
        order = ", in Fortran order" if fortran else ""
        raise WireViolation("shape", f"expected shape {shape}, got {got_shape}{order} (declared {array.shape})")
    if len(array.data) - start != size:
        raise WireViolation("size", f"expected {size} bytes, got {len(array.data) - start}")
    out = from_travel(np.frombuffer(array.data, dtype=got_dtype, offset=start).reshape(shape), travel)
    # NaN and Inf both survive min and max, which need no temporary as large as the tensor
    if out.size and out.dtype.kind == "f" and not (np.isfinite(out.min()) and np.isfinite(out.max())):
        raise WireViolation("non-finite", "the tensor holds NaN or Inf")
    return out


def _header(data: bytes) -> tuple[tuple[int, ...], bool, np.dtype, int]:
    """Shape, Fortran order and dtype that ``.npy`` bytes claim, and where the numbers begin."""
    # its length stands in bytes 8 and 9
    return _parsed_header(bytes(data[:10 + int.from_bytes(data[8:10], "little")]))


@lru_cache(maxsize=512)  # NumPy compiles a header to read it, and every message of a run has the same ones
def _parsed_header(data: bytes) -> tuple[tuple[int, ...], bool, np.dtype, int]:
    head = io.BytesIO(data)
    try:
        if np.lib.format.read_magic(head) != (1, 0):
            raise ValueError
        return (*np.lib.format.read_array_header_1_0(head), head.tell())
    except Exception:  # a crafted header makes NumPy raise nearly anything, and a reply must never end the run
        raise WireViolation("encoding", "the bytes are not a NumPy array of version 1.0") from None


def pack_round(rnd: Round) -> ConfigRecord:
    return ConfigRecord({
        "number": rnd.number, "total": rnd.total, "seed": rnd.seed, "acked": rnd.acked, "closing": rnd.closing, "joining": rnd.joining,
        "score-served": rnd.score_served, "score-adapted": rnd.score_adapted,
    })


def unpack_round(content: RecordDict) -> Round:
    """The round's position that a message carries; ``WireViolation`` if it does not."""
    record = content.get(ROUND)
    if not isinstance(record, ConfigRecord):
        raise WireViolation("text", f"expected a {ROUND!r} record with the round's position")
    wanted = {field.name.replace("_", "-"): _ROUND_TYPES[str(field.type)] for field in fields(Round)}
    if record.keys() != wanted.keys() or any(type(record[key]) is not kind for key, kind in wanted.items()):
        raise WireViolation("text", "the round's position has unknown, missing or ill-typed fields")
    try:
        return Round(**{key.replace("-", "_"): value for key, value in record.items()})  # type: ignore[arg-type]
    except ValueError as wrong:
        raise WireViolation("text", str(wrong)) from None


def unpack_hello(content: RecordDict) -> dict[str, str]:
    """What a client says of itself, as text; ``WireViolation`` if it is more, less or other than that."""
    record = content.get(HELLO)
    if set(content) != {HELLO} or not isinstance(record, ConfigRecord):
        raise WireViolation("text", f"a hello carries one record of text, named {HELLO!r}")
    if record.keys() != HELLO_FACTS.keys():
        raise WireViolation("text", f"a hello carries exactly {', '.join(HELLO_FACTS)}")
    for key, form in HELLO_FACTS.items():
        value = record[key]
        if type(value) is not (int if key == "classes" else str) or not re.fullmatch(form, str(value)):
            raise WireViolation("text", f"the {key!r} of a hello is not of its form")
    return {key: str(value) for key, value in record.items()}


def bytes_of(content: RecordDict) -> dict[str, int]:
    """Bytes by slot, as they travel: ``.npy`` bytes of every tensor, 8 bytes and its name for every scalar, the text itself."""
    return {name: sum(map(_bytes_of_value, record.values())) + (0 if isinstance(record, ArrayRecord) else sum(map(len, record)))
            for name, record in content.items()}


def _bytes_of_value(value: object) -> int:
    """Flower's own ``count_bytes`` raises for empty text, which a reply may hold."""
    if isinstance(value, Array):
        return len(value.data)
    if isinstance(value, list):
        return sum(map(_bytes_of_value, value))
    return len(value) if isinstance(value, str | bytes) else 1 if isinstance(value, bool) else 8
