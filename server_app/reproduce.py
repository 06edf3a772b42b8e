"""The command that repeats a run: the settings that are not defaults, in Flower's own notation."""

from __future__ import annotations

import hashlib
import json
import math
import shlex
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from strategies.config import ConfigError, RunConfig, items_of
from strategies.registry import find_method

CODE = ("client_app", "models", "server_app", "strategies")
# where a run keeps its files says nothing about its numbers, and differs from machine to machine
PLACES = frozenset({"out", "state-dir", "run-id", "resume"})


def command(config: Mapping[str, Any]) -> str:
    """``fedhearth run -c 'method="hdc-fl" seed=0 rounds=30'``: method, seed, and what is not a default."""
    method = str(config.get("method", RunConfig.method))
    defaults = items_of(RunConfig()) | own_defaults(method)
    told = [
        key
        for key in config
        if key in ("method", "seed") or (belongs(key, method) and config[key] != defaults.get(key))
    ]
    settings = " ".join(f"{key}={toml(config[key])}" for key in told)
    return f"fedhearth run -c {shlex.quote(settings)}"


def code_hash() -> str:
    """16 hexadecimal digits of the SHA-256 of the code that runs: every module of the four packages, by name."""
    root, whole = Path(__file__).parents[1], hashlib.sha256()
    for path in sorted(path for package in CODE for path in (root / package).rglob("*.py")):
        whole.update(f"{path.relative_to(root).as_posix()}\0".encode() + path.read_bytes() + b"\0")
    return whole.hexdigest()[:16]


def belongs(key: str, method: str) -> bool:
    """Whether ``key`` can change a run of ``method``: not a place, not another method's setting."""
    prefix, dot, _ = key.partition(".")
    return key not in PLACES and (not dot or prefix == method)


def own_defaults(method: str) -> dict[str, Any]:
    """Defaults of a method's own settings; none for a method this installation lacks (an old run's)."""
    try:
        return items_of(find_method(method).config_class()(), f"{method}.")
    except (ConfigError, ImportError):
        return {}


def toml(value: Any) -> str:
    """A scalar as Flower's run-config override takes it; JSON's strings and finite numbers are TOML's."""
    return "inf" if value is None or value == math.inf else json.dumps(value, ensure_ascii=False)


def shown(value: Any) -> str:
    """A setting of a summary for people. JSON holds no infinity, so an infinite temperature stands there as null."""
    return "inf" if value is None else str(value)
