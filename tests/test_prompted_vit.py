"""The prompted ViT against loops over single tokens, against plain timm, and in its degenerate cases."""

from __future__ import annotations

import copy
import math
from functools import cache
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from timm.models.vision_transformer import VisionTransformer
from torch.nn.functional import cross_entropy

from models.backbones import load_backbone
from models.class_mixture import mixture_weights
from models.prompt_config import PromptConfig
from models.prompted_vit import PARTS, PromptedViT
from tests.naive import prompted_vit as naive

NO_PROMPTS = PromptConfig(shared_tokens=0, class_layers=())
# ways a timm ViT can differ in front of its blocks: CLIP's first norm, register tokens, no position for the class token
VARIANTS: dict[str, dict[str, Any]] = {"plain": {}, "clip": {"pre_norm": True, "act_layer": "quick_gelu"},
                                       "registers": {"reg_tokens": 2, "no_embed_class": True}, "fc_norm": {"fc_norm": True}}


def tiny(variant: str = "plain", depth: int = 4) -> VisionTransformer:
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(3)
        return VisionTransformer(img_size=8, patch_size=4, embed_dim=8, depth=depth, num_heads=2, num_classes=0, weight_init="jax",
                                 **VARIANTS[variant]).eval()


@cache
def twin(size: int = 32, name: str = "vit-tiny-random") -> VisionTransformer:
    return load_backbone(name, image_size=size, seed=1)


def filled(vit: VisionTransformer, config: PromptConfig, classes: int = 3, empty: int | None = None) -> PromptedViT:
    """A model whose every trained number and prototype is random, and large enough to matter."""
    model, generator = PromptedViT(vit, classes, config), torch.Generator().manual_seed(7)
    with torch.no_grad():
        for tensor in (*model.parameters(), model.prototypes):
            if tensor is model.prototypes or tensor.requires_grad:
                tensor.copy_(torch.randn(tensor.shape, generator=generator))
    if empty is not None:
        model.prototypes[:, empty] = 0
    return model.eval()


def images(n: int, vit: VisionTransformer) -> torch.Tensor:
    return torch.randn(n, 3, *vit.patch_embed.img_size, generator=torch.Generator().manual_seed(5))


BASE: dict[str, Any] = {"shared_tokens": 2, "class_layers": (2, 3)}
CASES: list[tuple[str, dict[str, Any]]] = [
    ("plain", {}), ("clip", {}), ("registers", {}),
    ("plain", {"handling": "append"}), ("plain", {"cosine": "raw", "tau": 0.05}), ("plain", {"score": "scaled"}),
    ("plain", {"score": "prior"}), ("plain", {"score": "cosine"}), ("plain", {"use": "shared"}), ("plain", {"use": "class"}),
    ("plain", {"shared_layers": (1, 2, 3, 4), "use": "shared"}),
    ("registers", {"shared_layers": (1, 3, 4), "handling": "append"}), ("clip", {"shared_layers": (2,), "class_layers": (1, 4)}),
]


@pytest.mark.parametrize(("variant", "change"), CASES)
@pytest.mark.parametrize("empty", [None, 1])
def test_equals_loops_over_samples_tokens_and_heads(variant: str, change: dict[str, Any], empty: int | None) -> None:
    model = filled(tiny(variant), PromptConfig(**(BASE | change)), empty=empty)
    prior = [0.2, 0.7, 0.1]
    model.set_prior(np.array(prior))
    x = images(2, model.vit)
    got = model.trace(x)
    for i, image in enumerate(x):
        logits, cls, weights = naive.trace(model, image, prior)
        assert torch.allclose(got.logits[i].double(), logits, rtol=0, atol=1e-5)
        assert len(cls) == len(got.cls) == len(got.mixtures) == len(model.config.class_at)
        for place, (token, s) in enumerate(zip(cls, weights, strict=True)):
            assert torch.allclose(got.cls[place, i].double(), token, rtol=0, atol=1e-5)
            assert torch.allclose(got.mixtures[place, i].double(), torch.tensor(s, dtype=torch.double), rtol=0, atol=1e-5)
    assert got.logits.abs().max() > 0.5 and got.logits.std(dim=0).max() > 1e-2


