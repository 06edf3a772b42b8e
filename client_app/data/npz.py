"""A user's own images in one ``.npz`` file (``numpy.savez``).

Keys: ``x_train`` and ``y_train``; optionally ``x_test`` and ``y_test`` (both or neither), and
``class_names`` (C,) text; also ``domain`` and ``client``, one text or whole number a sample, for the training and then
the test samples. Without ``class_names`` the classes are "0".."C-1" with C one above the largest
label; a site whose file lacks the last classes of the federation must therefore name them.

Images (our rules): uint8 stays, any float becomes float32 and is used as it is, other types are refused.
(n, H, W) is grey; of four axes, the channels are the last if 1 to 4 long, else the second; both being that
short is ambiguous and refused. Labels are integers (n,) or (n, 1). Pickled content is never read.
"""

from __future__ import annotations

import zipfile
import zlib
from pathlib import Path

import numpy as np

from client_app.data.client_data import DataError
from client_app.data.source import Source

# what numpy and zipfile raise on a truncated, foreign or pickled file; TypeError: a bare .npy has no keys
DAMAGE = (OSError, ValueError, EOFError, RuntimeError, TypeError, zipfile.BadZipFile, zlib.error)
MOST_UNNAMED = 100_000  # classes; a larger label is a mistake, and a name for each would fill the memory
META = ("domain", "client")
KEYS = ("x_train", "y_train", "x_test", "y_test", "class_names", *META)


def load(where: str) -> Source:
    """The samples of the file ``where``, training samples first, then the official test samples, if any.

    Raises
    ------
    DataError
        If the file is missing or damaged, or a key is missing or malformed; it says which key.
    """
    try:
        return _source(_read(where))
    except DataError as error:
        error.path = where
        raise


def _read(where: str) -> dict[str, np.ndarray]:
    try:
        path = Path(where).expanduser()
        missing = not path.is_file()
    except (OSError, RuntimeError):  # no permission to look; a home that nobody has
        missing = True
    if missing:
        raise DataError("the npz file is missing: expected `npz:FILE` with a file that this client can read (FH-026)")
    try:
        # opened here, since numpy leaves a truncated file open
        with path.open("rb") as file, np.load(file, allow_pickle=False) as archive:
            return {key: archive[key] for key in KEYS if key in archive.files}
    except DAMAGE as error:
        raise DataError("the npz file is damaged or holds pickled objects; write it anew with "
                        "numpy.savez") from error
    except MemoryError as error:
        raise DataError("the npz file's arrays do not fit into this machine's memory; save fewer images, or as uint8, or use "
                        "`folder:PATH`, whose images are read when they are needed") from error


def _source(arrays: dict[str, np.ndarray]) -> Source:
    for key in ("x_train", "y_train"):
        if key not in arrays:
            raise DataError(f"the npz file lacks the key `{key}`: expected x_train and y_train")
    if ("x_test" in arrays) != ("y_test" in arrays):
        raise DataError("the npz file has only one of `x_test` and `y_test`: expected both or neither")
    parts = [_samples(arrays, part) for part in ("train", "test") if f"x_{part}" in arrays]
    images = _pooled([images for images, _ in parts])
    labels = np.concatenate([labels for _, labels in parts])
    meta = {key: _column(arrays[key], key, len(labels)) for key in META if key in arrays}
    return Source(images, labels, _class_names(arrays, labels), len(parts[0][1]), meta)


def _samples(arrays: dict[str, np.ndarray], part: str) -> tuple[np.ndarray, np.ndarray]:
    images = _channels_second(arrays[f"x_{part}"], f"x_{part}")
    labels = arrays[f"y_{part}"]
    if labels.ndim == 2 and labels.shape[1] == 1:
        labels = labels[:, 0]
    if labels.ndim != 1 or not np.issubdtype(labels.dtype, np.integer):
        raise DataError(f"key `y_{part}`: expected integers of shape (n,) or (n, 1)")
    if len(labels) != len(images):
        raise DataError(f"keys `x_{part}` and `y_{part}`: expected as many labels as images")
    return images, labels.astype(np.int64)


def _channels_second(images: np.ndarray, key: str) -> np.ndarray:
    if images.dtype.kind == "f":
        with np.errstate(over="ignore"):  # becomes infinity, which ``Source`` refuses
            images = images.astype(np.float32, copy=False)
    elif images.dtype != np.uint8:
        raise DataError(f"key `{key}`: expected uint8 or float images, got {images.dtype}")
    if images.ndim == 3:
        return images[:, None]
    if images.ndim != 4:
        raise DataError(f"key `{key}`: expected shape (n, H, W), (n, H, W, C) or (n, C, H, W), "
                        f"got {images.ndim} axes")
    second, last = (1 <= images.shape[axis] <= 4 for axis in (1, 3))
    if second == last:
        raise DataError(f"key `{key}`: expected 1 to 4 channels on either the second or the last axis")
    return images.transpose(0, 3, 1, 2) if last else images


def _pooled(parts: list[np.ndarray]) -> np.ndarray:
    """One contiguous (n, C, H, W) array, whatever memory order the parts have."""
    first = parts[0]
    if any(part.shape[1:] != first.shape[1:] or part.dtype != first.dtype for part in parts):
        raise DataError("keys `x_train` and `x_test`: expected images of one shape and one type")
    pool = np.empty((sum(len(part) for part in parts), *first.shape[1:]), first.dtype)
    return np.concatenate(parts, out=pool)


def _column(values: np.ndarray, key: str, count: int) -> np.ndarray:
    if values.shape != (count,) or values.dtype.kind not in "Uiu":
        raise DataError(f"key `{key}`: expected one text or whole number a sample, for the training and then the test samples")
    return values.astype(np.str_)


def _class_names(arrays: dict[str, np.ndarray], labels: np.ndarray) -> tuple[str, ...]:
    names = arrays.get("class_names")
    if names is None:
        if labels.max(initial=0) >= MOST_UNNAMED:
            raise DataError(f"expected labels 0..C-1 with C at most {MOST_UNNAMED}: number the classes from 0, "
                            "or name them all under the key `class_names`")
        return tuple(str(label) for label in range(1 + int(labels.max(initial=0))))
    if names.ndim != 1 or names.dtype.kind != "U":
        raise DataError("key `class_names`: expected text of shape (C,)")
    return tuple(str(name) for name in names)
