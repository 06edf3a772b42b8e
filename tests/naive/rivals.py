"""Slow, obvious versions of what sets each rival apart, for parity tests: loops over clients, samples and classes."""

from __future__ import annotations

import math

import numpy as np
import torch
from torch import nn

from tests.naive.training import batches


def attention(models: list[np.ndarray], alpha: float, sigma: float) -> np.ndarray:
    """FedAMP's mixes, a pair at a time, with the others' total held to (N - 1) / N."""
    n = len(models)
    out = np.zeros((n, n))
    for i in range(n):
        for j in range(n):
            if i != j:
                out[i, j] = alpha * math.exp(-sum((a - b) ** 2 for a, b in zip(models[i], models[j], strict=True)) / sigma) / sigma
        total = sum(out[i])
        if total > (n - 1) / n:
            out[i] = [x * (n - 1) / n / total for x in out[i]]
        out[i, i] = 1 - sum(out[i])
    return out


def bipartition(similarity: np.ndarray) -> list[set[int]]:
    """Two clusters: the two whose least similar pair is the most similar are joined, again and again."""
    clusters = [{i} for i in range(len(similarity))]
    while len(clusters) > 2:
        _, a, b = max((min(similarity[i, j] for i in clusters[a] for j in clusters[b]), a, b)
                      for a in range(len(clusters)) for b in range(a))
        clusters[b] |= clusters.pop(a)
    return clusters


def similarity_shares(heads: dict[str, np.ndarray], client: str) -> dict[str, float]:
    """pFedSim's weights of encoders for one client, a class at a time."""
    weights = {}
    for name, head in heads.items():
        rows = zip(heads[client].astype(np.float64), head.astype(np.float64), strict=True)
        cosines = [float(np.dot(a, b) / (np.linalg.norm(a) * np.linalg.norm(b))) for a, b in rows]
        likeness = 0.9999 if name == client else min(0.9999, max(0.0, sum(cosines) / len(cosines)))
        weights[name] = -math.log(1 - likeness)
    return {name: weight / sum(weights.values()) for name, weight in weights.items()}


def neighbour_votes(features: np.ndarray, labels: np.ndarray, query: np.ndarray, classes: int, k: int, scale: float) -> np.ndarray:
    """Probabilities (C,) of one query (D,) among features (n, D): votes of the k nearest, with exp(-d^2 / (D scale))."""
    squared = [float(((feature - query) ** 2).sum()) for feature in features.astype(np.float64)]
    nearest = sorted(range(len(squared)), key=lambda i: squared[i])[:k]
    votes = np.zeros(classes)
    for i in nearest:
        votes[labels[i]] += math.exp(-squared[i] / (len(query) * scale))
    return votes / votes.sum()


def pulled_fit(model: nn.Module, x: torch.Tensor, y: torch.Tensor, *, epochs: int, batch: int, lr: float, momentum: float,
               weight_decay: float, seed: int, anchor: dict[str, torch.Tensor], pull: float) -> None:
    """The tutorial loop with ``pull / 2 ||w - anchor||^2`` written into the loss."""
    optimiser = torch.optim.SGD(model.parameters(), lr=lr, momentum=momentum, weight_decay=weight_decay)
    generator = torch.Generator().manual_seed(seed)
    model.train()
    for _ in range(epochs):
        for chosen in batches(torch.randperm(len(y), generator=generator).tolist(), batch):
            loss = nn.functional.cross_entropy(model(x[chosen]), y[chosen])
            for name, weight in model.named_parameters():
                loss = loss + pull / 2 * ((weight - anchor[name]) ** 2).sum()
            optimiser.zero_grad()
            loss.backward()
            optimiser.step()


def prototype_fit(model: nn.Module, x: torch.Tensor, y: torch.Tensor, *, epochs: int, batch: int, lr: float, momentum: float,
                  weight_decay: float, seed: int, prototypes: dict[int, torch.Tensor], pull: float) -> None:
    """The tutorial loop with the mean squared distance from the sample's prototype, sample by sample."""
    optimiser = torch.optim.SGD(model.parameters(), lr=lr, momentum=momentum, weight_decay=weight_decay)
    generator = torch.Generator().manual_seed(seed)
    model.train()
    for _ in range(epochs):
        for chosen in batches(torch.randperm(len(y), generator=generator).tolist(), batch):
            features = model.encoder(x[chosen])  # type: ignore[operator]
            loss = nn.functional.cross_entropy(model.head(features), y[chosen])  # type: ignore[operator]
            for feature, label in zip(features, y[chosen].tolist(), strict=True):
                if label in prototypes:
                    loss = loss + pull * ((feature - prototypes[label]) ** 2).sum() / features.numel()
            optimiser.zero_grad()
            loss.backward()
            optimiser.step()