@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize("config", [NO_PROMPTS, PromptConfig(use="class", class_layers=()), PromptConfig(use="shared", shared_tokens=0)])
def test_without_prompts_it_is_the_plain_backbone_to_the_bit(variant: str, config: PromptConfig) -> None:
    model, x = PromptedViT(tiny(variant), 3, config), images(3, tiny(variant))
    with torch.no_grad():
        plain = model.vit.forward_head(model.vit.forward_features(x), pre_logits=True)
        assert torch.equal(model.features(x), plain)
    assert list(model.trainable()) == ["head"] and model.tensors("prompts") == {}
    assert model.trace(x).cls.shape == (0, 3, 8) and model.trace(x).mixtures.shape == (0, 3, 3)


def test_cls_tokens_are_those_of_plain_timm_before_any_prompt() -> None:
    model = filled(twin(), PromptConfig(shared_tokens=0))
    x = images(4, model.vit)
    with torch.no_grad():
        taken: Any = model.vit.forward_intermediates(x, indices=[3, 4, 5], return_prefix_tokens=True, intermediates_only=True)
    plain = [prefix[:, 0] for _, prefix in taken]
    unmixed, mixed, trace = model.class_tokens(x, mixed=False), model.class_tokens(x), model.trace(x)
    assert all(torch.equal(a, b) for a, b in zip(unmixed, plain, strict=True))
    assert torch.equal(mixed, trace.cls) and torch.equal(mixed[0], unmixed[0])
    assert (mixed[1] - unmixed[1]).abs().max() > 1e-3


def test_class_tokens_stop_at_the_last_chosen_layer() -> None:
    model, reached = PromptedViT(tiny(depth=6), 2, PromptConfig(class_layers=(2, 4))), []
    for number, block in enumerate(model.vit.blocks, start=1):
        block.register_forward_hook(lambda *_, number=number: reached.append(number))
    model.class_tokens(images(2, model.vit))
    assert reached == [1, 2, 3]


@pytest.mark.parametrize(("size", "patches"), [(32, 4), (48, 9), (64, 16), (224, 196)])
@pytest.mark.parametrize("handling", ["replace", "append"])
def test_token_counts(size: int, patches: int, handling: str) -> None:
    model = PromptedViT(copy.deepcopy(twin(size)), 3, PromptConfig(shared_tokens=2, handling=handling))
    counts: list[int] = []
    for block in model.vit.blocks:
        block.register_forward_pre_hook(lambda _, inputs: counts.append(inputs[0].shape[1]))
    model(images(1, model.vit))
    more = [0, 0, 0, 0, 1, 1, 1, 0] if handling == "replace" else [0, 0, 0, 0, 1, 2, 3, 3]
    assert counts == [1 + 2 + patches + m for m in more]


def test_deep_prompts_replace_each_other() -> None:
    model, counts = PromptedViT(tiny(), 2, PromptConfig(shared_tokens=3, shared_layers=(1, 2, 3, 4), use="shared")), []
    for block in model.vit.blocks:
        block.register_forward_pre_hook(lambda _, inputs: counts.append(inputs[0].shape[1]))
    model(images(1, model.vit))
    assert counts == [1 + 3 + 4] * 4
    # FedVPT-D's 12 layers of one token: 12 x 768 numbers; FedVPT's ten tokens at one layer: 7,680
    assert model.tensors("prompts")["shared"].shape == (4, 3, 8)


def test_flat_prior_and_equal_prototypes_mix_uniformly() -> None:
    for cosine in ("centred", "raw"):
        model = filled(twin(), PromptConfig(cosine=cosine), classes=4)
        model.prototypes.copy_(model.prototypes[:, :1].expand_as(model.prototypes).clone())
        x = images(3, model.vit)
        s = model.trace(x).mixtures
        assert torch.allclose(s, torch.full_like(s, 0.25), rtol=0, atol=1e-6)
        model.set_prior(np.array([0.1, 0.2, 0.3, 0.4]))
        s = model.trace(x).mixtures
        assert torch.allclose(s, torch.tensor([0.1, 0.2, 0.3, 0.4]).expand_as(s), rtol=0, atol=1e-6)
        # a mixture of equal class prompts is that prompt, whatever s
        with torch.no_grad():
            model.classes.copy_(model.classes[:1].expand_as(model.classes).clone())  # type: ignore[union-attr]
        before = model(x)
        model.prototypes.normal_()
        assert torch.allclose(model(x), before, rtol=0, atol=1e-5)


