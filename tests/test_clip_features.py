"""Image features once: the tower's own numbers in float16, the same with and without a cache, found again, and never computed twice."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import client_app.clip_features as clip_features
from client_app.clip_features import ClipFeatures, Source, encode, tower_version
from client_app.data.client_data import Split
from client_app.local.durable import StoreError, StoreFull
from client_app.local.feature_cache import FeatureCache
from client_app.local.store import LocalStore
from client_app.loop import TrainingDiverged
from client_app.precomputed import Precomputed, keys_of, write
from tests.clip_cases import LOOP, data_of, images_of, tower

SPLIT = data_of().train


def halved(array: np.ndarray) -> np.ndarray:
    return array.astype(np.float16).astype(np.float32)


def features_of(store: LocalStore, patches: bool = True, folder: str = "", kind: str = "value") -> ClipFeatures:
    return ClipFeatures(Source(tower(), kind, folder), LOOP, store, patches)


@pytest.fixture
def encoded(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many images each pass of the tower has had."""
    seen: list[int] = []

    def counting(source: Source, images: np.ndarray, settings: Any) -> Any:
        seen.append(len(images))
        return encode(source, images, settings)

    monkeypatch.setattr(clip_features, "encode", counting)
    return seen


def joined(features: ClipFeatures, split: Split) -> tuple[np.ndarray, np.ndarray]:
    parts = list(features.stream(split))
    assert np.array_equal(np.concatenate([p for p, _, _ in parts]), np.arange(len(split)))
    return np.concatenate([c for _, c, _ in parts]), np.concatenate([x for _, _, x in parts if x is not None])


def test_features_are_the_towers_rounded_to_half(tmp_path: Path) -> None:
    with LocalStore(tmp_path, "run", "site") as store:
        cls, patches = joined(features_of(store), SPLIT)
    expected = [encode(Source(tower()), SPLIT.images[start:start + 5], LOOP) for start in (0, 5, 10)]
    np.testing.assert_array_equal(cls, halved(np.concatenate([part["cls"] for part in expected])))
    np.testing.assert_array_equal(patches, halved(np.concatenate([part["patches"] for part in expected])))
    assert cls.shape == (12, 32) and patches.shape == (12, 4, 32)
    np.testing.assert_allclose(np.linalg.norm(cls, axis=1), 1, atol=1e-3)


def test_every_image_is_encoded_once_for_all_rounds_and_both_kinds(tmp_path: Path, encoded: list[int]) -> None:
    with LocalStore(tmp_path, "run", "site") as store:
        first = joined(features_of(store), SPLIT)
        assert encoded == [5, 5, 2]
        again = features_of(store)  # as a later message, maybe of another process
        for one, other in zip(first, joined(again, SPLIT), strict=True):
            np.testing.assert_array_equal(one, other)
        np.testing.assert_array_equal(again.cls(SPLIT), first[0])
        np.testing.assert_array_equal(features_of(store, patches=False).cls(SPLIT), first[0])
        rows = np.array([7, 0, 11])
        np.testing.assert_array_equal(again.patch_rows(SPLIT)(rows), first[1][rows])
    assert encoded == [5, 5, 2]


def test_what_lies_on_the_disk_is_half_precision(tmp_path: Path) -> None:
    with LocalStore(tmp_path, "run", "site") as store:
        joined(features_of(store), SPLIT)
        names = {path.name for path in (store.location / "features").glob("*.payload")}
        assert names == {"cls.0.float16.payload", "patches-value.0.float16.payload"}
        # 2 bytes a number: 1 x 32 and 4 x 32 of them an image
        cache = FeatureCache(store.location / "features", "patches-value", (4, 32))
        assert len(cache) == 12 and cache.nbytes // len(cache._file.records) == 4 * 32 * 2 + 44
    assert {p.name.partition(".")[0] for p in tmp_path.rglob("*") if p.is_file()} == {"cls", "patches-value", "lock"}


def test_a_disk_that_refuses_costs_the_reuse_and_no_bit(tmp_path: Path, encoded: list[int], monkeypatch: pytest.MonkeyPatch) -> None:
    with LocalStore(tmp_path, "run", "one") as store:
        expected = joined(features_of(store), SPLIT)
    rows = np.array([3, 3, 9])
    for fault in ("put", "open"):
        def refuse(*_: Any, **__: Any) -> None:
            raise StoreFull("no space left")

        with monkeypatch.context() as patch, LocalStore(tmp_path, "run", fault) as store:
            patch.setattr(FeatureCache, "put" if fault == "put" else "__init__", refuse)
            features = features_of(store)
            for one, other in zip(expected, joined(features, SPLIT), strict=True):
                np.testing.assert_array_equal(one, other)
            np.testing.assert_array_equal(features.patch_rows(SPLIT)(rows), expected[1][rows])
    assert sum(encoded) > 12 and issubclass(StoreFull, StoreError)


