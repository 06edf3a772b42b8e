"""Clients a second of a cohort of 8 against the same clients one by one, alternated in one process.

    python -m benchmarks.cohort.compare [--device cuda] [--cohort 8] [--repeats 5] [--out compare.json]

A row is a network with its images and batches; every client has 6 batches of them and makes an epoch. ``ratio`` is the median over
repeats of (one by one / cohort), in seconds of the device: processor time on a CPU, where other programs run beside this one, wall time on
a GPU, whose processor only launches. ``farthest`` is the largest difference between a weight trained one way and the other. The rows
``cnn`` are the product's own model; ``fixed job`` is the network of the fixed speed job, if ``FEDHEARTH_BENCH`` names its folder.
``uneven`` clients have 2 to 12 batches each and a last batch of their own size. The row ``round`` is a whole round of a FedAvg run in
the in-process engine without scores: messages, checks and averaging included.
"""

from __future__ import annotations

import argparse
import copy
import importlib
import json
import os
import platform
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from flwr.app import Context, RecordDict
from torch import nn

from client_app.cohort import Fit
from client_app.cohort_fit import fit_together, train_stacked
from client_app.data.client_data import ClientData, Split
from client_app.loop import LoopSettings, fit
from deploy.inprocess import InProcessGrid
from models.split import SplitModel, build_model
from server_app.main import serve

CLASSES, BATCHES = 10, 6


@dataclass(frozen=True)
class Job:
    """What a client trains: ``shape`` (channels, H, W), samples ``batch`` at a time; ``uneven`` clients have unequal numbers of them."""

    model: Callable[[], SplitModel]
    shape: tuple[int, int, int]
    batch: int
    uneven: bool = False

    def clients(self, count: int, device: str) -> list[Fit]:
        rng, settings = np.random.default_rng(0), LoopSettings(epochs=1, batch=self.batch, device=device)
        sizes = [self.batch * BATCHES] * count
        if self.uneven:
            sizes = [int(n) for n in np.linspace(2 * self.batch, 2 * BATCHES * self.batch, count) - 0.4 * self.batch]
        return [Fit(self.model(), rng.normal(0, 1, (n, *self.shape)).astype(np.float32), rng.integers(0, CLASSES, n), settings, seed)
                for seed, n in enumerate(sizes)]


def cnn(shape: tuple[int, int, int], width: int) -> Callable[[], SplitModel]:
    return lambda: build_model("cnn", CLASSES, shape, width)


def linear() -> SplitModel:
    return SplitModel(nn.Sequential(nn.Flatten(), nn.Linear(64, 32), nn.ReLU()), 32, CLASSES)


def fixed_net(in_shape: tuple[int, int, int], width: int) -> tuple[nn.Module, int]:
    """The fixed job's network without its last layer, and its feature width."""
    return importlib.import_module("job").build_net().body, 512


def fixed() -> SplitModel:
    return SplitModel(fixed_net((3, 32, 32), 0)[0], 512, CLASSES)


def jobs() -> dict[str, Job]:
    small, large = (1, 8, 8), (3, 32, 32)
    found = {"two linear layers, 8x8": Job(linear, small, 25), "cnn width 4, 8x8, batch 8": Job(cnn(small, 4), small, 8),
             "cnn, 8x8": Job(cnn(small, 16), small, 25), "cnn, 8x8, uneven": Job(cnn(small, 16), small, 25, uneven=True),
             "cnn, 32x32": Job(cnn(large, 16), large, 25)}
    if folder := os.environ.get("FEDHEARTH_BENCH"):
        sys.path.insert(0, folder)
        found["fixed job"] = Job(fixed, large, 32)
    return found


def measured(job: Job, count: int, device: str, repeats: int) -> dict[str, Any]:
    """The row of one job."""
    clients = job.clients(count, device)
    farthest = _farthest(clients)
    ways: dict[str, Callable[[Sequence[Fit]], Any]] = {"one by one": _one_by_one, "cohort": fit_together}
    for way in ways.values():  # both are warm before either is timed
        way(clients)
    seconds: dict[str, list[float]] = {name: [] for name in ways}
    for name, way in _alternated(ways, repeats):
        seconds[name].append(_timed(lambda way=way: way(clients), device))
    return _row(seconds, count) | {"farthest": farthest}