@pytest.mark.parametrize("layer", [1, 3, 8])
def test_one_class_one_layer_append_is_a_shared_prompt_there(layer: int) -> None:
    ours = filled(twin(), PromptConfig(use="class", class_layers=(layer,), handling="append"), classes=1)
    vpt = filled(twin(), PromptConfig(use="shared", shared_layers=(layer,)), classes=1)
    with torch.no_grad():
        vpt.shared.copy_(ours.classes[None])  # type: ignore[union-attr, index]
        vpt.head.load_state_dict(ours.head.state_dict())
    x = images(3, ours.vit)
    assert torch.equal(ours(x), vpt(x))


def test_hand_worked_mixture() -> None:
    # the mean prototype is (2, 2); centred prototypes (2, 0), (-2, 0); the centred token (1, 1) has cosines +-1/sqrt(2)
    prototypes, cls = torch.tensor([[4.0, 2.0], [0.0, 2.0]]), torch.tensor([[3.0, 3.0]])
    prior = torch.tensor([0.25, 0.75])
    gap, tau = math.sqrt(2), 0.5
    log = mixture_weights(cls, prototypes, prior.log(), tau, "centred", "log")
    assert log[0].tolist() == pytest.approx([1 / (1 + 3 * math.exp(-gap / tau)), 1 / (1 + math.exp(gap / tau) / 3)], abs=1e-6)
    scaled = mixture_weights(cls, prototypes, prior.log(), tau, "centred", "scaled")
    assert float(scaled[0, 0]) == pytest.approx(1 / (1 + math.exp(-gap / 2 / tau)), abs=1e-6)  # (.25 + .75) / sqrt(2) / tau
    # raw cosines: (12 + 6) / (sqrt(20) sqrt(18)) and 6 / (2 sqrt(18))
    raw = mixture_weights(cls, prototypes, prior.log(), tau, "raw", "log")
    difference = (18 / math.sqrt(360) - 6 / (2 * math.sqrt(18))) / tau
    assert float(raw[0, 0]) == pytest.approx(1 / (1 + 3 * math.exp(-difference)), abs=1e-6)
    assert mixture_weights(cls, prototypes, prior.log(), tau, "centred", "prior")[0].tolist() == pytest.approx([0.25, 0.75])


def test_classes_without_a_prototype_get_no_weight_and_none_at_all_leaves_the_prior() -> None:
    prior, cls = torch.tensor([0.2, 0.3, 0.5]), torch.randn(4, 5)
    prototypes = torch.randn(3, 5)
    prototypes[1] = 0
    for score in ("log", "scaled", "prior", "cosine"):
        for cosine in ("centred", "raw"):
            s = mixture_weights(cls, prototypes, prior.log(), 0.2, cosine, score)
            assert torch.equal(s[:, 1], torch.zeros(4)) and torch.allclose(s.sum(1), torch.ones(4))
            # the rest is what two classes alone would give
            two = mixture_weights(cls, prototypes[[0, 2]], prior[[0, 2]].log(), 0.2, cosine, score)
            assert torch.allclose(s[:, [0, 2]], two, atol=1e-6)
    for score, expected in (("log", prior), ("prior", prior), *((score, torch.full((3,), 1 / 3)) for score in ("scaled", "cosine"))):
        s = mixture_weights(cls, torch.zeros(3, 5), prior.log(), 0.2, "centred", score)
        assert torch.allclose(s, expected.expand(4, 3), atol=1e-6)


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 2**31), st.integers(1, 6), st.sampled_from(["centred", "raw"]), st.sampled_from(["log", "scaled", "prior", "cosine"]),
       st.floats(1e-3, 10), st.floats(1e-3, 1e3))
