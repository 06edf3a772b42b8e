"""What a run will cost: from runs of this machine where there are any, else from the number of images it trains on."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from statistics import median

from benchmarks.hdc_fl.configurations import SCALES, Job
from benchmarks.hdc_fl.results import Result

CLASSES, ALL_IMAGES, OVERHEAD = {"ten": 10, "hundred": 100}, 50_000, 6.0
# passes beside those of FedPer, roughly; replaced by what was measured once a method has run
FACTORS = {"ditto": 2.0, "ifca": 1.2, "fedrep": 1.1, "fedbabu": 0.9}


def reckoned(job: Job, limit: int = 0) -> float:
    """CPU seconds by images trained on, at the scale's milliseconds an image."""
    of, settings = SCALES[job.scale], job.settings
    images = limit or of.images[job.cell.data][0] * CLASSES[job.cell.data] or ALL_IMAGES
    if job.tuning:  # a part is held out for validation
        images *= 1 - float(settings["test-fraction"])
    passes = images * float(settings["rounds"]) * float(settings["epochs"]) * FACTORS.get(str(settings["method"]), 1.0)
    return OVERHEAD + passes * of.milliseconds[job.cell.encoder] / 1000


def estimate(job: Job, known: Sequence[Result], limit: int = 0) -> float:
    """CPU seconds of ``job``: the median of runs like it in ``known``, else reckoned, and corrected by how wrong that was for others."""
    same = [r for r in known if r.row == job.row and all(r.content["settings"].get(k) == job.settings.get(k) for k in ("model", "rounds"))]
    closest = [r for r in same if r.configuration == job.configuration] or same
    if closest:
        return median(r.content["seconds"]["cpu"] for r in closest)
    ratios = [r.content["seconds"]["cpu"] / reckoned(Job(job.scale, r.configuration, r.row, r.seed, r.content["settings"]), limit)
              for r in known]
    return reckoned(job, limit) * (median(ratios) if ratios else 1.0)


def of_machine(results: Iterable[Result], identity: str) -> list[Result]:
    """Those that ran on one machine: timings of two are never put together."""
    return [r for r in results if r.content["machine"]["id"] == identity]


def hours(seconds: float) -> str:
    """``0:42 h``."""
    minutes = round(seconds / 60)
    return f"{minutes // 60}:{minutes % 60:02} h"
