"""Slow, obvious versions of what client_app/loop.py does, for parity tests."""

from __future__ import annotations

import numpy as np
import torch
from torch import nn


def scaled(images: np.ndarray) -> np.ndarray:
    """uint8 pixels, one by one, to ``(x / 255 - 0.5) / 0.25``."""
    out = np.empty(images.shape, np.float32)
    for index, pixel in np.ndenumerate(images):
        out[index] = (np.float32(pixel) / np.float32(255) - np.float32(0.5)) / np.float32(0.25)
    return out


def batches(order: list[int], batch: int) -> list[list[int]]:
    """Consecutive batches of ``order``; a last one of a single sample joins the one before."""
    out = [order[i : i + batch] for i in range(0, len(order), batch)]
    if batch > 1 and len(out) > 1 and len(out[-1]) == 1:
        last = out.pop()
        out[-1] = out[-1] + last
    return out


def plain_fit(
    model: nn.Module,
    x: torch.Tensor,
    y: torch.Tensor,
    *,
    epochs: int,
    batch: int,
    lr: float,
    momentum: float,
    weight_decay: float,
    seed: int,
) -> list[float]:
    """The tutorial loop with torch.optim.SGD, sample by sample; the last epoch's losses."""
    optimiser = torch.optim.SGD(model.parameters(), lr=lr, momentum=momentum, weight_decay=weight_decay)
    generator = torch.Generator().manual_seed(seed)
    model.train()
    losses: list[float] = []
    for _ in range(epochs):
        losses = []
        for chosen in batches(torch.randperm(len(y), generator=generator).tolist(), batch):
            images = torch.stack([x[i] for i in chosen])
            labels = torch.stack([y[i] for i in chosen])
            optimiser.zero_grad()
            loss = nn.functional.cross_entropy(model(images), labels)
            loss.backward()
            optimiser.step()
            losses += [loss.item()] * len(chosen)
    return losses


def first_norm_statistics(conv: nn.Conv2d, images: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Mean and unbiased variance, a channel, of a 3x3 convolution (padding 1, no bias), by loops."""
    weight = conv.weight.detach().numpy().astype(np.float64)
    padded = np.pad(images.astype(np.float64), ((0, 0), (0, 0), (1, 1), (1, 1)))
    n, _, height, width = images.shape
    out = np.zeros((weight.shape[0], n, height, width))
    for k in range(weight.shape[0]):
        for row in range(height):
            for column in range(width):
                patch = padded[:, :, row : row + 3, column : column + 3]
                out[k, :, row, column] = (patch * weight[k]).sum(axis=(1, 2, 3))
    flat = out.reshape(weight.shape[0], -1)
    return flat.mean(axis=1), flat.var(axis=1, ddof=1)
