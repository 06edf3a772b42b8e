"""A model's tensors to and from a GPU in one copy: one by one, each waits for the device, and a ResNet has over a hundred."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import torch
from torch import Tensor


def fetch(tensors: Mapping[str, Tensor]) -> dict[str, np.ndarray]:
    """``tensors`` in float32, in the plain order of their shapes, on the CPU; views of one array."""
    if not tensors:
        return {}
    flat = torch.cat([tensor.detach().float().contiguous().view(-1) for tensor in tensors.values()]).cpu().numpy()
    cuts = np.cumsum([tensor.numel() for tensor in tensors.values()])[:-1]
    parts = np.split(flat, cuts)
    return {name: part.reshape(tensors[name].shape) for name, part in zip(tensors, parts, strict=True)}


def send(arrays: Mapping[str, np.ndarray], targets: Mapping[str, Tensor]) -> None:
    """Copy ``arrays`` into ``targets`` of the same names and shapes, all on one device; memory order and kind of float are the target's."""
    if not targets:
        return
    device = next(iter(targets.values())).device
    sizes = [tensor.numel() for tensor in targets.values()]
    flat = torch.empty(sum(sizes), pin_memory=device.type == "cuda")
    np.concatenate([np.asarray(arrays[name], np.float32).ravel() for name in targets], out=flat.numpy())
    with torch.no_grad():
        for part, target in zip(flat.to(device, non_blocking=True).split(sizes), targets.values(), strict=True):
            target.copy_(part.view(target.shape))
