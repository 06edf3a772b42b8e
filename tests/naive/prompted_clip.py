"""Fusion, transport and expert attention in plain loops over one image and class at a time, in float64; and a BERT from its tensors."""

from __future__ import annotations

import math

import numpy as np
import torch


def unit(vector: np.ndarray) -> np.ndarray:
    return vector / np.linalg.norm(vector)


def perceptron(net: dict[str, np.ndarray], x: np.ndarray) -> np.ndarray:
    """One hidden layer with ReLU."""
    return net["out.weight"] @ np.maximum(net["hidden.weight"] @ x + net["hidden.bias"], 0) + net["out.bias"]


def fused(cls: np.ndarray, of_global: np.ndarray, of_local: np.ndarray, v: np.ndarray, entropy: np.ndarray, peak: np.ndarray,
          meta: dict[str, np.ndarray], gate: dict[str, np.ndarray], scale: float, per_image: bool) -> tuple[np.ndarray, np.ndarray]:
    """FedIA's logits (B, C) and gate weights (B, C) as METHODS 3.2 and 3.7 say them."""
    logits, weights = np.zeros(entropy.shape), np.zeros(entropy.shape)
    classes = range(len(of_global))
    for b, g in enumerate(cls):
        local = [unit(of_local[c] + perceptron(meta, v[b, c])) for c in classes]
        q = np.array([[g @ of_global[c], g @ local[c], v[b, c] @ of_global[c], v[b, c] @ local[c], entropy[b, c], peak[b, c]]
                      for c in classes])
        q = (q - q.mean(axis=0)) / q.std(axis=0)
        odds = [perceptron(gate, row)[0] for row in q]
        if per_image:
            odds = [sum(odds) / len(odds)] * len(odds)
        for c in classes:
            w = weights[b, c] = 1 / (1 + math.exp(-odds[c]))
            logits[b, c] = scale * g @ unit(w * local[c] + (1 - w) * of_global[c])
    return logits, weights


def dykstra(cost: np.ndarray, eps: float, mass: float, sweeps: int) -> np.ndarray:
    """The unbalanced plan (M, I) of one problem by Dykstra's algorithm on whole plans, with its corrections written out."""
    patches, prompts = cost.shape
    plan = np.exp(-cost / eps)
    for_rows, for_columns = np.ones_like(plan), np.ones_like(plan)
    for _ in range(sweeps):
        before = plan * for_rows
        plan = before * np.minimum(1 / patches / before.sum(axis=1), 1)[:, None]
        for_rows = before / plan
        before = plan * for_columns
        plan = before * (mass / prompts / before.sum(axis=0))
        for_columns = before / plan
    return plan


def attended(image: np.ndarray, text: np.ndarray, layers: dict[str, np.ndarray], heads: int, scaling: float) -> np.ndarray:
    """pFedMoAP's mixed text features (B, C, width) of images (B, width) and prompts' features (E, C, width)."""

    def linear(name: str, x: np.ndarray) -> np.ndarray:
        return layers[f"{name}.weight"] @ x + layers[f"{name}.bias"]

    experts, classes, width = text.shape
    out, size = np.zeros((len(image), classes, width)), width // heads
    for b in range(len(image)):
        query = linear("query", image[b])
        for c in range(classes):
            keys, values = ([linear(name, text[e, c]) for e in range(experts)] for name in ("key", "value"))
            parts = []
            for h in range(heads):
                part = slice(h * size, (h + 1) * size)
                scores = np.array([scaling * query[part] @ key[part] for key in keys])
                weights = np.exp(scores - scores.max())
                parts.append(sum(w * value[part] for w, value in zip(weights / weights.sum(), values, strict=True)))
            out[b, c] = linear("out", np.concatenate(parts))
    return out


def bert_mean(bert: dict[str, torch.Tensor], ids: list[int], layers: int, heads: int) -> torch.Tensor:
    """Mean output (W,) of a BERT over the tokens ``ids`` of one text, without padding, from its tensors under their published names."""

    def linear(name: str, x: torch.Tensor) -> torch.Tensor:
        return x @ bert[f"{name}.weight"].T + bert[f"{name}.bias"]

    def norm(name: str, x: torch.Tensor) -> torch.Tensor:
        x = (x - x.mean(-1, keepdim=True)) / (x.var(-1, keepdim=True, correction=0) + 1e-12).sqrt()
        return x * bert[f"{name}.weight"] + bert[f"{name}.bias"]

    x = torch.stack([bert["embeddings.word_embeddings.weight"][i] + bert["embeddings.position_embeddings.weight"][place]
                     + bert["embeddings.token_type_embeddings.weight"][0] for place, i in enumerate(ids)])
    x = norm("embeddings.LayerNorm", x)
    for i in range(layers):
        at = f"encoder.layer.{i}"
        q, k, v = (linear(f"{at}.attention.self.{name}", x).chunk(heads, dim=1) for name in ("query", "key", "value"))
        mixed = [(a @ b.T / math.sqrt(a.shape[1])).softmax(dim=1) @ c for a, b, c in zip(q, k, v, strict=True)]
        x = norm(f"{at}.attention.output.LayerNorm", x + linear(f"{at}.attention.output.dense", torch.cat(mixed, dim=1)))
        inner = linear(f"{at}.intermediate.dense", x)
        inner = inner * (1 + torch.erf(inner / math.sqrt(2))) / 2
        x = norm(f"{at}.output.LayerNorm", x + linear(f"{at}.output.dense", inner))
    return x.mean(dim=0)
