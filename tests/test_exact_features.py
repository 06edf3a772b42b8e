"""Exact reuse: the same bits with and without a cache, and no forward where nothing changed."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from client_app.local.exact_features import ExactFeatures, content_version
from client_app.local.feature_cache import FeatureCache
from models import build_model

D, N = 8, 50


class Encoder:
    """A small CNN in eval mode over N images; it counts the images that run through it."""

    def __init__(self, seed: int = 0) -> None:
        self.model = build_model("cnn", 3, (1, 8, 8), width=1, seed=seed)
        self.images = torch.tensor(np.random.default_rng(1).normal(size=(N, 1, 8, 8)), dtype=torch.float32)
        self.forwards = 0

    @property
    def version(self) -> int:
        return content_version(self.model.tensors("encoder"))

    def __call__(self, positions: np.ndarray) -> np.ndarray:
        self.forwards += len(positions)
        with torch.inference_mode():
            return self.model.encoder.eval()(self.images[positions]).numpy()


def cache_in(folder: Path, **more: object) -> FeatureCache:
    return FeatureCache(folder, "penultimate", (D,), dtype="float32", **more)  # type: ignore[arg-type]


def batch_dependent(scale: float):
    """What convolutions do in their last bits, exaggerated: a sample's features depend on its whole batch."""
    return lambda positions: (scale * np.outer(positions + 1, np.ones(D)) + positions.sum()).astype(np.float32)


def test_bits_are_those_without_a_cache_and_forwards_are_saved(tmp_path: Path) -> None:
    encoder, ids = Encoder(), np.arange(N) + 1000
    plain = ExactFeatures(None, chunk=16).of(ids, encoder.version, encoder)
    assert plain.shape == (N, D) and encoder.forwards == N
    exact = ExactFeatures(cache_in(tmp_path), chunk=16)
    for _ in range(4):
        assert exact.of(ids, encoder.version, encoder).tobytes() == plain.tobytes()
    assert (encoder.forwards, exact.computed, exact.reused) == (2 * N, N, 3 * N)
    again = ExactFeatures(cache_in(tmp_path), chunk=16)  # a restart
    assert again.of(ids, encoder.version, encoder).tobytes() == plain.tobytes()
    assert (again.computed, again.reused) == (0, N)


def test_a_moved_encoder_is_computed_again(tmp_path: Path) -> None:
    encoder, ids = Encoder(), np.arange(N)
    exact = ExactFeatures(cache_in(tmp_path), chunk=16)
    first = exact.of(ids, encoder.version, encoder)
    with torch.no_grad():
        next(encoder.model.encoder.parameters()).view(-1)[0] += 1e-3
    second = exact.of(ids, encoder.version, encoder)
    assert exact.computed == 2 * N and exact.reused == 0
    assert second.tobytes() == ExactFeatures(None, chunk=16).of(ids, 0, encoder).tobytes() != first.tobytes()


def test_a_chunk_is_taken_whole_and_only_as_itself(tmp_path: Path) -> None:
    compute, ids, cache = batch_dependent(1.0), np.arange(10), cache_in(tmp_path)
    off = ExactFeatures(None, chunk=4)
    exact = ExactFeatures(cache, chunk=4)
    exact.of(ids, 1, compute)
    cache.drop(np.array([5]))
    assert np.array_equal(exact.of(ids, 1, compute), off.of(ids, 1, compute))
    assert (exact.computed, exact.reused) == (10 + 4, 6)  # the chunk of four that lost one
    # the same samples in other company: other chunks, another order, a part of them, another chunk size
    for others, chunk in ((ids[::-1].copy(), 4), (ids[2:], 4), (ids, 5), (ids[:4], 3)):
        one, other = ExactFeatures(cache, chunk), ExactFeatures(None, chunk)

        def among(positions: np.ndarray, others: np.ndarray = others) -> np.ndarray:
            return compute(others[positions])

        assert np.array_equal(one.of(others, 1, among), other.of(others, 1, among))
        assert one.reused == 0
        assert np.array_equal(one.of(others, 1, among), other.of(others, 1, among)) and one.reused == len(others)


