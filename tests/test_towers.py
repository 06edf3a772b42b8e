"""Text and image towers: parity with plain forwards, prompts in their place, real loading with tiny weights, and what is refused."""

from __future__ import annotations

import importlib.util
import json
import os
from pathlib import Path

import numpy as np
import pytest
import torch
from torch.nn.functional import normalize

from models import sentence_tower
from models.backbones import load_backbone, prepare
from models.open_clip_towers import OpenClipImage, OpenClipText, load_open_clip
from models.sentence_tower import BRIDGE, MINILM, SentenceText, Size, Vocabulary, _from_bert
from models.split import ModelError
from models.towers import ImageFeatures, empty_text_tower, load_image_tower, load_text_tower
from tests.naive.prompted_clip import bert_mean

NAMES = ("dog", "fire_truck", "a rather long class name")
TEXTS = ("text-tiny-random", "open_clip:tiny-random")


def tiny_bert(seed: int = 0) -> dict[str, torch.Tensor]:
    """A BERT of 2 layers, 4 heads, width 16 and 20 words under its published names, with a pooler that nobody reads."""
    generator = torch.Generator().manual_seed(seed)
    shapes = {"embeddings.word_embeddings.weight": (20, 16), "embeddings.position_embeddings.weight": (9, 16),
              "embeddings.token_type_embeddings.weight": (2, 16), "pooler.dense.weight": (16, 16)}
    for at, inner, outer in [("embeddings.LayerNorm", 16, 0)] + [
        (f"encoder.layer.{i}.{name}", inner, outer) for i in range(2) for name, inner, outer in (
            ("attention.self.query", 16, 16), ("attention.self.key", 16, 16), ("attention.self.value", 16, 16),
            ("attention.output.dense", 16, 16), ("attention.output.LayerNorm", 16, 0), ("intermediate.dense", 24, 16),
            ("output.dense", 16, 24), ("output.LayerNorm", 16, 0))]:
        shapes |= {f"{at}.weight": (inner, outer) if outer else (inner,), f"{at}.bias": (inner,)}
    return {name: torch.randn(shape, generator=generator) * 0.5 for name, shape in shapes.items()}


def tower_of(bert: dict[str, torch.Tensor]) -> SentenceText:
    known = Vocabulary(lambda text: [4 + ord(letter) % 16 for letter in text if letter != " "], 1, 2, 3)
    tower = SentenceText(known, Size(20, 9, 16, 2, 4, 24, 8))
    bridge = {name: torch.randn(tensor.shape, generator=torch.Generator().manual_seed(len(name)))
              for name, tensor in tower.state_dict().items() if name in sentence_tower.BRIDGE_NAMES}
    tower.load_state_dict(_from_bert(bert, 2) | bridge)
    return tower


