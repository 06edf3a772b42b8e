"""Patch evidence by gathering: for each image and class, sort the patches, take the best k, pool them."""

from __future__ import annotations

import math

import numpy as np


def gathered(patches: np.ndarray, anchors: np.ndarray, keep: float, tau: float, select: str = "plain",
             pool: str = "plain") -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Features (B, C, D), entropy (B, C), peak (B, C) and the kept patches' places (B, C, k), in float64."""
    patches, anchors = patches.astype(np.float64), anchors.astype(np.float64)
    (images, count, dim), classes = patches.shape, len(anchors)
    k = count if select == "none" else math.ceil(round(keep * count, 9))
    features, entropy, peak = np.zeros((images, classes, dim)), np.zeros((images, classes)), np.zeros((images, classes))
    places = np.zeros((images, classes, k), int)
    for b in range(images):
        plain = np.array([[patches[b, m] @ anchors[c] for m in range(count)] for c in range(classes)])
        centred = plain - plain.mean(axis=0)
        for c in range(classes):
            chosen = np.argsort((centred if select == "class-centred" else plain)[c])[::-1][:k]
            scores = (centred if pool == "class-centred" else plain)[c][chosen] / tau
            weights = np.exp(scores - scores.max())
            weights /= weights.sum()
            pooled = sum(weight * patches[b, m] for weight, m in zip(weights, chosen, strict=True))
            features[b, c] = pooled / np.linalg.norm(pooled)
            entropy[b, c] = -sum(w * math.log(w) for w in weights if w) / math.log(k) if k > 1 else 0
            peak[b, c], places[b, c] = plain[c].max(), np.sort(chosen)
    return features, entropy, peak, places
