"""Patch evidence: a case by hand, parity with gathering, the options' reductions, gradient, chunks, and what is never built."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.nn.functional import normalize

from models.patch_evidence import (
    POOLINGS,
    SELECTIONS,
    Evidence,
    EvidenceConfig,
    evidence_of,
    kept_patches,
    overlap,
    patch_evidence,
    similarities,
)
from models.split import ModelError
from tests.naive.patch_evidence import gathered


def units(*shape: int, seed: int = 0) -> torch.Tensor:
    return normalize(torch.randn(*shape, generator=torch.Generator().manual_seed(seed)), dim=-1)


def test_two_classes_and_three_patches_by_hand() -> None:
    patches = torch.tensor([[[1.0, 0.0], [0.6, 0.8], [0.0, 1.0]]])
    anchors = torch.tensor([[1.0, 0.0], [0.0, 1.0]])
    found = patch_evidence(patches, anchors, torch.tensor([[0.0, 1.0]]), EvidenceConfig(keep=0.5, tau=0.2))
    # k = 2; class 0 keeps patches 0 and 1 with cosines 1 and .6, so weights sigmoid(2) and sigmoid(-2); class 1 mirrors: 1 and .8
    a, b = 1 / (1 + math.exp(-2)), 1 / (1 + math.exp(-1))
    first, second = np.array([a + 0.6 * (1 - a), 0.8 * (1 - a)]), np.array([0.6 * (1 - b), b + 0.8 * (1 - b)])
    expected = np.stack([first / np.linalg.norm(first), second / np.linalg.norm(second)])
    np.testing.assert_allclose(found.features[0], expected, atol=1e-6)
    entropies = [-(p * math.log(p) + (1 - p) * math.log(1 - p)) / math.log(2) for p in (a, b)]
    np.testing.assert_allclose(found.entropy[0], entropies, atol=1e-6)
    np.testing.assert_allclose(found.peak[0], [1, 1])
    kept = kept_patches(similarities(patches, anchors), EvidenceConfig(keep=0.5))
    assert kept.tolist() == [[[True, True, False], [False, True, True]]]
    assert overlap(kept).tolist() == [0.5]


@pytest.mark.parametrize("select", SELECTIONS)
@pytest.mark.parametrize("pool", POOLINGS)
def test_the_mask_equals_gathering(select: str, pool: str) -> None:
    patches, anchors, cls = units(5, 23, 16, seed=1), units(7, 16, seed=2), units(5, 16, seed=3)
    config = EvidenceConfig(keep=0.2, tau=0.05, select=select, pool=pool)
    found = patch_evidence(patches, anchors, cls, config)
    features, entropy, peak, places = gathered(patches.numpy(), anchors.numpy(), 0.2, 0.05, select, pool)
    np.testing.assert_allclose(found.features, features, atol=1e-6)
    np.testing.assert_allclose(found.entropy, entropy, atol=1e-6)
    np.testing.assert_allclose(found.peak, peak, atol=1e-6)
    kept = kept_patches(similarities(patches, anchors), config)
    assert kept.sum(dim=2).eq(places.shape[2]).all()
    np.testing.assert_array_equal(kept.nonzero()[:, 2].reshape(5, 7, -1), places)
    pairs = [len(set(places[b, c]) & set(places[b, d])) / places.shape[2] for b in range(5) for c in range(7) for d in range(7) if c != d]
    np.testing.assert_allclose(overlap(kept), np.reshape(pairs, (5, -1)).mean(axis=1), atol=1e-6)


@settings(max_examples=25, deadline=None)
@given(st.integers(1, 4), st.integers(1, 9), st.integers(1, 5), st.floats(0.01, 1), st.floats(0.005, 1))
def test_evidence_has_length_one_and_entropy_lies_between_nothing_and_all(b: int, m: int, c: int, keep: float, tau: float) -> None:
    patches, anchors = units(b, m, 8, seed=m), units(c, 8, seed=c + 9)
    found = patch_evidence(patches, anchors, units(b, 8), EvidenceConfig(keep, tau, "class-centred"))
    torch.testing.assert_close(found.features.norm(dim=2), torch.ones(b, c))
    assert found.entropy.min() >= -1e-6 and found.entropy.max() <= 1 + 1e-5
    order = torch.randperm(c, generator=torch.Generator().manual_seed(0))
    again = patch_evidence(patches, anchors[order], units(b, 8), EvidenceConfig(keep, tau, "class-centred"))
    torch.testing.assert_close(again.features, found.features[:, order], atol=1e-5, rtol=1e-4)


def test_keeping_all_is_softmax_pooling_over_all_patches() -> None:
    patches, anchors, cls = units(2, 11, 8, seed=1), units(3, 8, seed=2), units(2, 8, seed=3)
    weights = (torch.einsum("cd,bmd->bcm", anchors, patches) / 0.02).softmax(dim=2)
    expected = normalize(torch.einsum("bcm,bmd->bcd", weights, patches), dim=2)
    for config in (EvidenceConfig(keep=1, tau=0.02), EvidenceConfig(tau=0.02, select="none")):
        torch.testing.assert_close(patch_evidence(patches, anchors, cls, config).features, expected)
    # one patch kept is the best patch itself, with no entropy
    best = patch_evidence(patches, anchors, cls, EvidenceConfig(keep=0.01))
    torch.testing.assert_close(best.features, patches[torch.arange(2)[:, None], (patches @ anchors.T).argmax(dim=1)])
    assert best.entropy.eq(0).all()


def test_one_class_centred_pools_its_patches_evenly() -> None:
    patches, anchors = units(2, 5, 8, seed=1), units(1, 8, seed=2)
    found = patch_evidence(patches, anchors, units(2, 8), EvidenceConfig(1.0, 0.01, "class-centred", "class-centred"))
    torch.testing.assert_close(found.features[:, 0], normalize(patches.mean(dim=1), dim=1))
    torch.testing.assert_close(found.entropy, torch.ones(2, 1))


def test_centring_makes_the_choice_specific() -> None:
    # one patch is most like both anchors; each anchor has a patch of its own besides
    patches = torch.tensor([[[1.0, 0.0, 0.0], [0.6, 0.8, 0.0], [0.6, 0.0, 0.8]]])
    anchors = normalize(torch.tensor([[1.0, 0.3, 0.0], [1.0, 0.0, 0.3]]), dim=1)
    similarity = similarities(patches, anchors)
    assert kept_patches(similarity, EvidenceConfig(keep=0.3)).tolist() == [[[True, False, False]] * 2]
    specific = kept_patches(similarity, EvidenceConfig(keep=0.3, select="class-centred"))
    assert specific.tolist() == [[[False, True, False], [False, False, True]]] and overlap(specific).item() == 0


def test_the_cls_feature_can_join() -> None:
    patches, anchors, cls = units(2, 5, 8, seed=1), units(3, 8, seed=2), units(2, 8, seed=3)
    alone, joined = (patch_evidence(patches, anchors, cls, EvidenceConfig(add_cls=add)).features for add in (False, True))
    torch.testing.assert_close(joined, normalize(alone + cls[:, None], dim=2))


def test_gradient_reaches_anchors_and_is_finite_with_patches_left_out() -> None:
    patches, cls = units(2, 9, 8, seed=1), units(2, 8, seed=3)
    anchors = units(3, 8, seed=2).double().requires_grad_()
    found = patch_evidence(patches, anchors, cls, EvidenceConfig(keep=0.3))
    (found.features.sum() + found.entropy.sum() + found.peak.sum()).backward()
    assert anchors.grad is not None and anchors.grad.isfinite().all() and anchors.grad.abs().sum() > 0.1


def test_chunks_and_half_precision_change_nothing_that_matters() -> None:
    patches, anchors, cls = units(7, 12, 8, seed=1), units(3, 8, seed=2), units(7, 8, seed=3)
    whole = patch_evidence(patches.half(), anchors, cls.half(), EvidenceConfig(add_cls=True))
    stored = patches.half().numpy()
    stored.flags.writeable = False  # as a memory map is
    parts = evidence_of(stored, anchors.clone().requires_grad_(), cls.half().numpy(), EvidenceConfig(add_cls=True), chunk=3)
    for name in ("features", "entropy", "peak"):
        torch.testing.assert_close(getattr(parts, name), getattr(whole, name), atol=1e-6, rtol=1e-6)
    assert not parts.features.requires_grad and len(parts) == 7 and torch.equal(parts[2:4].features, parts.features[2:4])
    half = evidence_of(patches, anchors, cls, EvidenceConfig(), dtype=torch.float16)
    assert half.features.dtype == torch.float16
    assert evidence_of(patches[:0], anchors, cls[:0], EvidenceConfig()).features.shape == (0, 3, 8)
    torch.testing.assert_close(half.features.float(), patch_evidence(patches, anchors, cls, EvidenceConfig()).features, atol=1e-3, rtol=0)


def test_nothing_of_shape_batch_patches_classes_dim_is_built() -> None:
    from torch.utils._python_dispatch import TorchDispatchMode

    sizes: list[int] = []

    class Watch(TorchDispatchMode):
        def __torch_dispatch__(self, func, types, args=(), kwargs=None):  # type: ignore[no-untyped-def]
            out = func(*args, **(kwargs or {}))
            sizes.extend(x.numel() for x in (out if isinstance(out, tuple | list) else [out]) if isinstance(x, torch.Tensor))
            return out

    images, patches, classes, dim = 4, 49, 20, 64
    with Watch():
        patch_evidence(units(images, patches, dim), units(classes, dim), units(images, dim), EvidenceConfig(add_cls=True))
    assert max(sizes) == images * patches * dim  # the patches themselves
    assert max(sizes) < images * patches * classes * dim / 10


def test_how_many_are_kept() -> None:
    assert [EvidenceConfig(keep=0.15).kept_of(m) for m in (196, 20, 4, 1)] == [30, 3, 1, 1]
    assert EvidenceConfig(select="none").kept_of(196) == 196


@pytest.mark.parametrize(("key", "value", "says"), [
    ("keep", 0.0, "above 0"), ("keep", 1.5, "at most 1"), ("tau", 0.0, "above 0"), ("tau", math.inf, "finite"),
    ("select", "centred", "class-centred"), ("pool", "none", "plain"),
])
def test_settings_are_checked(key: str, value: object, says: str) -> None:
    with pytest.raises(ModelError, match=says):
        EvidenceConfig(**{key: value})  # type: ignore[arg-type]


def test_evidence_of_other_shapes_is_refused() -> None:
    with pytest.raises(ModelError, match=r"features \(B, C, D\)"):
        Evidence(torch.zeros(2, 3, 4), torch.zeros(2, 3), torch.zeros(2, 4))
