"""From a run's settings and a node to that client's data, in every way of running."""

from __future__ import annotations

import numpy as np

from client_app.data.byte_lru import ByteLru
from client_app.data.client_data import ClientData, DataError
from client_app.data.holdout import official_test, split_train_test
from client_app.data.simulated import client_data, official_train_count, plan_of
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
        origin = origin_of(node.data)
        key = (origin, node.index, config.test_split, config.test_fraction, config.seed)
        return _CACHE.get(key, lambda: _site_data(origin, node.index, config))
    if not 0 <= node.index < node.count:
        raise DataError(f"expected a partition in 0..{node.count - 1}, got {node.index}")
    plan = plan_of(config, node.count)
    return _CACHE.get((plan, node.index), lambda: client_data(plan, node.index))


def _site_data(origin: Origin, index: int, config: RunConfig) -> ClientData:
    source = load_source(origin)
    count = official_train_count(source, config.test_split)
    rng = np.random.default_rng(derive_seed(config.seed, "split", index))
    mine = rng.permutation(count)
    if config.test_split == "official":
        test = official_test(source.labels[:count], [mine], source.labels[count:], rng)[0] + count
        return ClientData(source.take(mine), source.take(test), source.classes)
    train, test = split_train_test(source.labels, mine, config.test_fraction, rng)
    return ClientData(source.take(train), source.take(test), source.classes)