def test_mixture_lies_on_the_simplex_and_follows_the_classes(
    seed: int, classes: int, cosine: str, score: str, tau: float, scale: float
) -> None:
    g = torch.Generator().manual_seed(seed)
    prototypes, cls = torch.randn(classes, 4, generator=g) * scale, torch.randn(3, 4, generator=g) * scale
    prototypes[torch.rand(classes, generator=g) < 0.3] = 0
    log_prior, order = torch.rand(classes, generator=g).add(0.01).log().log_softmax(0), torch.randperm(classes, generator=g)
    s = mixture_weights(cls, prototypes, log_prior, tau, cosine, score)
    assert (s >= 0).all() and torch.allclose(s.sum(1), torch.ones(3), atol=1e-5)
    # a small tau multiplies the rounding of the cosines a thousand times
    assert torch.allclose(mixture_weights(cls, prototypes[order], log_prior[order], tau, cosine, score), s[:, order], atol=2e-3)


def loss_gradients(model: PromptedViT, x: torch.Tensor) -> dict[str, torch.Tensor]:
    model.zero_grad()
    cross_entropy(model(x), torch.tensor([0, 1])).backward()
    return {name: p.grad.clone() for name, p in model.named_parameters() if p.grad is not None}


def test_gradient_reaches_prompts_and_head_and_nothing_else() -> None:
    model = filled(twin(), PromptConfig(shared_tokens=2)).train()
    gradients = loss_gradients(model, images(2, model.vit))
    assert gradients.keys() == {"shared", "classes", "head.weight", "head.bias"}
    assert all(g.isfinite().all() and g.abs().max() > 0 for g in gradients.values())
    assert not model.prototypes.requires_grad and not model.log_prior.requires_grad
    assert not model.vit.training and model.training
    assert {kind: len(held) for kind, held in model.trainable().items()} == {"shared": 1, "class": 1, "head": 2}


def test_gradient_through_the_scored_token_is_a_choice() -> None:
    # one class layer with prior-only weights: s does not depend on the token, so stopping changes nothing; with cosines it does
    def shared_gradient(stop: bool, score: str) -> torch.Tensor:
        model = filled(twin(), PromptConfig(class_layers=(5,), stop_cls=stop, score=score))
        return loss_gradients(model, images(2, model.vit))["shared"]

    assert torch.equal(shared_gradient(True, "prior"), shared_gradient(False, "prior"))
    assert (shared_gradient(True, "log") - shared_gradient(False, "log")).abs().max() > 1e-6


@pytest.mark.parametrize("handling", ["replace", "append"])
def test_gradients_are_the_slopes_of_the_loops(handling: str) -> None:
    # the loops differentiate through the scored token, so the model must not stop there
    model = filled(tiny(), PromptConfig(**BASE, tau=0.5, stop_cls=False, handling=handling))
    x, prior, step = images(2, model.vit), [1 / 3] * 3, 2.0**-10
    gradients = loss_gradients(model, x)

    def loss() -> float:
        logits = torch.stack([naive.trace(model, image, prior)[0] for image in x])
        return float(cross_entropy(logits, torch.tensor([0, 1])))

    places = {"shared": (0, 1, 3), "classes": (2, 5), "head.bias": (1,)}
    for name, place in places.items():
        parameter = model.get_parameter(name)
        with torch.no_grad():
            parameter[place] += step
            above = loss()
            parameter[place] -= 2 * step
            below = loss()
            parameter[place] += step
        assert float(gradients[name][place]) == pytest.approx((above - below) / (2 * step), rel=1e-3, abs=1e-5)


@pytest.mark.parametrize("handling", ["replace", "append"])
def test_checkpointing_changes_no_number(handling: str) -> None:
    x = images(2, twin())
    plain = filled(twin(), PromptConfig(handling=handling))
    saving = filled(twin(), PromptConfig(handling=handling, checkpointing=True))
    calls: list[int] = []
    watch = saving.vit.blocks[-1].register_forward_pre_hook(lambda *_: calls.append(1))
    gradients = loss_gradients(saving, x)
    watch.remove()
    assert len(calls) == 2  # once forward, once again in the backward pass
    assert all(torch.equal(g, gradients[name]) for name, g in loss_gradients(plain, x).items())


