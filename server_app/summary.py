"""What a run found, as numbers: round records and the closing evaluation -> summary and client rows. Pure.

Decision D11 of the design: mean, standard deviation, worst and bottom-20 % over all clients, unweighted, each
labelled *served* (the model a client has before local training) or *adapted* (after it); the mean weighted by
test images beside them. ``*_raw`` is the same model scored with BatchNorm statistics as averaged. Held-out
clients have figures of their own, and are in none of the others. Clusters are compared with the groups of a
simulated split by the adjusted Rand index (Hubert and Arabie, 1985).
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from statistics import median
from typing import Any

import numpy as np

from server_app.cache_summary import cache_summary
from strategies.tails import spread

SCORES = ("served", "served_raw", "adapted", "adapted_raw")


@dataclass(frozen=True)
class ClientRow:
    """One line of clients.csv; ``None`` is unknown (class counts stay at the clients outside simulations)."""

    client: str
    group: str
    n_train: int | None
    n_test: int | None
    classes: int | None
    served: float | None
    adapted: float | None
    held_out: bool = False
    served_raw: float | None = None


@dataclass(frozen=True)
class Findings:
    """What a report is drawn from: the summary, the round records, one row a client, the split if known, and a donor swap's finding."""

    summary: Mapping[str, Any]
    records: Sequence[Mapping[str, Any]]
    rows: Sequence[ClientRow]
    split: Mapping[str, Any] | None
    donor_swap: Mapping[str, Any] | None = None

    @property
    def participants(self) -> list[ClientRow]:
        return [row for row in self.rows if not row.held_out]

    @property
    def held_out(self) -> list[ClientRow]:
        return [row for row in self.rows if row.held_out]


def plain(value: Any) -> Any:
    """``value`` as JSON can hold it: NumPy unwrapped, tuples as lists, NaN and infinity as ``None``."""
    if isinstance(value, Mapping):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, np.ndarray | np.generic):
        return plain(value.tolist())
    if isinstance(value, list | tuple | set | frozenset):
        return [plain(item) for item in value]
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value


def scored(values: Mapping[str, float | None] | None) -> dict[str, float]:
    """The clients that have a score; one with an empty test set has none and must not count as 0."""
    return {c: float(v) for c, v in (values or {}).items() if v is not None and math.isfinite(v)}


