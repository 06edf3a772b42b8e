"""How a client trains and scores, and on which device: what the loop is told."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass, fields
from functools import cache

import torch

from strategies.config import BN_RULES, GPU_KERNELS, TF32, RunConfig, choice, require


class DeviceError(RuntimeError):
    """The device asked for is not there."""


@dataclass(frozen=True)
class LoopSettings:
    """How a client trains and scores. The fields are those of ``RunConfig``.

    Attributes
    ----------
    epochs : passes over the client's training samples; ``join_epochs`` those of a head fitted on a frozen encoder.
    batch : samples a step.
    lr, momentum, weight_decay : of SGD.
    bn : the rule for BatchNorm statistics; read by learners, not by this loop.
    device : ``auto`` (a GPU if there is one), ``cpu``, ``cuda`` or ``cuda:1``.
    precision : ``float32`` or ``bf16``.
    tf32, gpu_kernels, resident_share, compile : as in ``RunConfig``; see ``client_app.device``, ``device_data`` and ``compiled``.
    channels_last : memory order of images and weights; 1.05 to 1.7 times faster here. On a CPU, models with
        convolutions of fewer than 8 channels stay as they are.
    threads : CPU threads of torch in this process.
    score_batch : images a forward pass without gradient takes at once.
    """

    epochs: int = 2
    batch: int = 25
    lr: float = 0.01
    momentum: float = 0.9
    weight_decay: float = 5e-4
    bn: str = "recompute"
    device: str = "auto"
    precision: str = "float32"
    tf32: str = "convolutions"
    gpu_kernels: str = "heuristic"
    resident_share: float = 0.25
    compile: bool = False
    channels_last: bool = False
    threads: int = 1
    score_batch: int = 256
    join_epochs: int = 5

    def __post_init__(self) -> None:
        for key in ("epochs", "batch", "threads", "score_batch", "join_epochs"):
            require(getattr(self, key) >= 1, key.replace("_", "-"), "1 or more", getattr(self, key))
        require(self.lr > 0 and math.isfinite(self.lr), "lr", "a finite number above 0", self.lr)
        require(0 <= self.momentum < 1, "momentum", "at least 0 and below 1", self.momentum)
        decay = self.weight_decay
        require(decay >= 0 and math.isfinite(decay), "weight-decay", "0 or more", decay)
        choice("bn", BN_RULES, self.bn)
        choice("precision", ("float32", "bf16"), self.precision)
        choice("tf32", TF32, self.tf32)
        choice("gpu-kernels", GPU_KERNELS, self.gpu_kernels)
        require(0 <= self.resident_share <= 1, "resident-share", "between 0 and 1", self.resident_share)
        known = re.fullmatch(r"auto|cpu|cuda(:\d+)?", self.device)
        require(bool(known), "device", "auto, cpu, cuda or cuda:NUMBER", self.device)

    @property
    def torch_device(self) -> torch.device:
        """``device``, resolved on this machine."""
        return resolve_device(self.device)

    @classmethod
    def from_config(cls, config: RunConfig) -> LoopSettings:
        """The settings of one run."""
        return cls(**{field.name: getattr(config, field.name) for field in fields(cls)})


@cache
def resolve_device(name: str) -> torch.device:
    """``auto``, ``cpu``, ``cuda`` or ``cuda:1`` as a device; ``DeviceError`` if it is none, or this machine lacks it."""
    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "cpu"
    try:
        device = torch.device(name)
    except RuntimeError:
        raise DeviceError(f"expected cpu, cuda or cuda:NUMBER, got {name!r}") from None
    if device.type == "cuda" and (device.index or 0) >= torch.cuda.device_count():
        raise DeviceError(
            f"device {name!r} asked for, but torch sees {torch.cuda.device_count()} GPUs here. "
            'Set device = "auto" or "cpu", or install a CUDA build of torch and a driver'
        )
    return device
