"""pFedPG's generator of client-specific prompts, in NumPy: cross-attention from a client's descriptor to base prompts.

    P_n = B + softmax(d_n W_q (B W_k)^T / sqrt(D)) B W_v          (Yang et al. 2023, arXiv 2308.15367)

B (K, D) base prompts, d_n (K, D) the client's learned descriptor, W (D, D). A client's trained change of its prompts, taken as a
negative gradient of P_n, goes back through this to B, W and d_n. Our reading: one descriptor row a token, no output projection
and one head; Adam (arXiv 1412.6980) at the paper's server rate, since plain descent at 1e-3 would hardly move a prompt.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

import numpy as np

from strategies.seeds import derive_seed

WEIGHTS = ("query", "key", "value")
_DECAY, _SQUARES, _TINY = 0.9, 0.999, 1e-8


def first_weights(base: np.ndarray, seed: int) -> dict[str, np.ndarray]:
    """Base prompts (K, D) and three seeded matrices (D, D), normal with variance 1 / D; float32. The value's is zero, so that all
    clients start with the base prompts.
    """
    dim = base.shape[-1]
    random = np.random.default_rng(derive_seed(seed, "prompt-generator"))
    made = {name: (random.standard_normal((dim, dim)) / math.sqrt(dim)).astype(np.float32) for name in WEIGHTS[:2]}
    return {"base": np.array(base, np.float32), **made, "value": np.zeros((dim, dim), np.float32)}


def first_descriptor(client: str, shape: tuple[int, ...], seed: int) -> np.ndarray:
    """A new client's descriptor (K, D), by its name: standard normal, float32."""
    return np.random.default_rng(derive_seed(seed, "descriptor", client)).standard_normal(shape).astype(np.float32)


def generate(weights: Mapping[str, np.ndarray], descriptor: np.ndarray) -> np.ndarray:
    """P_n (K, D) float32."""
    base = weights["base"]
    return (base + _attention(weights, descriptor) @ (base @ weights["value"])).astype(np.float32)


def gradients(weights: Mapping[str, np.ndarray], descriptor: np.ndarray,
              gradient: np.ndarray) -> tuple[dict[str, np.ndarray], np.ndarray]:
    """Gradients, by weight and of the descriptor, of a loss whose gradient by P_n is ``gradient`` (K, D)."""
    w = {name: tensor.astype(np.float64) for name, tensor in weights.items()}
    base, d, g = w["base"], descriptor.astype(np.float64), gradient.astype(np.float64)
    scale = 1 / math.sqrt(base.shape[1])
    attention, queries, keys, values = _attention(w, d), d @ w["query"], base @ w["key"], base @ w["value"]
    to_values, to_attention = attention.T @ g, g @ values.T
    to_scores = attention * (to_attention - (to_attention * attention).sum(axis=1, keepdims=True)) * scale
    to_queries, to_keys = to_scores @ keys, to_scores.T @ queries
    by_weight = {"base": g + to_values @ w["value"].T + to_keys @ w["key"].T, "query": d.T @ to_queries, "key": base.T @ to_keys,
                 "value": base.T @ to_values}
    return by_weight, to_queries @ w["query"].T


def adam(tensor: np.ndarray, gradient: np.ndarray, moments: np.ndarray, rate: float) -> tuple[np.ndarray, np.ndarray]:
    """One step: the tensor, float32, and its moments (3, *shape): mean, mean square, number of steps."""
    steps = moments[2].flat[0] + 1
    mean = _DECAY * moments[0] + (1 - _DECAY) * gradient
    square = _SQUARES * moments[1] + (1 - _SQUARES) * gradient**2
    step = rate * (mean / (1 - _DECAY**steps)) / (np.sqrt(square / (1 - _SQUARES**steps)) + _TINY)
    return (tensor - step).astype(np.float32), np.stack([mean, square, np.full(tensor.shape, steps)])


def no_moments(tensor: np.ndarray) -> np.ndarray:
    """The moments (3, *shape) before the first step."""
    return np.zeros((3, *tensor.shape))


def _attention(w: Mapping[str, np.ndarray], descriptor: np.ndarray) -> np.ndarray:
    """(K, K), rows on the simplex."""
    scores = (descriptor @ w["query"]) @ (w["base"] @ w["key"]).T / math.sqrt(descriptor.shape[1])
    exps = np.exp(scores - scores.max(axis=1, keepdims=True))
    return exps / exps.sum(axis=1, keepdims=True)
