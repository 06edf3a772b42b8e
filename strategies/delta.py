"""Numbers as a difference against numbers that the other side already holds: bit for bit, and smaller.

Our own choice, and an old idea of lossless floating-point compression. The bit patterns of IEEE floats are mapped to whole numbers in
the order of the floats, so that neighbours differ by one; the difference modulo 2^bits is folded to small unsigned numbers
(zigzag), and its bytes are laid out in planes, the lowest bytes first. Upper planes are nearly all zero after a round of training and
go through zlib; lower ones are noise of the mantissa and go as they are. What is equal costs next to nothing.

Measured on updates of the CNN and of MobileNetV2 after real training, zlib's run-length strategy beat its default in
size and time, and came within a hundredth of Zstandard, so nothing beyond the standard library is needed (benchmarks/wire/dtypes.py).

Layout, all little-endian: ``FHD1``, 16 bytes digest of the base, CRC-32 of the result, for every plane a byte (0 as it is, 1 deflated) and
its length in 8 bytes, then the planes. Every length is checked before it is believed, and no plane is inflated beyond its size.
"""

from __future__ import annotations

import hashlib
import struct
import zlib

import numpy as np

_HEAD, _PLANE = struct.Struct("<4s16sI"), struct.Struct("<BQ")
_MAGIC = b"FHD1"
_RAW, _DEFLATED = 0, 1
# what a plane must shrink to on a sample for zlib to be worth its time
_WORTH = 0.97
_SAMPLE = 1 << 15
_CHUNK = 1 << 18  # numbers at a time, so that temporaries stay small and in the processor's cache


class DeltaError(ValueError):
    """The bytes are no difference that can be undone; the text says what is wrong, and holds no value of it."""


def digest_of(content: bytes) -> str:
    """The name of a base: 128 bits of BLAKE2b, in hexadecimal. It tells versions apart; it is no protection against forgery."""
    return hashlib.blake2b(content, digest_size=16).hexdigest()


def encode(new: np.ndarray, base: np.ndarray, base_digest: str) -> bytes:
    """``new`` (n,) as a difference against ``base`` (n,), both the bit patterns of floats as uint16 or uint32."""
    size = new.dtype.itemsize
    middle = slice(max(0, (len(new) - _SAMPLE) // 2), max(0, (len(new) - _SAMPLE) // 2) + _SAMPLE)
    sample = _planes(_folded(new[middle], base[middle]))
    packers = [_packer() if len(_deflated(plane)) < _WORTH * plane.nbytes else None for plane in sample]
    parts: list[list[bytes]] = [[] for _ in range(size)]
    for start in range(0, len(new), _CHUNK):
        planes = _planes(_folded(new[start:start + _CHUNK], base[start:start + _CHUNK]))
        for plane, packer, part in zip(planes, packers, parts, strict=True):
            part.append(packer.compress(plane.data) if packer else plane.tobytes())
    bodies = [b"".join([*part, packer.flush() if packer else b""]) for part, packer in zip(parts, packers, strict=True)]
    table = b"".join(_PLANE.pack(_DEFLATED if packer else _RAW, len(body)) for packer, body in zip(packers, bodies, strict=True))
    return b"".join((_HEAD.pack(_MAGIC, bytes.fromhex(base_digest), zlib.crc32(new.data)), table, *bodies))


def base_named(data: bytes) -> str:
    """The digest of the base that a difference was made against. Raises ``DeltaError``."""
    if len(data) < _HEAD.size or data[:4] != _MAGIC:
        raise DeltaError("it does not begin like a difference")
    return _HEAD.unpack_from(data)[1].hex()


def decode(data: bytes, base: np.ndarray) -> np.ndarray:
    """What ``encode`` made ``data`` from, given the same ``base`` (n,); an array like it. Raises ``DeltaError``."""
    base_named(data)
    size, count = base.dtype.itemsize, len(base)
    start = _HEAD.size + size * _PLANE.size
    if len(data) < start:
        raise DeltaError("it is cut short")
    table = [_PLANE.unpack_from(data, _HEAD.size + n * _PLANE.size) for n in range(size)]
    if sum(length for _, length in table) != len(data) - start:
        raise DeltaError(f"its planes take {len(data) - start} bytes, and it says otherwise")
    planes, body = [], memoryview(data)
    for kind, length in table:
        planes.append(_plane(kind, body[start:start + length], count))
        start += length
    out = np.empty_like(base)
    for first in range(0, count, _CHUNK):
        part = slice(first, min(first + _CHUNK, count))
        folded = np.ascontiguousarray(np.stack([plane[part] for plane in planes], axis=1)).view(base.dtype).reshape(-1)
        out[part] = _unfolded(folded, base[part])
    if zlib.crc32(out.data) != _HEAD.unpack_from(data)[2]:
        raise DeltaError("its checksum does not fit")
    return out


def _plane(kind: int, body: memoryview, count: int) -> np.ndarray:
    if kind == _DEFLATED:
        inflater = zlib.decompressobj(-zlib.MAX_WBITS)
        try:
            # one byte more than there may be shows that there are too many, whatever they would inflate to
            content = inflater.decompress(body, count + 1)
        except zlib.error:
            raise DeltaError("a plane cannot be inflated") from None
        if len(content) != count or not inflater.eof or inflater.unused_data:
            raise DeltaError(f"a plane inflates to another size than {count} bytes")
        return np.frombuffer(content, np.uint8)
    if kind != _RAW or len(body) != count:
        raise DeltaError(f"a plane has another size than {count} bytes, or is of an unknown kind")
    return np.frombuffer(body, np.uint8)


def _folded(new: np.ndarray, base: np.ndarray) -> np.ndarray:
    """Zigzag of the difference in the order of the floats: 0, -1, 1, -2, ... become 0, 1, 2, 3, ..."""
    signed = np.dtype(f"i{new.dtype.itemsize}")
    difference = (_ordered(new) - _ordered(base)).view(signed)
    return ((difference << 1) ^ (difference >> (8 * new.dtype.itemsize - 1))).view(new.dtype)


def _unfolded(folded: np.ndarray, base: np.ndarray) -> np.ndarray:
    one = folded.dtype.type(1)
    ordered = _ordered(base) + ((folded >> one) ^ (~(folded & one) + one))
    top = _top(ordered)
    return ordered ^ (~_spread(ordered) | top)


def _ordered(bits: np.ndarray) -> np.ndarray:
    """Floats' bit patterns as unsigned numbers in the floats' own order: negative ones inverted, the others moved above them."""
    return bits ^ (_spread(bits) | _top(bits))


def _spread(bits: np.ndarray) -> np.ndarray:
    """All ones where the top bit is set, else zero."""
    return (bits.view(np.dtype(f"i{bits.dtype.itemsize}")) >> (8 * bits.dtype.itemsize - 1)).view(bits.dtype)


def _top(bits: np.ndarray) -> np.unsignedinteger:
    return bits.dtype.type(1 << (8 * bits.dtype.itemsize - 1))


def _planes(folded: np.ndarray) -> np.ndarray:
    """(bytes a number, n): the lowest bytes of all numbers, then the next."""
    return np.ascontiguousarray(folded.view(np.uint8).reshape(len(folded), folded.dtype.itemsize).T)


def _packer() -> zlib._Compress:
    return zlib.compressobj(1, zlib.DEFLATED, -zlib.MAX_WBITS, 9, zlib.Z_RLE)


def _deflated(plane: np.ndarray) -> bytes:
    packer = _packer()
    return packer.compress(plane.tobytes()) + packer.flush()
