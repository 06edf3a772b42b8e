"""A linear head trained by stochastic gradient descent, in plain NumPy and float64."""

from __future__ import annotations

import numpy as np


def fit(weight: np.ndarray, bias: np.ndarray, features: np.ndarray, labels: np.ndarray, batches: list[list[int]], lr: float,
        momentum: float, decay: float) -> tuple[np.ndarray, np.ndarray]:
    """``weight`` (C, D) and ``bias`` (C,) after one step on each of ``batches``: cross-entropy, SGD with momentum and weight decay."""
    w, b = weight.astype(np.float64), bias.astype(np.float64)
    velocity_w, velocity_b = np.zeros_like(w), np.zeros_like(b)
    for batch in batches:
        gradient_w, gradient_b = decay * w, decay * b
        for i in batch:
            logits = w @ features[i] + b
            odds = np.exp(logits - logits.max())
            error = odds / odds.sum()
            error[labels[i]] -= 1.0
            gradient_w = gradient_w + np.outer(error, features[i]) / len(batch)
            gradient_b = gradient_b + error / len(batch)
        velocity_w, velocity_b = momentum * velocity_w + gradient_w, momentum * velocity_b + gradient_b
        w, b = w - lr * velocity_w, b - lr * velocity_b
    return w, b