def test_bfloat16_weights_run_under_autocast_with_exact_scores() -> None:
    full = filled(twin(name="clip-tiny-random"), PromptConfig())
    half = filled(load_backbone("clip-tiny-random", image_size=32, seed=1, precision="bf16"), PromptConfig())
    x = images(4, full.vit)
    with torch.no_grad():
        exact, close = full.trace(x), half.trace(x)
    assert {close.logits.dtype, close.cls.dtype, close.mixtures.dtype} == {torch.float32}
    for cls, prototypes, s in zip(close.cls, half.prototypes, close.mixtures, strict=True):
        # what float32 arithmetic makes of the same token; bfloat16 scores would be off by a percent
        assert torch.allclose(s, mixture_weights(cls, prototypes, half.log_prior, 0.2, "centred", "log"), rtol=0, atol=1e-6)
    assert 0 < float((close.logits - exact.logits).norm() / exact.logits.norm()) < 0.03
    with torch.no_grad(), torch.autocast("cpu", torch.bfloat16):
        again = half.trace(x)
        assert torch.equal(again.logits, close.logits) and torch.equal(again.mixtures, close.mixtures)
        # a float32 backbone inside the training loop's autocast computes what the bfloat16 one does, with the same kind of attention
        for block in full.vit.blocks:
            block.attn.fused_attn = False
        assert torch.equal(full.trace(x).logits, close.logits)
    assert all(g.dtype == torch.float32 and g.isfinite().all() for g in loss_gradients(half, x[:2]).values())


def test_numbers_of_the_papers_layout() -> None:
    # 100 classes, width 768, one shared token, three prototype layers: 384,868 numbers a round (METHODS 4.2)
    vit = VisionTransformer(img_size=16, patch_size=16, embed_dim=768, depth=7, num_heads=12, num_classes=0, mlp_ratio=0.1)
    model = PromptedViT(vit, 100, PromptConfig())
    counts = {part: sum(t.size for t in model.tensors(part).values()) for part in PARTS}
    assert counts == {"prompts": 768 + 76_800, "head": 76_900, "prototypes": 230_400}
    assert sum(counts.values()) == 384_868


def test_prompts_start_uniform_by_vpts_rule_and_the_head_at_zero() -> None:
    torch.manual_seed(11)
    expected_next = torch.rand(3)
    torch.manual_seed(11)
    model = PromptedViT(twin(), 500, PromptConfig(shared_tokens=100), seed=4)
    assert torch.equal(torch.rand(3), expected_next)
    bound = math.sqrt(6 / (3 * 16 * 16 + 32))
    for prompt in model.tensors("prompts").values():
        assert np.abs(prompt).max() <= bound and np.abs(prompt).max() > 0.99 * bound
        assert prompt.std() == pytest.approx(bound / math.sqrt(3), rel=0.05) and abs(prompt.mean()) < 0.05 * bound
    assert not any(t.any() for part in ("head", "prototypes") for t in model.tensors(part).values())
    again, other = (PromptedViT(twin(), 500, PromptConfig(shared_tokens=100), seed=s).tensors("prompts") for s in (4, 5))
    assert all(np.array_equal(t, again[name]) and not np.array_equal(t, other[name]) for name, t in model.tensors("prompts").items())


def test_tensors_then_load_is_bit_identical_and_all_or_nothing() -> None:
    source, target = filled(twin(), PromptConfig()), PromptedViT(twin(), 3, PromptConfig())
    for part in PARTS:
        sent = {name: tensor.copy() for name, tensor in source.tensors(part).items()}
        for tensor in sent.values():
            tensor.setflags(write=False)
        target.load(part, sent)
        assert {name: t.tobytes() for name, t in target.tensors(part).items()} == {name: t.tobytes() for name, t in sent.items()}
    x = images(2, source.vit)
    assert torch.equal(source(x), target(x))
    assert list(source.tensors("prompts")) == ["shared", "class"]
    assert list(source.tensors("prototypes")) == ["layer5", "layer6", "layer7"]
    wrong = {name: np.ones_like(t) for name, t in source.tensors("prototypes").items()} | {"layer7": np.ones((2, 32), np.float32)}
    with pytest.raises(ValueError, match=r"prototypes tensor 'layer7' must have shape \(3, 32\), got \(2, 32\)"):
        target.load("prototypes", wrong)
    assert torch.equal(target.prototypes, source.prototypes)
    with pytest.raises(ValueError, match="one of prompts, head, prototypes; got 'vit'"):
        target.tensors("vit")


