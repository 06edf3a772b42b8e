"""Data loaders and encoders that are wrong in one way each, named by ``tests.breakage_cases:NAME``."""

from __future__ import annotations

import numpy as np
import torch
from torch import nn

from client_app.data import ClientData, DataError, Split
from client_app.data.sources import DataNode

SECRET = "/secret/patient-17.dcm"


def plain(node: DataNode, seed: int, classes: tuple[str, ...] = ("a", "b"), group: str = "", pixels: float = -1.0) -> ClientData:
    """Eight training and four test images of noise; up to ``pixels`` in size if that is not negative."""
    rng = np.random.default_rng([seed, node.index])
    noise = rng.normal(size=(12, 1, 8, 8)) if pixels < 0 else rng.uniform(0.5, 1, (12, 1, 8, 8)) * pixels
    images = noise.astype(np.float32)
    labels, ids = np.arange(12) % 2, np.arange(12)
    train, test = (Split(images[part], labels[part], ids[part]) for part in (slice(0, 8), slice(8, 12)))
    return ClientData(train, test, classes=classes, group=group)


def blowing_up(node: DataNode, seed: int) -> ClientData:
    return plain(node, seed, pixels=1e38)


def telling(node: DataNode, seed: int) -> ClientData:
    """Raises our own kind of error, on one client, with what must stay there."""
    if node.index == 1:
        raise DataError(f"{SECRET} has label 3")
    return plain(node, seed)


def leaving(node: DataNode, seed: int) -> ClientData:
    raise SystemExit(0)


def too_few_labels(node: DataNode, seed: int) -> ClientData:
    return ClientData(Split(np.zeros((2, 1, 8, 8), np.uint8), np.zeros(1, np.int64), np.arange(2)), plain(node, seed).test, ("a",))


def numbered(node: DataNode, seed: int) -> ClientData:
    return plain(node, seed, classes=(0, 1))  # type: ignore[arg-type]


def half_a_pair(node: DataNode, seed: int) -> ClientData:
    return plain(node, seed, classes=("\ud800", "b"))


def numbered_group(node: DataNode, seed: int) -> ClientData:
    return plain(node, seed, group=90)  # type: ignore[arg-type]


def good_encoder(shape: tuple[int, int, int], width: int) -> tuple[nn.Module, int]:
    return nn.Sequential(nn.Flatten(), nn.LazyLinear(5)), 5


def wrong_width(shape: tuple[int, int, int], width: int) -> tuple[nn.Module, int]:
    return nn.Sequential(nn.Flatten(), nn.LazyLinear(5)), 7


def no_pair(shape: tuple[int, int, int], width: int) -> nn.Module:
    return nn.Flatten()


def refusing(shape: tuple[int, int, int], width: int) -> tuple[nn.Module, int]:
    raise KeyError(SECRET)


class _Tuple(nn.Module):
    def forward(self, images: torch.Tensor) -> tuple[torch.Tensor]:
        return (images.flatten(1),)


def a_tuple(shape: tuple[int, int, int], width: int) -> tuple[nn.Module, int]:
    return _Tuple(), 64
