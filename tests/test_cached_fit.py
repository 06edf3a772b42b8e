"""Routes, triggers and steps of training with a feature cache: worked by hand, and against a loop over samples."""

from __future__ import annotations

import copy
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st
from torch import nn

from client_app.cache_clock import Clock
from client_app.cache_policy import FUSE, HIT, MISS, choose_routes, drift_of, first_to_refresh, priority, refresh, steps_of
from client_app.cached_fit import Cached, CachedFit, RouteCounts, gate_tensors, load_gate
from client_app.data.client_data import Split
from client_app.local.sample_notes import BUCKETS, NONE, SampleNotes, TwoPlaces, as_payload, entry_version
from client_app.loop import LoopSettings, TrainingDiverged, batch_sizes, fit
from models import SplitModel, build_model
from models.gate import build_gate
from strategies.cache_config import Config
from strategies.seeds import derive_seed
from strategies.types import Round
from tests.naive import cached_fit as naive
from tests.running import digits_of

SETTINGS = LoopSettings(epochs=2, batch=4, lr=0.05, device="cpu", weight_decay=0.01)
LATER = Round(5, 10, seed=0)


class Draws:
    """A random generator that says what it was told to."""

    def __init__(self, *numbers: float) -> None:
        self.numbers = np.array(numbers)

    def random(self, count: int) -> np.ndarray:
        assert count == len(self.numbers)
        return self.numbers


def notes_of(n: int, **columns: object) -> SampleNotes:
    """Notes of samples 0..n-1, all cached unless ``version`` says otherwise."""
    notes = SampleNotes.of(np.arange(n))
    notes.version[:] = 7
    for name, values in columns.items():
        getattr(notes, name)[:] = values
    return notes


# --- routes


def six() -> SampleNotes:
    """Sure; sure but drawn; unsure; marked; used five times; not cached."""
    return notes_of(6, confidence=[0.9, 0.9, 0.6, 0.9, 0.9, 0.9], marked=[0, 0, 0, 1, 0, 0], uses=[4, 0, 0, 0, 5, 0],
                    version=[7, 7, 7, 7, 7, NONE])


def test_routes_of_six_samples_by_hand() -> None:
    draws = Draws(0.25, 0.24, 0.9, 0.9, 0.9, 0.9)
    assert choose_routes(six(), np.zeros(6), Config(), False, draws).tolist() == [HIT, FUSE, FUSE, MISS, MISS, MISS]
    assert choose_routes(six(), np.zeros(6), Config(), True, draws).tolist() == [FUSE, FUSE, FUSE, MISS, MISS, MISS]
    # the stable stage: from .6 on, ten uses, a tenth computed anyway
    draws = Draws(0.25, 0.24, 0.9, 0.9, 0.05, 0.9)
    assert choose_routes(six(), np.zeros(6), Config(stage="stable"), False, draws).tolist() == [HIT, HIT, HIT, MISS, FUSE, MISS]
    strict = Config(max_uses=4, confidence_low=0.95)
    assert choose_routes(six(), np.zeros(6), strict, False, draws).tolist() == [MISS, FUSE, FUSE, MISS, MISS, MISS]
    # at random, confidence, marks and uses say nothing
    draws = Draws(0.6, 0.4, 0.4, 0.4, 0.6, 0.1)
    assert choose_routes(six(), np.zeros(6), Config(routes="random"), False, draws).tolist() == [FUSE, HIT, HIT, HIT, FUSE, MISS]


def test_a_quarter_trains_the_encoder_whatever_the_routes_say() -> None:
    notes, ranks = notes_of(8, confidence=0.99), np.array([3, 1, 4, 1, 5, 9, 2, 6.0])
    routes = choose_routes(notes, ranks, Config(fuse_share=0.0), False, Draws(*[0.5] * 8))
    assert np.flatnonzero(routes == FUSE).tolist() == [5, 7] and (routes == HIT).sum() == 6  # the two that are due first
    routes = choose_routes(notes, ranks, Config(fuse_share=0.0, least_fresh=0.6), False, Draws(*[0.5] * 8))
    assert np.flatnonzero(routes == FUSE).tolist() == [0, 2, 4, 5, 7]
    for n, fresh in ((1, 1), (2, 2), (3, 2)):  # BatchNorm needs two
        routes = choose_routes(notes_of(n, confidence=0.99), np.zeros(n), Config(fuse_share=0.0), False, Draws(*[0.5] * n))
        assert (routes != HIT).sum() == fresh