def test_other_images_under_the_same_ids_are_encoded_anew(tmp_path: Path, encoded: list[int]) -> None:
    mended, rows = Split(images_of(12, seed=5), SPLIT.labels, SPLIT.ids), np.array([0, 11])
    with LocalStore(tmp_path, "run", "site") as store:
        before = joined(features_of(store), SPLIT)
        features = features_of(store)
        after = joined(features, mended)
        np.testing.assert_array_equal(features.patch_rows(mended)(rows), after[1][rows])
    with LocalStore(tmp_path, "run", "clean") as store:
        for one, other in zip(after, joined(features_of(store), mended), strict=True):
            np.testing.assert_array_equal(one, other)
    assert np.abs(after[0] - before[0]).max() > 0.01 and encoded == [5, 5, 2] * 3


def test_versions_tell_towers_and_kinds_of_patches_apart(tmp_path: Path) -> None:
    other = type(tower())(tower().vit)
    assert tower_version(Source(other), LOOP) == tower_version(Source(tower()), LOOP)
    kinds = {tower_version(Source(tower(), kind), LOOP) for kind in ("value", "projected")}
    assert len(kinds) == 2
    with torch.no_grad():
        weight = other.vit.head.weight
        weight[0, 0] += 1
        moved = type(tower())(other.vit)
        assert tower_version(Source(moved), LOOP) not in kinds
        weight[0, 0] -= 1
    with LocalStore(tmp_path, "run", "site") as store:
        (cls, value), (same, projected) = (joined(features_of(store, kind=kind), SPLIT) for kind in ("value", "projected"))
    np.testing.assert_array_equal(cls, same)
    assert np.abs(value - projected).max() > 0.01


def test_nothing_comes_of_no_image_and_images_out_of_range_are_an_error(tmp_path: Path) -> None:
    with LocalStore(tmp_path, "run", "site") as store:
        features = features_of(store)
        assert features.cls(SPLIT.empty_like()).shape == (0, 32) and list(features.stream(SPLIT.empty_like())) == []
        huge = Split(np.full((2, 3, 32, 32), 1e36, np.float32), np.zeros(2, int), np.arange(2))
        with pytest.raises(TrainingDiverged, match="no finite numbers"):
            features.cls(huge)
        assert np.isfinite(features.cls(SPLIT)).all()


def test_features_made_beforehand_are_taken_by_the_image_itself(tmp_path: Path, encoded: list[int]) -> None:
    source = Source(tower(), "value")
    version, folder = tower_version(source, LOOP), tmp_path / "made"
    pool = np.concatenate([images_of(7, seed=9), SPLIT.images, SPLIT.images[:2]])
    assert write(folder, version, pool, lambda images: encode(source, images, LOOP), chunk=4) == 19
    assert write(folder, version, pool[:3], lambda images: encode(source, images, LOOP)) == 0
    mixed = Split(SPLIT.images[::-1], SPLIT.labels, SPLIT.ids)
    with LocalStore(tmp_path, "run", "site") as store:
        own = joined(features_of(store), SPLIT)
        passes = list(encoded)
        ready = features_of(store, folder=str(folder))
        cls, patches = joined(ready, mixed)
        assert encoded == passes and ready.patch_rows(mixed)(np.array([2])).shape == (1, 4, 32)
        np.testing.assert_allclose(cls[::-1], own[0], atol=2e-3)
        np.testing.assert_allclose(patches[::-1], own[1], atol=2e-3)
        # one image that is not there: the whole split is encoded as usual
        strange = Split(np.concatenate([SPLIT.images[:-1], images_of(1, seed=77)]), SPLIT.labels, SPLIT.ids + 1000)
        joined(ready, strange)
        assert encoded == [*passes, 5, 5, 2]


def test_a_folder_that_does_not_serve_is_said_once(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    source, made = Source(tower(), "value"), tmp_path / "made"
    write(made, tower_version(source, LOOP), SPLIT.images[:3], lambda images: encode(source, images, LOOP))
    clip_features._warn.cache_clear()
    with LocalStore(tmp_path, "run", "site") as store:
        for folder in (str(tmp_path / "misspelt"), str(made), ""):
            for _ in range(2):
                joined(features_of(store, folder=folder), SPLIT)
    assert caplog.messages == [
        "features-dir holds no features of this image tower, at this size and precision; the image tower makes them here",
        "features-dir holds no features of all images; the image tower makes them here",
    ]


def test_a_folder_of_another_tower_or_a_damaged_one_is_passed_over(tmp_path: Path) -> None:
    assert Precomputed.open(tmp_path, 5, True) is None
    numbers = {"cls": np.ones((3, 2), np.float32), "patches": np.ones((3, 4, 2), np.float32)}
    write(tmp_path, 5, images_of(3), lambda images: {kind: array[: len(images)] for kind, array in numbers.items()})
    assert Precomputed.open(tmp_path, 5, True) is not None and Precomputed.open(tmp_path, 6, True) is None
    (tmp_path / f"{5:016x}" / "patches.npy").write_bytes(b"cut")
    assert Precomputed.open(tmp_path, 5, True) is None and Precomputed.open(tmp_path, 5, False) is not None
    found = Precomputed.open(tmp_path, 5, False)
    assert found is not None and found.rows(images_of(3)) is not None and found.rows(images_of(4)) is None
    grey, colour = images_of(1)[:, :1], images_of(1)
    assert keys_of(grey)[0] != keys_of(colour)[0] and keys_of(colour)[0] == keys_of(colour.copy())[0]
