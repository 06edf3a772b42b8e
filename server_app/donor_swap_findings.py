"""What a donor swap says: its association with heads, the three controls, and the drop by how alike a donor is. Pure.

Controls (METHODS.md 1.4): the association given donors' sample counts and how alike the label histograms are, as far as the server
knows them (at a site both stay home: then the control says what it could take into account); the association of untrained heads,
which is chance; and the association where the donor's own BatchNorm statistics are kept, since an effect of rotation can hide there.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

import numpy as np

from server_app.donor_swap import Swapped
from strategies.donor_swap import UNTRAINED_DRAWS, Donors
from strategies.rank_association import PERMUTATIONS, Association, Mean, associate, partial, rows, spearman

DIGITS = 12  # of a similarity: what lies beyond is rounding noise, and no order
THIRDS = ("most alike", "between", "least alike")


def findings_of(donors: Donors, found: Swapped, split: Mapping[str, Any], seed: int) -> dict[str, Any]:
    """The scores, and everything that is said of them, as data that JSON can hold once NaN is None."""
    similarity = columns(donors, found, donors.similarity)
    return {
        "recipients": found.recipients, "donors": found.donors, "clients": len(donors.clients), "permutations": PERMUTATIONS,
        "similarity": similarity, "accuracy": found.accuracy, "accuracy_raw": found.raw, "own": found.own, "own_raw": found.own_raw,
        "association": told(associate(similarity, found.accuracy, seed), found.recipients),
        "drop": drop_by_third(similarity, found.accuracy, found.own),
        "controls": {
            "given": given(donors, found, similarity, split, seed),
            "untrained": untrained(donors, found),
            "donor_statistics": told(associate(similarity, found.raw, seed), found.recipients),
        },
    }


def columns(donors: Donors, found: Swapped, matrix: np.ndarray) -> np.ndarray:
    """The recipients' rows and donors' columns (R, M) of a matrix (N, N) over clients; NaN where a client is its own donor."""
    place = {client: n for n, client in enumerate(donors.clients)}
    cut = np.round(matrix[np.ix_([place[c] for c in found.recipients], [place[c] for c in found.donors])], DIGITS)
    same = np.array([[recipient == donor for donor in found.donors] for recipient in found.recipients])
    return np.where(same, np.nan, cut)


def told(association: Association, recipients: tuple[str, ...]) -> dict[str, Any]:
    by_client = {client: {"rho": rho, "tau": tau} for client, rho, tau in
                 zip(recipients, association.rho.values, association.tau.values, strict=True)}
    return {"rho": figures(association.rho), "tau": figures(association.tau), "p": association.p, "by_recipient": by_client}


def figures(mean: Mean) -> dict[str, Any]:
    return {key: value for key, value in asdict(mean).items() if key != "values"} | {"defined": len(mean.values) - mean.undefined}


def drop_by_third(similarity: np.ndarray, accuracy: np.ndarray, own: np.ndarray) -> list[dict[str, Any]]:
    """Mean accuracy, and mean drop from the own encoder's, over recipients, of the thirds of donors most to least like each.

    Recipients with fewer than three donors have no thirds and are left out. Equally similar donors stay in the order of names.
    """
    level, drop = [], []
    for (x, y), reference in zip(rows(similarity, accuracy), own, strict=True):
        if len(x) >= len(THIRDS):
            parts = np.array_split(y[np.argsort(-x, kind="stable")], len(THIRDS))
            level.append([part.mean() for part in parts])
            drop.append([reference - part.mean() for part in parts])
    if not level:
        return []
    return [{"donors": name, "accuracy": float(a.mean()), "drop": None if np.isnan(d).all() else float(np.nanmean(d)),
             "recipients": len(a)} for name, a, d in zip(THIRDS, np.array(level).T, np.array(drop).T, strict=True)]


def given(donors: Donors, found: Swapped, similarity: np.ndarray, split: Mapping[str, Any], seed: int) -> dict[str, Any]:
    """The association that is left given what else might make a donor fit."""
    known: dict[str, np.ndarray] = {}
    train = split.get("train") or {}
    if all(client in train for client in donors.clients):
        counts = np.array([train[client] for client in donors.clients], dtype=float)
        known["label-histogram cosine"] = columns(donors, found, cosine(counts))
        weights = counts.sum(axis=1)
    else:
        weights = donors.weights
    if np.ptp(weights) > 0:
        known["donor's training samples"] = columns(donors, found, np.broadcast_to(weights, donors.similarity.shape))
    if not known:
        return {"given": [], "rho": None}
    return {"given": sorted(known), "rho": figures(partial(similarity, found.accuracy, np.stack(list(known.values()), axis=2), seed))}


def untrained(donors: Donors, found: Swapped) -> dict[str, Any]:
    """Mean over draws of untrained heads of the mean rho, and the range of the middle 95 % of draws."""
    means: list[float] = []
    for draw in range(UNTRAINED_DRAWS):
        pairs = rows(columns(donors, found, donors.untrained(draw)), found.accuracy)
        known = [rho for x, y in pairs if (rho := spearman(x, y)) is not None]
        if known:
            means.append(float(np.mean(known)))
    if not means:
        return {"draws": 0, "mean": None, "range": None}
    low, high = np.percentile(means, [2.5, 97.5])
    return {"draws": len(means), "mean": float(np.mean(means)), "range": [float(low), float(high)]}


def cosine(counts: np.ndarray) -> np.ndarray:
    """Cosine (N, N) of label histograms (N, C); 0 for a client without samples."""
    lengths = np.linalg.norm(counts, axis=1, keepdims=True)
    unit = np.divide(counts, lengths, out=np.zeros_like(counts), where=lengths > 0)
    return unit @ unit.T
