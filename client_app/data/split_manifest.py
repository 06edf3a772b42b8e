"""Who got which samples: a record of a whole split, and digests by which processes agree on it.

A digest covers ids, labels and group, not images. It is of a *simulated* split: over a site's own labels it
would let a server confirm a guess of them, so a site must not send one.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from client_app.data.client_data import ClientData
from client_app.data.opening import open_data
from client_app.data.simulated import group_of, indices_of, plan_of
from client_app.data.sources import is_loader, load_source
from client_app.node import client_name
from strategies.config import RunConfig
from strategies.split_hash import combined_hash


@dataclass(frozen=True)
class _Share:
    """One client's labels and ids, without its images."""

    train_ids: np.ndarray
    train_labels: np.ndarray
    test_ids: np.ndarray
    test_labels: np.ndarray
    group: str

    def digest(self) -> str:
        sha = hashlib.sha256()
        for array in (self.train_ids, self.test_ids, self.train_labels, self.test_labels):
            sha.update(len(array).to_bytes(8, "little"))
            sha.update(array.astype("<i8").tobytes())
        sha.update(self.group.encode())
        return sha.hexdigest()


@dataclass(frozen=True)
class _SimulatedNode:
    name: str
    index: int
    count: int
    data: str = ""


def data_digest(data: ClientData) -> str:
    """sha256 (hex) of one client's train and test ids, labels and group, in their order."""
    return _share_of(data).digest()


def manifest(config: RunConfig) -> dict[str, Any]:
    """The whole split of a simulation, as JSON can hold it.

    Keys: ``dataset``, ``partition`` ("loader" for a ``module:function``, which divides by itself),
    ``clients``, ``seed``, ``classes``; ``train`` and ``test``: client -> samples a class (C,); ``groups``:
    client -> group; ``unused``: samples no client got; ``hash``: ``combined_hash`` of every client's
    ``data_digest``.

    Raises
    ------
    DataError, PartitionError
        As ``open_data``.
    """
    names = [client_name(index) for index in range(config.clients)]
    if is_loader(config.dataset):
        nodes = [_SimulatedNode(name, index, config.clients) for index, name in enumerate(names)]
        opened = [open_data(config, node) for node in nodes]
        classes, shares, unused = opened[0].classes, [_share_of(data) for data in opened], 0
    else:
        plan = plan_of(config, config.clients)
        source = load_source(plan.origin)
        shares: list[_Share] = []
        for client in range(config.clients):
            train, test = indices_of(plan, client)
            labels = source.labels
            shares.append(_Share(train, labels[train], test, labels[test], group_of(plan, client)))
        classes = source.classes
        unused = len(source) - sum(len(share.train_ids) + len(share.test_ids) for share in shares)
    by_client = dict(zip(names, shares, strict=True))
    return {
        "dataset": config.dataset,
        "partition": "loader" if is_loader(config.dataset) else config.partition,
        "clients": config.clients,
        "seed": config.seed,
        "classes": list(classes),
        "train": {name: _counts(share.train_labels, len(classes)) for name, share in by_client.items()},
        "test": {name: _counts(share.test_labels, len(classes)) for name, share in by_client.items()},
        "groups": {name: share.group for name, share in by_client.items()},
        "unused": unused,
        "hash": combined_hash({name: share.digest() for name, share in by_client.items()}),
    }


def _share_of(data: ClientData) -> _Share:
    return _Share(data.train.ids, data.train.labels, data.test.ids, data.test.labels, data.group)


def _counts(labels: np.ndarray, classes: int) -> list[int]:
    return np.bincount(labels, minlength=classes).tolist()


def write_manifest(config: RunConfig) -> None:
    """Put the manifest as ``split.json`` into the run's folder, in one step. For simulations, where all clients are
    the same user's; nothing on separate machines calls it."""
    folder = Path(config.out).expanduser()
    folder.mkdir(parents=True, exist_ok=True)
    part = folder / "split.json.part"
    part.write_text(json.dumps(manifest(config)), encoding="utf-8")
    part.replace(folder / "split.json")
