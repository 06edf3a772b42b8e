"""From a run's settings and a node to that client's data, in every way of running."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from client_app.data.byte_lru import ByteLru
from client_app.data.client_data import ClientData, DataError
from client_app.data.holdout import official_test, split_train_test
from client_app.data.reading import reading_of
from client_app.data.simulated import client_data, official_train_count, plan_of
from client_app.data.source import Source
from client_app.data.sources import (
    DataNode,
    Origin,
    is_loader,
    load_by_function,
    load_source,
    origin_of,
)
from strategies.config import RunConfig
from strategies.seeds import derive_seed

CACHE_BYTES = 2 * 2**30
_CACHE = ByteLru(CACHE_BYTES)


def open_data(config: RunConfig, node: DataNode) -> ClientData:
    """This client's data, behind read-only arrays, kept in this process for its next message.

    The site's own ``node.data`` wins over ``config.dataset``: it is wholly this client's and only split
    into train and test. ``config.dataset`` is divided among ``node.count`` clients. A ``module:function``
    in either place gets the node and decides itself; it is called once per process and (node, seed), as
    long as its data stays cached.

    Raises
    ------
    DataError
        If the data is missing, damaged or malformed.
    PartitionError
        If it cannot be divided as the run's settings say.
    """
    spec = node.data or config.dataset
    if is_loader(spec):
        key = (spec, node.name, node.index, node.count, node.data, config.seed)
        return _CACHE.get(key, lambda: load_by_function(spec, node, config.seed))
    if node.data:
        origin = origin_of(node.data, reading_of(config, _shelf(node)))
        key = (origin, node.index, config.test_split, config.test_fraction, config.seed)
        return _CACHE.get(key, lambda: _site_data(origin, node.index, config))
    if not 0 <= node.index < node.count:
        raise DataError(f"expected a partition in 0..{node.count - 1}, got {node.index}")
    plan = plan_of(config, node.count, _shelf(node))
    return _CACHE.get((plan, node.index), lambda: client_data(plan, node.index))


def _shelf(node: DataNode) -> Path | None:
    """Where this client keeps decoded images; a simulation's processes stay, and keep theirs in memory."""
    return None if node.simulated else node.state_dir / "decoded"


def left_out(config: RunConfig, node: DataNode) -> bool:
    """Whether the data set has images that cannot be read and that the run's ``bad-images = skip`` leaves out."""
    spec = node.data or config.dataset
    if config.bad_images != "skip" or is_loader(spec):
        return False
    return load_source(origin_of(spec, reading_of(config, _shelf(node)))).skipped > 0


def site_split(source: Source, index: int, config: RunConfig) -> tuple[np.ndarray, np.ndarray]:
    """Train and test positions in ``source``, which is wholly the site's own.

    Raises ``DataError`` if the official test set is asked for and there is none.
    """
    count = official_train_count(source, config.test_split)
    rng = np.random.default_rng(derive_seed(config.seed, "split", index))
    mine = rng.permutation(count)
    if config.test_split == "official":
        test = official_test(source.labels[:count], [mine], source.labels[count:], rng)[0] + count
        return mine, test
    return split_train_test(source.labels, mine, config.test_fraction, rng)


def _site_data(origin: Origin, index: int, config: RunConfig) -> ClientData:
    source = load_source(origin)
    train, test = site_split(source, index, config)
    return ClientData(source.take(train), source.take(test), source.classes)