def test_the_prior_is_in_nothing_that_travels() -> None:
    model = filled(twin(), PromptConfig())
    before = {part: {n: t.copy() for n, t in model.tensors(part).items()} for part in PARTS}
    model.set_prior(np.array([0.5, 0.3, 0.2]))
    assert model.log_prior.exp().tolist() == pytest.approx([0.5, 0.3, 0.2])
    assert "log_prior" not in model.state_dict()
    assert all(np.array_equal(t, model.tensors(part)[n]) for part in PARTS for n, t in before[part].items())
    model.set_prior(None)
    assert model.log_prior.exp().tolist() == pytest.approx([1 / 3] * 3)
    for bad in ([0.5, 0.5], [0.7, 0.3, 0.0], [0.5, 0.5, 0.5], [0.5, 0.6, -0.1], [math.nan, 0.5, 0.5]):
        with pytest.raises(ValueError, match="one number above 0 for each class") as error:
            model.set_prior(np.array(bad))
        assert "0.5" not in str(error.value)


@pytest.mark.parametrize(("options", "message"), [
    ({"use": "none"}, "use must be one of both, shared, class; got 'none'"),
    ({"handling": "drop"}, "handling must be one of replace, append"), ({"cosine": "plain"}, "cosine must be one of centred, raw"),
    ({"score": "softmax"}, "score must be one of log, scaled, prior"), ({"tau": 0.0}, "tau must be a finite number above 0; got 0.0"),
    ({"tau": math.nan}, "tau must be"), ({"shared_tokens": -1}, "shared_tokens must be 0 or more; got -1"),
    ({"class_layers": (6, 5)}, r"class_layers must be ascending layers counted from 1, such as 5, 6, 7; got \(6, 5\)"),
    ({"shared_layers": (0, 1)}, "shared_layers must be ascending"), ({"class_layers": (5, 5)}, "class_layers must be ascending"),
])
def test_settings_that_cannot_be_are_explained(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        PromptConfig(**options)


def test_backbones_that_cannot_be_are_explained() -> None:
    with pytest.raises(ValueError, match="must be a timm VisionTransformer; got Linear"):
        PromptedViT(torch.nn.Linear(2, 2), 3, PromptConfig())  # type: ignore[arg-type]
    refused: list[tuple[dict[str, Any], str]] = [
        ({"class_token": False, "global_pool": "avg"}, "avg"), ({"class_token": False, "global_pool": "map"}, "map"),
        ({"global_pool": "avg"}, "avg")]
    for options, pool in refused:
        vit = VisionTransformer(img_size=8, patch_size=4, embed_dim=8, depth=1, num_heads=2, num_classes=0, **options)
        with pytest.raises(ValueError, match=f"must have a class token.*pools by '{pool}'"):
            PromptedViT(vit, 3, NO_PROMPTS)
    with pytest.raises(ValueError, match="layers 1 to 4 of this backbone, and layer 7 was asked for"):
        PromptedViT(tiny(), 3, PromptConfig())
    PromptedViT(tiny(), 3, PromptConfig(use="shared"))  # class layers do not matter where no class prompt enters
    with pytest.raises(ValueError, match="1 class or more, got 0"):
        PromptedViT(tiny(), 0, NO_PROMPTS)
    with pytest.raises(ValueError, match=r"images of shape \(3, 8, 8\), got \(3, 8, 12\)"):
        PromptedViT(tiny(), 3, NO_PROMPTS)(torch.zeros(1, 3, 8, 12))
