"""The log-domain gate and the penalty, one number at a time, in double precision."""

from __future__ import annotations

import math


def sigmoid(x):
    return 1 / (1 + math.exp(-x)) if x >= 0 else math.exp(x) / (1 + math.exp(x))


def softplus(x):
    return max(x, 0.0) + math.log1p(math.exp(-abs(x)))


def length(vector):
    return math.sqrt(sum(v * v for v in vector))


def cosine(a, b):
    return sum(x * y for x, y in zip(a, b, strict=True)) / max(length(a) * length(b), 1e-12)


def normalised(vector):
    mean = sum(vector) / len(vector)
    variance = sum((v - mean) ** 2 for v in vector) / len(vector)
    return [(v - mean) / math.sqrt(variance + 1e-5) for v in vector]


def linear(weight, bias, vector):
    return [sum(w * v for w, v in zip(row, vector, strict=True)) + b for row, b in zip(weight, bias, strict=True)]


def clamp(x):
    return min(8.0, max(-8.0, x))


def log_odds(weights, fresh, cached, age, drift, uses, confidence, ceiling, drift_scale=0.05):
    query = linear(weights["query.weight"], weights["query.bias"], normalised(fresh))
    key = linear(weights["key.weight"], weights["key.bias"], normalised(cached))
    content = sum(q * k for q, k in zip(query, key, strict=True)) / math.sqrt(len(query))
    ratio = math.log(max(length(fresh), 1e-12)) - math.log(max(length(cached), 1e-12))
    odds = weights["bias"] + content
    for w, x in zip(weights["signed"], (cosine(fresh, cached), confidence, ratio), strict=True):
        odds += w * clamp(x)
    for w, x in zip(weights["wear"], (age, drift / drift_scale, uses), strict=True):
        odds -= softplus(w) * clamp(math.log1p(x))
    odds = 10 * math.tanh(odds / 10)
    return odds if ceiling == 1 else odds - softplus(odds - math.log(ceiling / (1 - ceiling)))


def blend(odds, fresh, cached):
    """The cached feature's weight, and the blend with the cached feature at the fresh one's length."""
    weight = sigmoid(odds)
    scale = length(fresh) / max(length(cached), 1e-12)
    return weight, [sigmoid(-odds) * f + weight * c * scale for f, c in zip(fresh, cached, strict=True)]


def penalty(weights, cosines, ceiling, above=0.1, disagreeing=0.05):
    over = sum(max(w - ceiling, 0.0) ** 2 for w in weights) / len(weights)
    trusted = sum(w * (1 - c) for w, c in zip(weights, cosines, strict=True)) / len(weights)
    return above * over + disagreeing * trusted
