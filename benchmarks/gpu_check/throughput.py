"""The product's loop beside a plain PyTorch loop: ResNet-18 on CIFAR-shaped images, and prompts around a ViT-B/16."""

from __future__ import annotations

import copy
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np
import torch
from torch.nn.functional import cross_entropy

from client_app.device_data import array_on_device, inputs
from client_app.loop import LoopSettings, fit, place, precision
from client_app.placing import place_backbone
from client_app.prompt_loop import fit_prompts
from models import build_model, prompted_vit
from models.backbones import TWINS, load_backbone, prepare

RATES = {"shared": 1.0, "head": 0.1}
PRECISIONS: dict[str, dict[str, Any]] = {
    "float32": {"tf32": "off"}, "float32, TF32": {"tf32": "all"}, "float32, TF32, channels_last": {"tf32": "all", "channels_last": True},
    "bf16": {"precision": "bf16"}, "bf16, channels_last": {"precision": "bf16", "channels_last": True},
    "bf16, channels_last, streamed": {"precision": "bf16", "channels_last": True, "resident_share": 0.0},
    "bf16, channels_last, compile": {"precision": "bf16", "channels_last": True, "compile": True},
}


@dataclass(frozen=True)
class Size:
    """What is trained on: ``images`` of ``side`` pixels, ``batch`` a step, every loop ``reps`` times for one epoch."""

    images: int
    side: int
    batch: int
    reps: int = 5


def jobs(device: str, quick: bool) -> list[tuple[str, Callable[[], dict[str, Any]]]]:
    """The rows, by name."""
    small, large = (Size(24, 16, 8, 2), Size(8, 32, 4, 2)) if quick else (Size(2048, 32, 64), Size(256, 224, 32))
    wanted = {k: v for k, v in PRECISIONS.items() if not (quick and "TF32" in k)}
    if quick:  # what a CPU compiles takes longer than all else
        wanted.pop("bf16, channels_last, compile")
    base = LoopSettings(device=device, epochs=1, momentum=0.9, weight_decay=5e-4, lr=0.01)
    width = 8 if quick else 64
    split = [(f"ResNet-18, batch {small.batch}, {name}", partial(resnet, replace(base, batch=small.batch, **given), small, width))
             for name, given in wanted.items()]
    if not quick:
        split.append(("ResNet-18, batch 25, bf16, channels_last", partial(resnet, replace(
            base, batch=25, **wanted["bf16, channels_last"]), replace(small, images=2000, batch=25), width)))
    prompts = [(f"ViT prompts, batch {large.batch}, {name}", partial(vit, replace(base, batch=large.batch, **wanted[name]), large, quick))
               for name in ("float32", "float32, TF32", "bf16") if name in wanted]
    if not quick:
        prompts.append(("ViT prompts, bf16, compile", partial(vit, replace(base, batch=large.batch, precision="bf16", compile=True),
                                                             large, quick)))
    return split + prompts


def resnet(settings: LoopSettings, size: Size, width: int) -> dict[str, Any]:
    """ResNet-18 of ``width``."""
    images, labels = some_images(size)
    ours, plain = (build_model("resnet18", 10, images.shape[1:], width) for _ in range(2))  # type: ignore[arg-type]
    place(plain, settings)
    called = torch.compile(plain) if settings.compile else plain

    def plain_epoch() -> None:
        x, y = inputs(images, settings), array_on_device(labels, settings)
        plain.train()
        plain_loop(called, [{"params": list(plain.parameters()), "lr": settings.lr}], lambda rows: x[rows], y, settings, split=True)

    return compared(lambda: fit(ours, images, labels, settings, seed=0), plain_epoch, settings, size)


def vit(settings: LoopSettings, size: Size, quick: bool) -> dict[str, Any]:
    """Ten shared prompts and a head around a frozen ViT-B/16 of random weights."""
    TWINS["vit-base-random"] = ("vit_base_patch16_224", {"num_classes": 0})
    images, labels = some_images(size)
    backbone = load_backbone("vit-tiny-random" if quick else "vit-base-random", image_size=size.side, precision=settings.precision)
    made = prompted_vit.PromptedViT(backbone, 10, prompted_vit.PromptConfig(shared_tokens=10, use="shared"))
    ours, plain = made, copy.deepcopy(made)
    for model in (ours, plain):
        place_backbone(model, settings)
    called = torch.compile(plain) if settings.compile else plain
    groups = [{"params": list(held), "lr": RATES[kind]} for kind, held in plain.trainable().items() if kind in RATES]

    def plain_epoch() -> None:
        x, y = array_on_device(images, settings), array_on_device(labels, settings)
        plain.train()
        plain_loop(called, groups, lambda rows: prepare(x[rows], plain.vit), y, settings, split=False)

    return compared(lambda: fit_prompts(ours, images, labels, settings, RATES, seed=0), plain_epoch, settings, size)


def plain_loop(model: Any, groups: list[dict[str, Any]], batch_at: Callable[[torch.Tensor], torch.Tensor], y: torch.Tensor,
               settings: LoopSettings, split: bool) -> None:
    """The tutorial's epoch. A prompted model sees to its precision itself."""
    optimiser = torch.optim.SGD(groups, momentum=settings.momentum, weight_decay=settings.weight_decay)
    for rows in torch.randperm(len(y)).to(y.device).split(settings.batch):
        optimiser.zero_grad(set_to_none=True)
        with precision(settings if split else replace(settings, precision="float32")):
            loss = cross_entropy(model(batch_at(rows)), y[rows])
        loss.backward()
        optimiser.step()


def some_images(size: Size) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(0)
    return rng.integers(0, 256, (size.images, 3, size.side, size.side), np.uint8), rng.integers(0, 10, size.images)


def compared(ours: Callable[[], object], plain: Callable[[], object], settings: LoopSettings, size: Size) -> dict[str, Any]:
    """Both in turns after one epoch each to warm up: medians of images a second, of the ratio, and the peaks."""
    peaks = [peak_of(call, settings) for call in (ours, plain)]
    pairs = [(seconds_of(ours, settings), seconds_of(plain, settings)) for _ in range(size.reps)]
    rates = [size.images / statistics.median(column) for column in zip(*pairs, strict=True)]
    return {"ours": round(rates[0]), "plain": round(rates[1]), "ratio": round(statistics.median(p / o for o, p in pairs), 3),
            "seconds": [[round(s, 4) for s in pair] for pair in pairs], "peak_mib": peaks[0], "plain_peak_mib": peaks[1],
            "busy": busy_share(ours, settings)}


def seconds_of(call: Callable[[], object], settings: LoopSettings) -> float:
    wait(settings)
    begun = time.perf_counter()
    call()
    wait(settings)
    return time.perf_counter() - begun


def peak_of(call: Callable[[], object], settings: LoopSettings) -> int | None:
    """MiB that torch had allocated at most; a CPU does not count them."""
    if settings.torch_device.type == "cpu":
        call()
        return None
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats(settings.torch_device)
    call()
    wait(settings)
    return round(torch.cuda.max_memory_allocated(settings.torch_device) / 2**20)


def busy_share(call: Callable[[], object], settings: LoopSettings) -> float | None:
    """Share of the time in which a kernel ran, by torch's profiler; None on a CPU."""
    if settings.torch_device.type == "cpu":
        return None
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as profile:
        seconds = seconds_of(call, settings)
    total = sum(getattr(event, "self_device_time_total", 0) for event in profile.key_averages())
    return round(total / 1e6 / seconds, 2)


def wait(settings: LoopSettings) -> None:
    if settings.torch_device.type == "cuda":
        torch.cuda.synchronize(settings.torch_device)
