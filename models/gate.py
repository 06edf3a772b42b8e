"""How far a sample's cached feature is trusted beside its fresh one (METHODS 2.2), and what that is compared with.

- ``log``: the log-domain gate. It forms the log-odds ``ell`` of the cached feature and takes both weights from them as
  log-probabilities, ``logsigmoid(ell)`` and ``logsigmoid(-ell)``, so that they add up to 1 without a subtraction. Age, drift
  and uses enter through coefficients that are positive by construction: more of them never raises the trust.
- ``fixed``: half and half. ``sigmoid``: one linear layer and a sigmoid, with no clamp, no ceiling and nothing forced.
  Both are ablations.

All numbers are this project's own choice; the mission gives the gate's shape in words only. So are: the cosine and the ratio
of lengths as inputs beside content; that the gate sees both features detached, so that the encoder gets no gradient but
that of the fresh feature's own weight, and cannot learn to be trusted; that the hinge of the penalty is squared a sample.

Everything is float32, under autocast too.
"""

from __future__ import annotations

import difflib
import math
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn.functional import layer_norm, logsigmoid, softplus

GATES = ("none", "log", "fixed", "sigmoid")
START = -2.944  # sigmoid gives 0.05
_TINY = 1e-12


@dataclass(frozen=True)
class Standing:
    """What is known of B cached features beside their numbers; float tensors (B,).

    Attributes
    ----------
    age : rounds since each was stored, 0 or more.
    drift : how far the encoder has moved since, relative to its length, 0 or more.
    uses : how often each was used, 0 or more.
    confidence : the head's on the sample, 0 to 1.
    """

    age: Tensor
    drift: Tensor
    uses: Tensor
    confidence: Tensor

    def __post_init__(self) -> None:
        if len({tuple(t.shape) for t in (self.age, self.drift, self.uses, self.confidence)}) != 1 or self.age.ndim != 1:
            raise ValueError("age, drift, uses and confidence must be tensors of one shape (B,)")


@dataclass(frozen=True)
class Gated:
    """A gate's answer, float32.

    Attributes
    ----------
    features : (B, D) the blend; with a ceiling of 0 the fresh features themselves, dtype and all.
    cached_weight, fresh_weight : (B,) in [0, 1], adding up to 1.
    cosine : (B,) between the fresh and the cached feature, detached; 0 where either has no length.
    """

    features: Tensor
    cached_weight: Tensor
    fresh_weight: Tensor
    cosine: Tensor


@dataclass(frozen=True)
class CeilingSchedule:
    """The most weight a cached feature may get: ``low`` until ``begin``, along a cosine to ``high`` at ``end``, then ``high``.

    ``begin`` and ``end`` are parts of the run, 0 to 1. ``low = high`` is no warm-up; 0 throughout is no gate. Our choice.
    A learned gate needs ``low`` above 0, or it gets no gradient before ``begin``.
    """

    low: float = 0.05
    high: float = 0.8
    begin: float = 0.1
    end: float = 0.5

    def __post_init__(self) -> None:
        if not 0 <= self.low <= self.high <= 1 or not 0 <= self.begin <= self.end <= 1:
            raise ValueError("a ceiling needs 0 <= low <= high <= 1 and 0 <= begin <= end <= 1; "
                             f"got low {self.low}, high {self.high}, begin {self.begin}, end {self.end}")

    def __call__(self, progress: float) -> float:
        """The ceiling when ``progress``, 0 to 1, of all rounds are over."""
        if progress <= self.begin:
            return self.low
        along = 1.0 if progress >= self.end else (progress - self.begin) / (self.end - self.begin)
        return self.low + (self.high - self.low) * (1 - math.cos(math.pi * along)) / 2


class Gate(nn.Module):
    """Blends fresh with cached features. A subclass says with which log-odds."""

    rescales = False

    def __init__(self, feature_dim: int, drift_scale: float = 0.05) -> None:
        super().__init__()
        if feature_dim < 1 or not drift_scale > 0:
            raise ValueError(f"a gate needs a feature width of 1 or more and a drift scale above 0, got {feature_dim} and {drift_scale}")
        self.feature_dim, self.drift_scale = feature_dim, drift_scale

    def forward(self, fresh: Tensor, cached: Tensor, standing: Standing, ceiling: float) -> Gated:
        """Blend fresh (B, D) with cached (B, D), which gets no gradient; ``ceiling`` is in [0, 1], and 0 bypasses the gate."""
        fits = fresh.shape == cached.shape == (len(standing.age), self.feature_dim)
        if not fits or not 0 <= ceiling <= 1:
            raise ValueError(f"a gate needs fresh and cached features (B, {self.feature_dim}), a standing (B,) and a ceiling in [0, 1]; "
                             f"got widths {tuple(fresh.shape[1:])} and {tuple(cached.shape[1:])} and the ceiling {ceiling}")
        with torch.autocast(fresh.device.type, enabled=False):
            new, old = fresh.float(), cached.detach().float()
            lengths = [f.detach().norm(dim=1) for f in (new, old)]
            cosine = _cosine(new.detach(), old, *lengths)
            if ceiling == 0:
                return Gated(fresh, torch.zeros_like(cosine), torch.ones_like(cosine), cosine)
            known = self.inputs(cosine, lengths[0], lengths[1], standing)
            odds = self.log_odds(new.detach(), old, known, ceiling)
            cached_weight, fresh_weight = logsigmoid(odds).exp(), logsigmoid(-odds).exp()
            if self.rescales:
                old = old * (lengths[0] / lengths[1].clamp(min=_TINY))[:, None]
            return Gated(fresh_weight[:, None] * new + cached_weight[:, None] * old, cached_weight, fresh_weight, cosine)

    def inputs(self, cosine: Tensor, fresh_length: Tensor, cached_length: Tensor, standing: Standing) -> Tensor:
        """(B, 6): cosine, log1p of age, of drift / drift scale and of uses, confidence, log of fresh over cached length."""
        ratio = fresh_length.clamp(min=_TINY).log() - cached_length.clamp(min=_TINY).log()
        age, drift, uses, confidence = (t.detach().to(cosine) for t in (standing.age, standing.drift, standing.uses, standing.confidence))
        columns = [cosine, age.log1p(), (drift / self.drift_scale).log1p(), uses.log1p(), confidence, ratio]
        return torch.stack(columns, dim=1).clamp(-8, 8)

    def log_odds(self, fresh: Tensor, cached: Tensor, known: Tensor, ceiling: float) -> Tensor:
        """(B,) log of cached over fresh weight, from features (B, D) and `inputs` (B, 6)."""
        raise NotImplementedError