@given(st.integers(1, 60), st.floats(0.01, 1), st.booleans(), st.integers(0, 1000))
def test_routes_are_sound(n: int, least: float, random: bool, seed: int) -> None:
    rng = np.random.default_rng(seed)
    notes = notes_of(n, confidence=rng.random(n), marked=rng.integers(0, 2, n), uses=rng.integers(0, 7, n), version=rng.integers(-1, 2, n))
    config = Config(routes="random" if random else "confidence", least_fresh=least, hit_share=0.9)
    routes = choose_routes(notes, rng.random(n), config, False, np.random.default_rng(seed))
    assert notes.cached[routes != MISS].all()
    assert (routes != HIT).sum() >= min(n, max(2, np.ceil(least * n - 1e-9)))
    if not random:
        assert (notes.confidence[routes == HIT] >= 0.7).all()
        assert (notes.uses[routes != MISS] < 5).all() and not notes.marked[routes != MISS].any()


def test_priorities_by_hand() -> None:
    """Two classes of three and one samples; every term but the last is 0 or 1 after scaling."""
    notes = notes_of(4, confidence=[1.0, 0.5, 1.0, 1.0], uses=[0, 0, 5, 0])
    labels, drift = np.array([0, 0, 0, 1]), np.array([0.0, 0.05, 0.0, 0.0])
    expected = [0.0, 0.35 + 0.20, 0.10, 0.25 + 0.10]
    assert priority(notes, labels, drift, np.array([0.1, 0.4, 0.9]), Config()).tolist() == pytest.approx(expected)
    # 1/2 of log1p's scale: log1p(.025 / .05) / log1p(1)
    half = priority(notes, labels, drift * [0, 1, 0, 0] + [0, 0, 0.025, 0], np.array([0.1, 0.4, 0.9]), Config(class_policy=False))
    assert half.tolist() == pytest.approx([0, 0.55, 0.10 + 0.20 * np.log(1.5) / np.log(2), 0])


# --- triggers


def test_every_class_is_refreshed_by_its_quota() -> None:
    """40 of class 0 with the highest ranks, 8 of class 1, 2 of class 2: of 50 a tenth is 5; half shares are 2, 1, 1; one is left."""
    labels = np.repeat([0, 1, 2], [40, 8, 2])
    ranks = np.linspace(1, 0, 50)
    chosen = first_to_refresh(ranks, np.ones(50, bool), labels, Config())
    assert sorted(chosen.tolist()) == [0, 1, 2, 40, 48]
    assert first_to_refresh(ranks, np.ones(50, bool), labels, Config(class_policy=False)).tolist() == [0, 1, 2, 3, 4]
    only = first_to_refresh(ranks, labels == 2, labels, Config(refresh_share=0.5))
    assert only.tolist() == [48] and not len(first_to_refresh(ranks, np.zeros(50, bool), labels, Config()))


def test_drift_below_low_does_nothing_above_it_marks_and_above_high_drops_a_group() -> None:
    labels, none = np.zeros(10, np.int64), np.zeros(1)
    config = Config(drift="fixed")  # .02 and .10
    for reading, marked, left, flushed in ((0.019, 0, 10, 0.0), (0.02, 1, 10, 0.0), (0.099, 1, 10, 0.0), (0.1, 0, 4, 0.1)):
        notes = notes_of(10, reading=[0] * 6 + [max(0, reading - 0.019)] * 4)
        clock = refresh(notes, Clock(reading=reading), labels, none, config)
        assert (int(notes.marked.sum()), int(notes.cached.sum()), clock.flushed) == (marked, left, flushed), reading
    # after the flush the path counts from there
    assert refresh(notes_of(10), Clock(reading=0.119, flushed=0.1), labels, none, config).flushed == 0.1
    for off in (replace(config, drift_trigger=False), replace(config, versioned=False)):
        notes = notes_of(10)
        assert refresh(notes, Clock(reading=9.0), labels, none, off).flushed == 0 and notes.cached.all()


