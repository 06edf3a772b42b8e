"""Whole runs through the in-process engine: HDC-FL on the device against the CPU, and a cohort of clients against one by one."""

from __future__ import annotations

import statistics
import tempfile
import time
from collections.abc import Callable, Mapping
from dataclasses import fields
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

# after two rounds on two devices: share of the tensors' norm, and of the mean served accuracy
STATE, SERVED = 0.02, 0.03
HDC = {"method": "hdc-fl", "dataset": "digits", "partition": "rotation", "clients": 8, "rounds": 2, "hdc-fl.refresh-first": 1,
       "hdc-fl.refresh-every": 1, "tf32": "off", "gpu-kernels": "deterministic"}


def jobs(device: str, quick: bool) -> list[tuple[str, Callable[[], dict[str, Any]]]]:
    """The rows, by name."""
    found: list[tuple[str, Callable[[], dict[str, Any]]]] = [(f"HDC-FL on {device} against cpu", partial(same_numbers, device, quick))]
    models = ("cnn",) if quick else ("cnn", "resnet18")
    return found + [(f"cohort of 8 against one by one, {method}, {model}", partial(cohort, device, quick, method, model))
                    for method, model in [*(("fedavg", m) for m in models), ("hdc-fl", models[-1])][: 1 if quick else 3]]


def same_numbers(device: str, quick: bool) -> dict[str, Any]:
    """The distance between what the two servers hold, as a share of the norm, and between the served means; fails beyond tolerance."""
    config = {**HDC, **({"clients": 4, "width": 4, "epochs": 1} if quick else {})}
    there, here = (run({**config, "device": where}) for where in (device, "cpu"))
    apart = float(np.linalg.norm(there[0] - here[0]) / np.linalg.norm(here[0]))
    served = abs(there[1]["served"]["mean"] - here[1]["served"]["mean"])
    return {"state_apart": apart, "served_apart": served, "dropped": there[1]["dropped"],
            "failed": bool(there[1]["dropped"]) or not (apart <= STATE and served <= SERVED),
            "note": f"server's tensors {apart:.1e} apart (at most {STATE:g}), served {served:.3f} (at most {SERVED:g})"}


def cohort(device: str, quick: bool, method: str, model: str) -> dict[str, Any]:
    """Clients a second, as ``ours`` with a cohort and ``plain`` one by one."""
    from strategies.config import RunConfig

    if "cohort" not in {field.name for field in fields(RunConfig)}:
        return {"note": "this version has no setting named cohort"}
    clients, each = (4, 24) if quick else (16, 500)
    with tempfile.TemporaryDirectory() as folder:
        data = Path(folder, "cifar-shaped.npz")
        rng = np.random.default_rng(0)
        np.savez(data, x_train=rng.integers(0, 256, (clients * each, 3, 32, 32), np.uint8), y_train=np.arange(clients * each) % 10)
        config = {"method": method, "dataset": f"npz:{data}", "partition": "iid", "clients": clients, "rounds": 3 if quick else 5,
                  "model": model, "width": 4 if quick else 0, "device": device, "score-every": 100, "score-adapted": "never", "epochs": 1,
                  "precision": "float32" if quick else "bf16", "channels-last": not quick}
        rates = []
        for size in (4 if quick else 8, 1):
            seconds: list[float] = []
            run({**config, "cohort": size}, seconds)
            rates.append(clients / statistics.median(np.diff(seconds)))
    return {"ours": f"{rates[0]:.2f} clients/s", "plain": f"{rates[1]:.2f} clients/s", "ratio": round(rates[0] / rates[1], 2)}


def run(config: Mapping[str, Any], ends: list[float] | None = None) -> tuple[np.ndarray, Mapping[str, Any]]:
    """One run: the server's float32 tensors at its end, its encoders above all, as one vector, and the summary.

    ``ends`` gets the time at which each round ended.
    """
    from flwr.app import Context, RecordDict
    from safetensors.numpy import load_file

    from deploy.inprocess import InProcessGrid
    from server_app.main import serve

    with tempfile.TemporaryDirectory() as folder:
        items = {**config, "out": folder, "state-dir": str(Path(folder, "clients")), "run-id": "check"}
        with InProcessGrid(items, int(config["clients"])) as grid:
            summary = serve(grid, Context(1, 1, {}, RecordDict(), items), "inprocess",
                            on_round=lambda record: ends.append(time.perf_counter()) if ends is not None else None)
        state = load_file(max(Path(folder, "checkpoints").glob("*.safetensors")))
    held = [tensor.ravel() for _, tensor in sorted(state.items()) if tensor.dtype == np.float32]
    return np.concatenate(held), summary
