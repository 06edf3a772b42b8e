"""This machine: versions, threads, GPU.

Flower 1.39 tells nobody its version over the Fleet port, so equality with the other side cannot be asked; both sides
print one ``fingerprint`` and compare it (``--expect``). Left out of it: patch level of Python and the build of torch
(``+cu128``, ``+cpu``), which differ between machines by right.
"""

from __future__ import annotations

import os
import platform
from collections.abc import Iterator
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from deploy.checks import Finding, failed, passed, warned

FLOWER = "1.39"
PYTHON = (3, 11)
EXACT = ("fedhearth", "flwr", "python")  # the others may differ in their last number
PACKAGES = ("fedhearth", "flwr", "torch", "numpy")
LITTLE_GPU_MEMORY = 1 << 30


def versions(expect: str = "") -> Iterator[Finding]:
    """Python, Flower and torch as this release needs them, and the fingerprint against ``expect``."""
    mine = fingerprint()
    parts = split_fingerprint(mine)
    fits = tuple(map(int, platform.python_version_tuple()[:2])) >= PYTHON
    yield (passed if fits else failed)("python", platform.python_version() if fits else
                                       f"{platform.python_version()}, but 3.11 or newer is needed; make the environment anew with one")
    flower = parts["flwr"]
    right = flower.startswith(f"{FLOWER}.")
    yield (passed if right else failed)("flwr", flower if right else f"{flower}, but {FLOWER}.x is needed (the last whose SuperNodes "
                                                                     "speak gRPC); pip install 'flwr>=1.39,<1.40'")
    has_torch = parts["torch"] != "none"
    yield (passed if has_torch else failed)("torch", version("torch") if has_torch else "missing; pip install torch torchvision")
    yield passed("fingerprint", mine)
    if expect:
        yield compared(mine, expect)


def fingerprint() -> str:
    """What must be equal on all machines of a federation, as ``name=version`` pairs."""
    found = {name: _version(name) for name in PACKAGES}
    found["python"] = ".".join(platform.python_version_tuple()[:2])
    return ",".join(f"{name}={value}" for name, value in found.items())


def split_fingerprint(text: str) -> dict[str, str]:
    return {name: value for name, _, value in (part.partition("=") for part in text.split(","))}


def compared(mine: str, theirs: str) -> Finding:
    """This machine's fingerprint against the other side's."""
    here, there = split_fingerprint(mine), split_fingerprint(theirs.strip())
    different = [name for name in here if here[name] != there.get(name)]
    grave = [name for name in different if name in EXACT or _minor(here[name]) != _minor(there.get(name, ""))]
    told = "; ".join(f"{name} {here[name]} here, {there.get(name, 'not told')} there" for name in different)
    if grave:
        return failed("expect", f"{told}. Install the same versions on both sides")
    if different:
        return warned("expect", f"{told}. Results may differ in the last digits")
    return passed("expect", "the same versions as the other side")


def _version(name: str) -> str:
    try:
        return version(name).partition("+")[0]
    except PackageNotFoundError:
        return "none"


def _minor(text: str) -> list[str]:
    return text.split(".")[:2]


def threads(asked: int) -> Iterator[Finding]:
    """CPU threads a client will use, against the cores it may use."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    if asked > cores:
        yield warned("threads", f"{asked} asked for, but only {cores} cores may be used; give a lower --threads")
    else:
        yield passed("threads", f"{asked} of {cores} cores (several SuperNodes on one machine share them)")


def gpu(device: str) -> Iterator[Finding]:
    """The GPU that ``device`` (``auto``, ``cpu``, ``cuda``, ``cuda:1``) means, and its free memory."""
    import torch

    from client_app.loop import resolve_device

    if device == "cpu":
        yield passed("gpu", "not asked for (device cpu)")
        return
    try:
        chosen = resolve_device(device)
    except RuntimeError as error:
        yield failed("gpu", f"{error}. CUDA_VISIBLE_DEVICES is {os.environ.get('CUDA_VISIBLE_DEVICES', 'not set')}")
        return
    if chosen.type != "cuda":
        unseen = warned("gpu", "this machine has an NVIDIA GPU that torch does not see: install a CUDA build of torch, check the driver, "
                               "or say --device cpu")
        yield unseen if Path("/dev/nvidia0").exists() else passed("gpu", "none seen; this site trains on its CPU")
        return
    free, total = torch.cuda.mem_get_info(chosen)
    text = f"{torch.cuda.get_device_name(chosen)}, {free / 2**30:.1f} of {total / 2**30:.1f} GiB free"
    enough = free >= LITTLE_GPU_MEMORY
    yield (passed if enough else warned)("gpu", text if enough else f"{text}; see who uses it with nvidia-smi")