def test_median_thresholds_follow_the_last_five_moves() -> None:
    config = Config()
    assert config.drift_limits(()) == (np.inf, np.inf)
    assert config.drift_limits((1.0, 5.0, 2.0)) == (3.0, 12.0)
    clock = Clock()
    for move in (9.0, 1.0, 2.0, 3.0, 4.0, 5.0):
        clock = clock.moved(move)
    assert clock.moves == (1.0, 2.0, 3.0, 4.0, 5.0) and clock.reading == 24.0
    assert config.drift_limits(clock.moves) == (4.5, 18.0)


def test_no_hit_across_a_group_invalidation() -> None:
    """All sure, little used; the encoder has come far: not one of the old entries is used, every later one may be."""
    notes = notes_of(20, confidence=0.99, reading=[0.0] * 12 + [0.09] * 8)
    refresh(notes, Clock(reading=0.1), np.zeros(20, np.int64), np.zeros(1), Config(drift="fixed"))
    routes = choose_routes(notes, np.zeros(20), Config(fuse_share=0.0), False, np.random.default_rng(0))
    assert (routes[:12] == MISS).all() and (routes[12:] == HIT).all()


def test_the_clock_counts_the_servers_path_and_its_own() -> None:
    clock = Clock().told(3, 0.5)
    assert (clock.reading, clock.version, clock.moves) == (0.0, 3, ())  # where it joins is zero
    clock = clock.told(5, 0.75).moved(0.125)
    assert (clock.reading, clock.path, clock.moves) == (0.375, 0.75, (0.25, 0.125))
    assert clock.told(6, 0.7).reading == clock.reading  # never back
    assert Clock.from_tensors(clock.tensors()) == clock and Clock.from_tensors(None) == Clock()


# --- packing


def test_packing_by_hand() -> None:
    order, hit = np.array([4, 2, 0, 6, 1, 5, 3]), np.array([False, True, False, True, False, True, False])
    told = [(f.tolist(), c.tolist()) for f, c in steps_of(order, hit, 3, [3, 4], "full")]
    assert told == [([4, 2, 0, 6], [1, 5, 3])]  # four fresh ones: 3 and a lonely one that joins them
    told = [(f.tolist(), c.tolist()) for f, c in steps_of(order, hit, 2, [2, 2, 3], "full")]
    assert told == [([4, 2], [1, 5]), ([0, 6], [3])]
    told = [(f.tolist(), c.tolist()) for f, c in steps_of(order, hit, 2, [2, 2, 3], "split")]
    assert told == [([4, 2], []), ([0, 6], []), ([], [1, 5, 3])]
    told = [(f.tolist(), c.tolist()) for f, c in steps_of(np.array([1, 0, 3, 2]), np.array([False, True, False, True]), 2, [2, 2], "split")]
    assert told == [([0, 1], []), ([2, 3], [])]  # BatchNorm cannot normalise one


@given(st.integers(1, 80), st.integers(2, 20), st.sampled_from(["full", "split"]), st.integers(0, 99))
def test_a_step_has_no_lonely_sample_and_an_epoch_every_sample_once(n: int, batch: int, packing: str, seed: int) -> None:
    rng = np.random.default_rng(seed)
    hit = rng.random(n) < 0.6
    hit[:2] = False
    plan = steps_of(rng.permutation(n), hit, batch, batch_sizes(n, batch), packing)
    assert sorted(np.concatenate([np.concatenate(step) for step in plan]).tolist()) == list(range(n))
    assert all(len(fresh) != 1 for fresh, _ in plan) or n == 1
    assert all(hit[cached].all() for _, cached in plan)


# --- training


def model_of(seed: int = 0) -> SplitModel:
    return build_model("cnn", 10, (1, 8, 8), width=2, seed=seed)


