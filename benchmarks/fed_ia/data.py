"""The benchmark's data sets as ``.npz`` files, and their image features, each made once.

``DATA[-few].npz`` is what results are from; ``DATA-tune[-few].npz`` shares no image with it, and settings are chosen there. Few-shot files
have 16 training images a class, of PACS a class and client; those for tuning half as many. Features go to ``features/`` beside them.
"""

from __future__ import annotations

import io
import os
from collections.abc import Callable
from pathlib import Path

import numpy as np

Arrays = dict[str, np.ndarray]
TINY_CLASSES = 40
PACS_TESTS = 0.7  # as in TASKS
# images a class for training and testing
CIFAR, TINY = (200, 250), (100, 50)


def pacs(source: Path, part: int, shots: int) -> Arrays:
    """PACS with its domains, as images of 96 pixels; two thirds for results, one third for tuning. Clients hold their own tests out."""
    with np.load(source / "pacs96_jpegbytes.npz") as file:
        labels, domains, names = file["labels"], file["domains"], file["domain_names"].astype(str)
        mine = np.random.default_rng(0).permutation(len(labels))
        mine = mine[len(mine) // 3:] if part == 0 else mine[: len(mine) // 3]
        # two clients a domain: of 107 images a class, they have 16 each to train with
        rows = np.sort(mine) if not shots else _each(mine, labels * len(names) + domains, round(2 * shots / (1 - PACS_TESTS)))
        chosen = names[domains[rows]]
        return {"x_train": decoded(file["blob"], file["offsets"], rows), "y_train": labels[rows], "class_names": file["class_names"],
                "domain": chosen}


def cifar10(source: Path, part: int, shots: int) -> Arrays:
    """CIFAR-10 (a 12,000-image subset): tests from its official test set, for tuning from its training set."""
    with np.load(source / "cifar10_sub12k.npz") as file:
        x, y, x_test, y_test, names = (file[key] for key in ("x_train", "y_train", "x_test", "y_test", "class_names"))
    train, test = CIFAR
    order = np.random.default_rng(0).permutation(len(y))
    rows = _each(order, y, shots or train, part * train)
    if part:
        x_test, y_test, held = x, y, _each(order, y, test // 2, 2 * train)
    else:
        held = _each(np.random.default_rng(0).permutation(len(y_test)), y_test, test)
    return {"x_train": x[rows], "y_train": y[rows], "x_test": x_test[held], "y_test": y_test[held], "class_names": names}


def tiny32(source: Path, part: int, shots: int) -> Arrays:
    """Tiny-ImageNet at 32 pixels, the first 100 of its classes; tests from its validation set, for tuning from its training set."""
    train, test = TINY
    with np.load(source / "tinyimagenet32_jpegbytes.npz") as file:
        y, y_val = file["y_train"], file["y_val"]
        order = np.random.default_rng(0).permutation(np.flatnonzero(y < TINY_CLASSES))
        rows, kind = _each(order, y, shots or train, part * train), "train" if part else "val"
        labels = y if part else y_val
        held = _each(order if part else np.flatnonzero(y_val < TINY_CLASSES), labels, test // (1 + part), 2 * train * part)
        return {"x_train": decoded(file["train_blob"], file["train_offsets"], rows), "y_train": y[rows],
                "x_test": decoded(file[f"{kind}_blob"], file[f"{kind}_offsets"], held), "y_test": labels[held],
                "class_names": file["class_names"][:TINY_CLASSES]}


def with_domain(arrays: Arrays, kept: Callable[[np.ndarray], np.ndarray]) -> Arrays:
    """Only the samples whose domain is ``kept``."""
    rows = kept(arrays["domain"])
    return {name: array if name == "class_names" else array[rows] for name, array in arrays.items()}


def with_classes(arrays: Arrays, classes: range) -> Arrays:
    """Only the samples of some classes, numbered from 0."""
    rows = {kind: np.isin(arrays[f"y_{kind}"], classes) for kind in ("train", "test")}
    return {"class_names": arrays["class_names"][list(classes)]} | {
        f"{axis}_{kind}": arrays[f"{axis}_{kind}"][rows[kind]] - (classes.start if axis == "y" else 0) for kind in rows for axis in "xy"}


def part_of(source: Path, data: str, part: int, shots: int) -> Arrays:
    """A data set by its name: ``pacs``, ``pacs-no-sketch``, ``pacs-only-sketch``, ``tiny32-base`` (the first half of its classes), ..."""
    name, _, rest = data.partition("-")
    arrays, (kind, _, domain) = MAKERS[name](source, part, shots // (1 + part)), rest.partition("-")
    match kind:
        case "no":
            return with_domain(arrays, lambda domains: domains != domain)
        case "only":
            return with_domain(arrays, lambda domains: domains == domain)
        case "base":
            return with_classes(arrays, range(len(arrays["class_names"]) // 2))
        case "novel":
            return with_classes(arrays, range(len(arrays["class_names"]) // 2, len(arrays["class_names"])))
    return arrays


MAKERS: dict[str, Callable[[Path, int, int], Arrays]] = {"pacs": pacs, "cifar10": cifar10, "tiny32": tiny32}


def file_name(data: str, tuning: bool, shots: int) -> str:
    """The file of a data set."""
    return f"{data}{'-tune' * tuning}{'-few' * bool(shots)}.npz"


def make(source: Path, work: Path, data: str, tuning: bool, shots: int, limit: int = 0) -> Path:
    """The file of a data set, made if it is not there; ``limit`` keeps only so many of its images, for a look."""
    work.mkdir(parents=True, exist_ok=True)
    path = work / file_name(data, tuning, shots)
    if not path.is_file():
        arrays = part_of(source, data, int(tuning), shots)
        part = path.with_suffix(".part")
        with part.open("wb") as file:
            np.savez(file, **(_limited(arrays, limit) if limit else arrays))  # type: ignore[arg-type]
        part.rename(path)
    return path


def encode(path: Path, folder: Path, tower_size: int, settings: dict[str, object]) -> int:
    """Features of all images of a data file, CLS and patches, into ``folder``; returns how many images were encoded."""
    from client_app.clip_features import Source, encode, tower_version
    from client_app.loop_settings import LoopSettings
    from client_app.precomputed import write
    from models.clip_models import image_tower
    from strategies.registry import parse_run_config

    run = parse_run_config({**settings, "method": "fed-ia", "tower-size": tower_size}).run
    with np.load(path) as file:
        images = np.concatenate([file[key].transpose(0, 3, 1, 2) for key in ("x_train", "x_test") if key in file])
    loop = LoopSettings.from_config(run)
    source = Source(image_tower(run, images.shape[1:]), run.patch_source)
    return write(folder, tower_version(source, loop), images, lambda part: encode(source, part, loop), chunk=32)


def decoded(blob: np.ndarray, offsets: np.ndarray, rows: np.ndarray) -> np.ndarray:
    """The JPEGs at ``rows`` as pixels (n, height, width, 3)."""
    from PIL import Image

    return np.stack([np.asarray(Image.open(io.BytesIO(blob[offsets[i]:offsets[i + 1]].tobytes())).convert("RGB")) for i in rows])


def source() -> Path:
    """Where the sources are."""
    return Path(os.environ["FEDHEARTH_DATA"])


def _each(order: np.ndarray, groups: np.ndarray, count: int, skip: int = 0) -> np.ndarray:
    """Positions of ``count`` of every group, after the first ``skip`` of it, in the ``order`` given."""
    found = [mine[skip:skip + count] for group in np.unique(groups[order]) if len(mine := order[groups[order] == group])]
    return np.sort(np.concatenate(found))


def _limited(arrays: Arrays, limit: int) -> Arrays:
    rng = np.random.default_rng(1)
    rows = {name: np.sort(rng.permutation(len(arrays[name]))[:limit]) for name in ("y_train", "y_test") if name in arrays}
    return {name: array if name == "class_names" else array[rows["y_test" if name.endswith("_test") else "y_train"]]
            for name, array in arrays.items()}
