"""The loop against a tutorial loop, at its edges (one sample, a last batch of one), and on real digits."""

from __future__ import annotations

import copy
import dataclasses
import math
import subprocess
import sys

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from sklearn.datasets import load_digits

from client_app import loop
from client_app.loop import (
    LoopSettings,
    TrainingDiverged,
    batch_sizes,
    fit,
    inputs,
    mean_loss,
    recompute_batchnorm,
    score,
)
from models import SplitModel, build_model
from strategies.config import ConfigError, RunConfig
from tests.naive import training as naive

SETTINGS = LoopSettings(epochs=2, batch=4, lr=0.05, device="cpu")


def model_of(seed: int = 0, classes: int = 3) -> SplitModel:
    return build_model("cnn", classes, (1, 8, 8), width=2, seed=seed)


def some_data(n: int, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    return rng.integers(0, 256, (n, 1, 8, 8), np.uint8), rng.integers(0, 3, n)


def bits(model: SplitModel) -> bytes:
    return b"".join(t.tobytes() for part in ("encoder", "head") for t in model.tensors(part).values())


@pytest.mark.parametrize("n", [8, 9, 11])  # whole batches; a last batch of one, merged; a last batch of three
def test_fit_equals_the_tutorial_loop_bit_for_bit(n: int) -> None:
    images, labels = some_data(n)
    ours, plain = model_of(), model_of()
    stats = fit(ours, images, labels, SETTINGS, seed=7)
    losses = naive.plain_fit(
        plain,
        torch.from_numpy(naive.scaled(images)),
        torch.from_numpy(labels),
        epochs=2,
        batch=4,
        lr=0.05,
        momentum=SETTINGS.momentum,
        weight_decay=SETTINGS.weight_decay,
        seed=7,
    )
    assert bits(ours) == bits(plain)
    assert stats.loss == pytest.approx(np.mean(losses), rel=1e-6)
    assert stats.steps == 2 * {8: 2, 9: 2, 11: 3}[n]
    assert stats.finite


def test_order_and_weights_follow_the_seed() -> None:
    images, labels = some_data(12)
    one, two, other = model_of(), model_of(), model_of()
    torch.manual_seed(1)
    fit(one, images, labels, SETTINGS, seed=1)
    torch.manual_seed(2)
    fit(two, images, labels, SETTINGS, seed=1)
    fit(other, images, labels, SETTINGS, seed=2)
    assert bits(one) == bits(two) != bits(other)


@given(n=st.integers(1, 200), batch=st.integers(1, 40))
def test_batches_drop_nothing_and_leave_no_sample_alone(n: int, batch: int) -> None:
    sizes = batch_sizes(n, batch)
    assert sum(sizes) == n
    assert max(sizes) <= batch + 1
    assert min(sizes) >= 2 or n == 1 or batch == 1
    assert sizes == [len(b) for b in naive.batches(list(range(n)), batch)]


@pytest.mark.parametrize(("n", "batch"), [(1, 25), (3, 1)])
def test_single_samples_train_with_the_statistics_that_came(n: int, batch: int) -> None:
    images, labels = some_data(n)
    model = model_of()
    before = {name: t.copy() for name, t in model.tensors("encoder").items()}
    stats = fit(model, images, labels, dataclasses.replace(SETTINGS, batch=batch), seed=0)
    after = model.tensors("encoder")
    assert stats.steps == 2 * n and stats.finite
    assert all(np.array_equal(before[k], after[k]) for k in before if "running" in k)
    assert all(not np.array_equal(before[k], after[k]) for k in before if "conv" in k)


def test_a_frozen_part_stays_and_the_other_trains() -> None:
    images, labels = some_data(8)
    model = model_of()
    model.head.requires_grad_(False)
    head, encoder = copy.deepcopy(model.tensors("head")), copy.deepcopy(model.tensors("encoder"))
    fit(model, images, labels, SETTINGS, seed=0)
    assert all(np.array_equal(head[k], v) for k, v in model.tensors("head").items())
    assert not np.array_equal(encoder["stage1.conv.weight"], model.tensors("encoder")["stage1.conv.weight"])


def test_divergence_is_said_without_a_value() -> None:
    images, labels = some_data(8)
    with pytest.raises(TrainingDiverged) as caught:
        fit(model_of(), images, labels, dataclasses.replace(SETTINGS, lr=1e30), seed=0)
    assert str(caught.value) == "training loss became non-finite in epoch 1; lower lr or the method's learning rates"


def test_weights_lost_in_the_very_last_step_are_reported() -> None:
    images, labels = some_data(4)
    settings = dataclasses.replace(SETTINGS, epochs=1, weight_decay=0.0, momentum=0.0, lr=3e38)
    model = model_of()
    with torch.no_grad():
        model.head.weight.mul_(1e3)
    stats = fit(model, images, labels, settings, seed=0)
    assert math.isfinite(stats.loss) and stats.steps == 1 and not stats.finite


def test_inputs_scale_bytes_and_keep_floats() -> None:
    images, _ = some_data(2)
    images[0, 0, 0, :3] = 0, 51, 255
    scaled = inputs(images, SETTINGS)
    assert scaled[0, 0, 0, :3].tolist() == pytest.approx([-2.0, -1.2, 2.0])
    assert np.array_equal(scaled.numpy(), naive.scaled(images))
    floats = images.astype(np.float32)
    assert np.shares_memory(inputs(floats, SETTINGS).numpy(), floats)
    floats.setflags(write=False)
    assert np.array_equal(inputs(floats, SETTINGS).numpy(), floats)


def test_unusable_data_is_refused_without_saying_a_label() -> None:
    images, labels = some_data(4)
    with pytest.raises(ValueError, match="uint8 or float32 of shape .*, got float64 with 4 axes"):
        inputs(images.astype(np.float64), SETTINGS)
    with pytest.raises(ValueError, match=r"^labels must lie in 0\.\.2; the data loader must list every"):
        fit(model_of(), images, labels + 40, SETTINGS, seed=0)
    with pytest.raises(ValueError, match="one an image and one or more in all, got int64 with 1 axes"):
        fit(model_of(), images[:0], labels[:0], SETTINGS, seed=0)
    with pytest.raises(ValueError, match="one an image and one or more in all, got float64 with 1 axes"):
        score(model_of(), images, labels.astype(float), SETTINGS)


def test_score_counts_hits_and_changes_nothing() -> None:
    model = model_of()
    with torch.no_grad():
        model.head.weight.zero_()
        model.head.bias.copy_(torch.tensor([0.0, 1.0, 0.5]))
    before = bits(model.train())
    images, _ = some_data(5)
    labels = np.array([1, 0, 1, 2, 1])
    for size in (1, 2, 256):
        assert score(model, images, labels, dataclasses.replace(SETTINGS, score_batch=size)) == 3 / 5
    assert bits(model) == before and model.training
    assert score(model, images[:0], labels[:0], SETTINGS) is None


def test_mean_loss_is_the_mean_over_samples_in_eval_mode() -> None:
    model, (images, _) = model_of(), some_data(5)
    with torch.no_grad():
        model.head.weight.zero_()
        model.head.bias.copy_(torch.tensor([0.0, 1.0, 0.5]))
    labels = np.array([1, 0, 1, 2, 1])
    spread = math.log(1 + math.e + math.exp(0.5))  # of the softmax; the chosen logits are 1, 0, 1, .5, 1
    before = bits(model)
    for size in (1, 2, 5, 256):
        settings = dataclasses.replace(SETTINGS, score_batch=size)
        assert mean_loss(model, images, labels, settings) == pytest.approx(spread - 3.5 / 5, rel=1e-6)
    assert bits(model) == before


def test_recomputed_statistics_of_the_first_layer_are_those_of_its_input() -> None:
    model, (images, labels) = model_of(), some_data(7)
    fit(model, images, labels, SETTINGS, seed=0)
    weights = [p.detach().clone() for p in model.parameters()]
    model.eval()
    assert recompute_batchnorm(model.encoder, images, SETTINGS)
    conv = model.encoder.get_submodule("stage1.conv")
    assert isinstance(conv, torch.nn.Conv2d)
    mean, variance = naive.first_norm_statistics(conv, naive.scaled(images))
    got = model.tensors("encoder")
    np.testing.assert_allclose(got["stage1.norm.running_mean"], mean, rtol=1e-4, atol=1e-6)
    np.testing.assert_allclose(got["stage1.norm.running_var"], variance, rtol=1e-4)
    assert all(torch.equal(a, b) for a, b in zip(weights, model.parameters(), strict=True))
    assert not model.encoder.training
    norm = model.encoder.get_submodule("stage1.norm")
    assert norm.momentum == 0.1


def test_recomputing_twice_or_in_chunks_agrees() -> None:
    model, (images, _) = model_of(), some_data(12)
    recompute_batchnorm(model.encoder, images, SETTINGS)
    once = bits(model)
    recompute_batchnorm(model.encoder, images, SETTINGS)
    assert bits(model) == once
    whole = model.tensors("encoder")["stage1.norm.running_mean"].copy()
    recompute_batchnorm(model.encoder, images, dataclasses.replace(SETTINGS, score_batch=4))
    chunked = model.tensors("encoder")["stage1.norm.running_mean"]
    np.testing.assert_allclose(chunked, whole, rtol=1e-5, atol=1e-6)


def test_recomputing_never_sees_one_image_alone() -> None:
    # 4x4 images reach the last BatchNorm as single pixels, where one image has no variance
    model = build_model("cnn", 2, (1, 4, 4), width=2)
    model.encoder.get_submodule("stage2").add_module("shrink", torch.nn.AvgPool2d(2))
    images = np.arange(3 * 16, dtype=np.uint8).reshape(3, 1, 4, 4)
    assert recompute_batchnorm(model.encoder, images, dataclasses.replace(SETTINGS, score_batch=2))
    before = bits(model)
    assert not recompute_batchnorm(model.encoder, images[:1], SETTINGS)
    assert bits(model) == before
    assert not recompute_batchnorm(torch.nn.Flatten(), images, SETTINGS)


def test_channels_last_and_bf16_agree_with_plain() -> None:
    images, labels = some_data(24)
    settings = dataclasses.replace(SETTINGS, epochs=1, batch=12, lr=0.01)
    plain, last, half = model_of(), model_of(), model_of()
    reference = fit(plain, images, labels, settings, seed=0)
    stats = fit(last, images, labels, dataclasses.replace(settings, channels_last=True), seed=0)
    assert stats.loss == pytest.approx(reference.loss, rel=1e-5)
    stats = fit(half, images, labels, dataclasses.replace(settings, precision="bf16"), seed=0)
    assert stats.loss == pytest.approx(reference.loss, rel=0.05)
    assert stats.loss != reference.loss
    for name, want in plain.tensors("encoder").items():
        np.testing.assert_allclose(last.tensors("encoder")[name], want, rtol=1e-3, atol=1e-5)
        np.testing.assert_allclose(half.tensors("encoder")[name], want, rtol=0.1, atol=0.05)
        assert half.tensors("encoder")[name].dtype == np.float32


def test_settings_come_from_the_run_config_and_are_checked() -> None:
    assert LoopSettings.from_config(RunConfig()) == LoopSettings()
    assert LoopSettings.from_config(RunConfig(lr=0.5, bn="average")).lr == 0.5
    for wrong in ({"batch": 0}, {"lr": math.nan}, {"momentum": 1.0}, {"precision": "fp8"}, {"device": "gpu"}):
        with pytest.raises(ConfigError, match=next(iter(wrong))):
            LoopSettings(**wrong)  # type: ignore[arg-type]


def test_devices(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 0)
    loop.resolve_device.cache_clear()
    assert loop.resolve_device("auto") == torch.device("cpu")
    with pytest.raises(RuntimeError, match='sees 0 GPUs here. Set device = "auto" or "cpu"'):
        loop.resolve_device("cuda:1")
    loop.resolve_device.cache_clear()


def test_a_process_that_trains_never_imports_the_compiler() -> None:
    code = (
        "import sys, numpy as np\n"
        "from client_app.loop import LoopSettings, fit, recompute_batchnorm, score\n"
        "from models import build_model\n"
        "m, s = build_model('cnn', 2, (1, 8, 8), 2), LoopSettings(device='cpu')\n"
        "x, y = np.zeros((4, 1, 8, 8), np.uint8), np.zeros(4, np.int64)\n"
        "fit(m, x, y, s, 0), recompute_batchnorm(m.encoder, x, s), score(m, x, y, s)\n"
        "assert not {'torch._dynamo', 'torchvision'} & set(sys.modules)\n"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_digits_are_learnt_in_a_few_epochs() -> None:
    pixels, digits = load_digits(return_X_y=True)
    shuffled = np.random.default_rng(0).permutation(len(digits))
    images = (pixels[shuffled] * 15).astype(np.uint8).reshape(-1, 1, 8, 8)
    labels = digits[shuffled].astype(np.int64)
    train, test = slice(0, 800), slice(800, 1400)
    model = build_model("cnn", 10, (1, 8, 8), width=8, seed=0)
    settings = dataclasses.replace(SETTINGS, epochs=3, batch=25)
    fit(model, images[train], labels[train], settings, seed=0)
    accuracy = score(model, images[test], labels[test], settings)
    assert accuracy is not None and accuracy > 0.85
    recompute_batchnorm(model.encoder, images[train], settings)
    recomputed = score(model, images[test], labels[test], settings)
    assert recomputed is not None and recomputed > 0.85


@pytest.mark.parametrize(("width", "applied"), [(4, False), (8, True)])
def test_narrow_models_keep_their_memory_order_on_a_cpu(width: int, applied: bool) -> None:
    # torch 2.14's channels_last convolutions of 4 channels corrupt memory on a CPU: a plain loop over a narrow ResNet aborts
    model = build_model("cnn", 2, (1, 8, 8), width)
    fit(model, np.zeros((4, 1, 8, 8), np.float32), np.array([0, 1, 0, 1]), dataclasses.replace(SETTINGS, channels_last=True), seed=0)
    second = [layer for layer in model.modules() if isinstance(layer, torch.nn.Conv2d)][1]
    assert second.weight.is_contiguous(memory_format=torch.channels_last) is applied
