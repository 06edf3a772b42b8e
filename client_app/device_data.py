"""Where a client's images lie while it trains and scores, and how they get to the device.

On a CPU they are used where they are. On a GPU training images are uploaded once and stay for the fit, if they take no more than
``resident-share`` of the memory that is free there; otherwise, and for scoring, they come a batch at a time: a thread gathers the next two
batches into pinned memory and copies them on a stream of their own while the device computes. All ways give the same numbers.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import torch
from torch import Tensor

from client_app.loop_settings import LoopSettings

AHEAD = 2
# from images as the data have them, on the device, to what a step takes
Ready = Callable[[Tensor], Tensor]


def array_on_device(array: np.ndarray, settings: LoopSettings) -> Tensor:
    """``array`` as a tensor on the device; on a CPU it shares the array's memory where torch lets it."""
    return _shared(array).to(settings.torch_device)


def inputs(images: np.ndarray, settings: LoopSettings) -> Tensor:
    """Images (B, channels, height, width) as the model takes them, float32, on the device.

    uint8 becomes ``(x / 255 - 0.5) / 0.25``; float32 stays as it is, and on a CPU shares its memory.
    """
    _check(images)
    return _scaled(array_on_device(images, settings))


def normalised(pixels: Tensor) -> Tensor:
    """``(x / 255 - 0.5) / 0.25`` in float32, of uint8 pixels of any shape."""
    return pixels.to(torch.float32).div_(255).sub_(0.5).div_(0.25)


def for_training(images: np.ndarray, settings: LoopSettings) -> Tensor | Streamed:
    """Images (n, channels, height, width) for `batches` that a split model trains on."""
    _check(images)
    return _placed(images, settings, _scaled, 4 * images.size)


def raw_for_training(images: np.ndarray, settings: LoopSettings) -> Tensor | Streamed:
    """The same for a model that prepares its images (n, ...) itself."""
    return _placed(images, settings, _as_it_is, images.nbytes)


class Streamed:
    """Images (n, ...) that stay in main memory; ``batches`` brings them to the device.

    ``ready`` makes of a batch, on the device, what a step takes.
    """

    def __init__(self, images: np.ndarray, device: torch.device, ready: Ready) -> None:
        self.images, self.device, self.ready = images, device, ready

    def batches(self, order: Tensor, sizes: list[int]) -> Iterator[Tensor]:
        """The images at ``order`` (n,), ``sizes`` at a time."""
        rows = (part.numpy() for part in torch.split(order, sizes))
        return map(self.ready, fetched_ahead((np.take(self.images, part, axis=0) for part in rows), self.device))


def batches(x: Tensor | Streamed, order: Tensor, sizes: list[int]) -> Iterator[Tensor]:
    """The rows of ``x`` (n, ...) at ``order`` (n,), a CPU tensor, ``sizes`` at a time, on the device."""
    if isinstance(x, Streamed):
        return x.batches(order, sizes)
    return (x[rows] for rows in torch.split(order.to(x.device), sizes))


def in_order(chunks: Iterable[np.ndarray], settings: LoopSettings) -> Iterator[Tensor]:
    """Chunks (b, channels, height, width) as a split model takes them, one after the other."""
    return map(_scaled, uploaded(_checked(chunks), settings))


def uploaded(parts: Iterable[np.ndarray], settings: LoopSettings) -> Iterator[Tensor]:
    """``parts`` on the device, one after the other: fetched ahead for a GPU, just used on a CPU."""
    device = settings.torch_device
    return (array_on_device(part, settings) for part in parts) if device.type == "cpu" else fetched_ahead(parts, device)


def fetched_ahead(parts: Iterable[np.ndarray], device: torch.device) -> Iterator[Tensor]:
    """``parts`` on ``device``, made and sent by a thread that is ``AHEAD`` of the reader."""
    source = iter(parts)
    stream: Any = torch.cuda.Stream(device) if device.type == "cuda" else None

    def send() -> tuple[Tensor, Any] | None:
        part = next(source, None)
        if part is None:
            return None
        if stream is None:
            return _shared(part).to(device), None
        with torch.cuda.stream(stream):  # names the GPU too, which is a thread's own
            # torch keeps the pinned memory until the copy is over
            return _shared(part).pin_memory().to(stream.device, non_blocking=True), stream.record_event()

    with ThreadPoolExecutor(1, thread_name_prefix="fetch-ahead") as fetcher:
        waiting = deque(fetcher.submit(send) for _ in range(AHEAD))
        while (found := waiting.popleft().result()) is not None:
            waiting.append(fetcher.submit(send))
            tensor, sent = found
            if sent is not None:
                now = torch.cuda.current_stream(tensor.device)
                now.wait_event(sent)
                tensor.record_stream(now)  # else its memory could be given to the next copy while this step reads it
            yield tensor


def _placed(images: np.ndarray, settings: LoopSettings, ready: Ready, size: int) -> Tensor | Streamed:
    """On the device if ``size`` bytes are within the bound, else to be streamed."""
    device = settings.torch_device
    if device.type == "cuda" and size > settings.resident_share * free_memory(device):
        return Streamed(images, device, ready)
    return ready(array_on_device(images, settings))


def free_memory(device: torch.device) -> int:
    """Bytes of a GPU that nobody uses, with what torch holds in reserve for this process."""
    free, _ = torch.cuda.mem_get_info(device)
    return free + torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)


def _shared(array: np.ndarray) -> Tensor:
    # torch warns about a view of a read-only array (a memory-mapped data set), so that one is copied
    return torch.as_tensor(array if array.flags.writeable else array.copy())


def _scaled(images: Tensor) -> Tensor:
    return normalised(images) if images.dtype == torch.uint8 else images


def _as_it_is(images: Tensor) -> Tensor:
    return images


def _checked(chunks: Iterable[np.ndarray]) -> Iterator[np.ndarray]:
    for chunk in chunks:
        _check(chunk)
        yield chunk


def _check(images: np.ndarray) -> None:
    if images.ndim != 4 or str(images.dtype) not in ("uint8", "float32"):
        raise ValueError(
            "images must be uint8 or float32 of shape (samples, channels, height, width), "
            f"got {images.dtype} with {images.ndim} axes. Convert them in the data loader"
        )
