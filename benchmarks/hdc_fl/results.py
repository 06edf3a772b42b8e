"""One JSON a run: written whole or not at all, read back with what makes runs comparable checked."""

from __future__ import annotations

import hashlib
import json
import os
import platform
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.command_line import differences
from benchmarks.hdc_fl.configurations import CONFIGURATIONS, ROWS, Job, name_of

# settings in which runs of one configuration must agree: the budget, the data and the model
BUDGET = ("rounds", "epochs", "batch", "clients", "fraction", "model", "width", "partition", "alpha", "classes-per-client", "test-split",
          "test-fraction", "momentum", "weight-decay", "bn", "precision", "weighting")


class MixedResults(ValueError):
    """Results that must not stand in one table. The text says which and what to do."""


@dataclass(frozen=True)
class Result:
    """What a run left. ``served`` and ``adapted`` are (N,), in the order of the clients' names; NaN where a client was not scored."""

    name: str
    configuration: int
    row: str
    seed: int
    served: np.ndarray
    adapted: np.ndarray
    content: Mapping[str, Any]

    @property
    def split(self) -> str:
        """Who has which images: what runs must share to be compared."""
        return self.content["split_hash"]


def machine(named: str = "") -> dict[str, Any]:
    """Which machine measures: timings of two are never put together. ``named``, or a digest that tells no name."""
    import torch

    cpu = next((line.partition(":")[2].strip() for line in _lines("/proc/cpuinfo") if line.startswith("model name")), platform.processor())
    gpu = torch.cuda.get_device_name() if torch.cuda.is_available() else ""
    found = {"cpu": cpu, "cores": os.cpu_count() or 1, "gpu": gpu, "system": platform.system()}
    told = json.dumps([platform.node(), *found.values()])
    return {"id": named or hashlib.sha256(told.encode()).hexdigest()[:8], **found}


def _lines(path: str) -> list[str]:
    try:
        return Path(path).read_text(encoding="utf-8").splitlines()
    except OSError:
        return []


def write(path: Path, content: Mapping[str, Any]) -> None:
    """A line a key, in one step: whoever kills a sweep finds a whole file or none."""
    path.parent.mkdir(parents=True, exist_ok=True)
    text = ",\n".join(f"{json.dumps(key)}: {json.dumps(value, allow_nan=False)}" for key, value in content.items())
    part = path.with_name(f"{path.name}.{os.getpid()}.part")
    part.write_text("{\n" + text + "\n}\n", encoding="utf-8")
    part.replace(path)


def read(path: Path) -> Result:
    """One result; raises ``MixedResults`` if the file is damaged, or is not what its name says."""
    try:
        content = json.loads(path.read_text(encoding="utf-8"), parse_constant=_no_number)
        number, row, seed = (content[key] for key in ("configuration", "row", "seed"))
        if number not in CONFIGURATIONS or not isinstance(seed, int):
            raise ValueError("no such configuration or seed")
        served, adapted = (_scores(content["clients"][key]) for key in ("served", "adapted"))
        _check(content, served, adapted)
    except (ValueError, KeyError, TypeError, AttributeError) as fault:
        raise MixedResults(f"{path} is damaged ({fault!r}); delete it, and the sweep makes it anew") from fault
    if name_of(number, row, seed) != path.stem:
        raise MixedResults(f"{path} holds {name_of(number, row, seed)}: a copy counts twice; give it its name, or delete it")
    return Result(path.stem, number, row, seed, served, adapted, content)


def _no_number(word: str) -> float:
    raise ValueError(f"{word} is no score")


def _scores(values: Iterable[float | None]) -> np.ndarray:
    """(N,), NaN where there is none; raises ``ValueError`` unless all are shares."""
    if wrong := [v for v in values if v is not None and not (isinstance(v, int | float) and 0 <= v <= 1)]:
        raise ValueError(f"{len(wrong)} scores are no shares from 0 to 1")
    return np.array([np.nan if v is None else v for v in values], float)


def _check(content: Mapping[str, Any], served: np.ndarray, adapted: np.ndarray) -> None:
    """Raise ``KeyError`` or ``ValueError`` unless everything that tables read is there and fits together."""
    counts = content["clients"]["n_train"], content["clients"]["n_test"]
    if len({len(served), len(adapted), *map(len, counts)}) != 1:
        raise ValueError("scores and counts are of different numbers of clients")
    for path in ("scale", "split_hash", "images title", "images digest", "settings seed", "seconds cpu", "seconds wall", "machine id",
                 "machine cpu", "machine cores", "machine gpu", "served mean", "served worst", "served bottom20"):
        of: Any = content
        for key in path.split():
            of = of[key]
    if content["settings"]["seed"] != content["seed"]:
        raise ValueError("the settings have another seed")


def read_all(folder: Path) -> list[Result]:
    """Every result in ``folder``, by name; leftovers of a killed sweep end in ``.part`` and are none."""
    return [read(path) for path in sorted(folder.glob("*.json")) if path.is_file()]


def with_reclustered(results: Iterable[Result]) -> list[Result]:
    """``results`` and the rows that came out of their runs: the same training, and other clusters at its end."""
    results = list(results)
    return results + [_reclustered(r, row, told) for r in results for row, told in r.content.get("reclustered", {}).items()]


def _reclustered(of: Result, row: str, told: Mapping[str, Any]) -> Result:
    changed = ROWS[row].settings if row in ROWS else {}
    content = {**of.content, "row": row, "settings": {**of.content["settings"], **changed}, "served_raw": told["served_raw"],
               "clusters": told["clusters"], "seconds": {"cpu": 0.0, "wall": 0.0}, "reclustered": {}}
    served = np.array([np.nan if value is None else value for value in told["served"]], float)
    return replace(of, name=f"{of.name}, {row}", row=row, served=served, content=content)


def there(job: Job, folder: Path) -> Result | None:
    """The result of ``job``, None if it is not there yet.

    Raises
    ------
    MixedResults
        If the file holds a run of other settings: it must not pass for this one.
    """
    path = folder / f"{job.name}.json"
    if not path.exists():
        return None
    found = read(path)
    if differing := differences(found.content["settings"], job.settings):
        raise MixedResults(f"{path} is a run of other settings ({differing}): delete it, or name another folder with --results")
    return found


def check_comparable(results: Iterable[Result]) -> None:
    """Raise ``MixedResults`` unless runs of one configuration and seed rest on the same split and budget, and all of a data set's images
    are the same."""
    first: dict[tuple[int, int], Result] = {}
    images: dict[str, Result] = {}
    for result in results:
        like = images.setdefault(CONFIGURATIONS[result.configuration].data, result)
        if (of := result.content["images"]) != (others := like.content["images"]):
            raise MixedResults(f"{result.name} and {like.name} rest on different images ({of['title']}, digest {of['digest']}; "
                               f"{others['title']}, {others['digest']}): keep one of them")
        other = first.setdefault((result.configuration, result.seed), result)
        if result.split != other.split or len(result.served) != len(other.served):
            raise MixedResults(f"{result.name} and {other.name} rest on different splits ({result.split[:12]}, {other.split[:12]}): run "
                               "both on the same data")
        budgets = [{key: value for key, value in r.content["settings"].items() if key in BUDGET} for r in (result, other)]
        if differing := differences(*budgets):
            raise MixedResults(f"{result.name} and {other.name} had different budgets ({differing}): run one of them anew")
