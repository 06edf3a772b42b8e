"""Training steps through ``torch.compile``, as the setting ``compile`` asks for.

What is compiled is one function of a process, from model, images and labels to the loss, and with it its gradient; a model is an argument.
So clients and rounds whose models are alike share its code: weights are loaded into them and nothing is compiled anew. It is compiled once
for a whole batch, once for all other sizes, and once for a batch of one, where such occur. Scoring, BatchNorm re-computation and heads
on a standing encoder are never compiled. Where the compiler is missing or fails, the log says why and the plain function does the work.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from functools import cache
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from client_app.loop_settings import LoopSettings

log = logging.getLogger(__name__)

BACKEND: Any = "inductor"
COMPILERS = ("torch._dynamo", "torch._inductor", "torch._functorch")

LossOf = Callable[[nn.Module, Tensor, Tensor], Tensor]


def loss_of(model: nn.Module, images: Tensor, labels: Tensor) -> Tensor:
    """Mean cross-entropy of ``model`` on images (B, ...) with labels (B,)."""
    return cross_entropy(model(images), labels)


def loss_function(settings: LoopSettings) -> LossOf:
    """`loss_of`, compiled if the run wants it and this machine can."""
    if not settings.compile:
        return loss_of
    compiled = _compiled(BACKEND, settings.torch_device.type)
    return loss_of if compiled.failed else compiled


class Compiled:
    """`loss_of` as ``backend`` compiles it, or itself once that has failed."""

    def __init__(self, backend: Any, device: str) -> None:
        self.failed = False
        self._fast: LossOf = torch.compile(loss_of, backend=backend)
        self._try(backend, device)

    def __call__(self, model: nn.Module, images: Tensor, labels: Tensor) -> Tensor:
        if not self.failed:
            try:
                return self._fast(model, images, labels)
            except Exception as fault:
                if not type(fault).__module__.startswith(COMPILERS):
                    raise
                self._give_up(fault)
        return loss_of(model, images, labels)

    def _try(self, backend: Any, device: str) -> None:
        """Compile something tiny with its gradient: a missing compiler would else show in the middle of a step."""
        try:
            x = torch.ones(4, device=device, requires_grad=True)
            torch.autograd.grad(torch.compile(_square, backend=backend)(x), x)
        except Exception as fault:  # a missing compiler, Triton or header raises anything
            self._give_up(fault)

    def _give_up(self, fault: Exception) -> None:
        self.failed = True
        log.warning("compile = true has no effect in this process, steps run uncompiled (%s: %s). It needs a C++ compiler, and Triton on a "
                    "GPU", type(fault).__name__, (str(fault).splitlines() or [""])[0][:200])


def _square(x: Tensor) -> Tensor:
    return (x * x).sum()


@cache
def _compiled(backend: Any, device: str) -> Compiled:
    return Compiled(backend, device)
