"""What feature caches saved, as numbers: encoder passes, bytes, drift, storage. Pure.

Everything follows from scalars that clients' contracts let out. Byte figures compare with an encoder in every message of
every round.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from statistics import mean
from typing import Any

ROUTES = ("hit", "fuse", "miss")
LAST_PART = 0.25


def cache_summary(records: Sequence[Mapping[str, Any]], final: Mapping[str, Any], wire_dtype: str) -> dict[str, Any] | None:
    """The run's savings as numbers; None for a run without feature caches.

    ``avoided_training`` is the mean share of training samples whose encoder pass was skipped, over rounds and clients, and
    ``avoided_last_quarter`` that of the last quarter of the rounds. ``forwards`` and ``forwards_avoided`` are samples through the
    encoder in all phases, joining and closing included; they are not there where clients keep their counts at home.
    """
    told = [*records, (final.get("joined") or {}).get("record") or {}, final]
    if not any(r.get("hit") or r.get("forwards") for r in records):
        return None
    shares = {route: _over(records, route) for route in ROUTES}
    late = _over(records[-math.ceil(LAST_PART * len(records)):], "hit")
    state = _last(records, "diagnostics").get("cache") or {}
    disk = {client: size for r in told for client, size in (r.get("cache_bytes") or {}).items()}
    found: dict[str, Any] = {
        **{f"{route}_share": share for route, share in shares.items()},
        "avoided_training": shares["hit"],
        "avoided_last_quarter": late,
        "gate_weight": mean_of(_last(records, "gate_weight")),
        **{key: sum(sum((r.get(key) or {}).values()) for r in told) for key in ("forwards", "forwards_avoided") if _last(told, key)},
        "disk_bytes": {"total": sum(disk.values()), "largest": max(disk.values())} if disk else None,
    }
    if state:
        sent = {way: _against_every(records, way, state["encoder_bytes"], wire_dtype) for way in ("up", "down")}
        found |= {"encoder_bytes": sent, "drift": state["drift"], "version": state["version"]}
    return {key: value for key, value in found.items() if value is not None}


def _over(records: Sequence[Mapping[str, Any]], key: str) -> float | None:
    """Mean over rounds of the mean over clients."""
    means = [value for r in records if (value := mean_of(r.get(key))) is not None]
    return mean(means) if means else None


def mean_of(values: Mapping[str, float] | None) -> float | None:
    """Mean over clients, None of nobody."""
    return mean(values.values()) if values else None


def _last(records: Sequence[Mapping[str, Any]], key: str) -> Mapping[str, Any]:
    return next((r[key] for r in reversed(records) if r.get(key)), {})


def _against_every(records: Sequence[Mapping[str, Any]], way: str, size: int, wire_dtype: str) -> dict[str, float]:
    messages = sum(len(r.get("accepted" if way == "up" else "asked") or ()) for r in records)
    sent = sum(((r.get("bytes") or {}).get(way) or {}).get("encoder", 0) for r in records)
    return {"sent": sent, "every": max(sent, messages * size // (1 if wire_dtype == "float32" else 2))}
