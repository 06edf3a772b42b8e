"""Backbones: by name, from a folder, from the packed file, as twins; what is wrong with a file is said without its path."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest
import timm
import torch
from safetensors.torch import save_file
from timm.layers.pos_embed import resample_abs_pos_embed
from torch import nn

from models.backbones import PACKED, TWINS, expected_files, load_backbone, normalisation, prepare
from models.prompt_config import PromptConfig
from models.prompted_vit import PromptedViT

NAME = "vit_tiny_patch16_224"
CLIP = "vit_base_patch16_clip_quickgelu_224"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with timm's real vit_tiny, 5.7 M random weights and a head of 7 classes, in both formats under two names."""
    place = tmp_path_factory.mktemp("weights")
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(0)
        weights = timm.create_model(NAME, pretrained=False, num_classes=7).state_dict()
    save_file(weights, place / f"{NAME}.safetensors")
    torch.save(weights, place / f"{NAME}.augreg_in21k.pth")
    return place


def positions(vit: nn.Module) -> torch.Tensor:
    return vit.state_dict()["pos_embed"]


@pytest.mark.parametrize("name", TWINS)
def test_twins_follow_their_seed_are_frozen_and_see_the_image(name: str) -> None:
    torch.manual_seed(11)
    expected_next = torch.rand(3)
    torch.manual_seed(11)
    first = load_backbone(name, image_size=32, seed=5)
    assert torch.equal(torch.rand(3), expected_next)
    again, other = load_backbone(name, image_size=32, seed=5), load_backbone(name, image_size=32, seed=6)
    assert all(torch.equal(a, b) for a, b in zip(first.parameters(), again.parameters(), strict=True))
    assert not torch.equal(positions(first), positions(other))
    assert not first.training and not any(p.requires_grad for p in first.parameters())
    assert 4 <= len(first.blocks) <= 12 and 32 <= first.embed_dim <= 64
    features = first(torch.randn(8, 3, 32, 32))
    assert features.shape == (8, first.embed_dim)
    # normalised features have size 1 a number; images of noise move them by a good part of that
    assert features.std(dim=0).mean() > 0.05


@pytest.mark.parametrize(("size", "tokens"), [(16, 2), (32, 5), (48, 10), (64, 17), (96, 37), (224, 197)])
def test_position_embeddings_are_resampled_by_timm(size: int, tokens: int) -> None:
    native, resized = load_backbone("clip-tiny-random"), load_backbone("clip-tiny-random", image_size=size)
    side = size // 16
    expected = resample_abs_pos_embed(positions(native), [side, side], [14, 14], num_prefix_tokens=1)
    assert positions(resized).shape == (1, tokens, 64) and torch.equal(positions(resized), expected)
    assert resized.forward_features(torch.zeros(1, 3, size, size)).shape == (1, tokens, 64)
    assert all(torch.equal(a, b) for name, a in native.state_dict().items() if name != "pos_embed" for b in [resized.state_dict()[name]])


@pytest.mark.parametrize("name", [NAME, f"{NAME}.augreg_in21k"])
def test_a_folder_gives_the_files_weights_without_its_head(folder: Path, name: str) -> None:
    vit = load_backbone(name, str(folder), image_size=32)
    saved = torch.load(folder / f"{NAME}.augreg_in21k.pth", weights_only=True)
    got = vit.state_dict()
    assert saved.keys() - got.keys() == {"head.weight", "head.bias"}
    assert all(torch.equal(got[key], saved[key]) for key in got if key != "pos_embed")
    assert vit.num_classes == 0 and vit(torch.zeros(2, 3, 32, 32)).shape == (2, 192)
    assert load_backbone(name, str(folder), image_size=32, keep_head=True)(torch.zeros(2, 3, 32, 32)).shape == (2, 7)


