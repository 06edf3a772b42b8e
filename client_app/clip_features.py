"""CLS and patch features of one client's images: computed once by the frozen image tower, kept in float16 on its own disk.

Training then touches no image. So every image has one *fixed view*, the image as it is: a random crop or flip would be another image in
every epoch, and the image tower would have to run for each, which is some 50 times the work of an epoch from the cache (METHODS 3.7).

Reuse is exact (``client_app.local.exact_features``): features are rounded to float16 as soon as they are computed, so results are the same
bits with and without the cache. Its version is a digest of the tower's weights and of all else that features depend on, the images
included. A folder of features computed beforehand (``features-dir``) comes first, if it holds all images of a split.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import torch

from client_app.data.client_data import Split
from client_app.local.durable import StoreError
from client_app.local.exact_features import ExactFeatures, content_version
from client_app.local.feature_cache import FeatureCache
from client_app.local.store import LocalStore
from client_app.loop import TrainingDiverged, array_on_device, threads
from client_app.loop_settings import LoopSettings
from client_app.precomputed import Precomputed
from models.towers import ImageFeatures, ImageTower

log = logging.getLogger(__name__)

# features (b, M, D) float32 of the samples at some positions of a split
Rows = Callable[[np.ndarray], np.ndarray]


@dataclass(frozen=True)
class Source:
    """Where features come from: the image tower, on its device, its kind of patches, and a folder of features made beforehand."""

    tower: ImageTower
    patches: str = "value"
    folder: str = ""


class ClipFeatures:
    """Features of one client's splits. Raises ``TrainingDiverged`` for images whose features are no finite numbers."""

    def __init__(self, source: Source, settings: LoopSettings, store: LocalStore, with_patches: bool) -> None:
        self.source, self.settings, self.with_patches = source, settings, with_patches
        self._tower = f"{tower_version(source, settings)} {settings.torch_device.type}"
        tower, folder = source.tower, store.location / "features"
        self._caches = {"cls": _cache(folder, "cls", (tower.dim,))}
        if with_patches:
            self._caches["patches"] = _cache(folder, f"patches-{source.patches}", (tower.patches, tower.dim))
        self._exact = {kind: ExactFeatures(cache, settings.score_batch, half=True) for kind, cache in self._caches.items()}
        self._last: tuple[bytes, dict[str, np.ndarray]] = (b"", {})
        self._ready = Precomputed.open(Path(source.folder), tower_version(source, settings), with_patches) if source.folder else None

    def stream(self, split: Split) -> Iterator[tuple[np.ndarray, np.ndarray, np.ndarray | None]]:
        """Positions (b,), CLS features (b, D) and patch features (b, M, D) or None, ``score_batch`` samples at a time; float32."""
        found = self._found(split)
        cuts = range(self.settings.score_batch, len(split), self.settings.score_batch)
        for part in np.split(np.arange(len(split)), cuts) if len(split) else []:
            if self._ready is not None and found is not None:
                yield part, self._ready.cls(found[part]), self._ready.patches(found[part]) if self.with_patches else None
            else:
                # patches first: their pass gives the CLS features too
                patches = self._of("patches", split, part) if self.with_patches else None
                yield part, self._of("cls", split, part), patches

    def cls(self, split: Split) -> np.ndarray:
        """CLS features (n, D) float32 of a split."""
        found = [cls for _, cls, _ in self.stream(split)]
        return np.concatenate(found) if found else np.zeros((0, self.source.tower.dim), np.float32)

    def patch_rows(self, split: Split) -> Rows:
        """Random access to the patch features of a split that ``stream`` has gone through: from the disk, or from memory if it refused."""
        found, cache = self._found(split), self._caches.get("patches")
        if self._ready is not None and found is not None:
            ready = self._ready
            return lambda rows: ready.patches(found[rows])
        version = self._version(split)
        if cache is not None and cache.get(split.ids, version).found.all():
            return lambda rows: cache.get(split.ids[rows], version).features
        held = np.concatenate([patches.astype(np.float16) for _, _, patches in self.stream(split) if patches is not None])
        return lambda rows: held[rows].astype(np.float32)

    def _found(self, split: Split) -> np.ndarray | None:
        found = self._ready.rows(split.images) if self._ready is not None else None
        if found is None and self.source.folder and len(split):
            _warn(f"features-dir holds no features of {'all images' if self._ready else 'this image tower, at this size and precision'}; "
                  "the image tower makes them here")
        return found

    def _of(self, kind: str, split: Split, part: np.ndarray) -> np.ndarray:
        return self._exact[kind].of(split.ids[part], self._version(split), lambda positions: self._encoded(split, part[positions])[kind])

    def _version(self, split: Split) -> int:
        return content_version({}, f"{self._tower} {split.checksum}")

    def _encoded(self, split: Split, positions: np.ndarray) -> dict[str, np.ndarray]:
        """Both kinds of features; the last ones are kept, since both are asked for one after the other."""
        key = split.ids[positions].tobytes()
        if self._last[0] != key:
            self._last = key, encode(self.source, split.images[positions], self.settings)
        return self._last[1]


def encode(source: Source, images: np.ndarray, settings: LoopSettings) -> dict[str, np.ndarray]:
    """CLS (b, D) and patch features (b, M, D) float32 of images (b, channels, height, width). Raises ``TrainingDiverged``."""
    threads(settings)
    tower: Any = source.tower
    tower.to(settings.torch_device)
    with torch.inference_mode():
        found: ImageFeatures = tower(array_on_device(images, settings), source.patches)
    assert found.patches is not None
    if not bool(torch.isfinite(found.cls).all() & torch.isfinite(found.patches).all()):
        raise TrainingDiverged("the image tower gives features that are no finite numbers; look at the images")
    return {"cls": found.cls.cpu().numpy(), "patches": found.patches.cpu().numpy()}


def tower_version(source: Source, settings: LoopSettings) -> int:
    """A number that stands for what features depend on beside image and device: weights, sizes, precision; worked out once a tower."""
    tower: Any = source.tower
    known: dict[str, int] = tower.__dict__.setdefault("_feature_versions", {})
    note = f"{settings.precision} {tower.patches} {source.patches}"
    if note not in known:
        tensors = {name: tensor.detach().float().cpu().numpy() for name, tensor in tower.state_dict().items()}
        known[note] = content_version(tensors, note)
    return known[note]


@cache
def _warn(text: str) -> None:
    """Once a process: every client and round would say the same."""
    log.warning(text)


def _cache(folder: Path, layer: str, shape: tuple[int, ...]) -> FeatureCache | None:
    try:
        return FeatureCache(folder, layer, shape, dtype="float16")
    except StoreError:
        return None  # a disk that refuses costs the reuse and nothing else
