"""A folder of images, one sub-folder a class: ``folder:PATH`` (the layout of torchvision's ``ImageFolder``).

With ``train/`` and ``test/`` below it (``val/`` serves as the test set if there is no ``test/``, and counts as training
data if there is), these are the official sets; else all images are one pool. Classes are the sorted names of the class
folders, of all sets together; an empty folder is a class without samples here. Images lie at any depth below a class
folder; a link back to one above the class folder is not followed. Hidden files and folders, and files that do not end
like an image, are left out. No file is decoded here.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from client_app.data.client_data import DataError
from client_app.data.file_source import Files, file_source
from client_app.data.place import SPLIT_FOLDERS
from client_app.data.reading import Reading
from client_app.data.source import Source

log = logging.getLogger(__name__)
ENDINGS = frozenset({".jpg", ".jpeg", ".jpe", ".jfif", ".png", ".bmp", ".gif", ".tif", ".tiff", ".webp", ".ppm", ".pgm", ".pbm",
                     ".jp2", ".avif"})

# folders that operating systems and network disks leave
LEFT_BEHIND = frozenset({"__MACOSX", "@eaDir", "$RECYCLE.BIN", "System Volume Information", "lost+found"})


def load(where: str, reading: Reading) -> Source:
    """The images below ``where``, training images first, sorted by set, class and path.

    Raises
    ------
    DataError
        If the folder is missing or has no class folders or no images, or as ``file_source``.
    """
    try:
        return _load(Path(where).expanduser(), reading)
    except DataError as error:
        error.path = error.path or where
        raise
    except (OSError, RuntimeError) as error:
        raise DataError("the folder or one below it cannot be read; check its permissions", where) from error


def _load(root: Path, reading: Reading) -> Source:
    if not root.is_dir():
        raise DataError("the folder is missing: expected `folder:PATH` with a folder that this client can read (FH-026)")
    train, test = _sets(root)
    classes = sorted({folder.name for part in (*train, *test) for folder in _subfolders(part)})
    if not classes:
        raise DataError("the folder has no class folders: expected one folder a class with its images inside, or train/ and test/ "
                        "with class folders in each")
    found = [[(path, label) for part in parts for label, name in enumerate(classes) for path in _images(part / name)]
             for parts in (train, test)]
    samples = found[0] + found[1]
    if not samples:
        raise DataError(f"the class folders hold no image: expected files ending in {', '.join(sorted(ENDINGS))}")
    store = Files([path for path, _ in samples])
    labels = np.array([label for _, label in samples], np.int64)
    return file_source(store, np.arange(len(samples)), labels, tuple(classes), len(found[0]), {}, reading)


def _sets(root: Path) -> tuple[list[Path], list[Path]]:
    """The folders with class folders: of the training set, and of the official test set."""
    named: dict[str, list[Path]] = {"train": [], "val": [], "test": []}
    for folder in _subfolders(root):
        if folder.name.lower() in SPLIT_FOLDERS:
            named[SPLIT_FOLDERS[folder.name.lower()]].append(folder)
    only_train = not (named["test"] or named["val"])
    # a class may be called "train"
    if not named["train"] or only_train and (len(_subfolders(root)) > 1 or not _subfolders(named["train"][0])):
        return [root], []
    return (named["train"] + named["val"], named["test"]) if named["test"] else (named["train"], named["val"])


def _subfolders(folder: Path) -> list[Path]:
    return sorted(path for path in folder.iterdir() if path.is_dir() and not _hidden(path.name))


def _images(folder: Path) -> Iterator[Path]:
    """Files below ``folder`` that end like images, sorted. A folder with several links to it is entered once, and one above
    ``folder`` never: the images of other classes lie there. Raises ``OSError`` for a folder that cannot be read."""
    if not folder.is_dir():
        return
    seen = {str(above) for above in Path(os.path.realpath(folder)).parents}
    others = 0
    for where, folders, files in os.walk(folder, onerror=_raised, followlinks=True):
        folders[:] = sorted(name for name in folders if not _hidden(name))
        real = os.path.realpath(where)
        if real in seen:
            folders.clear()
            continue
        seen.add(real)
        for name in sorted(files):
            if Path(name).suffix.lower() in ENDINGS and not _hidden(name):
                yield Path(where, name)
            else:
                others += not _hidden(name)
    if others:
        log.info("%d files of %s do not end like an image and are left out", others, folder)


def _raised(error: OSError) -> None:
    raise error


def _hidden(name: str) -> bool:
    return name.startswith(".") or name in LEFT_BEHIND