def split_of(n: int = 24) -> Split:
    images, labels = digits_of(0, count=n)
    return Split(images, labels, np.arange(n) + 100)


def empty(n: int, dim: int = 16, payload: str = "float16") -> Cached:
    return Cached(SampleNotes.of(np.arange(n) + 100), np.zeros((n, dim), payload), np.zeros(10))


def bits(model: SplitModel) -> bytes:
    return b"".join(t.tobytes() for part in ("encoder", "head") for t in model.tensors(part).values())


@pytest.mark.parametrize("n", [1, 2, 9, 24])
@pytest.mark.parametrize("packing", ["full", "split"])
def test_without_a_hit_it_is_plain_training_bit_for_bit(n: int, packing: str) -> None:
    split, ours, plain = split_of(n), model_of(), model_of()
    cached = empty(n)
    trained = CachedFit(ours, split, SETTINGS, Config(packing=packing), cached, Clock(), Round(1, 10, seed=0), 3)
    stats, reference = trained.run(), fit(plain, split.images, split.labels, SETTINGS, 3)
    assert bits(ours) == bits(plain) and stats == reference
    assert trained.counts.shares() == {"hit": 0.0, "fuse": 0.5, "miss": 0.5} and trained.counts.forwards == 2 * n
    assert cached.made.all() and set(cached.notes.version) <= set(range(BUCKETS, 2 * BUCKETS))


@pytest.mark.parametrize(("gate", "packing", "payload"), [
    ("none", "full", "float16"), ("none", "split", "float32"), ("fixed", "full", "float32")])
def test_it_is_the_loop_over_samples(gate: str, packing: str, payload: str) -> None:
    """Three epochs with all three routes: weights, confidences, uses, features and counts."""
    n, settings = 24, replace(SETTINGS, epochs=3)
    split, ours, plain = split_of(n), model_of(), model_of()
    rng = np.random.default_rng(5)
    cached = empty(n, payload=payload)
    notes = cached.notes
    there = np.arange(n) % 4 != 3
    notes.version[there], notes.confidence[there], notes.uses[there] = 20, rng.uniform(0.2, 1.0, n)[there], rng.integers(0, 6, n)[there]
    notes.marked[4] = 1
    cached.features[there] = rng.normal(size=(n, 16))[there].astype(payload)
    held = {i: {"feature": cached.features[i].copy(), "confidence": float(notes.confidence[i]), "uses": int(notes.uses[i]),
                "marked": bool(notes.marked[i])} for i in range(n) if there[i]}
    # 0 leaves the priorities out of it: least-fresh does not bind
    config = Config(gate=gate, packing=packing, payload=payload, confidence_low=0.4, least_fresh=0.01, warm_up=0.0)
    trained = CachedFit(ours, split, settings, config, cached, Clock(), LATER, 11, build_gate(gate, 16))
    stats = trained.run()
    seen = naive.plain_cached_fit(
        plain, torch.from_numpy((split.images / 255 - 0.5).astype(np.float32) / np.float32(0.25)), torch.from_numpy(split.labels), held,
        epochs=3, batch=4, lr=0.05, momentum=0.9, weight_decay=0.01, order=torch.Generator().manual_seed(11),
        draws=np.random.default_rng(derive_seed(11, "routes")), packing=packing, fixed_gate=gate == "fixed", memory=0.9, dtype=payload,
        confidence=0.4, uses=5, fuse=0.25, warming=False)
    assert seen["hit"] > 8 and seen["fuse"] > 8 and seen["miss"] > 3
    assert trained.counts.by_route.tolist() == [seen["hit"], seen["fuse"], seen["miss"]]
    assert trained.counts.forwards == seen["fuse"] + seen["miss"] and stats.finite
    for part in ("encoder", "head"):
        for name, tensor in plain.tensors(part).items():
            np.testing.assert_allclose(ours.tensors(part)[name], tensor, atol=2e-5, err_msg=name)
    np.testing.assert_allclose(notes.confidence, [held[i]["confidence"] for i in range(n)], atol=1e-4)
    assert notes.uses.tolist() == [held[i]["uses"] for i in range(n)]
    np.testing.assert_allclose(cached.features, np.stack([held[i]["feature"] for i in range(n)]), atol=2e-3)
    assert trained.counts.shares().get("gate-weight") == (0.5 if gate == "fixed" else None)


