"""Exact reuse: with and without a cache the same bits, in every phase with a standing encoder; and what it saves, counted."""

from __future__ import annotations

import errno
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from client_app.data.client_data import ClientData, Split
from client_app.first_head import nearest_mean_head
from client_app.head_phase import fit_head
from client_app.learner import Trainer
from client_app.local.store import LocalStore
from client_app.loop import LoopSettings, mean_loss, recompute_batchnorm, score
from client_app.reuse import STATISTICS, Anew, FeatureSource, Reused
from models import SplitModel, build_model
from strategies.types import Round
from tests.running import client_of, digits_of

SETTINGS = LoopSettings(epochs=2, batch=8, lr=0.1, device="cpu", score_batch=10)
N, M = 24, 16


def data_of(index: int = 0) -> ClientData:
    return client_of(*digits_of(index, count=N + M))


def model_of(seed: int = 0, model: str = "cnn") -> SplitModel:
    made = build_model(model, 10, (1, 8, 8), width=8 if model == "mobilenetv2" else 4, seed=seed)
    recompute_batchnorm(made.encoder, data_of(1).train.images, SETTINGS)
    return made


def bits(model: SplitModel) -> bytes:
    return b"".join(t.tobytes() for part in ("encoder", "head") for t in model.tensors(part).values())


def every_phase(source: FeatureSource, settings: LoopSettings = SETTINGS, model: str = "cnn") -> list[Any]:
    """What a round with a standing encoder asks, and more than once; then the same with another encoder."""
    data, told = data_of(), []
    for seed in (0, 1):
        asked = model_of(seed, model)
        for _ in range(2):
            told.append(source.score(asked, data.test, settings))
            told.append(source.recompute(asked, data.train, settings))
            told.append(source.score(asked, data.test, settings))
            told.append(source.mean_loss(asked, data.train, settings))
            told.append(source.features(asked, data.train, settings).tobytes())
            told.append(fit_head(asked, source.every_epoch(asked, data.train, settings), data.train.labels, settings, 3, 4).loss)
            told.append(bits(asked))
    return told


@pytest.mark.parametrize("settings", [SETTINGS, replace(SETTINGS, channels_last=True), replace(SETTINGS, precision="bf16")],
                         ids=["plain", "channels-last", "bf16"])
def test_bits_are_those_without_cache_and_those_of_the_plain_loop(settings: LoopSettings, tmp_path: Path) -> None:
    plain = every_phase(Anew(), settings)
    cached, counted = Reused(tmp_path, 32, 1), Reused(None, 32, 1)
    assert every_phase(cached, settings) == plain == every_phase(counted, settings)
    assert counted.avoided == 0 and cached.forwards + cached.avoided == counted.forwards
    # once a sample, encoder and kind of statistics: test images under both, training images under re-computed ones, and re-computing.
    # The second turn begins with re-computed statistics, so its first score is the second kind too.
    assert cached.forwards == 2 * (2 * M + 2 * N)
    assert counted.forwards == 2 * 2 * (2 * M + N + N + N + 4 * N)


@pytest.mark.parametrize("model", ["resnet18", "mobilenetv2"])
def test_the_larger_models_reuse_exactly_too(model: str, tmp_path: Path) -> None:
    plain, cached = every_phase(Anew(), model=model), Reused(tmp_path, model_of(0, model).feature_dim, 1)
    assert every_phase(cached, model=model) == plain and cached.avoided > cached.forwards


def test_features_and_statistics_outlive_the_message(tmp_path: Path) -> None:
    data, told = data_of(), []
    for number in (1, 2):
        source, model = Reused(tmp_path, 32, number), model_of()
        source.recompute(model, data.train, SETTINGS)
        told.append((source.features(model, data.train, SETTINGS).tobytes(), bits(model)))
        assert (source.forwards, source.avoided) == ((2 * N, 0) if number == 1 else (0, 2 * N))
    assert told[0] == told[1]


def test_a_message_that_is_answered_again_counts_what_it_counted(tmp_path: Path) -> None:
    """A round that was cut off, or whose reply was lost, finds nothing of itself."""
    counted = []
    for _ in range(2):
        source = Reused(tmp_path, 32, 3)
        every_phase(source)
        counted.append((source.forwards, source.avoided))
    assert counted[0] == counted[1]


def test_other_weights_statistics_images_or_settings_are_other_features(tmp_path: Path) -> None:
    data, model = data_of(), model_of()
    Reused(tmp_path, 32, 1).features(model, data.train, SETTINGS)
    changed = data.train.images.copy()
    changed[3, 0, 4, 4] ^= 1
    moved = model_of()
    moved.load("encoder", {name: t + np.float32(1e-6) if name.endswith("stage1.norm.running_mean") else t
                           for name, t in moved.tensors("encoder").items()})
    for other, split, settings in ((model_of(1), data.train, SETTINGS), (moved, data.train, SETTINGS),
                                   (model, Split(changed, data.train.labels, data.train.ids), SETTINGS),
                                   (model, data.train, replace(SETTINGS, precision="bf16")),
                                   (model, data.train, replace(SETTINGS, score_batch=7))):
        source = Reused(tmp_path, 32, 2)
        found = source.features(other, split, settings)
        assert source.avoided == 0 and source.forwards == N
        assert np.array_equal(found, Anew().features(other, split, settings))
        Reused(tmp_path, 32, 1).features(model, data.train, SETTINGS)
    # as it was
    source = Reused(tmp_path, 32, 2)
    source.features(model, data.train, SETTINGS)
    assert source.avoided == N


