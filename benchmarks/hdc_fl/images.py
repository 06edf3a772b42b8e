"""The benchmark's images as one ``.npz`` file a data set and scale, made once from whatever FEDHEARTH_DATA holds.

Results: training images, and test images beside them, the official test set first and, where more are wanted, training images that no
client trains on. Tuning: the training images alone, of which clients hold a quarter out, so that no result is from a validation image.
Which images a file holds follows from their order in the source alone; a digest of all pixels and labels goes into every result.
"""

from __future__ import annotations

import hashlib
import io
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from zipfile import BadZipFile

import numpy as np

from benchmarks.hdc_fl.configurations import SCALES
from benchmarks.hdc_fl.process import owned

Arrays = dict[str, np.ndarray]
TINY_CLASSES = 100
DAMAGED = (ValueError, EOFError, KeyError, BadZipFile)  # what numpy raises for a file that is none of its own, or not whole
FRACTION_TO_TEST = 5  # of limited samples, one in so many is a test image


class NoImages(Exception):
    """FEDHEARTH_DATA lacks what a configuration needs. The text says what was looked for."""


@dataclass(frozen=True)
class Source:
    """Where images can come from: ``title`` as it must stand in every table, and labels and pixels on request.

    ``labels`` gives those of the training and of the test part; ``pixels`` the images (n, 32, 32, 3) of given rows of a part.
    """

    title: str
    labels: tuple[np.ndarray, np.ndarray]
    pixels: Callable[[int, np.ndarray], np.ndarray]
    class_names: np.ndarray


@dataclass(frozen=True)
class Images:
    """A file that is ready to be a run's ``dataset``."""

    path: Path
    title: str
    digest: str


def cifar_of_torchvision(folder: Path, name: str) -> Source:
    """CIFAR-10 or CIFAR-100 as torchvision keeps it; nothing is downloaded."""
    from torchvision.datasets import CIFAR10, CIFAR100

    parts = [(CIFAR10 if name == "CIFAR-10" else CIFAR100)(str(folder), train=train) for train in (True, False)]
    labels = tuple(np.asarray(part.targets, np.int64) for part in parts)
    return Source(name, (labels[0], labels[1]), lambda part, rows: parts[part].data[rows], np.array(parts[0].classes))


def cifar10_subset(file: Path) -> Source:
    """10,000 training and 2,000 test images of CIFAR-10."""
    with np.load(file) as arrays:
        x, labels = (arrays["x_train"], arrays["x_test"]), (arrays["y_train"], arrays["y_test"])
        return Source("CIFAR-10 (12,000 images)", labels, lambda part, rows: x[part][rows], arrays["class_names"].astype(str))


def tiny_imagenet(file: Path) -> Source:
    """The first 100 classes of Tiny-ImageNet at 32 pixels, in the place of CIFAR-100: never called so."""
    from PIL import Image

    with np.load(file) as arrays:
        of = {key: arrays[key] for key in ("train_blob", "train_offsets", "val_blob", "val_offsets", "y_train", "y_val")}
        names = arrays["class_names"].astype(str)[:TINY_CLASSES]
    rows_of = [np.flatnonzero(of[key] < TINY_CLASSES) for key in ("y_train", "y_val")]

    def pixels(part: int, rows: np.ndarray) -> np.ndarray:
        blob, offsets = (of[f"{('train', 'val')[part]}_{key}"] for key in ("blob", "offsets"))
        return np.stack([np.asarray(Image.open(io.BytesIO(blob[offsets[i]:offsets[i + 1]].tobytes())).convert("RGB"))
                         for i in rows_of[part][rows]])

    return Source("TinyImageNet-32/100", (of["y_train"][rows_of[0]], of["y_val"][rows_of[1]]), pixels, names)


