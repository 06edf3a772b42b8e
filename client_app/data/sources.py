"""Where samples come from, by name: ``digits``, ``folder:PATH``, ``table:FILE``, ``npz:FILE``, ``cifar10:FOLDER``,
``torchvision:NAME@ROOT``, ``hub:NAME`` or ``module:function``.

All but the last are a ``Source``: one pool of samples that a simulation divides among clients, or that is
one site's own data as a whole. ``module:function`` is the user's own ``load(node, seed) -> ClientData`` and
is never divided here. Readers are imported on first use, since scikit-learn and torchvision take seconds. A
new kind of source is a function ``load(where, reading) -> Source`` and one line in ``FROM_FILES``.
"""

from __future__ import annotations

import importlib
from functools import lru_cache
from pathlib import Path
from traceback import extract_tb
from typing import Any, NamedTuple, Protocol

import numpy as np

from client_app.data.client_data import ClientData, DataError
from client_app.data.partition import PartitionError
from client_app.data.place import changed, divided
from client_app.data.reading import Reading
from client_app.data.source import Source

# kind -> its reader; those in memory take the place alone, the others also how files are read
IN_MEMORY = {
    "digits": "client_app.data.digits:load",
    "cifar10": "client_app.data.cifar:load",
    "npz": "client_app.data.npz:load",
}
FROM_FILES = {
    "folder": "client_app.data.folder:load",
    "table": "client_app.data.table:load",
    "torchvision": "client_app.data.torchvision_set:load",
    "hub": "client_app.data.hub:load",
}
READERS = IN_MEMORY | FROM_FILES
EXPECTED = "digits, folder:PATH, table:FILE, npz:FILE, cifar10:FOLDER, torchvision:NAME@ROOT, hub:NAME or module:function"


class DataNode(Protocol):
    """What data loading needs to know of a ``client_app.node.Node``."""

    @property
    def name(self) -> str: ...
    @property
    def index(self) -> int: ...
    @property
    def count(self) -> int: ...
    @property
    def data(self) -> str: ...
    @property
    def state_dir(self) -> Path: ...
    @property
    def simulated(self) -> bool: ...


class Origin(NamedTuple):
    """A source as a cache key: a file that was written anew is another source, and so is one read in another way."""

    spec: str
    modified_ns: int
    size: int
    reading: Reading = Reading()


def is_loader(spec: str) -> bool:
    """Whether ``spec`` names a user's ``module:function``."""
    return ":" in spec and spec.partition(":")[0] not in READERS


def origin_of(spec: str, reading: Reading = Reading()) -> Origin:  # noqa: B008  (frozen)
    """The cache key of ``spec``, a built-in source."""
    return Origin(spec, *changed(divided(spec)[1]), reading)


# Only memoisation: another worker, or a restarted one, reads the same samples again.
@lru_cache(maxsize=2)
def load_source(origin: Origin) -> Source:
    """The samples of a built-in source.

    Raises
    ------
    DataError
        If the spec is not known, or the data is missing, damaged or malformed.
    """
    kind, _, where = origin.spec.partition(":")
    if kind not in READERS:
        raise DataError(f"unknown dataset: expected {EXPECTED}")
    if kind == "digits" and ":" in origin.spec:
        raise DataError("`digits` comes with this program and takes no place; write `digits` alone")
    if kind != "digits" and not where:
        raise DataError(f"expected a place after `{kind}:`, got none; write {EXPECTED}")
    source = _resolve(READERS[kind])(where, origin.reading) if kind in FROM_FILES else _resolve(READERS[kind])(where)
    if isinstance(source.images, np.ndarray) and (origin.reading.image_size or origin.reading.channels):
        return _resolve("client_app.data.file_source:converted")(source, origin.reading)
    return source


def load_by_function(spec: str, node: DataNode, seed: int) -> ClientData:
    """What the user's ``module:function`` returns for (node, run's seed).

    Raises
    ------
    DataError
        If it cannot be imported, raises (the cause is chained, for this machine's log) or returns anything
        but ``ClientData``.
    """
    try:
        load = _resolve(spec)
    except (Exception, SystemExit) as error:
        raise DataError(f"the data loader cannot be imported ({type(error).__name__}): expected {EXPECTED}, "
                        "with the module on this machine's Python path (FH-025)", spec) from error
    try:
        data = load(node, seed)
    except (Exception, SystemExit) as error:
        if isinstance(error, DataError | PartitionError) and _raised_by_us(error):
            raise
        raise DataError(f"the data loader failed with {type(error).__name__}; see its traceback on the "
                        "client's machine", spec + _line(error)) from error
    if not isinstance(data, ClientData):
        raise DataError(f"expected the data loader to return ClientData, got {type(data).__name__}", spec)
    return data


def _raised_by_us(error: BaseException) -> bool:
    """Whether the text of ``error`` is ours. A loader may raise a ``DataError`` of its own, with a path or a value in it."""
    frame = error.__traceback__
    while frame is not None and frame.tb_next is not None:
        frame = frame.tb_next
    return frame is not None and str(frame.tb_frame.f_globals.get("__name__")).partition(".")[0] == __name__.partition(".")[0]


def _line(error: BaseException) -> str:
    """Where in the loader's own file it failed, for whoever wrote it; "" if it was never entered."""
    frames = extract_tb(error.__traceback__)[1:]  # the first is ours
    own = [frame.lineno for frame in frames if frame.filename == frames[0].filename]
    return f", line {own[-1]}" if own else ""


def _resolve(reference: str) -> Any:
    module, _, function = reference.partition(":")
    return getattr(importlib.import_module(module), function)
