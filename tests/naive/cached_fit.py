"""Training by routes, sample by sample, with dictionaries and torch's own optimiser; and FedCache's rules as plain sentences."""

from __future__ import annotations

import math

import numpy as np
import torch
from torch import nn

from tests.naive.training import batches


def route(entry, draw, *, confidence, uses, fuse, warming):
    """What one sample does in one epoch; ``entry`` is None or a dict with confidence, uses, marked."""
    if entry is None or entry["marked"] or entry["uses"] >= uses:
        return "miss"
    if warming or draw < fuse or entry["confidence"] < confidence:
        return "fuse"
    return "hit"


def steps(order, routes, batch, packing):
    """Lists of fresh and of cached samples, one pair a step."""
    if packing == "split":
        for part in batches(order, batch):
            fresh = [i for i in part if routes[i] != "hit"]
            if len(fresh) == 1 and len(part) > 1:
                routes[next(i for i in part if routes[i] == "hit")] = "fuse"
        return [([i for i in part if routes[i] != "hit"], [i for i in part if routes[i] == "hit"]) for part in batches(order, batch)]
    fresh, cached = [i for i in order if routes[i] != "hit"], [i for i in order if routes[i] == "hit"]
    packed = batches(fresh, batch)
    dealt, start = [], 0
    for k in range(len(packed)):
        share = len(cached) // len(packed) + (k < len(cached) % len(packed))
        dealt.append(cached[start:start + share])
        start += share
    return list(zip(packed, dealt, strict=True))


def plain_cached_fit(model, x, y, held, *, epochs, batch, lr, momentum, weight_decay, order, draws, packing, fixed_gate, memory,
                     dtype, **limits):
    """``held`` maps a sample to its entry: feature, confidence, uses, marked; it is changed. Counts of routes."""
    optimiser = torch.optim.SGD(model.parameters(), lr=lr, momentum=momentum, weight_decay=weight_decay)
    model.train()
    seen = {"hit": 0, "fuse": 0, "miss": 0}
    known = {i: entry["confidence"] for i, entry in held.items()}
    for _ in range(epochs):
        chances = draws.random(len(y))
        routes = [route(held.get(i), chances[i], **limits) for i in range(len(y))]
        plan = steps(torch.randperm(len(y), generator=order).tolist(), routes, batch, packing)
        for name in routes:
            seen[name] += 1
        for i, name in enumerate(routes):
            if name == "hit":
                held[i]["uses"] += 1
        for fresh, cached in plan:
            computed = model.encoder(torch.stack([x[i] for i in fresh])) if fresh else []
            shown = []
            for at, i in enumerate(fresh):
                feature = computed[at]
                if fixed_gate and routes[i] == "fuse":
                    feature = 0.5 * feature + 0.5 * torch.from_numpy(held[i]["feature"].astype(np.float32))
                shown.append(feature)
            shown += [torch.from_numpy(held[i]["feature"].astype(np.float32)) for i in cached]
            logits = [model.head(feature) for feature in shown]
            rows = fresh + cached
            loss = sum(nn.functional.cross_entropy(z[None], y[i][None]) for z, i in zip(logits, rows, strict=True)) / len(rows)
            optimiser.zero_grad()
            loss.backward()
            for weight in model.encoder.parameters():
                if fresh:
                    weight.grad *= len(rows) / len(fresh)
            optimiser.step()
            for z, i in zip(logits, rows, strict=True):
                odds = [math.exp(v) for v in z.tolist()]
                sure = max(odds) / sum(odds)
                known[i] = memory * known[i] + (1 - memory) * sure if i in known else sure
                if i in held:
                    held[i]["confidence"] = known[i]
            for at, i in enumerate(fresh):
                held[i] = {"feature": computed[at].detach().numpy().astype(dtype), "confidence": known[i], "uses": 0, "marked": False}
    return seen
