"""Who got which samples: a record of a whole split, and digests by which processes agree on it.

A digest covers ids, labels and group, not images; the hash of a split covers every client's digest and who is held
out of training. It is of a *simulated* split: over a site's own labels it would let a server confirm a guess of them,
so a site must not send one.
"""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from client_app.data.client_data import ClientData
from client_app.data.opening import open_data
from client_app.data.simulated import group_of, indices_of, plan_of
from client_app.data.sources import is_loader, load_source
from client_app.local.durable import replace_durably
from client_app.node import client_name
from strategies.config import RunConfig
from strategies.held_out import held_out_names
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

    @property
    def ids(self) -> np.ndarray:
        return np.concatenate([self.train_ids, self.test_ids])


@dataclass(frozen=True)
class _Whole:
    """All clients' shares, and what the source says of them beyond its labels."""

    shares: dict[str, _Share]
    classes: tuple[str, ...]
    unused: int = 0
    columns: dict[str, np.ndarray] | None = None
    natural: bool = False


@dataclass(frozen=True)
class _SimulatedNode:
    name: str
    index: int
    count: int
    data: str = ""
    state_dir: Path = Path()
    simulated: bool = True


def data_digest(data: ClientData) -> str:
    """sha256 (hex) of one client's train and test ids, labels and group, in their order."""
    return _share_of(data).digest()


def manifest(config: RunConfig) -> dict[str, Any]:
    """The whole split of a simulation, as JSON can hold it.

    Keys: ``dataset``, ``partition`` ("loader" for a ``module:function``, which divides by itself), ``clients``, ``seed``,
    ``classes``; ``train`` and ``test``: client -> samples a class (C,); ``groups``: client -> group; ``domains``: client ->
    domain -> samples, if the data have such a column; ``natural``: client -> its value of the ``client`` column, if the
    partition goes by it; ``held_out``: clients kept out of training; ``unused``: samples no client got; ``hash``:
    ``combined_hash`` of every client's ``data_digest`` and of ``held_out``.

    Raises
    ------
    DataError, PartitionError
        As ``open_data``.
    """
    whole = _by_loader(config) if is_loader(config.dataset) else _by_plan(config)
    shares, classes = whole.shares, len(whole.classes)
    held_out = held_out_names(shares, config.held_out_count, config.seed)
    return {
        "dataset": config.dataset,
        "partition": "loader" if is_loader(config.dataset) else config.partition,
        "clients": config.clients,
        "seed": config.seed,
        "classes": list(whole.classes),
        "train": {name: _counts(share.train_labels, classes) for name, share in shares.items()},
        "test": {name: _counts(share.test_labels, classes) for name, share in shares.items()},
        "groups": {name: share.group for name, share in shares.items()},
        **_of_columns(whole),
        "held_out": list(held_out),
        "unused": whole.unused,
        "hash": combined_hash({name: share.digest() for name, share in shares.items()}, held_out),
    }


def _by_loader(config: RunConfig) -> _Whole:
    nodes = [_SimulatedNode(client_name(index), index, config.clients) for index in range(config.clients)]
    opened = {node.name: open_data(config, node) for node in nodes}
    return _Whole({name: _share_of(data) for name, data in opened.items()}, opened[nodes[0].name].classes)


def _by_plan(config: RunConfig) -> _Whole:
    plan = plan_of(config, config.clients)
    source = load_source(plan.origin)
    shares: dict[str, _Share] = {}
    for client in range(config.clients):
        train, test = indices_of(plan, client)
        labels = source.labels
        shares[client_name(client)] = _Share(train, labels[train], test, labels[test], group_of(plan, client))
    unused = len(source) - sum(len(share.ids) for share in shares.values())
    return _Whole(shares, source.classes, unused, dict(getattr(source, "meta", {})), plan.name.division == "natural")


def _share_of(data: ClientData) -> _Share:
    return _Share(data.train.ids, data.train.labels, data.test.ids, data.test.labels, data.group)


def _counts(labels: np.ndarray, classes: int) -> list[int]:
    return np.bincount(labels, minlength=classes).tolist()


def _of_columns(whole: _Whole) -> dict[str, Any]:
    """What the domain and client columns say of every client's samples."""
    columns, found = whole.columns or {}, {}
    if "domain" in columns:
        found["domains"] = {name: dict(sorted(Counter(map(str, columns["domain"][share.ids])).items()))
                            for name, share in whole.shares.items()}
    if whole.natural:
        found["natural"] = {name: str(columns["client"][share.train_ids[0]]) for name, share in whole.shares.items()}
    return found


def write_manifest(config: RunConfig) -> None:
    """Put the manifest as ``split.json`` into the run's folder, in one step. For simulations, where all clients are
    the same user's; nothing on separate machines calls it. ``split.png`` beside it is the server's to draw."""
    text, folder = json.dumps(manifest(config)), Path(config.out).expanduser()
    folder.mkdir(parents=True, exist_ok=True)
    replace_durably(folder / "split.json", text.encode())
