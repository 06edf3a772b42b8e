"""Images in files: nothing is decoded before it is asked for.

Opening reads headers alone, by which size, colour and what cannot be read are known; ``take`` decodes what it is asked
for, in threads, since Pillow lets go of Python's lock while it decodes. With ``bad-images = skip`` opening decodes
everything once, because a file that is cut short has a sound header, and who gets which sample must not depend on when
that is noticed.
"""

from __future__ import annotations

import hashlib
import logging
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import numpy as np
from PIL import UnidentifiedImageError

from client_app.data.client_data import DataError
from client_app.data.decoded import DecodedShelf
from client_app.data.images import Encoded, header, pixels
from client_app.data.reading import Reading
from client_app.data.source import Source
from strategies.data_warnings import few, printable

log = logging.getLogger(__name__)
MOST_THREADS = 8
AT_ONCE = 1024  # files handed to the threads at a time
MOST_TOLD = 1000  # names in the local log
MOST_SHOWN = 20  # names on a terminal
NO_IMAGE = "no image of a kind known here"  # Pillow would tell an address in memory


class ImageStore(Protocol):
    """Encoded images by row."""

    def __len__(self) -> int: ...

    def name(self, row: int) -> str:
        """What this machine's user knows the image by."""
        ...

    def digest(self) -> str:
        """Another text whenever an image may have changed."""
        ...

    def batches(self, rows: np.ndarray) -> Iterator[tuple[np.ndarray, Sequence[Encoded]]]:
        """Pieces of ``rows`` (k,), as positions within it, and their encoded images."""
        ...


@dataclass(frozen=True, eq=False)
class Files:
    """One file an image."""

    paths: Sequence[Path]

    def __len__(self) -> int:
        return len(self.paths)

    def name(self, row: int) -> str:
        return printable(str(self.paths[row]))

    def digest(self) -> str:
        sha = hashlib.sha256()
        for path in self.paths:
            sha.update(os.fsencode(path) + b"\0" + stamp(path))
        return sha.hexdigest()

    def batches(self, rows: np.ndarray) -> Iterator[tuple[np.ndarray, Sequence[Encoded]]]:
        for places in _pieces(len(rows)):
            yield places, [self.paths[row] for row in rows[places]]


@dataclass(frozen=True, eq=False)
class Arrays:
    """(n, channels, H, W) uint8 pixels in memory, for a data set that is to be scaled."""

    images: np.ndarray

    def __len__(self) -> int:
        return len(self.images)

    def name(self, row: int) -> str:
        return f"image {row}"

    def digest(self) -> str:
        raise NotImplementedError("images in memory are never kept on the disk")

    def batches(self, rows: np.ndarray) -> Iterator[tuple[np.ndarray, Sequence[Encoded]]]:
        for places in _pieces(len(rows)):
            yield places, list(self.images[rows[places]])


@dataclass(frozen=True, eq=False)
class LazyImages:
    """Images that are decoded when they are indexed.

    Attributes
    ----------
    store : the encoded images.
    rows : (n,) the store's row of every image of the pool.
    image_shape : (channels, H, W) of all.
    """

    store: ImageStore
    rows: np.ndarray
    image_shape: tuple[int, int, int]
    reading: Reading

    @property
    def shape(self) -> tuple[int, ...]:
        """(n, channels, H, W)."""
        return (len(self.rows), *self.image_shape)

    def __getitem__(self, indices: np.ndarray) -> np.ndarray:
        """(k, channels, H, W) uint8. Raises ``DataError`` if any of them cannot be read, after trying all."""
        rows = self.rows[indices]
        if self.reading.shelf is None:
            return self._decoded(rows)
        key = _key(self.store.digest(), self.image_shape, self.reading.image_size, rows.astype("<i8").tobytes())
        return DecodedShelf(self.reading.shelf).images(key, (len(rows), *self.image_shape), lambda: self._decoded(rows))

    def _decoded(self, rows: np.ndarray) -> np.ndarray:
        out = np.empty((len(rows), *self.image_shape), np.uint8)

        def decode(place: int, encoded: Encoded) -> None:
            image = pixels(encoded, self.image_shape[0], self.reading.image_size)
            if image.shape != self.image_shape:
                raise ValueError("it has another size than its header said")
            out[place] = image

        failed = _failures(self.store, rows, decode)
        if failed:
            raise _cannot_read([_told(self.store, rows[place], reason) for place, reason in failed.items()])
        return out


def file_source(store: ImageStore, rows: np.ndarray, labels: np.ndarray, classes: tuple[str, ...], train_count: int,
                meta: Mapping[str, np.ndarray], reading: Reading) -> Source:
    """A pool of the images at ``rows`` (n,) of ``store``; labels (n,) and columns (n,) are in the pool's order.

    Raises
    ------
    DataError
        If there are no images, some cannot be read (unless the run skips them), or their sizes differ and no
        ``image-size`` is set.
    """
    if not len(rows):
        raise DataError("the data hold no image")
    shape, unreadable = _survey(store, rows, reading)
    names = [_told(store, rows[place], reason) for place, reason in unreadable.items()]
    if names and reading.bad_images == "stop":
        raise _cannot_read(names)
    _log_names(names)
    keep = np.ones(len(rows), bool)
    keep[list(unreadable)] = False
    return Source(LazyImages(store, rows[keep], shape, reading), labels[keep], classes, int(keep[:train_count].sum()),
                  {name: np.asarray(column)[keep] for name, column in meta.items()}, tuple(names))


