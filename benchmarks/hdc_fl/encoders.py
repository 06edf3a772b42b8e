"""The lite scale's encoders: the models' own ResNet-18 and MobileNetV2 with a stem of stride 2.

At 32 pixels that quarters the work of a pass and leaves the architecture as it is; ``width`` narrows it (METHODS.md 1.8: 1.1 in
place of 3.2 ms an image for ResNet-18 of width 16). Our own choice, for small machines alone.
"""

from __future__ import annotations

import torch
from torch import nn

from models.split import build_model


def resnet18(in_shape: tuple[int, int, int], width: int) -> tuple[nn.Module, int]:
    """ResNet-18 for images (channels, H, W), its first convolution of stride 2; and D."""
    return _halved("resnet18", in_shape, width)


def mobilenetv2(in_shape: tuple[int, int, int], width: int) -> tuple[nn.Module, int]:
    """MobileNetV2 likewise."""
    return _halved("mobilenetv2", in_shape, width)


def _halved(name: str, in_shape: tuple[int, int, int], width: int) -> tuple[nn.Module, int]:
    # the caller has seeded torch for this run; build_model seeds anew, so the seed is handed on
    model = build_model(name, 1, in_shape, width, seed=int(torch.randint(2**31, ())))
    first = next(layer for layer in model.encoder.modules() if isinstance(layer, nn.Conv2d))
    first.stride = (2, 2)
    return model.encoder, model.feature_dim