def test_packed_weights_are_multiplied_out(tmp_path: Path, folder: Path) -> None:
    weights = dict(torch.load(folder / f"{NAME}.augreg_in21k.pth", weights_only=True))
    q = torch.arange(-3, 3, dtype=torch.int8).repeat(192 * 768 // 6).reshape(192, 768)
    scale = torch.linspace(0.5, 2, 192)
    key = "blocks.0.mlp.fc2.weight"
    del weights[key]
    weights = {name: tensor.half() for name, tensor in weights.items()} | {f"{key}.q": q, f"{key}.s": scale}
    save_file(weights, tmp_path / f"{NAME}.safetensors")
    vit = load_backbone(NAME, str(tmp_path))
    got = vit.get_parameter(key)
    assert got[0, :3].tolist() == [-1.5, -1.0, -0.5] and got[191, :6].tolist() == [-6.0, -4.0, -2.0, 0.0, 2.0, 4.0]
    assert torch.equal(got, q.float() * scale[:, None])
    assert {p.dtype for p in vit.parameters()} == {torch.float32}
    assert torch.equal(vit.state_dict()["norm.weight"], weights["norm.weight"].float())


def test_bf16_halves_the_weights_of_layers_and_nothing_else() -> None:
    vit = load_backbone("clip-tiny-random", image_size=32, precision="bf16", keep_head=True)
    full = load_backbone("clip-tiny-random", image_size=32, keep_head=True)
    halved = {name for name, p in vit.named_parameters() if p.dtype == torch.bfloat16}
    layers = {f"{name}.{kind}" for name, layer in full.named_modules() if isinstance(layer, nn.Linear | nn.Conv2d)
              for kind, _ in layer.named_parameters()}
    assert halved == layers and "head.weight" in halved and "pos_embed" not in halved and "blocks.0.norm1.weight" not in halved
    assert all(torch.equal(p.float(), full.get_parameter(name).to(p.dtype).float()) for name, p in vit.named_parameters())


def test_few_tokens_in_bf16_go_around_the_fused_kernel_and_stay_what_they_were() -> None:
    plain, exact = load_backbone("clip-tiny-random", image_size=48, precision="bf16"), load_backbone("clip-tiny-random", image_size=48)
    many = load_backbone("clip-tiny-random", image_size=224, precision="bf16")  # 196 patches
    assert [vit.blocks[0].attn.fused_attn for vit in (plain, exact, many)] == [False, True, True]
    images = torch.randn(4, 3, 48, 48, generator=torch.Generator().manual_seed(0))
    with torch.autocast("cpu", torch.bfloat16):
        got = plain(images)
        for block in plain.blocks:
            block.attn.fused_attn = True
        fused = plain(images)
    assert (got - fused).abs().max() < 0.02 * fused.abs().max()


def test_normalisation_is_the_backbones_own() -> None:
    assert normalisation(load_backbone("vit-tiny-random")) == ((0.5,) * 3, (0.5,) * 3)
    assert normalisation(load_backbone("clip-tiny-random")) == ((0.48145466, 0.4578275, 0.40821073), (0.26862954, 0.26130258, 0.27577711))
    assert normalisation(nn.Identity()) == ((0.5,) * 3, (0.5,) * 3)


def test_prepare_scales_normalises_resizes_and_spreads_one_channel() -> None:
    vit = load_backbone("vit-tiny-random", image_size=32)
    grey = torch.full((2, 1, 8, 8), 255, dtype=torch.uint8)
    assert torch.allclose(prepare(grey, vit), torch.ones(2, 3, 32, 32), rtol=0, atol=1e-6)
    assert torch.equal(prepare(torch.zeros(1, 3, 32, 32, dtype=torch.uint8), vit), -torch.ones(1, 3, 32, 32))
    clip = load_backbone("clip-tiny-random", image_size=32)
    pixel = prepare(torch.full((1, 3, 40, 40), 102, dtype=torch.uint8), clip)[0, :, 0, 0]  # 102 / 255 = .4
    assert pixel.tolist() == pytest.approx([(0.4 - m) / s for m, s in zip(*normalisation(clip), strict=True)], abs=1e-5)
    # a sharp edge overshoots in bicubic resizing; pixels stay pixels, floats are left as they come
    edge = torch.zeros(1, 3, 8, 8, dtype=torch.uint8)
    edge[..., 4:] = 255
    assert prepare(edge, vit).min() == -1 and prepare(edge, vit).max() == 1
    ready = torch.randn(1, 3, 32, 32)
    assert torch.equal(prepare(ready, vit), ready)
    assert prepare(torch.full((1, 1, 8, 8), 3.0), vit).sub(3).abs().max() < 1e-5


def test_expected_file_names() -> None:
    assert expected_files(f"{NAME}.augreg_in21k") == (f"{NAME}.augreg_in21k.safetensors", f"{NAME}.augreg_in21k.pth")
    assert expected_files(CLIP)[-1] == expected_files(f"{CLIP}.openai")[-1] == "clip_vitb16_image_int8.safetensors"
    assert PACKED[CLIP] not in expected_files(f"{CLIP}.dfn2b")


def test_absent_weights_are_named_without_a_path(tmp_path: Path) -> None:
    for place in (tmp_path, tmp_path / "nowhere"):
        with pytest.raises(ValueError, match=f"must hold {CLIP}.safetensors or {CLIP}.pth or clip_vitb16_image_int8.safetensors") as error:
            load_backbone(CLIP, str(place))
        assert str(tmp_path) not in str(error.value)
    with pytest.raises(ValueError, match=f"for the backbone {CLIP}, and is no folder; put"):
        load_backbone(CLIP, str(tmp_path / "nowhere"))
    (tmp_path / PACKED[CLIP]).touch()
    with pytest.raises(ValueError, match=f"for the backbone {NAME}, and holds none .what it holds is for model = {CLIP}.; put"):
        load_backbone(NAME, str(tmp_path))


def test_a_hub_out_of_reach_is_explained(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[tuple[str, bool]] = []

    def offline(name: str, pretrained: bool) -> nn.Module:
        asked.append((name, pretrained))
        raise OSError("no route to /secret/place")

    monkeypatch.setattr(timm, "create_model", offline)
    with pytest.raises(ValueError, match=rf"hub \(OSError\). Go online, or put {NAME}.safetensors or .* as weights-dir") as error:
        load_backbone(NAME)
    assert asked == [(NAME, True)] and "secret" not in str(error.value)


@pytest.mark.parametrize(("damage", "message"), [
    ("garbage", r"safetensors cannot be read as a file of weights \(\w+\)"),
    ("missing", "must hold exactly the 152 tensors of timm's .* 1 are missing, unknown or of another shape, such as norm.bias"),
    ("renamed", "2 are missing, unknown or of another shape, such as norm.bias"),
    ("shape", "1 are missing, unknown or of another shape, such as norm.bias"),
    ("nan", "must hold finite numbers; 1 tensors do not, such as norm.bias"),
    ("unscaled", r"cannot be read as a file of weights \(KeyError\)"),
])
def test_damaged_files_are_refused(tmp_path: Path, folder: Path, damage: str, message: str) -> None:
    weights = dict(torch.load(folder / f"{NAME}.augreg_in21k.pth", weights_only=True))
    bias = weights.pop("norm.bias")
    weights |= {"garbage": {}, "missing": {}, "renamed": {"normal.bias": bias}, "shape": {"norm.bias": bias[1:].clone()},
                "nan": {"norm.bias": bias * torch.nan}, "unscaled": {"norm.bias": bias, "head.bias.q": bias.clone()}}[damage]
    file = tmp_path / f"{NAME}.safetensors"
    save_file(weights, file)
    if damage == "garbage":
        file.write_bytes(b"not a file of weights")
    with pytest.raises(ValueError, match=message) as error:
        load_backbone(NAME, str(tmp_path))
    assert str(tmp_path) not in str(error.value)


def test_a_pickle_that_runs_code_is_refused(tmp_path: Path) -> None:
    torch.save({"norm.weight": Path}, tmp_path / f"{NAME}.pth")
    with pytest.raises(ValueError, match="pth cannot be read as a file of weights") as error:
        load_backbone(NAME, str(tmp_path))
    assert "weights_only=True blocked" in str(error.value.__cause__)


def test_unusable_requests_are_explained(tmp_path: Path) -> None:
    twins = "vit-tiny-random, clip-tiny-random"
    with pytest.raises(ValueError, match=f"or one of {twins}; got 'vit_tiny_pach16_224'; did you mean '{NAME}'"):
        load_backbone("vit_tiny_pach16_224")
    with pytest.raises(ValueError, match="did you mean 'vit-tiny-random'"):
        load_backbone("vit-tiny-randm", str(tmp_path))
    with pytest.raises(ValueError, match="precision must be one of float32, bf16; got 'fp8'"):
        load_backbone("vit-tiny-random", precision="fp8")
    for size, near in ((40, 32), (8, 16), (0, 16)):
        with pytest.raises(ValueError, match=f"multiple of the backbone's patch of 16 pixels, such as {near}; got {size}"):
            load_backbone("vit-tiny-random", image_size=size)
    weights = timm.create_model("resnet10t", pretrained=False, num_classes=0).state_dict()
    save_file(weights, tmp_path / "resnet10t.safetensors")
    with pytest.raises(ValueError, match="must be one of timm's VisionTransformer models, .*; resnet10t is a ResNet"):
        load_backbone("resnet10t", str(tmp_path))


@pytest.mark.slow
@pytest.mark.skipif("FEDHEARTH_WEIGHTS" not in os.environ, reason="FEDHEARTH_WEIGHTS names the folder with the CLIP file")
def test_the_real_clip_tower_loads_strictly_and_sees_classes() -> None:
    vit = load_backbone(CLIP, os.environ["FEDHEARTH_WEIGHTS"], image_size=48, keep_head=True)
    assert sum(p.numel() for p in vit.parameters()) == pytest.approx(86.2e6, rel=0.01)
    assert positions(vit).shape == (1, 10, 768) and vit.head.weight.shape == (512, 768)
    half = load_backbone(CLIP, os.environ["FEDHEARTH_WEIGHTS"], image_size=48, precision="bf16")
    x = torch.randn(4, 3, 48, 48, generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        plain = vit.forward_head(vit.forward_features(x), pre_logits=True)
        close = PromptedViT(half, 3, PromptConfig(shared_tokens=0, class_layers=())).features(x)
    # METHODS 4.7: the normalised CLS token has norm 22
    assert plain.norm(dim=1).mean() == pytest.approx(22, rel=0.2)
    assert float((close - plain).norm() / plain.norm()) < 0.04
    if "FEDHEARTH_DATA" in os.environ:
        _nearest_prototypes_find_classes(half)


def _nearest_prototypes_find_classes(half: nn.Module) -> None:
    """CLS tokens at layers 5 to 7 of 400 CIFAR images tell classes apart: .32 to .39 in the pilot, chance .10 (METHODS 4.7)."""
    model = PromptedViT(half, 10, PromptConfig())  # type: ignore[arg-type]
    with np.load(Path(os.environ["FEDHEARTH_DATA"]) / "cifar10_sub12k.npz") as data:
        x = torch.from_numpy(data["x_train"][:600]).permute(0, 3, 1, 2)
        y = torch.from_numpy(data["y_train"][:600].astype(np.int64))
    tokens = torch.cat([model.class_tokens(prepare(part, model.vit), mixed=False) for part in x.split(100)], dim=1)  # (P, n, D)
    for layer in tokens:
        means = torch.stack([layer[:400][y[:400] == c].mean(0) for c in range(10)])
        centre = means.mean(0)
        cosines = nn.functional.normalize(layer[400:] - centre) @ nn.functional.normalize(means - centre).T
        assert 0.2 < float((cosines.argmax(1) == y[400:]).float().mean()) < 0.6
