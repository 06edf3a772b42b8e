"""Where samples come from, by name: ``digits``, ``cifar10:FOLDER``, ``npz:FILE``, ``module:function``.

The first three are a ``Source``: one pool of samples that a simulation divides among clients, or that is
one site's own data as a whole. ``module:function`` is the user's own ``load(node, seed) -> ClientData`` and
is never divided here. Readers are imported on first use, since scikit-learn and torchvision take seconds. A
new kind of source is a function ``load(where) -> Source`` and one line in ``READERS``.
"""

from __future__ import annotations

import importlib
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import numpy as np

from client_app.data.client_data import ClientData, DataError, Split, check_label_range
from client_app.data.partition import PartitionError

READERS = {
    "digits": "client_app.data.digits:load",
    "cifar10": "client_app.data.cifar:load",
    "npz": "client_app.data.npz:load",
}
EXPECTED = "digits, cifar10:FOLDER, npz:FILE or module:function"


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


@dataclass(frozen=True, eq=False)
class Source:
    """One pool of samples; a sample's id is its position in it.

    Attributes
    ----------
    images : (n, channels, H, W) uint8 or finite float32.
    labels : (n,) int64 in 0..C-1.
    classes : (C,) names.
    train_count : the first ``train_count`` samples are the official training set, the rest the official test
        set (none: ``train_count == n``).
    """

    images: np.ndarray
    labels: np.ndarray
    classes: tuple[str, ...]
    train_count: int

    def __post_init__(self) -> None:
        pool = Split(self.images, self.labels, np.arange(len(self.images))).read_only()
        check_label_range(pool.labels, len(self.classes))
        if not 1 <= self.train_count <= len(pool):
            raise DataError("expected at least one training sample, got none")
        object.__setattr__(self, "images", pool.images)
        object.__setattr__(self, "labels", pool.labels)

    def __len__(self) -> int:
        return len(self.labels)

    def take(self, indices: np.ndarray) -> Split:
        """A copy of the samples at ``indices`` (k,)."""
        return Split(self.images[indices], self.labels[indices], indices)


class Origin(NamedTuple):
    """A source as a cache key: a file that was written anew is another source."""

    spec: str
    modified_ns: int
    size: int


def is_loader(spec: str) -> bool:
    """Whether ``spec`` names a user's ``module:function``."""
    return ":" in spec and spec.partition(":")[0] not in READERS


def origin_of(spec: str) -> Origin:
    """The cache key of ``spec``, a built-in source."""
    where = spec.partition(":")[2]
    try:
        status = Path(where).expanduser().stat() if where else None
    except OSError:
        status = None  # the reader says what is wrong
    return Origin(spec, status.st_mtime_ns, status.st_size) if status else Origin(spec, 0, 0)


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
    return _resolve(READERS[kind])(where)


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
                        "with the module on this machine's Python path", spec) from error
    try:
        data = load(node, seed)
    except (Exception, SystemExit) as error:
        if isinstance(error, DataError | PartitionError) and _raised_by_us(error):
            raise
        raise DataError(f"the data loader failed with {type(error).__name__}; see its traceback on the "
                        "client's machine", spec) from error
    if not isinstance(data, ClientData):
        raise DataError(f"expected the data loader to return ClientData, got {type(data).__name__}", spec)
    return data


def _raised_by_us(error: BaseException) -> bool:
    """Whether the text of ``error`` is ours. A loader may raise a ``DataError`` of its own, with a path or a value in it."""
    frame = error.__traceback__
    while frame is not None and frame.tb_next is not None:
        frame = frame.tb_next
    return frame is not None and str(frame.tb_frame.f_globals.get("__name__")).partition(".")[0] == __name__.partition(".")[0]


def _resolve(reference: str) -> Any:
    module, _, function = reference.partition(":")
    return getattr(importlib.import_module(module), function)
