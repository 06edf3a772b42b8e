"""The three models: sizes known from their papers, and what of them can travel."""

from __future__ import annotations

import copy

import numpy as np
import pytest
import torch

from models import PARTS, SplitModel, build_model, has_batchnorm, shared_buffers
from models.split import _ENCODERS
from strategies.config import MODELS

CIFAR, DIGITS = (3, 32, 32), (1, 8, 8)


def weights(module: torch.nn.Module) -> int:
    return sum(p.numel() for p in module.parameters())


def small(seed: int = 0) -> SplitModel:
    return build_model("cnn", 3, DIGITS, width=2, seed=seed)


def test_config_and_models_know_the_same_names() -> None:
    assert tuple(_ENCODERS) == MODELS


def test_cnn_has_the_pilots_size() -> None:
    model = build_model("cnn", 10, CIFAR)
    convolutions = 9 * (3 * 16 + 16 * 32 + 32 * 64 + 64 * 128)
    norms = 2 * (16 + 32 + 64 + 128)
    assert weights(model.encoder) == convolutions + norms == 97_680
    assert weights(model.head) == 128 * 10 + 10
    assert weights(model) == 98_970


@pytest.mark.parametrize(
    ("name", "feature_dim", "encoder_weights"),
    [
        # ImageNet ResNet-18 without its head, 11,176,512, with a 3x3 in place of the 7x7 stem
        ("resnet18", 512, 11_176_512 - 64 * 3 * (49 - 9)),
        # ImageNet MobileNetV2, 3,504,872, without its head of 1280 * 1000 + 1000
        ("mobilenetv2", 1280, 3_504_872 - 1_281_000),
    ],
)
def test_default_sizes_are_the_published_ones(name: str, feature_dim: int, encoder_weights: int) -> None:
    model = build_model(name, 10, CIFAR)
    assert model.feature_dim == feature_dim
    assert weights(model.encoder) == encoder_weights
    assert weights(model.head) == (feature_dim + 1) * 10


@pytest.mark.parametrize("in_shape", [DIGITS, CIFAR, (3, 4, 7)])
@pytest.mark.parametrize(
    ("name", "width", "feature_dim"), [("cnn", 2, 16), ("resnet18", 2, 16), ("mobilenetv2", 8, 1280)]
)
def test_shapes(name: str, width: int, feature_dim: int, in_shape: tuple[int, int, int]) -> None:
    model = build_model(name, 5, in_shape, width)
    images = torch.zeros(2, *in_shape)
    assert model.feature_dim == feature_dim
    assert model.encoder(images).shape == (2, feature_dim)
    assert model(images).shape == (2, 5)
    assert has_batchnorm(model)


def test_width_scales_every_stage() -> None:
    wide, narrow = build_model("mobilenetv2", 2, CIFAR, 32), build_model("mobilenetv2", 2, CIFAR, 16)
    assert wide.tensors("encoder")["features.0.0.weight"].shape == (32, 3, 3, 3)
    assert narrow.tensors("encoder")["features.0.0.weight"].shape == (16, 3, 3, 3)
    assert narrow.tensors("encoder")["features.17.conv.2.weight"].shape == (160, 480, 1, 1)
    assert build_model("resnet18", 2, CIFAR, 16).feature_dim == 128


def test_the_cnn_stops_pooling_below_four_pixels() -> None:
    pools = [hasattr(stage, "pool") for stage in build_model("cnn", 2, DIGITS).encoder.children()][:4]
    assert pools == [True, True, False, False]


def test_head_after_encoder_is_the_model() -> None:
    model, images = small().eval(), torch.randn(3, *DIGITS)
    assert torch.equal(model(images), model.head(model.encoder(images)))


