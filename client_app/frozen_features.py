"""Features of a frozen backbone without prompts: they never change, so a client computes each once and keeps it at home.

Exact reuse (``client_app.local.exact_features``): the same bits with and without the cache. The version is a digest of the
backbone's weights, the precision, the device, the image size and the images.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import torch

from client_app.data.client_data import Split
from client_app.local.durable import StoreError
from client_app.local.exact_features import ExactFeatures, content_version
from client_app.local.feature_cache import FeatureCache
from client_app.local.store import LocalStore
from client_app.loop import Sgd, TrainingDiverged, array_on_device, batch_sizes, check_labels, descend, is_finite
from client_app.loop_settings import LoopSettings
from client_app.placing import place_backbone
from client_app.prompt_loop import features_of
from models.prompted_vit import PromptedViT
from strategies.seeds import derive_seed
from strategies.types import Round

LAYER = "frozen"


class FrozenFeatures:
    """The features of one client, (n, D), under a model that has no prompt."""

    def __init__(self, model: PromptedViT, settings: LoopSettings, store: LocalStore, reuse: bool = True) -> None:
        self.model, self.settings, self.site = model, settings, store.site
        self._exact = ExactFeatures(self._cache(store) if reuse else None, settings.score_batch)

    def of(self, split: Split) -> np.ndarray:
        """Features (n, D) float32 of a split."""
        if not len(split):
            return np.zeros((0, self.model.head.in_features), np.float32)
        version = content_version({}, f"{backbone_version(self.model, self.settings)} {split.checksum}")
        return self._exact.of(split.ids, version, lambda positions: features_of(self.model, split.images[positions], self.settings))

    def logits(self, split: Split) -> np.ndarray:
        """Logits (n, C) float32 of the present head."""
        with torch.inference_mode():
            return self.model.head(array_on_device(self.of(split), self.settings)).cpu().numpy()

    def fit_head(self, split: Split, rnd: Round) -> dict[str, float]:
        """Train the head in place for the run's epochs; the loss. Raises ``TrainingDiverged``."""
        check_labels(split.images, split.labels, self.model.head.out_features)
        x = array_on_device(self.of(split), self.settings)
        y = array_on_device(split.labels.astype(np.int64, copy=False), self.settings)
        if not bool(torch.isfinite(x).all()):
            raise TrainingDiverged("the backbone gives features that are no finite numbers; look at the images")
        place_backbone(self.model, self.settings)
        seed = derive_seed(rnd.seed, self.site, rnd.number, "fit")
        step = Sgd(self.model.head, replace(self.settings, compile=False))  # a single product is not worth a compilation
        loss = descend(step, x, y, batch_sizes(len(y), self.settings.batch), self.settings.epochs, seed)
        if not is_finite(self.model.head):
            raise TrainingDiverged("a weight became non-finite in training; lower lr")
        return {"loss": loss}

    def _cache(self, store: LocalStore) -> FeatureCache | None:
        try:
            return FeatureCache(store.location / "features", LAYER, (self.model.head.in_features,), dtype="float32")
        except StoreError:
            return None  # a disk that refuses costs the reuse and nothing else


def backbone_version(model: Any, settings: LoopSettings) -> int:
    """A number that stands for all that frozen features depend on beside the images; worked out once a model."""
    known: dict[str, int] = model.__dict__.setdefault("_frozen_versions", {})
    note = f"{settings.torch_device} {settings.precision} {model.vit.patch_embed.img_size} {settings.threads}"
    if note not in known:
        tensors = {name: tensor.detach().float().cpu().numpy() for name, tensor in model.vit.state_dict().items()}
        known[note] = content_version(tensors, note)
    return known[note]
