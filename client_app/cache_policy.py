"""Which samples take their feature from the cache: routes, priorities, and the two triggers (METHODS 2.2 and 2.6).

HIT uses the cached feature alone, so the encoder neither runs on the sample nor trains on it; FUSE computes it although
a cached one is there; MISS computes it because none is there, it was marked, or it was used often enough. Our own choices
where 2.2 is silent: routes are drawn once an epoch; a full refresh drops the entries that the encoder has left behind by the
lower threshold, and spares younger ones; the terms of a priority are scaled to 0..1 over the client's samples, and a term
that is the same for all is 0.
"""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np

from client_app.cache_clock import Clock
from client_app.local.sample_notes import SampleNotes
from client_app.loop import batch_sizes
from strategies.cache_config import Config

HIT, FUSE, MISS = 0, 1, 2
DRIFT_SCALE = 0.05
CLASS_QUOTA = 0.5


def drift_of(notes: SampleNotes, clock: Clock, versioned: bool = True) -> np.ndarray:
    """(n,) how far the encoder has come since each cached feature was made; 0 where none is cached or versions are left out."""
    return np.where(notes.cached & versioned, clock.reading - notes.reading, 0.0)


def priority(notes: SampleNotes, labels: np.ndarray, drift: np.ndarray, disagreement: np.ndarray, config: Config) -> np.ndarray:
    """(n,) who is to be computed anew first: unsure, of a class whose cached features disagree with fresh ones, drifted, used, rare.

    ``disagreement`` (C,) is a running mean of 1 - cosine. Without the class policy both class terms are left out.
    """
    terms = [(0.35, 1 - notes.confidence), (0.20, np.log1p(drift / DRIFT_SCALE)), (0.10, notes.uses)]
    if config.class_policy:
        frequency = np.bincount(labels, minlength=len(disagreement))
        terms += [(0.25, disagreement[labels]), (0.10, 1 - frequency[labels] / frequency.max())]
    return np.sum([weight * _scaled(term) for weight, term in terms], axis=0)


def refresh(notes: SampleNotes, clock: Clock, labels: np.ndarray, disagreement: np.ndarray, config: Config) -> Clock:
    """The first trigger, before a round's training: drop old entries if the encoder has come far, mark some if half as far.

    ``notes`` change; the clock after it is returned.
    """
    if not (config.drift_trigger and config.versioned):
        return clock
    low, high = config.drift_limits(clock.moves)
    since, drift = clock.reading - clock.flushed, drift_of(notes, clock)
    if since >= high:
        notes.forget(notes.cached & (drift >= low))
        return replace(clock, flushed=clock.reading)
    if since >= low:
        ranks = priority(notes, labels, drift, disagreement, config)
        notes.marked[first_to_refresh(ranks, notes.cached, labels, config)] = 1
    return clock


def first_to_refresh(ranks: np.ndarray, cached: np.ndarray, labels: np.ndarray, config: Config) -> np.ndarray:
    """Positions of the share ``refresh_share`` of the ``cached`` (n,) samples with the highest ``ranks`` (n,).

    With the class policy, every class gets at least half of its own share (rounded up), whatever its ranks.
    """
    there = np.flatnonzero(cached)
    best_first = there[np.argsort(-ranks[there], kind="stable")]
    count = math.ceil(config.refresh_share * len(there) - 1e-9)
    if not config.class_policy:
        return best_first[:count]
    chosen = [best_first[labels[best_first] == label] for label in np.unique(labels[there])]
    quotas = [math.ceil(CLASS_QUOTA * config.refresh_share * len(of_class) - 1e-9) for of_class in chosen]
    due = np.concatenate([of_class[:quota] for of_class, quota in zip(chosen, quotas, strict=True)] or [there])
    others = best_first[~np.isin(best_first, due)]
    return np.concatenate([due, others[:max(0, count - len(due))]])


def choose_routes(notes: SampleNotes, ranks: np.ndarray, config: Config, warming: bool, rng: np.random.Generator) -> np.ndarray:
    """(n,) int8 route of every sample for one epoch.

    While ``warming``, nobody is HIT. So many of the HIT with the highest ``ranks`` are made FUSE that ``least_fresh`` of all
    samples, two at least, train the encoder. Draws n numbers from ``rng`` whatever comes of them.
    """
    limits, draws = config.thresholds, rng.random(len(ranks))
    if config.routes == "random":
        usable = notes.cached
        hit = usable & (draws < config.hit_share)
    else:
        usable = notes.cached & (notes.marked == 0) & (notes.uses < limits.uses)
        hit = usable & (notes.confidence >= limits.confidence) & (draws >= limits.fuse)
    hit &= not warming
    fresh = min(len(hit), max(2, math.ceil(config.least_fresh * len(hit) - 1e-9)))
    too_many = int(hit.sum()) - (len(hit) - fresh)
    if too_many > 0:
        candidates = np.flatnonzero(hit)
        hit[candidates[np.argsort(-ranks[candidates], kind="stable")[:too_many]]] = False
    return np.where(hit, HIT, np.where(usable, FUSE, MISS)).astype(np.int8)


def steps_of(order: np.ndarray, hit: np.ndarray, batch: int, sizes: list[int], packing: str) -> list[tuple[np.ndarray, np.ndarray]]:
    """The steps of an epoch: positions whose features are computed, positions whose features are cached.

    ``order`` (n,) is the epoch's, ``hit`` (n,) bool, ``sizes`` the batches of an epoch without cache. ``full`` packs the fresh
    ones into full batches (none of a single sample, as in any epoch) and deals the cached ones out evenly among them;
    ``split`` keeps the batches as they would be. There, a batch's only fresh sample takes a cached one with it, which is
    computed too: BatchNorm cannot normalise one.
    """
    if packing == "full":
        fresh, cached = order[~hit[order]], order[hit[order]]
        cuts = batch_sizes(len(fresh), batch)
        return list(zip(np.split(fresh, np.cumsum(cuts)[:-1]), np.array_split(cached, len(cuts)), strict=True))
    steps = []
    for part in np.split(order, np.cumsum(sizes)[:-1]):
        fresh, cached = part[~hit[part]], part[hit[part]]
        if len(fresh) == 1 and len(cached):
            fresh, cached = np.concatenate([fresh, cached[:1]]), cached[1:]
        steps.append((fresh, cached))
    return steps


def _scaled(term: np.ndarray) -> np.ndarray:
    low, high = term.min(), term.max()
    return (term - low) / (high - low) if high > low else np.zeros(len(term))
