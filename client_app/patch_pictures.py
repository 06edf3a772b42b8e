"""What FedIA looks at, for the client's own eyes: kept patches over a few of its test images, and gate weights by class.

Written into the client's own folder and never sent. A picture shows an image, then once for each of its likeliest classes with the patches
that class does not keep darkened; ``patches.json`` says which classes those are, ``gate.json`` how the gate's weights are distributed.
"""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import torch

from client_app.clip_trainer import ClipClient
from client_app.data.client_data import ClientData, Split
from client_app.local.durable import errors_without_paths
from models.patch_evidence import kept_patches, similarities
from models.prompted_clip import PromptedClip

PANELS = 3
SIDE = 168  # pixels of a panel
DARK = 0.25
QUANTILES = (0.1, 0.5, 0.9)


def draw(client: ClipClient, data: ClientData, folder: Path, count: int) -> None:
    """Pictures of ``count`` test images, evenly spaced, and the gate's weights over all of them. Nothing for no test image.

    Raises ``StoreError`` when the disk refuses.
    """
    net, found = client.net, data.test
    if not len(found) or not isinstance(net, PromptedClip):
        return
    chosen = np.unique(np.linspace(0, len(found) - 1, min(count, len(found))).astype(int))
    few = Split(found.images[chosen], found.labels[chosen], found.ids[chosen])
    with errors_without_paths():
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "gate.json").write_text(json.dumps(gate_by_class(client, found, data.classes), ensure_ascii=False, indent=1))
        if client.anchors is not None:
            _pictures(client, few, data.classes, folder)


def gate_by_class(client: ClipClient, split: Split, classes: tuple[str, ...]) -> dict[str, Any]:
    """Of each class's weights over the images of a split: mean, standard deviation and quantiles."""
    net = client.net
    assert isinstance(net, PromptedClip)
    with torch.inference_mode():
        weights = np.concatenate([net.fuse(images).weights.cpu().numpy() for images in client.images(split)])  # (n, C)
    return {name: {"mean": float(column.mean()), "std": float(column.std()),
                   **{f"q{100 * q:.0f}": float(np.quantile(column, q)) for q in QUANTILES}}
            for name, column in zip(classes, weights.T, strict=True)}


def _pictures(client: ClipClient, few: Split, classes: tuple[str, ...], folder: Path) -> None:
    logits = client.logits(few)
    likeliest = np.argsort(-logits, axis=1, kind="stable")[:, :PANELS]  # (n, panels)
    told, at = [], 0
    for part, _, patches in client.features.stream(few):
        kept = kept_of(client, patches)  # (b, C, M)
        for row, image in enumerate(few.images[part]):
            chosen = likeliest[part[row]]
            name = f"patches-{at:02}.png"
            _save(folder / name, [panel(image), *(panel(image, kept[row, c]) for c in chosen)])
            told.append({"file": name, "id": int(few.ids[part[row]]), "class": classes[few.labels[part[row]]],
                         "panels": [classes[c] for c in chosen]})
            at += 1
    (folder / "patches.json").write_text(json.dumps(told, ensure_ascii=False, indent=1))


def kept_of(client: ClipClient, patches: np.ndarray | None) -> np.ndarray:
    """Which patches each class keeps, bool (b, C, M), of patch features (b, M, D)."""
    net = client.net
    assert isinstance(net, PromptedClip) and net.config.evidence is not None and patches is not None and client.anchors is not None
    with torch.inference_mode():
        near = similarities(torch.from_numpy(patches).to(client.device), client.anchors)
        return kept_patches(near, net.config.evidence).cpu().numpy()


def panel(image: np.ndarray, kept: np.ndarray | None = None) -> np.ndarray:
    """An image (channels, height, width) as RGB pixels (SIDE, SIDE, 3), patches outside ``kept`` (M,) darkened."""
    from PIL import Image

    pixels = image if image.dtype == np.uint8 else _stretched(image)
    rgb = np.broadcast_to(pixels[:3] if len(pixels) >= 3 else pixels[:1], (3, *pixels.shape[1:])).transpose(1, 2, 0)
    scaled = np.asarray(Image.fromarray(np.ascontiguousarray(rgb)).resize((SIDE, SIDE)), np.float32)
    if kept is not None:
        grid = math.isqrt(len(kept))
        cell = (np.arange(SIDE) * grid) // SIDE
        scaled = scaled * np.where(kept.reshape(grid, grid)[cell][:, cell], 1.0, DARK)[:, :, None]
    return scaled.astype(np.uint8)


def _stretched(image: np.ndarray) -> np.ndarray:
    low, high = image.min(), image.max()
    return ((image - low) / max(high - low, 1e-12) * 255).astype(np.uint8)


def _save(file: Path, panels: list[np.ndarray]) -> None:
    from PIL import Image

    Image.fromarray(np.concatenate(panels, axis=1)).save(file)
