"""Class prototypes with lists: class means, what a client sends of them, and how the server folds that."""

from __future__ import annotations


def means_of(tokens, labels, classes):
    """Mean token a class, None for a class without sample; tokens are lists of numbers."""
    out = []
    for c in range(classes):
        rows = [token for token, label in zip(tokens, labels, strict=True) if label == c]
        out.append([sum(column) / len(rows) for column in zip(*rows, strict=True)] if rows else None)
    return out


def sent(means, counts, received, weighting, kappa):
    """A row a class: what leaves. ``received`` rows are None where no prototype is known."""
    out = []
    for mean, n, mu in zip(means, counts, received, strict=True):
        if n == 0:
            out.append(None)  # "what I received"
        elif weighting == "shrunk" and mu is not None:
            out.append([(n * m + kappa * u) / (n + kappa) for m, u in zip(mean, mu, strict=True)])
        else:
            out.append(mean)
    return out


def folded(received, clients, rho, weighting):
    """New rows from ``clients``, a list of (sent rows, counts)."""
    out = []
    for c, mu in enumerate(received):
        rows = [(rows[c], counts[c] if weighting == "count" else 1) for rows, counts in clients if rows[c] is not None]
        if not rows:
            out.append(mu)
            continue
        total = sum(w for _, w in rows)
        mean = [sum(w * row[i] for row, w in rows) / total for i in range(len(rows[0][0]))]
        out.append(mean if mu is None else [rho * u + (1 - rho) * m for u, m in zip(mu, mean, strict=True)])
    return out
