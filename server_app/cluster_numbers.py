"""Which clusters a run had and when, with numbers that mean the same cluster from one time to the next."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from server_app.summary import refreshes

History = list[tuple[int, Mapping[str, Any]]]


def cluster_history(records: Sequence[Mapping[str, Any]]) -> History:
    """(round, clusters) of every refresh; of a method that groups clients in every round without one (IFCA, CFL), of every round."""
    told = ((int(r["round"]), (r.get("diagnostics") or {}).get("groups")) for r in records)
    return refreshes(records) or [(number, groups) for number, groups in told if groups]


def aligned(steps: Sequence[Mapping[str, int]]) -> list[dict[str, int]]:
    """The same partitions with cluster numbers carried over: k-means numbers them anew at every refresh.

    Each step takes the numbering that keeps most clients' number; a cluster of new clients gets a new one.
    """
    from scipy.optimize import linear_sum_assignment

    out: list[dict[str, int]] = []
    used = 0
    for step in steps:
        before = out[-1] if out else {}
        old, new = sorted(set(before.values())), sorted(set(step.values()))
        kept = np.zeros((len(new), len(old)))
        for client, kind in step.items():
            if client in before:
                kept[new.index(kind), old.index(before[client])] += 1
        pairs = zip(*linear_sum_assignment(kept, maximize=True), strict=True)
        carried = {new[i]: old[j] for i, j in pairs if kept[i, j]}
        for n in new:
            if n not in carried:
                carried[n], used = used, used + 1
        out.append({client: carried[k] for client, k in step.items()})
    return out
