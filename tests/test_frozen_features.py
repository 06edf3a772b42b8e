"""Features of a frozen backbone: computed once for the same images, anew for others under the same ids."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import client_app.frozen_features as frozen_features
from client_app.data.client_data import Split
from client_app.frozen_features import FrozenFeatures
from client_app.local.store import LocalStore
from client_app.loop_settings import LoopSettings
from models.backbones import load_backbone
from models.prompt_config import PromptConfig
from models.prompted_vit import PromptedViT

LOOP = LoopSettings(epochs=1, batch=5, lr=0.05, device="cpu", score_batch=4)


def split_of(seed: int) -> Split:
    return Split(np.random.default_rng(seed).integers(0, 256, (6, 3, 16, 16), np.uint8), np.arange(6) % 2, np.arange(6) + 10)


def test_other_images_under_the_same_ids_are_computed_anew(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model = PromptedViT(load_backbone("vit-tiny-random", image_size=16), 2, PromptConfig(shared_tokens=0, class_layers=()))
    passes: list[int] = []
    compute = frozen_features.features_of

    def counting(net: PromptedViT, images: np.ndarray, settings: LoopSettings) -> np.ndarray:
        passes.append(len(images))
        return compute(net, images, settings)

    monkeypatch.setattr(frozen_features, "features_of", counting)
    first, mended = split_of(0), split_of(1)
    with LocalStore(tmp_path, "run", "site") as store:
        before = FrozenFeatures(model, LOOP, store).of(first)
        np.testing.assert_array_equal(FrozenFeatures(model, LOOP, store).of(first), before)
        assert passes == [4, 2]
        after = FrozenFeatures(model, LOOP, store).of(mended)
        np.testing.assert_array_equal(after, FrozenFeatures(model, LOOP, store, reuse=False).of(mended))
        FrozenFeatures(model, replace(LOOP, threads=2), store).of(mended)
    assert passes == [4, 2] * 4 and np.abs(after - before).max() > 0.1