def bottom_count(n: int) -> int:
    """How many clients are the bottom 20 % of ``n``: ceil(n / 5), in integers since 0.2 is inexact."""
    return -(-n // 5)


def tail(values: Mapping[str, float | None] | None, n_test: Mapping[str, int]) -> dict[str, Any] | None:
    """``Spread`` of the scored clients as a dict; no ``weighted_mean`` where test counts stay at home."""
    known = scored(values)
    if not known:
        return None
    weights = {c: float(n_test[c]) for c in known if c in n_test}
    complete = len(weights) == len(known) and sum(weights.values()) > 0
    figures = asdict(spread(known, weights if complete else None))
    return plain(figures if complete else {**figures, "weighted_mean": None})


def last_with(records: Sequence[Mapping[str, Any]], key: str) -> Mapping[str, Any]:
    """The latest record whose ``key`` is there and not empty, or an empty record."""
    return next((r for r in reversed(records) if r.get(key)), {})


def counts(records: Sequence[Mapping[str, Any]], final: Mapping[str, Any], key: str) -> dict[str, int]:
    """Client -> number of samples (``n_train`` or ``n_test``); what was said last holds."""
    return {client: int(n) for source in (*records, final) for client, n in (source.get(key) or {}).items()}


def traffic(records: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Bytes of payload over all rounds, by direction and slot, and upwards per accepted reply."""
    by_slot: dict[str, Counter[str]] = {"up": Counter(), "down": Counter()}
    for record in records:
        for way, slots in by_slot.items():
            slots.update((record.get("bytes") or {}).get(way) or {})
    up, down = (sum(by_slot[way].values()) for way in ("up", "down"))
    replies = sum(len(replied(record)) for record in records)
    return {
        "up": up,
        "down": down,
        "by_slot": {way: dict(sorted(slots.items())) for way, slots in by_slot.items()},
        "up_per_client_round": up / replies if replies else None,
    }


def closing_traffic(final: Mapping[str, Any]) -> dict[str, int]:
    """Bytes of the closing evaluation, which is no round: kept apart, so that bytes a round stay what they are."""
    ways = final.get("bytes") or {}
    return {way: sum((ways.get(way) or {}).values()) for way in ("up", "down")}


def replied(record: Mapping[str, Any]) -> set[str]:
    """The clients whose reply of this round was accepted: those that gave a loss, a score or a count."""
    return {c for key in ("loss", "served", "adapted", "n_train") for c in record.get(key) or {}}


def refreshes(records: Sequence[Mapping[str, Any]]) -> list[tuple[int, Mapping[str, Any]]]:
    """(round, clusters) of every refresh round, in order."""
    found = ((int(r["round"]), (r.get("diagnostics") or {}).get("clusters")) for r in records)
    return [(number, clusters) for number, clusters in found if clusters]


def clustering(records: Sequence[Mapping[str, Any]], groups: Mapping[str, str]) -> dict[str, Any] | None:
    """The last refresh: k, silhouette, rank, round, assignment, agreement with the split's groups if any.

    Of a method whose rounds group clients without a refresh (IFCA, CFL) the last round's groups; these have neither silhouette
    nor rank, which are then None.
    """
    told = ((int(r["round"]), (r.get("diagnostics") or {}).get("groups")) for r in records)
    if not (found := refreshes(records) or [(number, grouped) for number, grouped in told if grouped]):
        return None
    number, last = found[-1]
    assignment: Mapping[str, int] = last["assignment"]
    out = {key: last.get(key) for key in ("k", "silhouette", "rank")} | {
        "round": number,
        "assignment": dict(assignment),
    }
    shared = sorted(c for c in assignment if groups.get(c))
    if len({groups[c] for c in shared}) > 1:
        from sklearn.metrics import (
            adjusted_rand_score,  # a second to import, and only simulations have groups
        )

        out["adjusted_rand"] = float(
            adjusted_rand_score([groups[c] for c in shared], [assignment[c] for c in shared])
        )
    return out


def findings(
    config: Mapping[str, Any],
    engine: str,
    records: Sequence[Mapping[str, Any]],
    final: Mapping[str, Any],
    split: Mapping[str, Any] | None,
    seconds_before: float = 0.0,
) -> Findings:
    """Put a finished run together.

    Parameters
    ----------
    config : the flat run config. engine : what carried the messages. records : the round records, in order.
    final : the closing evaluation; ``held_out`` names the clients kept out of training, ``joined`` holds the
        ``record`` of the exchange that took them in, and their ``mixtures`` if the method has such.
    split : the manifest of a simulated split, if there is one.
    seconds_before : seconds spent in earlier, interrupted parts of a resumed run.
    """
    groups = {c: str(g) for c, g in ((split or {}).get("groups") or {}).items() if g not in ("", None)}
    rows = client_rows(records, final, split)
    n_test = {row.client: row.n_test for row in rows if row.n_test is not None}
    adapted = last_with(records, "adapted")
    outside = [row.client for row in rows if row.held_out]
    closing = {key: _without(final.get(key), outside) for key in ("served", "served_raw")}
    sources = {"served": closing, "served_raw": closing, "adapted": adapted, "adapted_raw": adapted}
    joining = (final.get("joined") or {}).get("record") or {}
    dropped: Counter[str] = Counter()
    for record in (*records, joining, final):
        dropped.update(record.get("dropped") or {})
    summary = {
        **{key: config.get(key) for key in ("method", "dataset", "partition", "seed")},
        "clients": len(rows) - len(outside),
        "rounds": records[-1]["round"] if records else 0,
        "engine": engine,
        **{key: tail(sources[key].get(key), n_test) for key in SCORES},
        "adapted_round": adapted.get("round"),
        "bytes": traffic(records) | {"closing": closing_traffic(final)} | ({"joining": closing_traffic(joining)} if outside else {}),
        "seconds": {
            "total": seconds_before + float(final.get("seconds") or 0.0),
            "round_median": median(r["seconds"] for r in records) if records else None,
        },
        "server_peak_rss_mib": final.get("peak_rss_mib"),
        "dropped": dict(sorted(dropped.items())),
        "data_warnings": dict(final.get("data_warnings") or {}),
        "void_rounds": sum(bool(record.get("void")) for record in records),
        "split_hash": final.get("split_hash") or (split or {}).get("hash") or "",
        "versions": dict(final.get("versions") or {}),
        "run_config": dict(sorted(config.items())),
        "model": dict(final.get("model") or {}),
        "personal_models": str(final.get("personal_models") or ""),
    }
    if cache := cache_summary(records, final, str(config.get("wire-dtype", "float32"))):
        summary["cache"] = cache
    if final.get("gate_spread"):
        summary["fusion"] = {key: dict(final[key]) for key in ("gate_weight", "gate_spread", "patch_overlap") if final.get(key)}
    if clusters := clustering(records, groups):
        summary["clusters"] = clusters
    if outside:
        summary["held_out"] = held_out_figures(final, outside, n_test)
    return Findings(summary=plain(summary), records=records, rows=rows, split=split)


def held_out_figures(final: Mapping[str, Any], names: Sequence[str], n_test: Mapping[str, int]) -> dict[str, Any]:
    """What the clients kept out of training are served: by client, and their tails; ``unscored`` ones have no test
    images, or did not get through.
    """
    among = set(names)
    served, raw = ({c: v for c, v in scored(final.get(key)).items() if c in among} for key in ("served", "served_raw"))
    mixtures = (final.get("joined") or {}).get("mixtures") or {}
    return {
        "clients": list(names),
        "served": served,
        "tails": tail(served, n_test),
        "tails_raw": tail(raw, n_test),
        "unscored": [name for name in names if name not in served],
        **({} if final.get("serves_newcomers", True) else {"cannot_serve": True}),
        **({"mixtures": mixtures} if mixtures else {}),
    }


def _without(values: Mapping[str, float | None] | None, names: Sequence[str]) -> dict[str, float | None]:
    outside = set(names)
    return {c: v for c, v in (values or {}).items() if c not in outside}


def client_rows(
    records: Sequence[Mapping[str, Any]],
    final: Mapping[str, Any],
    split: Mapping[str, Any] | None,
) -> list[ClientRow]:
    """One row for every client that the run ever named, sorted by name."""
    train, test = ((split or {}).get(half) or {} for half in ("train", "test"))
    told = [*records, (final.get("joined") or {}).get("record") or {}]
    n_train = {c: sum(row) for c, row in train.items()} | counts(told, final, "n_train")
    n_test = {c: sum(row) for c, row in test.items()} | counts(told, final, "n_test")
    outside = set(final.get("held_out") or ())
    served, raw = scored(final.get("served")), scored(final.get("served_raw"))
    adapted = scored(last_with(records, "adapted").get("adapted"))
    asked = (c for record in records for c in record.get("asked") or ())
    names = {*n_train, *n_test, *served, *adapted, *asked, *((split or {}).get("groups") or ()), *outside}
    return [
        ClientRow(
            c,
            whose(split, c),
            n_train.get(c),
            n_test.get(c),
            _classes_held(c, train, test),
            served.get(c),
            adapted.get(c),
            c in outside,
            raw.get(c),
        )
        for c in sorted(names)
    ]


def whose(split: Mapping[str, Any] | None, client: str) -> str:
    """What a simulated split says of a client beside its number: the data's own name for it, then its group; "" if neither."""
    told = (((split or {}).get(key) or {}).get(client) for key in ("natural", "groups"))
    return " ".join(str(word) for word in told if word not in ("", None))


def _classes_held(
    client: str, train: Mapping[str, Sequence[int]], test: Mapping[str, Sequence[int]]
) -> int | None:
    """Classes of which this client has an image, for training or testing."""
    halves = [half[client] for half in (train, test) if client in half]
    return sum(any(column) for column in zip(*halves, strict=True)) if halves else None
