"""Data opened for a look at all of them, on the machine where they lie.

Images are read once, some hundred at a time, and only facts about them are kept (``client_app.data.content``), so that a data set
larger than the memory can be checked.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from client_app.data.checks import Part, Share
from client_app.data.client_data import ClientData
from client_app.data.content import Content, content_of, joined
from client_app.data.opening import site_split
from client_app.data.place import divided, is_there
from client_app.data.reading import reading_of
from client_app.data.simulated import indices_of, plan_of
from client_app.data.source import Source
from client_app.data.sources import EXPECTED, READERS, is_loader, load_by_function, load_source, origin_of
from client_app.data.start_check import share_of
from client_app.node import Node
from strategies.config import ConfigError, RunConfig

AT_ONCE = 256
SHOWN_FROM = 2000  # images; fewer need no progress bar
SITE = "this-site"


@dataclass(frozen=True, eq=False)
class Opened:
    """Data that could be opened.

    Attributes
    ----------
    classes, image_shape, dtype : as every client has them. told : the rest in words.
    shares : looks at the images and gives, client by client, what the checks see of it.
    unreadable : names of images that cannot be read.
    """

    classes: tuple[str, ...]
    image_shape: tuple[int, int, int]
    dtype: str
    told: str
    shares: Callable[[], dict[str, Share]]
    unreadable: tuple[str, ...] = ()


def usable(uri: str) -> None:
    """Raise ``ConfigError`` for a URI that names no kind of data, or a place or function that is not there."""
    kind, colon, where = uri.partition(":")
    if is_loader(uri):
        try:
            getattr(importlib.import_module(kind), where)
        except (Exception, SystemExit) as error:
            raise ConfigError(f"{uri!r} cannot be imported ({type(error).__name__}: {error}): expected {EXPECTED}") from error
    elif kind not in READERS or (kind == "digits") == bool(colon):
        raise ConfigError(f"{uri!r} names no data: expected {EXPECTED}")
    elif kind != "digits" and not where:
        raise ConfigError(f"expected a place after `{uri}`: {EXPECTED}")
    elif (place := divided(uri)[1]) and not is_there(place):
        raise ConfigError(f"{place} does not exist, or this user may not see it (FH-026)")


def open_all(run: RunConfig, names: list[str]) -> Opened:
    """The data of ``run``, as those of the clients ``names``, or of ``SITE`` alone.

    Raises
    ------
    DataError, PartitionError
        If they cannot be opened; images that cannot be read are named in the result instead.
    """
    if is_loader(run.dataset):
        data = {name: load_by_function(run.dataset, _node(name, index, len(names), run), run.seed) for index, name in enumerate(names)}
        first = data[names[0]]
        return Opened(first.classes, first.input_shape, str(first.train.images.dtype), _told(data),
                      lambda: {name: share_of(mine, run.batch) for name, mine in data.items()})
    # all that cannot be read is to be named at once, whatever the run would do about it
    reading = reading_of(replace(run, bad_images="skip"))
    with _waiting("reading"):
        source = load_source(origin_of(run.dataset, reading))
    told = f"{len(source)} samples" + (f", the last {len(source) - source.train_count} of them the official test set"
                                       if source.train_count < len(source) else "")
    dtype = str(source.images.dtype) if isinstance(source.images, np.ndarray) else "uint8"
    return Opened(source.classes, source.image_shape, dtype, told, lambda: _shares(source, run, names), source.unreadable)


def _shares(source: Source, run: RunConfig, names: list[str]) -> dict[str, Share]:
    if names == [SITE]:
        splits = {SITE: site_split(source, 0, run)}
    else:
        plan = plan_of(replace(run, bad_images="skip"), len(names))
        splits = {name: indices_of(plan, index) for index, name in enumerate(names)}
    content, named = _content(source), _namer(source, run.dataset)
    floats = isinstance(source.images, np.ndarray) and source.images.dtype.kind == "f"

    def part(indices: np.ndarray) -> Part:
        return Part(source.labels[indices], content.take(indices), lambda i: named(int(indices[i])))

    return {name: Share(source.classes, part(train), part(test), run.batch, floats) for name, (train, test) in splits.items()}


def _content(source: Source) -> Content:
    parts = []
    with _progress(len(source)) as advance:
        for start in range(0, len(source), AT_ONCE):
            places = np.arange(start, min(start + AT_ONCE, len(source)))
            parts.append(content_of(source.take(places).images))
            advance(len(places))
    return joined(parts)


def _namer(source: Source, uri: str) -> Callable[[int], str]:
    """Position in the pool -> the sample as this machine's user knows it."""
    store, rows = getattr(source.images, "store", None), getattr(source.images, "rows", None)
    if store is not None and rows is not None:
        return lambda i: store.name(int(rows[i]))
    count = source.train_count
    prefix = ("x_train", "x_test") if uri.startswith("npz:") else ("training sample ", "test sample ") if count < len(source) else None
    if prefix is None:
        return lambda i: f"sample {i}"
    shown = "[{}]" if uri.startswith("npz:") else "{}"
    return lambda i: prefix[i >= count] + shown.format(i - count if i >= count else i)


def _told(data: dict[str, ClientData]) -> str:
    sizes = [len(mine.train) + len(mine.test) for mine in data.values()]
    return f"{sum(sizes)} samples" + (f", {min(sizes)} to {max(sizes)} a client" if len(sizes) > 1 else "")


def _node(name: str, index: int, count: int, run: RunConfig) -> Node:
    return Node(name, index, count, run.dataset, Path(run.state_dir or "."), "", True)


@contextmanager
def _progress(count: int) -> Iterator[Callable[[int], None]]:
    """A bar on stderr for many images, nothing for few."""
    if count <= SHOWN_FROM:
        yield lambda done: None
        return
    from rich.console import Console
    from rich.progress import Progress

    with Progress(console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task("images", total=count)
        yield lambda done: bar.advance(task, done)


@contextmanager
def _waiting(what: str) -> Iterator[None]:
    from rich.console import Console

    with Console(stderr=True).status(what):
        yield
