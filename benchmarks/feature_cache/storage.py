"""What a feature cache costs on disk and in time, against the forward pass that it stands in for.

    OMP_NUM_THREADS=1 python benchmarks/feature_cache/storage.py [--samples 50000] [--width 512] [--out storage.json]

Bars: 50,000 x 512 float16 with all metadata in at most 60 MB on disk, and reading 256 of them in at most 2 % of one
ResNet-18 (width 64) forward of 256 images of 3x32x32, one thread. Every read is of random rows from a cache just opened, so
that each row's checksum is verified; "cold" means that the files were not in memory either, "again" that the rows had been
read before.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
import tempfile
from pathlib import Path
from time import perf_counter

import numpy as np

from client_app.local.feature_cache import FeatureCache

BATCH, REPEATS = 256, 20
MOST_BYTES, MOST_SHARE = 60e6, 0.02


def filled(folder: Path, samples: int, width: int) -> float:
    """Fill a new cache batch by batch; the seconds it took."""
    features = np.random.default_rng(0).normal(size=(BATCH, width)).astype(np.float32)
    began, cache = perf_counter(), FeatureCache(folder, "penultimate", (width,))
    for start in range(0, samples, BATCH):
        ids = np.arange(start, min(start + BATCH, samples))
        cache.put(ids, 1, features[: len(ids)])
    seconds = perf_counter() - began
    cache.flush()
    return seconds


def read(folder: Path, samples: int, width: int, cold: bool) -> dict[str, float]:
    """Median seconds of opening, of reading random rows, and of reading them again."""
    rng, times = np.random.default_rng(1), {"open": [], "read": [], "again": []}
    for _ in range(REPEATS):
        if cold:
            _out_of_memory(folder)
        ids = rng.choice(samples, BATCH, replace=False)
        began = perf_counter()
        cache = FeatureCache(folder, "penultimate", (width,))
        marks = [began, perf_counter()]
        for _ in range(2):
            assert cache.get(ids, 1).found.all()
            marks.append(perf_counter())
        for name, seconds in zip(times, np.diff(marks), strict=True):
            times[name].append(float(seconds))
    return {name: statistics.median(seconds) for name, seconds in times.items()}


def forward() -> float:
    """Seconds of one ResNet-18 forward of a batch, the fastest of three."""
    import torch

    from models import build_model

    torch.set_num_threads(1)
    encoder, images = build_model("resnet18", 10, (3, 32, 32)).encoder.eval(), torch.randn(BATCH, 3, 32, 32)
    seconds = []
    with torch.inference_mode():
        for _ in range(3):
            began = perf_counter()
            encoder(images)
            seconds.append(perf_counter() - began)
    return min(seconds)


def _out_of_memory(folder: Path) -> None:
    for path in folder.iterdir():
        descriptor = os.open(path, os.O_RDONLY)
        os.fsync(descriptor)
        os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
        os.close(descriptor)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--samples", type=int, default=50_000)
    parser.add_argument("--width", type=int, default=512)
    parser.add_argument("--out", type=Path)
    a = parser.parse_args()
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        fill = filled(folder, a.samples, a.width)
        stats = [path.stat() for path in folder.iterdir()]
        warm, cold = read(folder, a.samples, a.width, cold=False), read(folder, a.samples, a.width, cold=True)
    fresh = forward()
    result = {
        "samples": a.samples, "width": a.width, "dtype": "float16",
        "bytes": sum(s.st_size for s in stats), "bytes_on_disk": sum(s.st_blocks * 512 for s in stats),
        "fill_seconds": fill, "forward_seconds": fresh, "warm_seconds": warm, "cold_seconds": cold,
        "read_share_of_forward": {"warm": warm["read"] / fresh, "again": warm["again"] / fresh, "cold": cold["read"] / fresh},
    }
    print(json.dumps(result, indent=1))
    if a.out:
        a.out.write_text(json.dumps(result, indent=1) + "\n")
    if max(result["bytes"], result["bytes_on_disk"]) > MOST_BYTES or result["read_share_of_forward"]["cold"] > MOST_SHARE:
        sys.exit("over the bar")


if __name__ == "__main__":
    main()
