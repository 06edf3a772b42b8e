"""What a GPU is told, which GPU a worker takes, and what a client says when the GPU's memory runs out.

Settings that torch keeps for a whole process are set before every message, since one process serves runs in turn. None of them touches a
CPU. Our own choices: cuDNN's ``benchmark`` is off unless asked for, because a client's last batch has a shape of its own and every new
shape costs a search; ``deterministic`` warns of an operation that has no deterministic kernel and goes on.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable
from typing import Any

import torch

from client_app.loop_settings import LoopSettings

log = logging.getLogger(__name__)


class OutOfDeviceMemory(RuntimeError):
    """The GPU's memory did not suffice for this client. The text holds no size."""


def switches(settings: LoopSettings) -> None:
    """Tell torch how this run wants its GPU; nothing on a CPU."""
    if settings.torch_device.type == "cpu":
        return
    torch.backends.cudnn.allow_tf32 = settings.tf32 != "off"
    torch.backends.cuda.matmul.allow_tf32 = settings.tf32 == "all"
    fixed = settings.gpu_kernels == "deterministic"
    if fixed:
        # cuBLAS reads it when its first product comes; without it some products are not deterministic
        os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    torch.backends.cudnn.benchmark = settings.gpu_kernels == "benchmark"
    torch.backends.cudnn.deterministic = fixed
    if torch.are_deterministic_algorithms_enabled() != fixed:
        torch.use_deterministic_algorithms(fixed, warn_only=True)


def take_gpu(worker: int, device: str) -> None:
    """Let ``cuda`` mean GPU ``worker`` mod their number in this process, for a run on ``device`` ``auto`` or ``cuda``."""
    if device in ("auto", "cuda") and (count := torch.cuda.device_count()) > 1:
        torch.cuda.set_device(worker % count)


def memory_told(message: Any, context: Any, call_next: Callable[[Any, Any], Any]) -> Any:
    """A Flower mod: a GPU out of memory becomes a reason that says what to lower, and the process can serve the next client."""
    try:
        return call_next(message, context)
    except torch.cuda.OutOfMemoryError as fault:
        log.warning("%s", fault)
    # only now, without the exception's frames, is what the client held free again
    torch.cuda.empty_cache()
    raise OutOfDeviceMemory("the GPU's memory ran out; lower score-batch, batch, resident-share or the number of workers on this GPU, "
                            "or set precision = bf16 (methods with prompts: checkpointing = true)")