def converted(source: Source, reading: Reading) -> Source:
    """``source``, whose images are in memory, with the size and channels that ``reading`` asks for.

    Raises
    ------
    DataError
        If they would have to change and are not uint8 with 1 or 3 channels.
    """
    channels, height, width = source.image_shape
    wanted = (reading.channels or channels, reading.image_size or height, reading.image_size or width)
    if wanted == source.image_shape:
        return source
    images = source.images
    if not isinstance(images, np.ndarray) or images.dtype != np.uint8 or channels not in (1, 3):
        raise DataError("image-size and channels can change uint8 images of 1 or 3 channels alone; convert these data yourself, "
                        "or set both to 0")
    lazy = LazyImages(Arrays(images), np.arange(len(images)), wanted, Reading(reading.image_size, reading.channels))
    return Source(lazy, source.labels, source.classes, source.train_count, source.meta)


def stamp(path: Path) -> bytes:
    """Size and time of the last change of a file; the same for all files that are not there."""
    try:
        status = path.stat()
    except OSError:
        return b"missing"
    return f"{status.st_size} {status.st_mtime_ns}".encode()


def _survey(store: ImageStore, rows: np.ndarray, reading: Reading) -> tuple[tuple[int, int, int], dict[int, str]]:
    """The shape of all images, and what cannot be read: position -> reason. Remembered on the shelf, if there is one."""
    if reading.shelf is None:
        return _look(store, rows, reading)
    shelf = DecodedShelf(reading.shelf)
    key = _key(store.digest(), (reading.image_size, reading.channels, reading.bad_images), len(rows), rows.astype("<i8").tobytes())
    try:
        shape, unreadable = shelf.note(key)
        channels, height, width = map(int, shape)
        return (channels, height, width), {int(place): str(reason) for place, reason in unreadable.items()}
    except (TypeError, ValueError, AttributeError):  # nothing there, or not what was written
        found = _look(store, rows, reading)
    if not found[1] or reading.bad_images == "skip":
        shelf.keep_note(key, found)
    return found


def _look(store: ImageStore, rows: np.ndarray, reading: Reading) -> tuple[tuple[int, int, int], dict[int, str]]:
    facts = np.zeros((len(rows), 3), np.int64)  # height, width, coloured

    def look(place: int, encoded: Encoded) -> None:
        found = header(encoded, whole=reading.bad_images == "skip")
        facts[place] = found.height, found.width, found.coloured

    unreadable = _failures(store, rows, look)
    sound = np.delete(facts, list(unreadable), axis=0)
    if not len(sound):
        raise _cannot_read([_told(store, rows[place], reason) for place, reason in unreadable.items()])
    channels = reading.channels or (3 if sound[:, 2].any() else 1)
    if reading.image_size:
        return (channels, reading.image_size, reading.image_size), unreadable
    if (sound[:, :2] != sound[0, :2]).any() and (reading.bad_images == "skip" or not unreadable):
        raise DataError("the images differ in size: set image-size to a number of pixels, and each is scaled and cropped to a square of it "
                        "(FH-022)")
    return (channels, int(sound[0, 0]), int(sound[0, 1])), unreadable


def _failures(store: ImageStore, rows: np.ndarray, work: Callable[[int, Encoded], None]) -> dict[int, str]:
    """Do ``work(position, encoded)`` for every row, in threads; position -> reason for those that failed, ascending."""
    failed: dict[int, str] = {}

    def tried(place: int, encoded: Encoded) -> None:
        try:
            work(place, encoded)
        except MemoryError:
            raise
        except Exception as error:  # Pillow's readers raise nearly anything on damaged input
            failed[place] = NO_IMAGE if isinstance(error, UnidentifiedImageError) else f"{type(error).__name__}: {error}"

    with ThreadPoolExecutor(min(MOST_THREADS, os.cpu_count() or 1)) as threads:
        for places, encoded in _fetched(store, rows):
            list(threads.map(tried, places.tolist(), encoded))
    return dict(sorted(failed.items()))


def _fetched(store: ImageStore, rows: np.ndarray) -> Iterator[tuple[np.ndarray, Sequence[Encoded]]]:
    """``store.batches``, with what its library raises as a ``DataError``."""
    batches = store.batches(rows)
    while True:
        try:
            batch = next(batches, None)
        except (OSError, ValueError, RuntimeError, KeyError, IndexError) as error:  # pyarrow's own errors are among these
            raise DataError("the file that holds the images is damaged, or gone since it was opened; write it anew") from error
        if batch is None:
            return
        yield batch


def _cannot_read(names: Sequence[str]) -> DataError:
    """The error about images that cannot be read. Which ones is in its path and in the local log, never in its text."""
    _log_names(names)
    return DataError(f"{len(names)} of the images cannot be read; run `fedhearth data check` on this machine to see which, then repair "
                     "or remove them, or set bad-images=skip to leave them out (FH-021)", few(names, MOST_SHOWN))


def _log_names(names: Sequence[str]) -> None:
    if names:
        log.warning("images that cannot be read (%d): %s", len(names), "; ".join(names[:MOST_TOLD]))


def _told(store: ImageStore, row: int, reason: str) -> str:
    return printable(f"{store.name(int(row))} ({reason})")


def _pieces(count: int) -> Iterator[np.ndarray]:
    for start in range(0, count, AT_ONCE):
        yield np.arange(start, min(start + AT_ONCE, count))


def _key(*parts: object) -> str:
    sha = hashlib.sha256()
    for part in parts:
        sha.update((part if isinstance(part, bytes) else repr(part).encode()) + b"\0")
    return sha.hexdigest()[:32]
