"""Settings of FedCache, and the thresholds they imply. METHODS 2.3 and 2.6; every default is this project's own choice."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from statistics import median

from strategies.config import choice, dashed, require
from strategies.contract import Slot, Wire
from strategies.fedavg import WIRE as FEDAVG
from strategies.fedper import ENCODER_DOWN, ENCODER_UP, INITIAL_HEAD
from strategies.scalars import COMMON_METRICS, GATE_AGES, TOTALS

# Scalars that a client with a feature cache may send beside those of every method: shares of its training samples by route and
# mean weight of cached features in blends, of all and by age, rounded; and totals, which tell how many samples it has.
CACHE_METRICS = frozenset({"hit", "fuse", "miss", "gate-weight", *GATE_AGES}) | TOTALS
# weights by class would tell labels
LOCAL = ("features", "gate", "gate weights by class", "confidences", "use counts")
VERSION = "version"
VERSION_DOWN = Slot(VERSION, "2", "number of the shared encoder, and how far it has moved in all", layout=((VERSION, (2,), "float64"),))
MOST_ROUNDS = 10_000


@dataclass(frozen=True)
class Thresholds:
    """When a cached feature serves: from which confidence, for how many uses; how many are computed anyway; and how far
    the encoder may have moved before some (``low``) or all (``high``) old entries go.

    ``median_drift`` are multiples of the median move of the last five rounds, ``fixed_drift`` relative lengths of path.
    """

    confidence: float
    uses: int
    fuse: float
    median_drift: tuple[float, float]
    fixed_drift: tuple[float, float]


# the stages of a system's life: while it is developed a cached feature must earn its use, in stable operation less so
STAGES = {"development": Thresholds(0.7, 5, 0.25, (1.5, 6.0), (0.02, 0.10)),
          "stable": Thresholds(0.6, 10, 0.10, (3.0, 12.0), (0.04, 0.20))}


@dataclass(frozen=True)
class Config:
    """Settings of FedCache. A value of -1 is the one of the ``stage``. Every default is this project's choice.

    Attributes
    ----------
    heads : ``private`` (over FedPer) or ``shared`` (over FedAvg).
    routes, hit_share : approximate reuse while the encoder trains: ``off``, by the head's ``confidence``, or ``random`` (a control,
        which takes the share ``hit_share`` of all samples that have an entry).
    hit : a HIT sample trains the head on its ``cache``d feature, or is ``drop``ped (the control: no cached feature is used).
    gate : blends cached with fresh features of FUSE samples; ``none`` takes the fresh ones.
    stage : ``development`` or ``stable``: which thresholds hold where the next five settings say -1.
    confidence_low, confidence_memory : running mean of the largest softmax from which a sample is HIT, and its decay.
    max_uses : uses of an entry before it is computed anew.
    fuse_share : part of the confident samples that is computed anyway, drawn every epoch.
    drift_low, drift_high : how far the encoder may move before some, or all old entries go; in medians or absolute, as ``drift`` says.
    drift : thresholds are multiples of the ``median`` move of the last five rounds, or ``fixed``.
    drift_trigger : whether the encoder's movement ends entries at all.
    class_policy : rank entries for refresh by class too, and give every class its quota.
    refresh_share : part of the entries that a partial refresh computes anew.
    least_fresh : part of a client's samples that trains the encoder in every epoch, whatever the routes say.
    packing : fresh samples are packed into ``full`` batches, or batches stay and are ``split``.
    bn_below : BatchNorm of the encoder in ``train`` mode on the fresh samples, or in ``eval`` mode (an ablation).
    warm_up : share of the rounds before any HIT.
    versioned : whether entries know which encoder made them; false is an ablation that shows the mistake.
    payload : dtype in which the features of the routes are kept.
    max_megabytes : bound of a client's cache in MB (10**6 bytes), 0 for none.
    reuse : exact reuse of the features of a standing encoder; false computes everything anew, with the same results.
    head_epochs : epochs of the head on the standing encoder before the joint training of a round.
    freeze_after : share of the rounds after which the encoder stands still and no longer travels.
    sync_every : the encoder is exchanged every so many rounds; in between a client trains on from its own.
    lazy_upload, lazy_share, lazy_rounds, lazy_decay : a client whose update is small for it keeps it, and the server repeats its last
        one, weaker by ``lazy_decay`` a round. Small is below ``lazy_share`` of the median of the client's last five; at most
        ``lazy_rounds`` times in a row.
    """

    heads: str = "private"
    routes: str = "confidence"
    hit: str = "cache"
    gate: str = "none"
    stage: str = "development"
    confidence_low: float = -1.0
    max_uses: int = -1
    fuse_share: float = -1.0
    drift_low: float = -1.0
    drift_high: float = -1.0
    confidence_memory: float = 0.9
    hit_share: float = 0.5
    drift: str = "median"
    drift_trigger: bool = True
    class_policy: bool = True
    refresh_share: float = 0.1
    least_fresh: float = 0.25
    packing: str = "full"
    bn_below: str = "train"
    warm_up: float = 0.1
    versioned: bool = True
    payload: str = "float16"
    max_megabytes: float = 0.0
    reuse: bool = True
    head_epochs: int = 0
    freeze_after: float = 1.0
    sync_every: int = 1
    lazy_upload: bool = False
    lazy_share: float = 1.0
    lazy_rounds: int = 5
    lazy_decay: float = 0.9

    def __post_init__(self) -> None:
        for key, options in _CHOICES.items():
            choice(_key(key), options, getattr(self, key))
        for key in ("confidence_memory", "hit_share", "refresh_share", "warm_up", "lazy_decay"):
            _check(self, key, 0 <= getattr(self, key) <= 1, "in 0..1")
        _check(self, "least_fresh", 0 < self.least_fresh <= 1, "above 0 and at most 1: the encoder must train on something")
        _check(self, "freeze_after", 0 < self.freeze_after <= 1, "above 0 and at most 1 (never)")
        for key in ("confidence_low", "fuse_share"):
            _check(self, key, getattr(self, key) == -1 or 0 <= getattr(self, key) <= 1, "in 0..1, or -1 for the stage's")
        _check(self, "max_uses", self.max_uses == -1 or self.max_uses >= 1, "1 or more, or -1 for the stage's")
        for key in ("drift_low", "drift_high"):
            _check(self, key, getattr(self, key) == -1 or getattr(self, key) >= 0, "0 or more, or -1 for the stage's")
        low, high = self._drift
        _check(self, "drift_low", low <= high, f"at most drift-high, {high:g}")
        for key in ("max_megabytes", "lazy_share"):
            _check(self, key, 0 <= getattr(self, key) < math.inf, "a finite number of 0 or more")
        _check(self, "head_epochs", 0 <= self.head_epochs <= MOST_ROUNDS, f"in 0..{MOST_ROUNDS}")
        for key in ("sync_every", "lazy_rounds"):
            _check(self, key, 1 <= getattr(self, key) <= MOST_ROUNDS, f"in 1..{MOST_ROUNDS}")
        _check(self, "sync_every", self.sync_every == 1 or not self.lazy_upload,
               "1 with lazy-upload = true: either saves bytes, and together no update could be measured against its start")

    @property
    def wire(self) -> Wire:
        """The contract these settings imply: the encoder is optional where clients may be current, or keep their update."""
        stays = self.sync_every > 1 or self.freeze_after < 1
        encoder_down, encoder_up = replace(ENCODER_DOWN, optional=stays), replace(ENCODER_UP, optional=stays or self.lazy_upload)
        shared = self.heads == "shared"
        head_down, head_up = (FEDAVG.slots("down")["head"], (FEDAVG.slots("up")["head"],)) if shared else (INITIAL_HEAD, ())
        return Wire(down=(encoder_down, VERSION_DOWN, head_down), up=(encoder_up, *head_up),
                    local=(*(() if shared else ("head",)), *LOCAL, "data", "optimiser state"), metrics=COMMON_METRICS | CACHE_METRICS)

    @property
    def thresholds(self) -> Thresholds:
        """The stage's, where this config does not say otherwise."""
        stage = STAGES[self.stage]
        drift = {"median_drift" if self.drift == "median" else "fixed_drift": self._drift}
        told = {"confidence": self.confidence_low, "uses": self.max_uses, "fuse": self.fuse_share}
        return Thresholds(**{**stage.__dict__, **drift, **{name: value for name, value in told.items() if value != -1}})

    @property
    def _drift(self) -> tuple[float, float]:
        low, high = getattr(STAGES[self.stage], f"{self.drift}_drift")
        return (low if self.drift_low == -1 else self.drift_low, high if self.drift_high == -1 else self.drift_high)

    def drift_limits(self, moves: tuple[float, ...]) -> tuple[float, float]:
        """Path lengths from which some, and all, old entries go, given the encoder's last ``moves``; infinite where none is known."""
        low, high = self._drift
        if self.drift == "fixed":
            return low, high
        unit = median(moves) if moves else math.inf
        return low * unit, high * unit

    def warming(self, number: int, total: int) -> bool:
        """Whether round ``number`` of ``total`` is too early for any HIT."""
        return number - 1 < self.warm_up * total

    def last_trained(self, total: int) -> int:
        """The last of ``total`` rounds in which the encoder trains, 1 or later."""
        return max(1, math.floor(self.freeze_after * total + 1e-9))

    def frozen(self, number: int, total: int) -> bool:
        """Whether the encoder stands still in round ``number`` of ``total``."""
        return number > self.last_trained(total)

    def uploads(self, number: int, total: int) -> bool:
        """Whether a client's encoder is due in round ``number`` of ``total``."""
        return not self.frozen(number, total) and (number % self.sync_every == 0 or number == self.last_trained(total))

    def keeps_encoder(self, number: int, total: int) -> bool:
        """Whether a client needs the encoder it has after round ``number`` of ``total`` for the next message."""
        return not self.uploads(number, total)


_CHOICES = {"heads": ("private", "shared"), "routes": ("off", "confidence", "random"), "hit": ("cache", "drop"),
            "gate": ("none", "log", "fixed", "sigmoid"), "stage": tuple(STAGES), "drift": ("median", "fixed"),
            "packing": ("full", "split"), "bn_below": ("train", "eval"), "payload": ("float16", "float32")}


def _key(field: str) -> str:
    return f"fed-cache.{dashed(field)}"


def _check(config: Config, field: str, holds: bool, expected: str) -> None:
    require(holds, _key(field), expected, getattr(config, field))