# data -> (what must lie in FEDHEARTH_DATA, how it is opened); the lite scale begins with what its figures were made from
_CIFAR10 = ("cifar-10-batches-py", lambda folder: cifar_of_torchvision(folder.parent, "CIFAR-10"))
_CIFAR100 = ("cifar-100-python", lambda folder: cifar_of_torchvision(folder.parent, "CIFAR-100"))
_SUBSET, _TINY = ("cifar10_sub12k.npz", cifar10_subset), ("tinyimagenet32_jpegbytes.npz", tiny_imagenet)
SOURCES: dict[tuple[str, str], tuple[tuple[str, Callable[[Path], Source]], ...]] = {
    ("lite", "ten"): (_SUBSET, _CIFAR10), ("lite", "hundred"): (_TINY, _CIFAR100),
    ("full", "ten"): (_CIFAR10, _SUBSET), ("full", "hundred"): (_CIFAR100, _TINY)}


def first_source(scale: str, data: str, folder: Path) -> tuple[str, Callable[[], Source]]:
    """The first source there is, by its file's name; raises ``NoImages``."""
    for name, reader in SOURCES[scale, data]:
        if (folder / name).exists():
            return name, partial(reader, folder / name)
    wanted = " or ".join(name for name, _ in SOURCES[scale, data])
    raise NoImages(f"the {scale} scale expects {wanted} in FEDHEARTH_DATA and found no such thing")


def prepared(scale: str, data: str, tuning: bool, folder: Path, work: Path, limit: int = 0) -> Images:
    """The file in ``work``, made if it is not there; ``limit`` keeps about so many images in all, for a look."""
    train, test = SCALES[scale].images[data]
    name, opened = first_source(scale, data, folder)
    # named by what is in it, so that other counts, or images that came later, are never taken for these
    path = work / f"{scale}-{data}-{name.partition('.')[0]}-{limit or f'{train}x{test}'}{'-tuning' * tuning}.npz"
    if not path.is_file():
        work.mkdir(parents=True, exist_ok=True)
        try:
            source = opened()
        except DAMAGED as fault:
            raise NoImages(f"{name} in FEDHEARTH_DATA is damaged ({type(fault).__name__})") from fault
        if limit:
            classes = len(source.class_names)
            train, test = max(2, limit // classes), max(1, limit // classes // FRACTION_TO_TEST)
        arrays = chosen(source, train, test)
        if tuning:
            arrays = {key: array for key, array in arrays.items() if not key.endswith("_test")}
        part = work / owned(path.stem, "part")
        with part.open("wb") as file:
            np.savez(file, title=np.array(source.title), digest=np.array(digest(arrays)), **arrays)  # type: ignore[arg-type]
        part.replace(path)
    try:
        with np.load(path) as file:
            return Images(path, str(file["title"]), str(file["digest"]))
    except DAMAGED as fault:
        raise NoImages(f"{path} is damaged: delete it, and it is made anew") from fault


def chosen(source: Source, train: int, test: int) -> Arrays:
    """``train`` and ``test`` images a class (0: all): tests are official ones, then the last of the training part."""
    y, y_test = source.labels
    first = _each(y, train)
    official = _each(y_test, test)
    more = [np.flatnonzero(y == label)[::-1][:max(0, test - int((y_test == label).sum()))] for label in np.unique(y)]
    rest = np.sort(np.concatenate(more)) if test else np.empty(0, np.int64)
    if np.intersect1d(first, rest).size:
        raise NoImages(f"{source.title} has too few images: {train} a class to train on and {test} to test on overlap")
    parts = [source.pixels(1, official), *([source.pixels(0, rest)] if rest.size else [])]
    return {"x_train": source.pixels(0, first), "y_train": y[first], "x_test": np.concatenate(parts),
            "y_test": np.concatenate([y_test[official], y[rest]]), "class_names": source.class_names}


def digest(arrays: Arrays) -> str:
    """16 hex digits over all pixels and labels."""
    found = hashlib.sha256()
    for key in sorted(key for key in arrays if key[:2] in ("x_", "y_")):
        found.update(key.encode() + np.ascontiguousarray(arrays[key]).tobytes())
    return found.hexdigest()[:16]


def _each(labels: np.ndarray, count: int) -> np.ndarray:
    """Positions of the first ``count`` of every class, 0 for all, in order."""
    return np.sort(np.concatenate([np.flatnonzero(labels == label)[:count or None] for label in np.unique(labels)]))
