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
    known = [r for r in records if r.get("hit") or r.get("forwards")]
    if not known:
        return None
    told = [*records, (final.get("joined") or {}).get("record") or {}, final]
    shares = {route: [mean_of(r.get(route)) for r in records if r.get(route)] for route in ROUTES}
    late = [mean_of(r["hit"]) for r in records[-math.ceil(LAST_PART * len(records)):] if r.get("hit")]
    state = (_last(records, "diagnostics")).get("cache") or {}
    weight = mean_of(_last(records, "gate_weight"))
    disk = {client: size for r in told for client, size in (r.get("cache_bytes") or {}).items()}
    totals = {key: sum(sum(r[key].values()) for r in told if r.get(key)) for key in ("forwards", "forwards_avoided") if _last(told, key)}
    return {
        **{f"{route}_share": mean(values) for route, values in shares.items() if values},
        **({"avoided_training": mean(shares["hit"])} if shares["hit"] else {}),
        **({"avoided_last_quarter": mean(late)} if late else {}),
        **({"gate_weight": weight} if weight is not None else {}),
        **totals,
        **({"encoder_bytes": {way: _against_every(records, way, state["encoder_bytes"], wire_dtype) for way in ("up", "down")},
            "drift": state["drift"], "version": state["version"]} if state else {}),
        **({"disk_bytes": {"total": sum(disk.values()), "largest": max(disk.values())}} if disk else {}),
    }


def mean_of(values: Mapping[str, float] | None) -> float | None:
    """Mean over clients, None of nobody."""
    return mean(values.values()) if values else None


def _last(records: Sequence[Mapping[str, Any]], key: str) -> Mapping[str, Any]:
    return next((r[key] for r in reversed(records) if r.get(key)), {})


def _against_every(records: Sequence[Mapping[str, Any]], way: str, size: int, wire_dtype: str) -> dict[str, float]:
    messages = sum(len(r.get("accepted" if way == "up" else "asked") or ()) for r in records)
    sent = sum(((r.get("bytes") or {}).get(way) or {}).get("encoder", 0) for r in records)
    return {"sent": sent, "every": max(sent, messages * size // (1 if wire_dtype == "float32" else 2))}