class Counting(nn.Module):
    """An encoder that notes how many images go through it."""

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner, self.images = inner, 0

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        self.images += len(images)
        return self.inner(images)


@pytest.mark.parametrize("hit", ["cache", "drop"])
@pytest.mark.parametrize("packing", ["full", "split"])
def test_a_hit_runs_no_encoder_and_trains_none(hit: str, packing: str) -> None:
    """18 of 24 HIT: 6 images an epoch go through; with ``drop`` the head does not see the others either."""
    split, model = split_of(24), model_of()
    model.encoder = Counting(model.encoder)
    cached = empty(24)
    cached.notes.version[:], cached.notes.confidence[:] = 20, 1.0
    cached.features[:] = 1.0
    config = Config(hit=hit, packing=packing, fuse_share=0.0, confidence_memory=1.0)
    trained = CachedFit(model, split, replace(SETTINGS, epochs=1), config, cached, Clock(), LATER, 1)
    trained.run()
    extra = trained.counts.forwards - 6  # split takes one with a lonely one
    assert model.encoder.images == trained.counts.forwards and (extra == 0 if packing == "full" else 0 <= extra <= 5)
    assert trained.counts.by_route[HIT] == 18 - extra and cached.made.sum() == 6 + extra
    assert (cached.notes.uses == (~cached.made)).all()


def test_hits_alone_move_the_head_and_not_the_encoder() -> None:
    """A split batch of HIT samples only: no gradient, no decay, no momentum for the encoder."""
    split, model = split_of(8), model_of()
    trained = CachedFit(model, split, SETTINGS, Config(), empty(8), Clock(), LATER, 1)
    before = {part: {n: t.copy() for n, t in model.tensors(part).items()} for part in ("encoder", "head")}
    trained._mode(True)
    trained._step(np.arange(0), np.arange(8), 0.0)
    assert all(np.array_equal(before["encoder"][n], t) for n, t in model.tensors("encoder").items())
    assert not np.array_equal(before["head"]["bias"], model.tensors("head")["bias"])


def test_the_gate_learns_and_is_kept_and_the_statistics_stand_in_the_eval_ablation() -> None:
    split, model = split_of(24), model_of()
    gate = build_gate("log", 16, seed=1)
    assert gate is not None
    first = gate_tensors(gate)
    cached = empty(24)
    config = Config(gate="log", bn_below="eval", warm_up=0.0)
    running = model.tensors("encoder")["stage1.norm.running_mean"].copy()
    trained = CachedFit(model, split, SETTINGS, config, cached, Clock(), LATER, 1, gate)
    trained.run()
    assert np.array_equal(running, model.tensors("encoder")["stage1.norm.running_mean"])
    assert 0.03 <= trained.counts.shares()["gate-weight"] <= 0.08 and trained.counts.weights.count == 24
    moved = gate_tensors(gate)
    assert any((first[n] != moved[n]).any() for n in first)
    other = load_gate(build_gate("log", 16, seed=2), moved)  # type: ignore[arg-type]
    assert all(np.array_equal(moved[n], t) for n, t in gate_tensors(other).items())
    assert (cached.disagreement[np.unique(split.labels)] > 0).all() and RouteCounts().shares() == {"hit": 0, "fuse": 0, "miss": 0}


def test_divergence_is_said_without_a_value() -> None:
    with pytest.raises(TrainingDiverged, match="^training loss became non-finite in epoch 1; lower lr$"), np.errstate(all="ignore"):
        CachedFit(model_of(), split_of(8), replace(SETTINGS, lr=1e30), Config(), empty(8), Clock(), LATER, 1).run()


