"""One pool of labelled images, in memory or in files.

A simulation divides it among clients; a site's own is wholly that site's. Labels and further columns are always at
hand; images come by ``take`` alone, so a partition never decodes any.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np

from client_app.data.client_data import DataError, Split, check_label_range, is_text


class Images(Protocol):
    """What a ``Source`` needs of its images; a numpy array is one, ``file_source.LazyImages`` another."""

    @property
    def shape(self) -> tuple[int, ...]:
        """(n, channels, H, W)."""
        ...

    def __getitem__(self, indices: Any, /) -> np.ndarray:
        """A new array of the images at ``indices`` (k,): (k, channels, H, W)."""
        ...


@dataclass(frozen=True, eq=False)
class Source:
    """One pool of samples; a sample's id is its position in it.

    Attributes
    ----------
    images : (n, channels, H, W) uint8 or finite float32.
    labels : (n,) int64 in 0..C-1.
    classes : (C,) names.
    train_count : the first ``train_count`` samples are the official training set, the rest the official test
        set (none: ``train_count == n``).
    meta : further columns, (n,) text each: "domain" and "client" where the data have them.
    unreadable : names of the images that ``bad-images = skip`` left out, with reasons; for this machine's eyes only.

    Raises
    ------
    DataError
        If a part has another shape, dtype or length than the above, a class name is no text, or there is no training sample.
    """

    images: Images
    labels: np.ndarray
    classes: tuple[str, ...]
    train_count: int
    meta: Mapping[str, np.ndarray] = field(default_factory=dict)
    unreadable: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        # files are checked when they are decoded; one byte in their stead lets ``Split`` check all the rest
        in_memory = isinstance(self.images, np.ndarray)
        images = self.images if isinstance(self.images, np.ndarray) else np.broadcast_to(np.uint8(0), self.images.shape)
        pool = Split(images, self.labels, np.arange(len(images))).read_only()
        if not all(map(is_text, self.classes)):
            raise DataError("expected class names that UTF-8 can hold, got one that it cannot; rename that class or its folder")
        check_label_range(pool.labels, len(self.classes))
        if not 1 <= self.train_count <= len(pool):
            raise DataError("expected at least one training sample, got none")
        object.__setattr__(self, "images", pool.images if in_memory else self.images)
        object.__setattr__(self, "labels", pool.labels)
        object.__setattr__(self, "meta", {name: _column(values, len(pool)) for name, values in self.meta.items()})

    def __len__(self) -> int:
        return len(self.labels)

    @property
    def image_shape(self) -> tuple[int, int, int]:
        """Shape of one image: (channels, H, W)."""
        channels, height, width = self.images.shape[1:]
        return channels, height, width

    @property
    def skipped(self) -> int:
        """How many images were left out because they cannot be read."""
        return len(self.unreadable)

    def take(self, indices: np.ndarray) -> Split:
        """A copy of the samples at ``indices`` (k,); files are decoded here.

        Raises ``DataError`` if a file cannot be read.
        """
        return Split(self.images[indices], self.labels[indices], indices)


def _column(values: np.ndarray, count: int) -> np.ndarray:
    text = np.asarray(values).astype(np.str_)
    if text.shape != (count,):
        raise DataError("expected as many entries in every further column (domain, client) as there are samples")
    text.flags.writeable = False
    return text
