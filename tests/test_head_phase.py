"""A head fitted on a frozen encoder: against a slow reference, and that it touches nothing but the head."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
import torch

from client_app.head_phase import encode, fit_head
from client_app.loop import LoopSettings, TrainingDiverged, batch_sizes, mean_loss, recompute_batchnorm
from models import SplitModel, build_model
from tests.naive import head as naive
from tests.running import digits_of

SETTINGS = LoopSettings(batch=7, lr=0.1, momentum=0.9, weight_decay=0.01, device="cpu", score_batch=256)


def fresh(model: str = "cnn") -> SplitModel:
    return build_model(model, 10, (1, 8, 8), width=4, seed=0)


def test_the_head_is_that_of_a_loop_over_samples() -> None:
    """23 samples in steps of 7, 7, 7 and 2, three epochs: the same order, worked sample by sample in float64."""
    images, labels = digits_of(0, count=23)
    model = fresh()
    features = encode(model, images, SETTINGS)
    start = {name: t.copy() for name, t in model.tensors("head").items()}
    stats = fit_head(model, features, labels, SETTINGS, seed=5, epochs=3)
    order, batches = torch.Generator().manual_seed(5), []
    for _ in range(3):
        batches += [part.tolist() for part in torch.split(torch.randperm(23, generator=order), [7, 7, 7, 2])]
    weight, bias = naive.fit(start["weight"], start["bias"], features, labels, batches, 0.1, 0.9, 0.01)
    np.testing.assert_allclose(model.tensors("head")["weight"], weight, atol=2e-6)
    np.testing.assert_allclose(model.tensors("head")["bias"], bias, atol=2e-6)
    assert stats.steps == 12 and stats.finite and np.abs(weight - start["weight"]).max() > 0.01


def test_only_the_head_moves_and_the_mode_stays() -> None:
    images, labels = digits_of(0)
    model = fresh()
    before = {name: t.clone() for name, t in model.encoder.state_dict().items()}
    head = {name: t.copy() for name, t in model.tensors("head").items()}
    model.train()
    fit_head(model, encode(model, images, SETTINGS), labels, SETTINGS, seed=0, epochs=2)
    assert all(torch.equal(before[name], t) for name, t in model.encoder.state_dict().items())
    assert model.encoder.training and any((head[n] != t).any() for n, t in model.tensors("head").items())


@pytest.mark.parametrize("model", ["cnn", "resnet18", "mobilenetv2"])
def test_features_are_the_encoders_in_eval_mode_whatever_the_chunks(model: str) -> None:
    """(11, D) float32 in chunks of 4, 4 and 3, against one image at a time; with statistics that are not the initial ones."""
    images, _ = digits_of(1, count=11)
    made = fresh(model) if model != "mobilenetv2" else build_model(model, 10, (1, 8, 8), width=8, seed=0)
    recompute_batchnorm(made.encoder, images, SETTINGS)
    found = encode(made, images, dataclasses.replace(SETTINGS, score_batch=4))
    assert found.shape == (11, made.feature_dim) and found.dtype == np.float32
    one_by_one = np.concatenate([encode(made, images[i:i + 1], SETTINGS) for i in range(11)])
    np.testing.assert_allclose(found, one_by_one, rtol=1e-4, atol=1e-4)
    assert encode(made, images[:0], SETTINGS).shape == (0, made.feature_dim)


def test_the_head_learns_what_the_features_tell() -> None:
    """Its loss, taken anew over the whole model, falls below the start's and keeps falling with more epochs."""
    images, labels = digits_of(2)
    losses = []
    for epochs in (0, 5, 80):
        model = fresh()
        recompute_batchnorm(model.encoder, images, SETTINGS)
        if epochs:
            fit_head(model, encode(model, images, SETTINGS), labels, SETTINGS, seed=1, epochs=epochs)
        losses.append(mean_loss(model, images, labels, SETTINGS))
    assert losses[0] > losses[1] > losses[2] and losses[2] < 0.5 * losses[0]


def test_the_same_seed_gives_the_same_bits() -> None:
    images, labels = digits_of(0)
    heads = []
    for seed in (3, 3, 4):
        model = fresh()
        fit_head(model, encode(model, images, SETTINGS), labels, SETTINGS, seed=seed, epochs=2)
        heads.append(model.tensors("head")["weight"].tobytes())
    assert heads[0] == heads[1] != heads[2]


def test_one_sample_of_one_class_is_enough() -> None:
    images, labels = digits_of(0, count=1)
    model = fresh()
    stats = fit_head(model, encode(model, images, SETTINGS), labels, SETTINGS, seed=0, epochs=30)
    assert batch_sizes(1, 7) == [1] and stats.steps == 30 and stats.finite and stats.loss < 0.5


def test_what_diverges_says_so_and_what_does_not_fit_is_refused() -> None:
    images, labels = digits_of(0)
    model = fresh()
    features = encode(model, images, SETTINGS)
    with pytest.raises(TrainingDiverged, match="lower lr"):
        fit_head(model, features, labels, dataclasses.replace(SETTINGS, lr=1e30), seed=0, epochs=5)
    with pytest.raises(ValueError, match=r"float32 features \(n, 32\), got float64"):
        fit_head(fresh(), features.astype(np.float64), labels, SETTINGS, seed=0, epochs=1)
    with pytest.raises(ValueError, match="labels must lie in 0..9"):
        fit_head(fresh(), features, labels + 5, SETTINGS, seed=0, epochs=1)
