"""Slots that travel as a difference (``wire-delta = lossless``), and the way back before anything is checked.

A packed slot (``strategies.packing``) is one array of ``.npy`` bytes. With the setting on, its sender may put ``strategies.delta``'s
difference in its place, against a base that the receiver is known to hold; dtype and shape stay declared as they were. The
receiver restores the whole array bit for bit, and only then does the contract's check begin: so what a contract says of names,
shapes, sizes and finite numbers holds for a difference too. Whoever has no common base, or would save nothing, sends the whole.

A base goes by its digest, over header and numbers: what another precision or another layout left is another base.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np
from flwr.app import Array, ArrayRecord, RecordDict

from strategies import delta
from strategies.contract import WireViolation
from strategies.packing import flat_of, key_of, packs
from strategies.precision import TRAVEL
from strategies.types import Layout

STYPE = "fedhearth.delta"
_HEADER = 128  # bytes of the header that ``pack_slot`` writes
# below this many bytes there is nothing to save
_LEAST = 4096

BaseOf = Callable[[str], bytes | None]


def may_thin(layout: Layout) -> bool:
    """Whether a slot of this layout may travel as a difference: it is one array of float32 numbers, and no small one."""
    return packs(layout) and flat_of(layout)[1] == "float32" and 4 * flat_of(layout)[0][0] >= _LEAST


def is_thin(record: object) -> bool:
    return isinstance(record, ArrayRecord) and any(array.stype == STYPE for array in record.values())


def whole_of(record: object) -> bytes | None:
    """The bytes of a slot that travels as one whole array, else None."""
    if not isinstance(record, ArrayRecord) or len(record) != 1:
        return None
    array = next(iter(record.values()))
    return array.data if array.stype == "numpy.ndarray" else None


def base_of_record(record: object) -> str:
    """The digest of the base of a slot that travels as a difference, "" for any other record and for one that is damaged."""
    if not isinstance(record, ArrayRecord) or not is_thin(record):
        return ""
    try:
        return delta.base_named(next(iter(record.values())).data)
    except delta.DeltaError:
        return ""


def thinned(record: ArrayRecord, bases: Mapping[str, bytes]) -> ArrayRecord:
    """``record`` as a difference against the first of ``bases`` (digest -> bytes) that fits it; itself where that saves nothing."""
    whole = whole_of(record)
    (key, array), = record.items() if whole is not None else (("", None),)
    if whole is None or array is None:
        return record
    for digest, base in bases.items():
        if len(base) == len(whole) and base[:_HEADER] == whole[:_HEADER]:
            body = delta.encode(_numbers(whole, array.dtype), _numbers(base, array.dtype), digest)
            return ArrayRecord({key: Array(array.dtype, array.shape, STYPE, body)}) if len(body) < len(whole) else record
    return record


def thinned_slots(content: RecordDict, bases: Mapping[str, tuple[str, bytes]]) -> RecordDict:
    """``content`` with every slot that ``bases`` names (slot -> digest and bytes) as a difference against it, if that saves something."""
    out = RecordDict(dict(content))
    for name in bases.keys() & content.keys():
        record = content[name]
        if isinstance(record, ArrayRecord):
            out[name] = thinned(record, dict([bases[name]]))
    return out


def restored(content: RecordDict, layouts: Mapping[str, Layout], travel: str, base_of: BaseOf) -> RecordDict:
    """``content`` with every difference made whole again. ``layouts`` are those of the slots that may come as one.

    A slot's base may be another slot that stands before it in the same message.

    Raises
    ------
    WireViolation
        ``delta``, ``names``, ``dtype``, ``shape`` or ``size`` for a difference that cannot be undone; ``no-base`` if its base is unknown.
    """
    out, here = RecordDict(), []
    for name, record in content.items():
        if is_thin(record):
            if name not in layouts:
                raise WireViolation("delta", "a difference in a slot that may not travel as one")
            assert isinstance(record, ArrayRecord)
            record = _restored(name, record, layouts[name], travel, lambda digest: _among(here, digest) or base_of(digest))
        if name in layouts and (whole := whole_of(record)) is not None:
            here.append(whole)
        out[name] = record
    return out


def _among(wholes: list[bytes], digest: str) -> bytes | None:
    return next((whole for whole in wholes if delta.digest_of(whole) == digest), None)


def _restored(slot: str, record: ArrayRecord, layout: Layout, travel: str, base_of: BaseOf) -> ArrayRecord:
    key, shape = key_of(layout), flat_of(layout)[0]
    if record.keys() != {key}:
        raise WireViolation("names", f"slot {slot!r}: a difference of other tensors than the contract's")
    array, size = record[key], shape[0] * np.dtype(TRAVEL[travel]).itemsize
    if array.stype != STYPE or array.dtype != travel or array.shape != shape:
        raise WireViolation("shape", f"slot {slot!r}: a difference declares another dtype or shape than {travel} {shape}")
    if len(array.data) > size + _HEADER:
        raise WireViolation("size", f"slot {slot!r}: a difference of {len(array.data)} bytes is larger than the {size} it stands for")
    try:
        base = base_of(delta.base_named(array.data))
        if base is None:
            raise WireViolation("no-base", f"slot {slot!r}: a difference against numbers that are not held here")
        if len(base) != size + _HEADER:
            raise WireViolation("delta", f"slot {slot!r}: a difference against numbers of another size")
        numbers = delta.decode(array.data, _numbers(base, travel))
    except delta.DeltaError as wrong:
        raise WireViolation("delta", f"slot {slot!r}: the difference cannot be undone: {wrong}") from None
    return ArrayRecord({key: Array(travel, shape, "numpy.ndarray", b"".join((base[:_HEADER], numbers.data)))})


def _numbers(whole: bytes, travel: str) -> np.ndarray:
    """The bit patterns in ``.npy`` bytes, (n,) uint16 or uint32."""
    return np.frombuffer(whole, f"u{np.dtype(TRAVEL[travel]).itemsize}", offset=_HEADER)
