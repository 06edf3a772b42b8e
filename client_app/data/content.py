"""What the pixels of images say about a data set: one pass, one entry a sample, so that images need not be kept.

Two images are taken for the same if their 64-bit BLAKE2b digests agree, which among a million different images happens by
chance once in thirty million data sets.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, fields
from hashlib import blake2b

import numpy as np

CHUNK_BYTES = 16 * 2**20


@dataclass(frozen=True, eq=False)
class Content:
    """Facts about n images of one type.

    Attributes
    ----------
    digests : (n,) uint64 of the pixels.
    constant : (n,) bool, no channel has two different pixels.
    grey : (n,) bool, three channels that are equal; False for another number of channels.
    whole : (n,) bool, every pixel is a whole number.
    lowest, highest : (n,) float32, the smallest and the largest pixel.
    """

    digests: np.ndarray
    constant: np.ndarray
    grey: np.ndarray
    whole: np.ndarray
    lowest: np.ndarray
    highest: np.ndarray

    def __len__(self) -> int:
        return len(self.digests)

    def take(self, indices: np.ndarray) -> Content:
        """The facts about the images at ``indices`` (k,)."""
        return Content(*(getattr(self, field.name)[indices] for field in fields(self)))


def content_of(images: np.ndarray) -> Content:
    """The facts about ``images`` (n, C, H, W), uint8 or float32; reads each pixel a few times, in bounded memory."""
    step = max(1, CHUNK_BYTES // max(1, images[:1].nbytes))
    return joined([_chunk(images[start : start + step]) for start in range(0, len(images), step)] or [_chunk(images)])


def joined(parts: Sequence[Content]) -> Content:
    """The facts about all images of ``parts``, in their order."""
    return Content(*(np.concatenate([getattr(part, field.name) for part in parts]) for field in fields(Content)))


def _chunk(images: np.ndarray) -> Content:
    pixels = np.ascontiguousarray(images).reshape(len(images), math.prod(images.shape[1:]))
    digests = [int.from_bytes(blake2b(image.data, digest_size=8).digest(), "little") for image in pixels]
    whole = np.ones(len(images), bool) if images.dtype == np.uint8 else (pixels == np.rint(pixels)).all(1)
    grey = (images == images[:, :1]).all((1, 2, 3)) if images.shape[1] == 3 else np.zeros(len(images), bool)
    return Content(np.array(digests, np.uint64), (images == images[:, :, :1, :1]).all((1, 2, 3)), grey, whole,
                   pixels.min(1).astype(np.float32), pixels.max(1).astype(np.float32))
