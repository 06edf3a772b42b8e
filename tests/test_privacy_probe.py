"""The privacy probe of FedCache measures images as its sources say, and attacks what lies in the caches."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest

from tests.naive.structural_similarity import similarity

HERE = Path(__file__).parents[1] / "benchmarks" / "fed_cache"


def module(name: str, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """``name`` of the benchmark, whose modules import each other by their bare names."""
    for other in ("reconstruction", "rows"):
        monkeypatch.delitem(sys.modules, other, raising=False)
    monkeypatch.setattr(sys, "path", list(sys.path))
    spec = importlib.util.spec_from_file_location(f"fed_cache_benchmark_{name}", HERE / f"{name}.py")
    assert spec is not None and spec.loader is not None
    made = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, spec.name, made)
    spec.loader.exec_module(made)
    for other in ("reconstruction", "rows"):
        sys.modules.pop(other, None)
    return made


@pytest.fixture
def reconstruction(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    return module("reconstruction", monkeypatch)


@pytest.fixture
def probe(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    return module("privacy_probe", monkeypatch)


def flat(*greys: float) -> np.ndarray:
    """Images (n, 3, 32, 32) of one grey each."""
    return np.broadcast_to(np.array(greys, np.float32)[:, None, None, None], (len(greys), 3, 32, 32)).copy()


def test_psnr_by_hand(reconstruction: ModuleType) -> None:
    # -10 log10 of 0.1**2, of 0.5**2, and of the least error that counts
    assert reconstruction.psnr(flat(0.3, 0.25, 0.5), flat(0.4, 0.75, 0.5)) == pytest.approx([20.0, 6.0206, 100.0], abs=1e-4)
    # half of the pixels off by 0.2: a mean squared error of 0.02
    half = flat(0.5)
    half[:, :, :16] += 0.2
    assert reconstruction.psnr(flat(0.5), half) == pytest.approx([16.9897], abs=1e-4)


def test_ssim_of_flat_images_is_their_luminance_term(reconstruction: ModuleType) -> None:
    found = reconstruction.ssim(flat(0.0, 0.5, 0.7), flat(1.0, 0.25, 0.7))
    assert found == pytest.approx([0.0001 / 1.0001, (0.25 + 0.0001) / (0.3125 + 0.0001), 1.0], abs=1e-6)


def test_ssim_of_a_single_window_by_hand(reconstruction: ModuleType) -> None:
    """One bright pixel at the centre of the only window: means are w and 2w, variances w - w**2 and 4 of it, the covariance 2 of it.

    Along a line the Gaussian weights sum to 1 + 2 (0.80074 + 0.41111 + 0.13534 + 0.02857 + 0.00387) = 3.75926, so w = 1 / 3.75926**2.
    """
    dot = np.zeros((1, 1, 11, 11))
    dot[0, 0, 5, 5] = 0.5
    w, c1, c2 = 0.5 / 3.75926**2, 1e-4, 9e-4
    spread = 0.25 / 3.75926**2 - w * w
    by_hand = (4 * w * w + c1) * (4 * spread + c2) / ((5 * w * w + c1) * (5 * spread + c2))
    assert reconstruction.ssim(dot, 2 * dot) == pytest.approx([by_hand], abs=1e-5)
    # 0.005107 x 0.066655 / (0.006359 x 0.083094)
    assert by_hand == pytest.approx(0.6443, abs=1e-4)


def test_ssim_equals_the_slow_reference(reconstruction: ModuleType) -> None:
    rng = np.random.default_rng(0)
    x = rng.random((2, 3, 13, 12))
    y = np.clip(x + rng.normal(0, 0.2, x.shape), 0, 1)
    slow = [np.mean([similarity(x[n, c].tolist(), y[n, c].tolist()) for c in range(3)]) for n in range(2)]
    assert reconstruction.ssim(x, y) == pytest.approx(slow, abs=1e-9)
    assert reconstruction.ssim(y, x) == pytest.approx(slow, abs=1e-9)
    # what was bright is dark: the structure is opposed
    assert reconstruction.ssim(x, 1 - x).max() < 0


def test_a_decoder_reads_what_features_tell_and_no_more(reconstruction: ModuleType) -> None:
    """Of a grey image, the first feature is the grey; of the rest, and with the features dealt out anew, nothing can be known."""
    rng = np.random.default_rng(1)
    grey, noise = rng.random(260).astype(np.float32), rng.normal(size=(260, 3)).astype(np.float32)
    images, features = flat(*grey), np.column_stack([grey, noise, np.zeros(260, np.float32)]).astype(np.float32)
    fit = reconstruction.Fit(epochs=40, batch=20, rate=5e-3, channels=16)
    told = reconstruction.fit_decoder(features[:200], images[:200], fit, 0)
    blind = reconstruction.fit_decoder(rng.permutation(features[:200]), images[:200], fit, 0)
    errors = [float(np.square(decoder.images(features[200:]) - images[200:]).mean()) for decoder in (told, blind)]
    mean = float(np.square(images[:200].mean(axis=0) - images[200:]).mean())
    assert errors[0] < mean / 10 and errors[1] > 0.95 * mean
    again = reconstruction.fit_decoder(features[:200], images[:200], fit, 0)
    assert all((tensor == again.state_dict()[name]).all() for name, tensor in told.state_dict().items())


def test_the_newest_of_two_cached_features_is_attacked(probe: ModuleType, tmp_path: Path) -> None:
    from client_app.local.feature_cache import FeatureCache
    from client_app.local.sample_notes import LAYER, entry_version

    places = [FeatureCache(tmp_path, LAYER, (2,), view, "float16") for view in (0, 1)]
    places[0].put(np.array([7, 8]), entry_version(2, 0.9), np.array([[1.0, 2.0], [3.0, 1 / 3]], np.float32))
    places[1].put(np.array([7, 9]), entry_version(3, 0.0), np.array([[5.0, 6.0], [7.0, 8.0]], np.float32))
    features, made, found = probe.stored(tmp_path, np.array([9, 8, 6, 7]), 2)
    assert found.tolist() == [True, True, False, True] and made[found].tolist() == [3, 2, 3]
    assert features[found].tolist() == [[7, 8], [3, float(np.float16(1 / 3))], [5, 6]]


def test_scores_are_means_over_clients_and_the_table_says_them(probe: ModuleType) -> None:
    def held(age: list[int]) -> object:
        return probe.Held(flat(*[0.5] * len(age)), np.zeros(len(age), int), {}, np.array(age))

    victims = [held([0, 2]), held([0])]
    row = probe.score("decoder of cached", "cached", victims, [flat(0.6, 0.51), flat(1.0)])
    # errors of 0.1, 0.01 and 0.5: 20, 40 and 6.02 dB; the client with two images counts as much as the other
    assert row["psnr_by_client"] == pytest.approx([30.0, 6.0206], abs=1e-3) and row["psnr"] == pytest.approx(18.0103, abs=1e-3)
    assert row["psnr_older"] == pytest.approx(40.0, abs=1e-3)
    assert probe.score("", "", [held([0])], [flat(0.5)])["psnr_older"] is None
    rows = [row | {"decoder": probe.CLASS_MEAN, "features": "the label", "psnr": 17.0, "ssim": row["ssim"] - 0.25, "psnr_older": None}, row,
            row | {"decoder": "decoder of fresh", "features": "fresh", "psnr": 16.5}]
    images = {"attackers": 7, "victims": 3, "known": 6000, "attacked": 3000, "older_share": 0.25, "oldest": 4}
    told = probe.table({"rows": rows, "rounds": 8, "dim": 128, "seed": 0, "served": 0.5, "images": images})
    assert f"| decoder of cached | cached | 18.01 | 30.0, 6.0 | {row['ssim']:.3f} | 40.00 | {row['ssim_older']:.3f} |" in told
    assert "the label | 17.00 | 30.0, 6.0 |" in told and "| - | - |" in told
    assert "cached features gains +1.01 dB and +0.250 SSIM, one of fresh features -0.50 dB and +0.250 SSIM" in " ".join(told.split())


@pytest.mark.slow
def test_the_whole_probe_on_a_few_images(probe: ModuleType, tmp_path: Path) -> None:
    rng = np.random.default_rng(2)
    images = rng.integers(0, 256, (100, 1, 1, 3)) * rng.uniform(0.5, 1, (100, 32, 32, 1))
    np.savez(tmp_path / "few.npz", x_train=images.astype(np.uint8), y_train=np.repeat(range(2), 50), class_names=["a", "b"])
    fit = probe.Fit(epochs=1, channels=4)
    changed = {"clients": 4, "width": 4, "partition": "iid", "fed-cache.confidence-low": 0.5}
    result = probe.probe(tmp_path / "few.npz", 0, 3, fit, tmp_path, changed)
    # of 25 images a client keeps 6 for scoring; every training image has a cached feature
    assert result["images"] | {"known": 0, "attacked": 0, "older_share": 0, "oldest": 0} == {
        "attackers": 1, "victims": 3, "known": 0, "attacked": 0, "older_share": 0, "oldest": 0}
    assert result["images"]["known"] + result["images"]["attacked"] == 4 * 19 and result["dim"] == 32
    assert 0 < result["images"]["older_share"] < 1 and 1 <= result["images"]["oldest"] <= 2
    of = {(row["decoder"], row["features"]): row for row in result["rows"]}
    assert len(of) == 2 + len(probe.ATTACKS) and all(len(row["psnr_by_client"]) == 3 for row in of.values())
    fresh, half = of["decoder of fresh", "fresh"], of["decoder of fresh", probe.HALF]
    assert fresh["psnr"] == pytest.approx(half["psnr"], abs=0.05) and fresh != half


def test_the_cut_is_the_input_of_the_last_block(probe: ModuleType) -> None:
    import torch

    from models import build_model

    model = build_model("cnn", 10, (3, 32, 32), width=4).eval()
    x = torch.rand(2, 3, 32, 32)
    with torch.inference_mode():
        cut = probe._cut(model).encoder.eval()(x)
        assert cut.shape == (2, 16 * 4 * 4)
        last = torch.nn.Sequential(*list(model.encoder.children())[probe.BLOCKS_BEFORE_THE_LAST:])
        assert torch.equal(last(cut.reshape(2, 16, 4, 4)), model.encoder(x))
