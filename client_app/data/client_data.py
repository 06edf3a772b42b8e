"""One client's data: what every learner trains on and is scored with.

``ClientData`` is the whole contract between data and learners; anything that builds one (the built-in
sources, or a user's own ``load(node, seed)``) is checked here, once, so learners check nothing. Sample ids
are unique over train and test together, because client-local caches are keyed by them.

Messages of ``DataError`` carry no data value, no label and no path: they may travel to a server. What helps
on this machine only is in ``DataError.path`` and in the chained cause.
"""

from __future__ import annotations

import zlib
from dataclasses import dataclass
from functools import cached_property
from typing import TypeGuard

import numpy as np


class DataError(ValueError):
    """This client's data cannot be used.

    ``path`` is where the data was looked for, "" if nowhere; it is no part of the message and stays local.
    """

    def __init__(self, message: str, path: str = "") -> None:
        super().__init__(message)
        self.path = path


@dataclass(frozen=True, eq=False)
class Split:
    """Some samples.

    Attributes
    ----------
    images : (n, C, H, W) uint8 (0..255) or float32 (finite, used as they are); here C is 1..4 channels.
    labels : (n,) integers, kept as int64.
    ids : (n,) unique integers, kept as int64.

    Raises
    ------
    DataError
        If a shape, a dtype or a length differs from the above.
    """

    images: np.ndarray
    labels: np.ndarray
    ids: np.ndarray

    def __post_init__(self) -> None:
        _check_images(self.images)
        for name in ("labels", "ids"):
            object.__setattr__(self, name, _whole_numbers(getattr(self, name), name))
        if not len(self.images) == len(self.labels) == len(self.ids):
            raise DataError(f"expected as many labels and ids as images, got {len(self.images)} images, "
                            f"{len(self.labels)} labels and {len(self.ids)} ids")
        if len(np.unique(self.ids)) != len(self.ids):
            raise DataError("sample ids repeat: expected one id a sample, such as its position")

    def __len__(self) -> int:
        return len(self.labels)

    @property
    def nbytes(self) -> int:
        """Bytes of the three arrays."""
        return self.images.nbytes + self.labels.nbytes + self.ids.nbytes

    @cached_property
    def checksum(self) -> int:
        """A number for the images under their ids, to be part of a feature's version.

        A site that mends its data in the middle of a run, or joins anew, gives other images the same ids.
        """
        return zlib.crc32(np.ascontiguousarray(self.images).data, zlib.crc32(self.ids.data))

    def empty_like(self) -> Split:
        """No samples, of the same image shape and dtype."""
        return Split(self.images[:0], self.labels[:0], self.ids[:0])

    def read_only(self) -> Split:
        """The same samples behind arrays that refuse to be written to; nothing is copied."""
        return Split(*(_frozen_view(a) for a in (self.images, self.labels, self.ids)))


@dataclass(frozen=True, eq=False)
class ClientData:
    """Everything one client knows.

    Attributes
    ----------
    train : at least one sample.
    test : may be empty; images of the same shape and dtype as ``train``'s.
    classes : (C,) names of the labels 0..C-1; the same on every client of a federation.
    group : what sets this client apart by construction ("90": images rotated by 90 degrees), "" for nothing.

    Raises
    ------
    DataError
        If a part does not fit the others, or a label is not in 0..C-1.
    """

    train: Split
    test: Split
    classes: tuple[str, ...]
    group: str = ""

    def __post_init__(self) -> None:
        object.__setattr__(self, "classes", tuple(self.classes))
        if not self.classes:
            raise DataError("expected at least one class name")
        if not all(map(is_text, (*self.classes, self.group))):
            raise DataError("expected class names and the group as text (str) that UTF-8 can hold")
        if not len(self.train):
            raise DataError("expected at least one training sample, got none; leave this client out")
        if self.train.images.shape[1:] != self.test.images.shape[1:]:
            raise DataError("expected training and test images of one shape (C, H, W); for no test images "
                            "use train.empty_like()")
        if self.train.images.dtype != self.test.images.dtype:
            raise DataError("expected training and test images of one dtype, got uint8 and float32")
        for split in (self.train, self.test):
            check_label_range(split.labels, len(self.classes))
        if np.intersect1d(self.train.ids, self.test.ids).size:
            raise DataError("training and test ids overlap; number the test samples after the training ones")

    @property
    def input_shape(self) -> tuple[int, int, int]:
        """Shape of one image: (channels, height, width)."""
        channels, height, width = self.train.images.shape[1:]
        return channels, height, width

    @property
    def nbytes(self) -> int:
        """Bytes of all arrays."""
        return self.train.nbytes + self.test.nbytes

    def class_counts(self) -> np.ndarray:
        """(C,) int64 number of training samples a class. Strictly local: it is this client's prior."""
        return np.bincount(self.train.labels, minlength=len(self.classes))

    def read_only(self) -> ClientData:
        """The same data behind read-only arrays; nothing is copied."""
        return ClientData(self.train.read_only(), self.test.read_only(), self.classes, self.group)


def check_label_range(labels: np.ndarray, classes: int) -> None:
    """Raise ``DataError`` unless every one of the (n,) labels is in 0..classes-1."""
    if len(labels) and not (labels.min() >= 0 and labels.max() < classes):
        raise DataError("label out of range: expected 0..C-1, where C is the number of class names")


def _is_array(value: object) -> TypeGuard[np.ndarray]:
    return isinstance(value, np.ndarray)


def is_text(value: object) -> bool:
    """Whether ``value`` is text that UTF-8 can hold; a file's name need not be."""
    try:
        return isinstance(value, str) and bool(value.encode() or True)
    except UnicodeEncodeError:  # half of a surrogate pair
        return False


def _check_images(images: object) -> None:
    if not _is_array(images) or images.ndim != 4:
        raise DataError("expected images as a numpy array of 4 axes (n, C, H, W)")
    if str(images.dtype) not in ("uint8", "float32"):
        raise DataError(f"expected uint8 or float32 images, got {images.dtype}; convert them with astype")
    if not 1 <= images.shape[1] <= 4:
        raise DataError(f"expected 1 to 4 channels on the second axis, got {images.shape[1]}; "
                        "move the channels there with transpose(0, 3, 1, 2)")
    if not all(images.shape[1:]):
        raise DataError("expected images of at least one pixel")
    if images.dtype == np.float32 and not np.isfinite(images).all():
        raise DataError("an image holds NaN or infinity: expected finite pixels")


def _whole_numbers(array: object, name: str) -> np.ndarray:
    if not _is_array(array) or array.ndim != 1 or not np.issubdtype(array.dtype, np.integer):
        raise DataError(f"expected {name} as a numpy array of integers with one axis (n,)")
    # a uint64 beyond int64 wraps to a negative number, which the range check then refuses
    return array.astype(np.int64, copy=False)


def _frozen_view(array: np.ndarray) -> np.ndarray:
    # a view, so that a user's own array keeps its flags
    view = array.view()
    view.flags.writeable = False
    return view
