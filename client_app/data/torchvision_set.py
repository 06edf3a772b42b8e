"""A classification data set of torchvision, from a folder on this machine: ``torchvision:NAME@ROOT``.

``NAME`` is the class in ``torchvision.datasets`` (CIFAR100, MNIST, SVHN, STL10, Flowers102, ...), ``ROOT`` what it calls
``root``; further arguments stand after ``?`` (``torchvision:EMNIST@ROOT?split=letters``). Nothing is ever downloaded. The
official sets are found by the class's own ``train=`` or ``split=`` (train, val, test); validation samples count as training
samples where there are test samples too.

Torchvision has no common way to list images without decoding them, so we read its attributes: pixels in ``data``, else
lists of files. A set with neither is refused.
"""

from __future__ import annotations

import inspect
import logging
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

from client_app.data.client_data import DataError
from client_app.data.columns import MOST_UNNAMED
from client_app.data.file_source import Files, file_source
from client_app.data.place import options
from client_app.data.reading import Reading
from client_app.data.source import Source

log = logging.getLogger(__name__)
NAMES = {"train": ("train", "trainval"), "val": ("val", "valid"), "test": ("test",)}


def load(where: str, reading: Reading) -> Source:
    """The official training samples, then the official test samples, if torchvision knows of any.

    Raises
    ------
    DataError
        If torchvision has no such set, its files are missing or damaged, or it is no classification set.
    """
    place, given = options(where)
    name, at, root = place.partition("@")
    if not (name and at and root):
        raise DataError("expected `torchvision:NAME@ROOT`, such as torchvision:CIFAR100@/data")
    try:
        parts = _parts(_data_set(name), str(Path(root).expanduser()), given)
        return _source(parts, reading)
    except DataError as error:
        error.path = error.path or root
        raise
    except (RuntimeError, OSError, ValueError, TypeError, EOFError, ImportError) as error:
        raise DataError("torchvision cannot read this data set: its files are missing or damaged, or an argument does not fit; unpack "
                        "it below ROOT as torchvision expects it", root) from error


def _data_set(name: str) -> Callable[..., Any]:
    import torchvision.datasets as sets

    found = getattr(sets, name, None) if name in sets.__all__ else None
    if found is None:
        raise DataError("torchvision has no data set of this name: expected a class of torchvision.datasets, such as CIFAR100 or MNIST")
    return found


def _parts(data_set: Callable[..., Any], root: str, given: dict[str, str]) -> dict[str, Any]:
    """Official set ("train", "val", "test") -> torchvision's object; all samples are "train" if it knows no official sets."""
    arguments = inspect.signature(data_set).parameters
    quiet = {"download": False} if "download" in arguments else {}

    def made(**which: Any) -> Any:
        return data_set(root, **quiet, **given, **which)

    if "train" in arguments or data_set.__name__ == "EMNIST":  # which hands ``train`` on to MNIST
        return {"train": made(train=True), "test": made(train=False)}
    if "split" not in arguments or "split" in given:
        return {"train": made()}
    found: dict[str, Any] = {}
    for part, names in NAMES.items():
        for name in names:
            try:
                found.setdefault(part, made(split=name))
            except ValueError:  # torchvision's word for: no such split
                continue
    return found


def _source(parts: dict[str, Any], reading: Reading) -> Source:
    if "train" not in parts:
        raise DataError("this data set of torchvision has no training samples under a name known here: expected a split train")
    test = parts.pop("test", None) or parts.pop("val", None)
    ordered = [*parts.values(), *([test] if test is not None else [])]
    labels, names = [_labels(part) for part in ordered], [_names(part) for part in ordered]
    train_count = sum(map(len, labels[: len(parts)]))
    if all(names) and len(set(names)) > 1:  # some sets number only the classes that a split has
        union = sorted(set().union(*names))
        labels = [np.array([union.index(name) for name in own])[found] for own, found in zip(names, labels, strict=True)]
        names = [tuple(union)]
    pooled = np.concatenate(labels)
    classes = _classes(names[0], pooled)
    if all(isinstance(getattr(part, "data", None), np.ndarray) or hasattr(getattr(part, "data", None), "numpy") for part in ordered):
        return Source(np.concatenate([_pixels(part.data) for part in ordered]), pooled, classes, train_count)
    paths = [path for part in ordered for path in _paths(part)]
    if len(paths) != len(pooled):
        raise DataError("expected a torchvision set with one label an image")
    return file_source(Files(paths), np.arange(len(paths)), pooled, classes, train_count, {}, reading)


def _pixels(data: Any) -> np.ndarray:
    """(n, channels, H, W) uint8 of an array or a tensor with any of torchvision's axes."""
    images = np.asarray(data)
    if images.ndim == 3:
        return images[:, None]
    channels_last = images.ndim == 4 and images.shape[3] in (1, 3) and images.shape[1] not in (1, 3)
    return np.ascontiguousarray(images.transpose(0, 3, 1, 2)) if channels_last else images


def _labels(part: Any) -> np.ndarray:
    for name in ("targets", "labels", "_labels"):
        found = getattr(part, name, None)
        if found is not None and len(found):
            labels = np.asarray(found)
            break
    else:
        labels = np.asarray([label for _, label in _samples(part)])
    if labels.ndim != 1 or not np.issubdtype(labels.dtype, np.integer):
        raise DataError("expected a classification set of torchvision, with one whole number a sample as its label")
    return labels.astype(np.int64)


def _names(part: Any) -> tuple[str, ...]:
    """The class names that the set gives for its own numbers, () if it gives none."""
    names = getattr(part, "classes", None)
    return tuple(names) if isinstance(names, list | tuple) and all(isinstance(name, str) for name in names) else ()


def _classes(names: tuple[str, ...], labels: np.ndarray) -> tuple[str, ...]:
    needed = 1 + int(labels.max(initial=0))
    if len(names) >= needed:
        return names
    if needed > MOST_UNNAMED:
        raise DataError(f"expected labels 0..C-1 with C at most {MOST_UNNAMED}")
    return tuple(map(str, range(needed)))


def _paths(part: Any) -> Iterator[Path]:
    for name in ("_image_files", "_images"):
        if getattr(part, name, None):
            yield from map(Path, getattr(part, name))
            return
    yield from (Path(path) for path, _ in _samples(part))


def _samples(part: Any) -> list[tuple[Any, int]]:
    for name in ("samples", "_samples", "imgs"):
        found = getattr(part, name, None)
        if found and isinstance(found[0], tuple) and isinstance(found[0][0], str | Path):
            return found
    raise DataError("this data set of torchvision keeps its images in a way not known here; save them as folders of one class each and "
                    "use folder:PATH")
