"""What a prediction is made for: image files, folders of them, and arrays, one image after the other.

Nothing here raises because of one file: what cannot be read is passed on with the reason, and the next one is taken.
"""

from __future__ import annotations

import os
import zipfile
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from client_app.personal_facts import PersonalFacts

ARRAYS = ("images", "x", "x_test")
DAMAGE = (OSError, ValueError, EOFError, RuntimeError, TypeError, KeyError, zipfile.BadZipFile, zlib.error)


@dataclass(frozen=True)
class Item:
    """One image: a file, or (channels, H, W) of an array; or the reason why there is none."""

    name: str
    image: Path | np.ndarray | None = None
    error: str = ""


def items(words: Sequence[str]) -> Iterator[Item]:
    """Every image that ``words`` name, folders in the order of their names, with all folders in them."""
    from client_app.data.folder import ENDINGS

    for word in words:
        if word.startswith("npz:"):
            yield from _of_archive(Path(word.removeprefix("npz:")).expanduser())
        elif not word:
            yield Item(word, error="no such file")
        elif os.path.isdir(path := Path(word)):  # Path.is_dir raises where it may not look
            found = sorted(inner for inner in path.rglob("*") if inner.suffix.lower() in ENDINGS and os.path.isfile(inner))
            yield from (Item(str(inner), inner) for inner in found)
            if not found:
                yield Item(word, error="this folder holds no image")
        else:
            yield Item(word, path)


def converted(item: Item, facts: PersonalFacts, resize: bool = False) -> np.ndarray | str:
    """The image as the model takes it, (channels, height, width) of ``facts.dtype``, or the reason why not.

    Files, and pixels of another size, are read as the run read its own (``client_app.data.images``); with ``resize`` also where
    the run scaled nothing.
    """
    channels, height, width = shape = facts.input_shape
    image = item.image
    if image is None:
        return item.error
    if facts.dtype == "float32":
        return _as_it_is(image, facts)
    if isinstance(image, np.ndarray) and image.shape == shape and image.dtype == np.uint8:
        return image
    if isinstance(image, np.ndarray) and (image.dtype != np.uint8 or len(image) not in (1, 3)) or channels not in (1, 3):
        return f"expected uint8 pixels of shape {shape}" + _got(image)
    from client_app.data.images import pixels

    try:
        ready = pixels(image, channels, facts.image_size or (height if resize and height == width else 0))
    except Exception as fault:  # Pillow and its plugins raise anything about a damaged file
        return "no such file" if isinstance(fault, FileNotFoundError) else f"cannot be read as an image ({type(fault).__name__})"
    if ready.shape != shape:
        return (f"is {ready.shape[2]} x {ready.shape[1]} pixels, and this model takes {width} x {height}; its run scaled nothing, so "
                "scale the image first" + (", or give --resize" if height == width else ""))
    return ready


def _as_it_is(image: Path | np.ndarray, facts: PersonalFacts) -> np.ndarray | str:
    if not isinstance(image, np.ndarray) or image.shape != facts.input_shape or image.dtype.kind != "f":
        return ("this client's data were float32 arrays, and only its data loader knows how images become such; give npz:FILE with "
                f"images of shape (n, {', '.join(map(str, facts.input_shape))})" + _got(image))
    with np.errstate(over="ignore"):
        ready = image.astype(np.float32)
    return ready if np.isfinite(ready).all() else "holds NaN or infinity: expected finite numbers"


def _got(image: Path | np.ndarray) -> str:
    return f", got {image.dtype} of shape {image.shape}" if isinstance(image, np.ndarray) else ""


def _of_archive(path: Path) -> Iterator[Item]:
    try:
        if path.exists() and not path.is_file():
            raise ValueError("no file")  # a pipe would be waited for without end
        with path.open("rb") as file, np.load(file, allow_pickle=False) as archive:
            keys = [key for key in ARRAYS if key in archive.files] or archive.files
            images = archive[keys[0]] if keys[0] in ARRAYS or len(keys) == 1 else None
    except FileNotFoundError:
        yield Item(str(path), error="no such file")
        return
    except (*DAMAGE, IndexError) as fault:
        yield Item(str(path), error=f"cannot be read as an npz file ({type(fault).__name__})")
        return
    if images is None or images.ndim not in (3, 4):
        yield Item(str(path), error=f"expected images (n, H, W) or (n, channels, H, W) under one of the keys {', '.join(ARRAYS)}")
        return
    if images.ndim == 3:
        images = images[:, None]
    elif images.shape[3] <= 4 < images.shape[1]:
        images = images.transpose(0, 3, 1, 2)
    yield from (Item(f"{path}[{number}]", np.ascontiguousarray(image)) for number, image in enumerate(images))
