"""The benchmark's data sets as ``.npz`` files, made once from the sources in ``FEDHEARTH_DATA``.

    FEDHEARTH_DATA=... python benchmarks/pep_fedpt/data.py FOLDER

``TASK.npz`` is what results are from; ``TASK-tune.npz`` shares no image with it, and learning rates are chosen there. Sizes are those
of the lite protocol (METHODS 4.7): 20 training and 100 test images a client on average; with ``--full`` all there is, for a GPU.
"""

from __future__ import annotations

import argparse
import io
import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np

Arrays = dict[str, np.ndarray]
TINY_CLASSES = 100


@dataclass(frozen=True)
class Size:
    """Images a class for training and testing; of PACS, images a domain in all (its clients hold their own tests out)."""

    train: int
    test: int


LITE: dict[str, Size] = {"cifar10": Size(40, 200), "tiny100": Size(4, 20), "pacs": Size(620, 0)}


def cifar10(source: Path, size: Size | None, part: int) -> Arrays:
    """CIFAR-10 (a 12,000-image subset): test images from its official test set, for tuning from its training set."""
    with np.load(source / "cifar10_sub12k.npz") as file:
        x, y, x_test, y_test, names = (file[key] for key in ("x_train", "y_train", "x_test", "y_test", "class_names"))
    if size is None:
        size = Size(600, 200)
    train = _each(y, size.train, part * size.train)
    if part:
        x_test, y_test = x, y
    test = _each(y_test, size.test, part * 2 * size.train)
    return {"x_train": x[train], "y_train": y[train], "x_test": x_test[test], "y_test": y_test[test], "class_names": names}


def tiny100(source: Path, size: Size | None, part: int) -> Arrays:
    """Tiny-ImageNet at 32 pixels, the first 100 of its classes; tests from its validation set, for tuning from its training set."""
    if size is None:
        size = Size(225, 50)
    with np.load(source / "tinyimagenet32_jpegbytes.npz") as file:
        y, y_val, names = file["y_train"], file["y_val"], file["class_names"][:TINY_CLASSES]
        held = "train" if part else "val"
        train = _each(y, size.train, part * size.train, TINY_CLASSES)
        labels = y if part else y_val
        test = _each(labels, size.test, part * 2 * size.train, TINY_CLASSES)
        return {"x_train": _decoded(file["train_blob"], file["train_offsets"], train), "y_train": y[train],
                "x_test": _decoded(file[f"{held}_blob"], file[f"{held}_offsets"], test), "y_test": labels[test], "class_names": names}


def pacs(source: Path, size: Size | None, part: int) -> Arrays:
    """PACS with its domains; every client holds its own tests out. Tuning has other images (with all of them: every second)."""
    with np.load(source / "pacs96_jpegbytes.npz") as file:
        labels, domains = file["labels"], file["domains"]
        chosen = []
        for domain in np.unique(domains):
            mine = np.random.default_rng(0).permutation(np.flatnonzero(domains == domain))
            each = len(mine) // 2 if size is None else size.train
            chosen.append(mine[part * each:(part + 1) * each])
        rows = np.sort(np.concatenate(chosen))
        return {"x_train": _decoded(file["blob"], file["offsets"], rows), "y_train": labels[rows], "class_names": file["class_names"],
                "domain": file["domain_names"][domains[rows]]}


MAKERS: dict[str, Callable[[Path, Size | None, int], Arrays]] = {"cifar10": cifar10, "tiny100": tiny100, "pacs": pacs}


def make(source: Path, folder: Path, task: str, full: bool = False) -> None:
    """Both files of a task, unless they are there."""
    folder.mkdir(parents=True, exist_ok=True)
    for part, name in enumerate((f"{task}.npz", f"{task}-tune.npz")):
        if not (folder / name).is_file():
            arrays = MAKERS[task](source, None if full else LITE[task], part)
            with (folder / f"{name}.part").open("wb") as file:
                np.savez(file, **arrays)  # type: ignore[arg-type]
            (folder / f"{name}.part").rename(folder / name)


def _each(labels: np.ndarray, count: int, skip: int = 0, classes: int | None = None) -> np.ndarray:
    """Positions of ``count`` samples of every class after the first ``skip`` of them, in a fixed random order."""
    order = np.random.default_rng(0).permutation(len(labels))
    rows = [order[labels[order] == c][skip:skip + count] for c in range(int(labels.max()) + 1 if classes is None else classes)]
    return np.sort(np.concatenate(rows))


def _decoded(blob: np.ndarray, offsets: np.ndarray, rows: np.ndarray) -> np.ndarray:
    from PIL import Image

    return np.stack([np.asarray(Image.open(io.BytesIO(blob[offsets[i]:offsets[i + 1]].tobytes())).convert("RGB")) for i in rows])


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--full", action="store_true")
    arguments = parser.parse_args()
    for task in MAKERS:
        make(Path(os.environ["FEDHEARTH_DATA"]), arguments.folder, task, arguments.full)


if __name__ == "__main__":
    main()