def test_a_sentence_tower_is_the_bert_of_its_file_then_the_bridge() -> None:
    bert = tiny_bert()
    tower = tower_of(bert)
    features = tower(tower.embed("xy"), tower.tokens(["a", "bcd"], 2))
    for place, name in enumerate(("a", "bcd")):
        # the words "xy" stand where placeholders were; padding of the shorter name is not seen
        ids = [1, *tower.vocabulary.split("xy" + name + "."), 2]
        sentence = normalize(bert_mean(bert, ids, 2, 4), dim=0)
        expected = normalize((sentence - tower.mean) @ tower.bridge + tower.target_mean, dim=0)
        torch.testing.assert_close(features[place], expected, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("name", TEXTS)
def test_features_are_unit_batched_and_differentiable_in_the_prompt_alone(name: str) -> None:
    tower = load_text_tower(name)
    tokens = tower.tokens(NAMES, 4)
    assert len(tokens) == 3 and tower.embed("a photo of a").shape == (4, tower.width)
    prompts = (tower.embed("a photo of a") + torch.randn(2, 5, 4, tower.width) * tower.prompt_std).requires_grad_()
    features = tower(prompts, tokens)
    assert features.shape == (2, 5, 3, tower.dim) and features.dtype == torch.float32
    torch.testing.assert_close(features.norm(dim=3), torch.ones(2, 5, 3))
    torch.testing.assert_close(features[1, 2], tower(prompts[1, 2], tokens), atol=1e-5, rtol=1e-5)
    features[0, 0, 1].sum().backward()
    assert prompts.grad is not None and prompts.grad[0, 0].ne(0).any() and prompts.grad[0, 1:].eq(0).all()
    assert not any(p.requires_grad for p in tower.parameters()) and not tower.train().training  # type: ignore[attr-defined]
    # classes and prompts matter
    assert features[0, 0].detach().std(dim=0).max() > 0.01 and features[:, :, 0].detach().std(dim=1).max() > 1e-4


@pytest.mark.parametrize("name", TEXTS)
def test_a_twin_follows_its_seed_and_leaves_the_global_one_alone(name: str) -> None:
    torch.manual_seed(5)
    expected_next = torch.rand(3)
    torch.manual_seed(5)
    first, again, other = (load_text_tower(name, seed=seed) for seed in (1, 1, 2))
    assert torch.equal(torch.rand(3), expected_next)
    words = [tower.embed("a photo") for tower in (first, again, other)]
    assert torch.equal(words[0], words[1]) and not torch.equal(words[0], words[2])


@pytest.mark.parametrize("name", TEXTS)
def test_an_empty_tower_has_the_sizes_of_the_full_one(name: str) -> None:
    full, empty = load_text_tower(name), empty_text_tower(name)
    assert (empty.width, empty.dim, empty.prompt_std) == (full.width, full.dim, full.prompt_std)
    assert empty(torch.ones(2, 4, 32), empty.tokens(NAMES, 4)).shape == full(torch.ones(2, 4, 32), full.tokens(NAMES, 4)).shape
    real = empty_text_tower("open_clip:ViT-B-16@openai")
    assert (real.width, real.dim) == (512, 512) and empty_text_tower("minilm-bridge").width == 384
    with pytest.raises(ModelError, match="is not in its configuration"):
        empty_text_tower("open_clip:xlm-roberta-base-ViT-B-32")


def test_the_twins_fit_each_other() -> None:
    image = load_image_tower("clip-tiny-random", image_size=32)
    assert image.dim == load_text_tower("text-tiny-random").dim == load_image_tower("open_clip:tiny-random").dim == 32


def test_words_as_a_prompt_give_open_clips_own_text_features() -> None:
    model = load_open_clip("tiny-random")
    tower = OpenClipText(model, "tiny-random")
    features = tower(tower.embed("a photo of a"), tower.tokens(NAMES, 4))
    texts = tower.tokenizer([f"a photo of a {name.replace('_', ' ')}." for name in NAMES])
    torch.testing.assert_close(features, model.encode_text(texts, normalize=True), atol=1e-6, rtol=1e-5)
    assert tower.cuts and tower.logit_scale == pytest.approx(100, rel=1e-5)
    tower.cuts = False  # the way for text encoders that cannot be cut short
    torch.testing.assert_close(tower(tower.embed("a photo of a"), tower.tokens(NAMES, 4)), features, atol=1e-6, rtol=1e-5)


def test_a_custom_text_encoder_of_open_clip_serves_too() -> None:
    from open_clip.model import CLIPTextCfg, CLIPVisionCfg, CustomTextCLIP

    # CoCa's kind: a class token of its own, read behind the text
    for extra in ({}, {"embed_cls": True, "pad_id": 0}, {"no_causal_mask": True, "pool_type": "last"}):
        vision = CLIPVisionCfg(layers=1, width=32, head_width=16, patch_size=16, image_size=32)
        model = CustomTextCLIP(16, vision, CLIPTextCfg(width=32, heads=4, layers=2, **extra)).eval()
        tower = OpenClipText(model, "tiny-random")
        assert tower.cuts == (not extra)
        features = tower(tower.embed("a photo of a"), tower.tokens(NAMES, 4))
        texts = tower.tokenizer([f"a photo of a {name.replace('_', ' ')}." for name in NAMES])
        torch.testing.assert_close(features, model.encode_text(texts, normalize=True), atol=1e-6, rtol=1e-5)


def test_open_clip_loads_a_real_file_by_name(tmp_path: Path) -> None:
    import open_clip
    from safetensors.torch import save_file

    size = {"embed_dim": 16, "vision_cfg": {"layers": 1, "width": 32, "head_width": 16, "patch_size": 16, "image_size": 32},
            "text_cfg": {"context_length": 77, "vocab_size": 49408, "width": 16, "heads": 2, "layers": 1}}
    (tmp_path / "ViT-of-a-test.json").write_text(json.dumps(size))
    open_clip.add_model_config(tmp_path / "ViT-of-a-test.json")
    torch.manual_seed(0)
    model = open_clip.create_model("ViT-of-a-test", require_pretrained=False).eval()
    with pytest.raises(ModelError, match="open_clip_ViT-of-a-test.safetensors or open_clip_ViT-of-a-test.pt"):
        load_text_tower("open_clip:ViT-of-a-test", str(tmp_path))
    file = tmp_path / "open_clip_ViT-of-a-test.safetensors"
    save_file(model.state_dict(), file)
    tower, image = load_text_tower("open_clip:ViT-of-a-test", str(tmp_path)), load_image_tower("open_clip:ViT-of-a-test", str(tmp_path))
    texts = open_clip.get_tokenizer("ViT-of-a-test")(["a photo of a dog."])
    torch.testing.assert_close(tower(tower.embed("a photo of a"), tower.tokens(["dog"], 4)), model.encode_text(texts, normalize=True),
                               atol=1e-6, rtol=1e-5)
    pixels = torch.randn(2, 3, 32, 32)
    torch.testing.assert_close(image(pixels).cls, model.encode_image(pixels, normalize=True), atol=1e-6, rtol=1e-5)
    file.write_bytes(b"no weights")
    with pytest.raises(ModelError, match="could not be loaded") as fault:
        load_text_tower("open_clip:ViT-of-a-test", str(tmp_path))
    assert str(tmp_path) not in str(fault.value)


@pytest.mark.parametrize("patches", ["projected", "value"])
def test_the_timm_tower_projects_every_token(patches: str) -> None:
    vit = load_backbone("clip-tiny-random", image_size=48, keep_head=True)
    tower, images = load_image_tower("clip-tiny-random", image_size=48), torch.randint(0, 256, (3, 3, 48, 48), dtype=torch.uint8)
    found, pixels = tower(images, patches), prepare(images, vit)
    assert found.patches is not None and found.patches.shape == (3, 9, 32)
    torch.testing.assert_close(found.cls, normalize(vit(pixels), dim=1))
    if patches == "projected":
        tokens = vit.forward_features(pixels)
    else:
        block, x = vit.blocks[-1], vit.norm_pre(vit._pos_embed(vit.patch_embed(pixels)))
        for earlier in vit.blocks[:-1]:
            x = earlier(x)
        value = torch.nn.functional.linear(block.norm1(x), block.attn.qkv.weight[128:], block.attn.qkv.bias[128:])
        tokens = vit.norm(block.attn.proj(value))
    torch.testing.assert_close(found.patches, normalize(vit.head(tokens[:, 1:]), dim=2))
    assert found.cls.norm(dim=1).min() > 0.99 and found.patches.std(dim=1).mean() > 0.01
    assert not vit.blocks[-1].attn._forward_pre_hooks and not found.cls.requires_grad


def test_value_patches_see_only_their_own_place_in_the_last_block() -> None:
    vit = load_backbone("clip-tiny-random", image_size=48, keep_head=True)
    vit.blocks = vit.blocks[-1:]  # one block alone
    from models.image_tower import TimmImage

    tower, images = TimmImage(vit), torch.randn(1, 3, 48, 48)
    changed = images.clone()
    changed[:, :, :16, :16] += 1  # the first patch
    for patches, others in (("value", True), ("projected", False)):
        before, after = tower(images, patches).patches, tower(changed, patches).patches
        assert before is not None and after is not None and not torch.equal(before[:, 0], after[:, 0])
        assert torch.equal(before[:, 1:], after[:, 1:]) == others


@pytest.mark.parametrize("patches", ["projected", "value"])
def test_the_open_clip_tower_projects_every_token(patches: str) -> None:
    model = load_open_clip("tiny-random")
    tower, images = OpenClipImage(model), torch.randint(0, 256, (3, 1, 40, 40), dtype=torch.uint8)
    found, visual = tower(images, patches), model.visual
    pixels = tower._prepare(images)
    assert pixels.shape == (3, 3, 32, 32) and found.patches is not None and found.patches.shape == (3, 4, 32)
    torch.testing.assert_close(found.cls, model.encode_image(pixels, normalize=True))
    x = visual._embeds(pixels)
    block = visual.transformer.resblocks[-1]
    before = visual.transformer.resblocks[0](x)
    if patches == "projected":
        tokens = block(before)
    else:  # attention that looks nowhere but at the token itself
        tokens = torch.stack([block.attn(*[block.ln_1(before)[:, m : m + 1]] * 3)[0][:, 0] for m in range(5)], dim=1)
    torch.testing.assert_close(found.patches, normalize(visual.ln_post(tokens)[:, 1:] @ visual.proj, dim=2), atol=1e-6, rtol=1e-5)


def test_features_are_cut_by_rows() -> None:
    features = ImageFeatures(torch.arange(6.0).reshape(3, 2), torch.arange(12.0).reshape(3, 2, 2))
    some = features[torch.tensor([2, 0])]
    assert some.cls.tolist() == [[4, 5], [0, 1]] and some.patches is not None and some.patches[0].tolist() == [[8, 9], [10, 11]]
    assert len(some) == 2 and some.evidence is None and features[1:].patches is not None and ImageFeatures(features.cls)[:1].patches is None


@pytest.mark.parametrize(("call", "says"), [
    (lambda: load_text_tower("minilm"), "did you mean 'minilm-bridge'"),
    (lambda: load_text_tower("open_clip:ViT-B-61"), "such as ViT-B-16"),
    (lambda: load_text_tower("open_clip:ViT-B-16"), "open_clip:ViT-B-16@openai"),
    (lambda: load_image_tower("vit-tiny-random"), "projection as its head"),
    (lambda: load_image_tower("clip-tiny-random", image_size=32)(torch.zeros(1, 3, 32, 32), "token"), "projected, value"),
    (lambda: tower_of(tiny_bert()).tokens(["abcdefgh"], 2), "must fit in 9 tokens, got 13, 2 of them of the prompt"),
])
def test_what_cannot_be_is_refused(call: object, says: str) -> None:
    with pytest.raises(ModelError, match=says):
        call()  # type: ignore[operator]


def test_minilm_says_which_files_it_wants_without_a_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sentence_tower, "PACKAGE", "no_such_package")
    for folder in ("", str(tmp_path)):
        with pytest.raises(ModelError, match=f"{BRIDGE} in weights-dir, and {MINILM[0]}") as fault:
            load_text_tower("minilm-bridge", folder)
        assert str(tmp_path) not in str(fault.value)


