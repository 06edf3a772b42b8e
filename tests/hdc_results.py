"""Results of the HDC-FL benchmark as a run leaves them, made up: for its tests."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.hdc_fl import paired
from benchmarks.hdc_fl.configurations import ROWS, base_of, name_of
from benchmarks.hdc_fl.results import Result, read, write

ROOT = Path(__file__).parents[1]
NAMED = {1: "one", 2: "two", 3: "three"}


def content(configuration: int, row: str, seed: int, served: list[float], **changed: Any) -> dict[str, Any]:
    """What a run leaves, with these closing scores."""
    scores = np.array(served)
    tail = {"mean": float(scores.mean()), "worst": float(scores.min()), "bottom20": float(paired.bottom20(scores))}
    settings = {**base_of("lite", configuration), **ROWS[row].settings, "seed": seed} if row in ROWS else {"seed": seed}
    return {"scale": "lite", "configuration": configuration, "row": row, "seed": seed, "settings": settings,
            "images": {"title": "CIFAR-10 (12,000 images)", "digest": "d"}, "split_hash": f"split of {configuration} {seed}",
            "clients": {"served": served, "adapted": [None] * len(served), "n_train": [100] * len(served),
                        "n_test": [50] * len(served)},
            "served": tail, "served_raw": tail,
            "seconds": {"cpu": 60.0, "wall": 70.0}, "machine": {"id": "here", "cpu": "C", "cores": 2, "gpu": ""}, **changed}


def result(configuration: int, row: str, seed: int, served: list[float], folder: Path, **changed: Any) -> Result:
    path = folder / f"{name_of(configuration, row, seed)}.json"
    write(path, content(configuration, row, seed, served, **changed))
    return read(path)