def test_independent_samples_are_computed_only_where_missing(tmp_path: Path) -> None:
    def compute(positions: np.ndarray) -> np.ndarray:
        return np.outer(ids[positions], np.ones(D)).astype(np.float32)

    cache, ids = cache_in(tmp_path), np.arange(10)
    exact = ExactFeatures(cache, chunk=4, independent=True)
    exact.of(ids[3:6], 1, lambda positions: compute(positions + 3))
    assert np.array_equal(exact.of(ids, 1, compute), compute(np.arange(10)))
    assert (exact.computed, exact.reused) == (10, 3)
    other = ExactFeatures(cache, chunk=7, independent=True)
    assert np.array_equal(other.of(ids, 1, compute), compute(np.arange(10))) and other.reused == 10


def test_a_disk_or_a_bound_costs_the_reuse_and_not_the_features(tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
                                                                caplog: pytest.LogCaptureFixture) -> None:
    compute, ids = batch_dependent(2.0), np.arange(10)
    expected = ExactFeatures(None, chunk=4).of(ids, 1, compute)
    small = cache_in(tmp_path, max_bytes=64 + 6 * (44 + 4 * D))
    exact = ExactFeatures(small, chunk=4)
    assert all(np.array_equal(exact.of(ids, 1, compute), expected) for _ in range(3))
    assert exact.reused == 2 * 4 and small.counts.left_out == 4 * 3  # one chunk fits whole, the others never do

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device", str(tmp_path))

    monkeypatch.setattr("client_app.local.feature_file._write_all", full)
    cut = ExactFeatures(cache_in(tmp_path / "full"), chunk=4)
    assert all(np.array_equal(cut.of(ids, 1, compute), expected) for _ in range(3))
    assert cut.reused == 0 and caplog.text.count("features are not kept") == 1 and str(tmp_path) not in caplog.text


def test_features_that_are_no_numbers_come_back_as_computed(tmp_path: Path) -> None:
    values = np.ones((3, D), np.float32)
    values[1, 2] = np.nan
    exact = ExactFeatures(cache_in(tmp_path), chunk=3)
    for _ in range(2):
        assert exact.of(np.arange(3), 1, lambda p: values[p]).tobytes() == values.tobytes()
    assert exact.computed == 6


def test_content_version_tells_bits_apart() -> None:
    encoder = Encoder()
    tensors = {name: t.copy() for name, t in encoder.model.tensors("encoder").items()}
    version = content_version(tensors)
    assert version == content_version(dict(reversed(tensors.items()))) and 0 <= version < 2**63
    running = next(name for name in tensors if name.endswith("running_mean"))
    seen = {version, content_version(tensors, "bf16"), content_version({**tensors, running: tensors[running] + np.float32(1e-7)}),
            content_version({**tensors, "more": np.zeros(0)}), content_version({**tensors, running: tensors[running][None]})}
    assert len(seen) == 5
    assert content_version({"a": np.array([0.0])}) != content_version({"a": np.array([-0.0])})


def test_bad_arguments_are_named(tmp_path: Path) -> None:
    half = FeatureCache(tmp_path, "half", (D,))
    for cache, chunk in ((half, 4), (None, 0)):
        with pytest.raises(ValueError, match="exact reuse needs"):
            ExactFeatures(cache, chunk)
    exact = ExactFeatures(cache_in(tmp_path))
    pytest.raises(ValueError, exact.of, np.arange(0), 1, batch_dependent(1)).match("one sample or more")
    for wrong in (np.zeros((2, D), np.float32), np.zeros((3, D)), np.zeros(3, np.float32), torch.zeros(3, D)):
        with pytest.raises(ValueError, match="float32 numpy array"):
            exact.of(np.arange(3), 1, lambda positions, wrong=wrong: wrong)  # type: ignore[misc]
    with pytest.raises(ValueError, match="these have another"):
        exact.of(np.arange(3), 1, lambda positions: np.zeros((3, D + 1), np.float32))