def real_tower() -> SentenceText:
    weights = os.environ.get("FEDHEARTH_WEIGHTS", "")
    if not weights or importlib.util.find_spec("tokenizers") is None:
        pytest.skip("needs FEDHEARTH_WEIGHTS and the package tokenizers")
    try:
        return sentence_tower.minilm_bridge(weights)
    except ModelError as fault:
        pytest.skip(str(fault))


def test_the_real_sentence_tower_is_the_bert_of_its_file() -> None:
    from safetensors.torch import load_file

    tower = real_tower()
    bert = load_file(sentence_tower._minilm_files(os.environ["FEDHEARTH_WEIGHTS"])[0])
    sentences = []
    for text in ("cat", "kitten", "stock report"):
        ids = [tower.vocabulary.start, *tower.vocabulary.split(text), tower.vocabulary.end]
        found = tower.pooled(tower.words(torch.tensor(ids))[None], torch.ones(1, len(ids), dtype=torch.bool))[0]
        torch.testing.assert_close(found, bert_mean(bert, ids, 6, 12), atol=1e-5, rtol=1e-4)
        sentences.append(normalize(found, dim=0))
    assert sentences[0] @ sentences[1] > 0.75 > 0.2 > sentences[0] @ sentences[2]


@pytest.mark.slow
def test_zero_shot_on_pacs_with_real_towers() -> None:
    import io

    from PIL import Image

    tower, data = real_tower(), Path(os.environ.get("FEDHEARTH_DATA", "")) / "pacs96_jpegbytes.npz"
    if not data.is_file():
        pytest.skip("needs FEDHEARTH_DATA with pacs96_jpegbytes.npz")
    held = np.load(data)
    blob, offsets, chosen = held["blob"].tobytes(), held["offsets"], np.random.default_rng(0).permutation(len(held["labels"]))[:200]
    images = np.stack([np.asarray(Image.open(io.BytesIO(blob[offsets[i] : offsets[i + 1]])).convert("RGB")) for i in chosen])
    vision = load_image_tower("vit_base_patch16_clip_quickgelu_224", os.environ["FEDHEARTH_WEIGHTS"], 224, precision="bf16")
    batches = torch.from_numpy(images).permute(0, 3, 1, 2).split(20)
    cls = torch.cat([vision(batch).cls for batch in batches])
    names = [str(name) for name in held["class_names"]]
    text = tower(tower.embed("a photo of a"), tower.tokens(names, 4))
    assert ((cls @ text.T).argmax(dim=1).numpy() == held["labels"][chosen]).mean() > 0.85
