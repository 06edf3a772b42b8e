"""The one way by which a phase with a standing encoder takes what the encoder makes: computed anew, or from the cache.

Scoring, head phases, cold start, class means, the re-computation of BatchNorm statistics, and the rounds after the encoder is
frozen all ask a ``FeatureSource``. `Anew` computes; `Reused` computes once for the same encoder, data and settings, and gives
the same bits as `Anew` (METHODS 2.6: where the encoder stands, reuse is exact and free).

Our own choices: an encoder is known by a digest of its weights, statistics and what else its features depend on, the images
included, so nothing that was lost or trained again can come back under another's name. There are two caches, for features
under the statistics that came and under re-computed ones, because every scoring of a round needs both.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from pathlib import Path
from typing import Protocol

import numpy as np

from client_app.data.client_data import Split
from client_app.head_phase import encode, loss_on_features, score_features
from client_app.local.durable import StoreError
from client_app.local.exact_features import ExactFeatures, content_version
from client_app.local.feature_cache import FeatureCache
from client_app.local.slot_file import Damaged, read_slots, write_slots
from client_app.loop import LoopSettings, mean_loss, recompute_batchnorm, score
from models.split import SplitModel, has_batchnorm
from strategies.movement import is_statistic

log = logging.getLogger(__name__)

CAME, RECOMPUTED = "exact-came", "exact-recomputed"
STATISTICS = "statistics.safetensors"
STATISTICS_KEPT = 2


class FeatureSource(Protocol):
    """What asks the encoder of ``model`` while it stands still. ``split`` holds n samples, ``settings`` the chunks."""

    def recompute(self, model: SplitModel, split: Split, settings: LoopSettings) -> bool:
        """As `loop.recompute_batchnorm` on the images of ``split``."""
        ...

    def score(self, model: SplitModel, split: Split, settings: LoopSettings) -> float | None:
        """As `loop.score`."""
        ...

    def mean_loss(self, model: SplitModel, split: Split, settings: LoopSettings) -> float:
        """As `loop.mean_loss`."""
        ...

    def features(self, model: SplitModel, split: Split, settings: LoopSettings) -> np.ndarray:
        """As `head_phase.encode`: (n, D) float32 in eval mode."""
        ...

    def every_epoch(self, model: SplitModel, split: Split, settings: LoopSettings) -> np.ndarray | Callable[[], np.ndarray]:
        """The same, for a head phase of many epochs: the features, or a function that gives them at the start of each."""
        ...


class Anew:
    """Computes everything when it is asked for."""

    def recompute(self, model: SplitModel, split: Split, settings: LoopSettings) -> bool:
        return recompute_batchnorm(model.encoder, split.images, settings)

    def score(self, model: SplitModel, split: Split, settings: LoopSettings) -> float | None:
        return score(model, split.images, split.labels, settings)

    def mean_loss(self, model: SplitModel, split: Split, settings: LoopSettings) -> float:
        return mean_loss(model, split.images, split.labels, settings)

    def features(self, model: SplitModel, split: Split, settings: LoopSettings) -> np.ndarray:
        return encode(model, split.images, settings)

    def every_epoch(self, model: SplitModel, split: Split, settings: LoopSettings) -> np.ndarray:
        return self.features(model, split, settings)


class Reused:
    """Computes what has not been computed before, for one client during one message.

    Parameters
    ----------
    folder : of the client's feature cache; None computes everything anew, and only counts.
    dim : D.
    number : of the message: what an earlier one of the same number left is forgotten, so that a round that is run again does,
        and counts, what it did.
    max_bytes : bound of both caches together; None for none.

    Attributes
    ----------
    forwards, avoided : samples that went through the encoder, and that did not have to. Whoever trains the encoder adds its own.
    """

    def __init__(self, folder: Path | None, dim: int, number: int, max_bytes: int | None = None) -> None:
        self._folder, self._number = folder, number
        self.forwards = self.avoided = 0
        self._caches: dict[str, FeatureCache] = {}
        # BatchNorm statistics by version of the weights, and the message that made them
        self._known: dict[int, dict[str, np.ndarray]] = {}
        self._made: dict[int, int] = {}
        self._recomputed: set[int] = set()
        if folder is not None:
            self._open(folder, dim, max_bytes)

    @property
    def nbytes(self) -> int:
        """Bytes on disk."""
        return sum(cache.nbytes for cache in self._caches.values())

    def features(self, model: SplitModel, split: Split, settings: LoopSettings) -> np.ndarray:
        if not len(split):
            return encode(model, split.images, settings)
        encoder = content_version(model.tensors("encoder"))
        version = content_version({}, f"{encoder} {self._note(split, settings)}")
        layer = RECOMPUTED if encoder in self._recomputed else CAME
        exact = ExactFeatures(self._caches.get(layer), settings.score_batch)

        def compute(rows: np.ndarray) -> np.ndarray:
            # a chunk's positions follow each other; a slice, since indexing can change strides, and these how a convolution rounds
            return encode(model, split.images[rows[0]:rows[-1] + 1], settings)

        found = exact.of(split.ids, version, compute, self._number)
        self.forwards += exact.computed
        self.avoided += exact.reused
        return found

    def every_epoch(self, model: SplitModel, split: Split, settings: LoopSettings) -> Callable[[], np.ndarray]:
        # without a cache every epoch runs the encoder, as a head phase of images does
        return lambda: self.features(model, split, settings)

    def score(self, model: SplitModel, split: Split, settings: LoopSettings) -> float | None:
        return score_features(model, self.features(model, split, settings), split.labels, settings)

    def mean_loss(self, model: SplitModel, split: Split, settings: LoopSettings) -> float:
        return loss_on_features(model, self.features(model, split, settings), split.labels, settings)

    def recompute(self, model: SplitModel, split: Split, settings: LoopSettings) -> bool:
        if len(split) < 2 or not has_batchnorm(model.encoder):
            return False
        tensors = model.tensors("encoder")
        # statistics come from the weights and the images alone, whatever they were before
        weights = {name: tensor for name, tensor in tensors.items() if not is_statistic(name)}
        version = content_version(weights, self._note(split, settings))
        statistics = self._known.get(version) if self._caches else None
        if statistics is None:
            recompute_batchnorm(model.encoder, split.images, settings)
            self.forwards += len(split)
            self._keep(version, model)
        else:
            model.load("encoder", {**tensors, **statistics})
            self.avoided += len(split)
        self._recomputed.add(content_version(model.tensors("encoder")))
        return True

    def _note(self, split: Split, settings: LoopSettings) -> str:
        return f"{settings.torch_device} {settings.precision} {settings.channels_last} {settings.score_batch} {split.checksum}"

    def _open(self, folder: Path, dim: int, max_bytes: int | None) -> None:
        try:
            half = None if max_bytes is None else max_bytes // 2
            self._caches = {layer: FeatureCache(folder, layer, (dim,), 0, "float32", half) for layer in (CAME, RECOMPUTED)}
            for cache in self._caches.values():
                entries = cache.entries()
                cache.drop(entries["id"][entries["round"] >= self._number])
            kept, made = read_slots(folder / STATISTICS)
            self._made = {int(version): int(number) for version, number in made.items() if version.isdecimal()}
            self._known = {int(version): tensors for version, tensors in kept.items() if self._made.get(int(version), 0) < self._number}
        except (FileNotFoundError, Damaged):
            pass
        except (StoreError, ValueError) as refused:
            log.warning("this site keeps no features: %s", refused)

    def _keep(self, version: int, model: SplitModel) -> None:
        if not self._caches or self._folder is None:
            return
        statistics = {name: tensor.copy() for name, tensor in model.tensors("encoder").items() if is_statistic(name)}
        self._known = dict([*self._known.items(), (version, statistics)][-STATISTICS_KEPT:])
        try:
            self._made[version] = self._number
            write_slots(self._folder / STATISTICS, {str(known): tensors for known, tensors in self._known.items()},
                        {str(known): str(self._made[known]) for known in self._known})
        except StoreError as refused:
            log.warning("this site's statistics are not kept: %s", refused)