def test_what_travels_is_every_float_and_no_counter() -> None:
    model = small()
    sent = {f"{part}.{name}" for part in PARTS for name in model.tensors(part)}
    held_back = set(model.state_dict()) - sent
    assert held_back == {f"encoder.stage{i}.norm.num_batches_tracked" for i in (1, 2, 3, 4)}
    assert sent <= set(model.state_dict())
    assert all(t.dtype == np.float32 for part in PARTS for t in model.tensors(part).values())
    assert shared_buffers(model)[:2] == ["stage1.norm.running_mean", "stage1.norm.running_var"]
    assert len(shared_buffers(model)) == 8


@pytest.mark.parametrize("channels_last", [False, True])
def test_tensors_then_load_is_bit_identical(channels_last: bool) -> None:
    source, target = small(seed=1), small(seed=2)
    source(torch.randn(4, *DIGITS))
    if channels_last:
        target.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    for part in PARTS:
        frozen = {name: tensor.copy() for name, tensor in source.tensors(part).items()}
        for tensor in frozen.values():
            tensor.setflags(write=False)
        target.load(part, frozen)
        loaded = target.tensors(part)
        assert list(loaded) == list(frozen)
        assert all(loaded[name].tobytes() == frozen[name].tobytes() for name in frozen)
        assert all(tensor.flags.c_contiguous for tensor in loaded.values())


def test_tensors_are_views_and_loads_are_copies() -> None:
    model = small()
    view = model.tensors("head")["bias"]
    with torch.no_grad():
        model.head.bias.fill_(3.0)
    assert view.tolist() == [3.0, 3.0, 3.0]
    mine = {name: tensor.copy() for name, tensor in model.tensors("head").items()}
    model.load("head", mine)
    mine["bias"][:] = 7.0
    assert model.head.bias.tolist() == [3.0, 3.0, 3.0]


def test_load_names_part_tensor_expected_and_got() -> None:
    model = small()
    before = copy.deepcopy(model.state_dict())
    wrong = {"weight": np.ones((3, 16), np.float32), "bias": np.ones(4, np.float32)}
    with pytest.raises(ValueError, match=r"head tensor 'bias' must have shape \(3,\), got \(4,\)"):
        model.load("head", wrong)
    with pytest.raises(ValueError, match="head must get exactly the 2 tensors.*missing bias, unknown bia"):
        model.load("head", {"weight": wrong["weight"], "bia": wrong["bias"]})
    with pytest.raises(ValueError, match="head tensor 'bias' must hold floats, got int64"):
        model.load("head", {"weight": wrong["weight"], "bias": np.ones(3, np.int64)})
    with pytest.raises(ValueError, match="part must be one of encoder, head; got 'body'"):
        model.tensors("body")
    # a refused load changes nothing, not even the tensors that fitted
    assert all(torch.equal(model.state_dict()[name], tensor) for name, tensor in before.items())


@pytest.mark.parametrize("name", MODELS)
def test_weights_follow_the_seed_and_nothing_else(name: str) -> None:
    width = 8 if name == "mobilenetv2" else 2
    torch.manual_seed(11)
    expected_next = torch.rand(3)
    torch.manual_seed(11)
    first = build_model(name, 3, DIGITS, width, seed=5)
    assert torch.equal(torch.rand(3), expected_next)
    again, other = build_model(name, 3, DIGITS, width, seed=5), build_model(name, 3, DIGITS, width, seed=6)
    assert all(torch.equal(a, b) for a, b in zip(first.parameters(), again.parameters(), strict=True))
    assert not torch.equal(next(first.parameters()), next(other.parameters()))


def test_unusable_requests_are_explained() -> None:
    with pytest.raises(ValueError, match="resnet18, mobilenetv2; got 'resnet-18'; did you mean 'resnet18'"):
        build_model("resnet-18", 2, CIFAR)
    with pytest.raises(ValueError, match="classes >= 1 and width >= 0, got 0 and 0"):
        build_model("cnn", 0, CIFAR)
    with pytest.raises(ValueError, match=r"sides of 4 pixels or more, got \(1, 3, 8\)"):
        build_model("cnn", 2, (1, 3, 8))