def whole_round(count: int, device: str, repeats: int) -> dict[str, Any]:
    """The row of a run's rounds: ``count`` clients of the product's CNN on 8x8 images."""
    cohorts = {"one by one": 1, "cohort": count}
    seconds: dict[str, list[float]] = {name: [] for name in cohorts}
    for name, size in _alternated(cohorts, max(1, repeats // 2)):
        with tempfile.TemporaryDirectory() as folder:
            config: dict[str, Any] = {
                "method": "fedavg", "dataset": "benchmarks.cohort.compare:noise", "partition": "iid", "clients": count, "rounds": 7,
                "epochs": 1, "score-every": 9, "score-adapted": "never", "out": folder, "state-dir": f"{folder}/clients", "run-id": "r",
                "device": device, "cohort": size}
            ends: list[float] = []
            clock = time.process_time if device == "cpu" else time.perf_counter
            serve(InProcessGrid(config, count), Context(1, 1, {}, RecordDict(), config), "inprocess",
                  on_round=lambda _, ends=ends, clock=clock: ends.append(clock()))
        # the first round builds models, the last is followed by the closing evaluation
        seconds[name].append(float(np.median(np.diff(ends[:-1]))))
    return _row(seconds, count)


def noise(node: Any, seed: int) -> ClientData:
    """150 images of 8x8 to train with."""
    rng, n = np.random.default_rng(node.index), 25 * BATCHES
    images, labels, ids = rng.integers(0, 256, (n + 5, 1, 8, 8), dtype=np.uint8), rng.integers(0, CLASSES, n + 5), np.arange(n + 5)
    train, test = (Split(images[part], labels[part], ids[part]) for part in (slice(0, n), slice(n, None)))
    return ClientData(train, test, classes=tuple(map(str, range(CLASSES))))


def _one_by_one(clients: Sequence[Fit]) -> None:
    for each in clients:
        fit(each.model, each.images, each.labels, each.settings, each.seed)


def _alternated(ways: dict[str, Any], repeats: int) -> Iterator[tuple[str, Any]]:
    """Every way ``repeats`` times, now the one first and now the other."""
    for repeat in range(repeats):
        yield from list(ways.items())[::1 if repeat % 2 else -1]


def _timed(work: Callable[[], Any], device: str) -> float:
    clock = time.process_time if device == "cpu" else time.perf_counter
    start = clock()
    work()
    if device != "cpu":
        torch.cuda.synchronize(device)
    return clock() - start


def _row(seconds: dict[str, list[float]], count: int) -> dict[str, Any]:
    ratios = [a / b for a, b in zip(seconds["one by one"], seconds["cohort"], strict=True)]
    return {"ratio": round(statistics.median(ratios), 2), "ratios": [round(ratio, 2) for ratio in ratios],
            "clients_a_second": {name: round(count / statistics.median(found), 1) for name, found in seconds.items()}}


def _farthest(clients: Sequence[Fit]) -> float:
    """From the same start, by the weights of every client; the clients stay as they are."""
    twins = [[Fit(copy.deepcopy(c.model), c.images, c.labels, c.settings, c.seed) for c in clients] for _ in range(2)]
    _one_by_one(twins[0])
    train_stacked(twins[1])
    pairs = (zip(a.model.parameters(), b.model.parameters(), strict=True) for a, b in zip(*twins, strict=True))
    return max(float((one - other).detach().abs().max()) for pair in pairs for one, other in pair)


def _place(device: str) -> dict[str, Any]:
    name = torch.cuda.get_device_name(device) if device != "cpu" else platform.processor() or platform.machine()
    return {"device": device, "name": name, "torch": torch.__version__, "cores": os.cpu_count(),
            "load_before": [round(load, 1) for load in os.getloadavg()] if hasattr(os, "getloadavg") else []}


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--device", default="cpu", help="cpu, cuda or cuda:NUMBER")
    parser.add_argument("--cohort", type=int, default=8)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--out", type=Path)
    asked = parser.parse_args()
    torch.set_num_threads(1)
    told: dict[str, Any] = _place(asked.device) | {"cohort": asked.cohort, "repeats": asked.repeats, "rows": {}}
    rows = {name: lambda job=job: measured(job, asked.cohort, asked.device, asked.repeats) for name, job in jobs().items()}
    for name, row in (rows | {"round, cnn, 8x8": lambda: whole_round(asked.cohort, asked.device, asked.repeats)}).items():
        told["rows"][name] = row()
        print(f"{name:28} {told['rows'][name]['ratio']:6.2f}   {told['rows'][name]['clients_a_second']}", flush=True)
    if asked.out:
        asked.out.write_text(json.dumps(told, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    # the data hook imports this file by name; one copy of it is enough
    sys.modules["benchmarks.cohort.compare"] = sys.modules["__main__"]
    main()