class LogGate(Gate):
    """The log-domain gate; with its first weights and a ceiling of 0.8 a cached feature gets about 5 %.

    A cached feature is brought to the fresh one's length before it is blended in.
    """

    rescales = True

    def __init__(self, feature_dim: int, drift_scale: float = 0.05, content_dim: int = 64) -> None:
        super().__init__(feature_dim, drift_scale)
        self.query, self.key = nn.Linear(feature_dim, content_dim), nn.Linear(feature_dim, content_dim)
        for layer in (self.query, self.key):
            nn.init.normal_(layer.weight, std=0.02)
            nn.init.zeros_(layer.bias)
        self.bias = nn.Parameter(torch.tensor(START))
        # of cosine, confidence and ratio of lengths
        self.signed = nn.Parameter(torch.zeros(3))
        # of age, drift and uses, before softplus: all 0.018 at the start, so that the bias decides
        self.wear = nn.Parameter(torch.full((3,), -4.0))

    def log_odds(self, fresh: Tensor, cached: Tensor, known: Tensor, ceiling: float) -> Tensor:
        """As `Gate.log_odds`: within 10 of 0, and below the odds that ``ceiling`` allows."""
        query, key = self.query(layer_norm(fresh, fresh.shape[1:])), self.key(layer_norm(cached, cached.shape[1:]))
        content = (query * key).sum(dim=1) / math.sqrt(query.shape[1])
        odds = self.bias + content + known[:, [0, 4, 5]] @ self.signed - known[:, 1:4] @ softplus(self.wear)
        odds = 10 * torch.tanh(odds / 10)
        most = math.inf if ceiling == 1 else math.log(ceiling) - math.log1p(-ceiling)
        return odds - softplus(odds - most)


class FixedBlend(Gate):
    """Half and half, whatever the ceiling; nothing is learned."""

    def log_odds(self, fresh: Tensor, cached: Tensor, known: Tensor, ceiling: float) -> Tensor:
        """As `Gate.log_odds`: 0."""
        return known.new_zeros(len(known))


class SigmoidGate(Gate):
    """One linear layer over both features and `Gate.inputs`, starting at half and half; it knows no ceiling."""

    def __init__(self, feature_dim: int, drift_scale: float = 0.05) -> None:
        super().__init__(feature_dim, drift_scale)
        self.linear = nn.Linear(2 * feature_dim + 6, 1)
        nn.init.zeros_(self.linear.weight)
        nn.init.zeros_(self.linear.bias)

    def log_odds(self, fresh: Tensor, cached: Tensor, known: Tensor, ceiling: float) -> Tensor:
        """As `Gate.log_odds`: without bound."""
        return self.linear(torch.cat([fresh, cached, known], dim=1))[:, 0]


def build_gate(kind: str, feature_dim: int, seed: int = 0) -> Gate | None:
    """A gate for features of width D = ``feature_dim``, one of `GATES`; None for "none": take the fresh features.

    ``seed`` decides its first weights; torch's global random state stays as it was. Raises ``ValueError`` for another kind.
    """
    if kind not in GATES:
        close = difflib.get_close_matches(kind, GATES, n=1)
        raise ValueError(f"a gate must be one of {', '.join(GATES)}; got {kind!r}" + (f"; did you mean {close[0]!r}?" if close else ""))
    if kind == "none":
        return None
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(seed)
        return {"log": LogGate, "fixed": FixedBlend, "sigmoid": SigmoidGate}[kind](feature_dim)


def penalty(gated: Gated, ceiling: float, above: float = 0.1, disagreeing: float = 0.05) -> Tensor:
    """What to add to the loss (a scalar): ``above`` x mean of squared trust beyond ``ceiling``, and ``disagreeing`` x mean of
    trust x (1 - cosine), which keeps a gate from trusting entries that visibly contradict the fresh feature."""
    over = (gated.cached_weight - ceiling).clamp(min=0)
    return above * over.square().mean() + disagreeing * (gated.cached_weight * (1 - gated.cosine)).mean()


def _cosine(fresh: Tensor, cached: Tensor, fresh_length: Tensor, cached_length: Tensor) -> Tensor:
    return (fresh * cached).sum(dim=1) / (fresh_length * cached_length).clamp(min=_TINY)