def test_stale_features_are_served_without_the_version_and_never_with_it() -> None:
    """The trap of METHODS 2.1, asserted on a moved encoder: sure samples, features of an encoder that is gone."""
    for versioned, stale in ((False, 18), (True, 0)):
        config = Config(versioned=versioned, fuse_share=0.0, drift="fixed")
        cached = empty(24)
        cached.notes.version[:], cached.notes.confidence[:] = 20, 1.0
        clock = Clock().told(1, 0.0).told(2, 0.5)  # half its length away
        clock = refresh(cached.notes, clock, split_of().labels, cached.disagreement, config)
        trained = CachedFit(model_of(), split_of(), replace(SETTINGS, epochs=1), config, cached, clock, LATER, 1)
        trained.run()
        assert trained.counts.by_route[HIT] == stale
        assert (drift_of(cached.notes, clock, versioned) == 0).all()


# --- notes and places


def test_notes_follow_their_samples() -> None:
    kept = notes_of(4, confidence=[0.1, 0.2, 0.3, 0.4], uses=[1, 2, 3, 4]).tensors()
    again = SampleNotes.of(np.array([3, 9, 0]), kept)
    assert again.uses.tolist() == [4, 0, 1] and again.version.tolist() == [7, NONE, 7]
    assert again.confidence.tolist() == pytest.approx([0.4, 0.0, 0.1])
    assert entry_version(3, 0.0) == 3 * BUCKETS and entry_version(3, 1.0) == entry_version(3, 0.999) == 4 * BUCKETS - 1


def filled(value: float) -> np.ndarray:
    return np.full((5, 3), value, np.float16)


def test_a_round_that_was_lost_leaves_what_the_round_before_had(tmp_path: Path) -> None:
    """Round 1 is accepted; rounds 2 and 3 both go on from it, and only round 3 is accepted."""
    first = SampleNotes.of(np.arange(5))
    first.made(np.arange(5), 1, 0.0, 0.0)
    TwoPlaces(tmp_path, 3, "float16").save(first, filled(1), np.ones(5, bool))
    for number in (2, 3):
        notes, places = SampleNotes.of(np.arange(5), first.tensors()), TwoPlaces(tmp_path, 3, "float16")
        assert np.array_equal(places.load(notes), filled(1)) and notes.cached.all()  # whatever round 2 left
        notes.made(np.array([0, 1]), number, 0.5, 0.0)
        places.save(notes, filled(number), np.array([True, True, False, False, False]))
    found = TwoPlaces(tmp_path, 3, "float16").load(notes)
    assert found[:, 0].tolist() == [3, 3, 1, 1, 1] and notes.place.tolist() == [0, 0, 1, 1, 1]


def test_what_is_not_there_as_noted_is_not_cached(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    notes = SampleNotes.of(np.arange(5))
    notes.made(np.arange(5), 1, 0.0, 0.0)
    places = TwoPlaces(tmp_path, 3, "float16")
    places.save(notes, filled(1), np.ones(5, bool))
    notes.version[1] += 1
    places._caches[1].drop(np.array([4]))
    assert not places.load(notes)[[1, 4]].any() and notes.cached.tolist() == [True, False, True, True, False]
    refusing = TwoPlaces(tmp_path / "none", 3, "float16", max_bytes=8)
    notes.made(np.arange(5), 2, 0.0, 0.0)
    refusing.save(notes, filled(2), np.array([True] * 4 + [False]))
    assert notes.cached.tolist() == [False] * 4 + [True] and "keeps no features" in caplog.text and str(tmp_path) not in caplog.text
    assert not refusing.load(notes).any() and not notes.cached.any() and refusing.nbytes == 0


@hypothesis_settings(max_examples=25)
@given(st.lists(st.floats(-1e6, 1e6, width=32), min_size=1, max_size=9))
def test_what_is_used_within_a_round_is_what_a_restart_gives_back(values: list[float]) -> None:
    features = np.array(values, np.float32)[:, None]
    assert np.abs(as_payload(features, "float16").astype(np.float32)).max() <= 65504
    assert as_payload(features, "float32").tobytes() == features.tobytes()
    assert copy.copy(as_payload(features, "float16")).dtype == np.float16