@pytest.mark.parametrize("how", ["full", "damaged", "too small"])
def test_a_disk_that_fails_costs_the_reuse_and_nothing_else(how: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
                                                             caplog: pytest.LogCaptureFixture) -> None:
    plain = every_phase(Anew())
    if how == "full":
        def full(*_: object) -> None:
            raise OSError(errno.ENOSPC, "No space left on device", str(tmp_path))

        monkeypatch.setattr("client_app.local.feature_file._write_all", full)
        monkeypatch.setattr("client_app.local.durable.os.replace", full)
    if how == "damaged":
        every_phase(Reused(tmp_path, 32, 1))
        (tmp_path / STATISTICS).write_bytes(b"nonsense")
    source = Reused(tmp_path, 32, 2, max_bytes=100 if how == "too small" else None)
    assert every_phase(source) == plain and source.forwards > 0
    assert str(tmp_path) not in caplog.text and (how == "damaged" or "not kept" in caplog.text or "keeps no features" in caplog.text)


def test_few_samples_are_answered_as_by_the_loop(tmp_path: Path) -> None:
    model, one = model_of(), data_of().train
    one = Split(one.images[:1], one.labels[:1], one.ids[:1])
    source, before = Reused(tmp_path, 32, 1), bits(model)
    assert source.recompute(model, one, SETTINGS) is False and bits(model) == before
    assert source.score(model, one, SETTINGS) == score(model, one.images, one.labels, SETTINGS)
    assert source.mean_loss(model, one, SETTINGS) == mean_loss(model, one.images, one.labels, SETTINGS)
    assert source.score(model, one.empty_like(), SETTINGS) is None and source.features(model, one.empty_like(), SETTINGS).shape == (0, 32)


# --- cold start


def joined(source: FeatureSource, folder: Path, first: Callable[..., Any] | None) -> bytes:
    model, data = model_of(), data_of()
    parts = {part: {name: t.copy() for name, t in model.tensors(part).items()} for part in ("encoder", "head")}
    trainer = Trainer(model, replace(SETTINGS, join_epochs=6), source=source)
    with LocalStore(folder, "run", "site") as store:
        head, metrics = trainer.fit_head(parts["encoder"], parts["head"], data, store, Round(2, 2, seed=0, joining=True), first)
    assert metrics["loss"] < 2.5
    return b"".join(t.tobytes() for t in head.values())


def test_a_cold_start_is_one_pass(tmp_path: Path) -> None:
    """One pass for the statistics, one for the features; without cache the features once for the first head and six epochs more."""
    def first(features: np.ndarray, labels: np.ndarray) -> dict[str, np.ndarray]:
        return nearest_mean_head(features, labels, 10)

    cached, counted = Reused(tmp_path / "features", 32, 2), Reused(None, 32, 2)
    heads = [joined(source, tmp_path / str(i), first) for i, source in enumerate((Anew(), cached, counted))]
    assert heads[0] == heads[1] == heads[2] != joined(Anew(), tmp_path / "plain", None)
    assert (cached.forwards, counted.forwards) == (2 * N, 8 * N)


def test_the_first_head_by_hand() -> None:
    """Two classes of two, a third without a sample: means (1, 0), (-1, 0), and (0, 0) for the third; variance (4 x .25) / 8."""
    features = np.array([[1.5, 0], [0.5, 0], [-1.5, 0], [-0.5, 0]], np.float32)
    head = nearest_mean_head(features, np.array([0, 0, 1, 1]), 3)
    variance = 0.125
    np.testing.assert_allclose(head["weight"], np.array([[1, 0], [-1, 0], [0, 0]]) / variance)
    np.testing.assert_allclose(head["bias"], np.log(np.array([2.5, 2.5, 0.5]) / 5.5) - np.array([1, 1, 0]) / (2 * variance), rtol=1e-6)
    scores = features @ head["weight"].T + head["bias"]
    assert scores.argmax(1).tolist() == [0, 0, 1, 1] and head["weight"].dtype == np.float32
    # a sample a class is not infinitely sure: the variance is a twentieth of the mean square, 1/20
    one = nearest_mean_head(np.eye(2, dtype=np.float32) * np.sqrt(2, dtype=np.float32), np.array([0, 1]), 2)
    np.testing.assert_allclose(one["weight"], np.eye(2) * np.sqrt(2) * 20, rtol=1e-6)
    assert all(np.isfinite(t).all() for t in nearest_mean_head(np.zeros((1, 4), np.float32), np.array([0]), 2).values())
