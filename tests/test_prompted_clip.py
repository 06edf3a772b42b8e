"""FedIA's model: parity with loops, what it reduces to, step 0, gradients where wanted, parts, memory of a step."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from torch.nn.functional import cross_entropy, normalize

from models.fusion_gate import FusionGate, mean_spread, standardised
from models.patch_evidence import EvidenceConfig, evidence_of
from models.prompt_classifier import GLOBAL, LOCAL, PromptStart
from models.prompted_clip import ClipConfig, Fused, MetaNet, PromptedClip
from models.split import ModelError
from models.towers import ImageFeatures, load_text_tower
from tests.naive.prompted_clip import fused as naive_fused

NAMES = ("dog", "fire_truck", "house", "guitar", "horse")
TOWER = load_text_tower("text-tiny-random")


def units(*shape: int, seed: int = 0) -> torch.Tensor:
    return normalize(torch.randn(*shape, generator=torch.Generator().manual_seed(seed)), dim=-1)


def model_of(names: tuple[str, ...] = NAMES, seed: int = 0, **options: object) -> PromptedClip:
    return PromptedClip(TOWER, names, ClipConfig(**options), seed)  # type: ignore[arg-type]


def seen_by(model: PromptedClip, images: int = 6, seed: int = 3) -> ImageFeatures:
    cls, patches = units(images, 32, seed=seed), units(images, 20, 32, seed=seed + 1)
    if model.config.evidence is None:
        return ImageFeatures(cls)
    return ImageFeatures(cls, patches, model.evidence(patches, cls, model.anchors()))


def stirred(model: PromptedClip) -> PromptedClip:
    """The model with every trainable number moved, as after some training."""
    generator = torch.Generator().manual_seed(8)
    with torch.no_grad():
        for name, held in model.trainable().items():
            for parameter in held:
                size = 0.05 if name.endswith("prompt") else 0.3
                parameter.add_(torch.randn(parameter.shape, generator=generator) * size)
    return model


@pytest.mark.parametrize("gate", ["pair", "image"])
def test_parity_with_loops(gate: str) -> None:
    model = stirred(model_of(gate=gate))
    images = seen_by(model)
    found = model.fuse(images)
    assert images.evidence is not None and model.meta is not None and model.gate is not None
    texts = [model.features(prompt).detach().double().numpy() for prompt in (model.global_prompt, model.local_prompt)]
    nets = [{name: p.detach().double().numpy() for name, p in net.named_parameters()} for net in (model.meta, model.gate)]
    evidence = images.evidence
    logits, weights = naive_fused(images.cls.double().numpy(), *texts, evidence.features.double().numpy(),
                                  evidence.entropy.double().numpy(), evidence.peak.double().numpy(), *nets, 100.0, gate == "image")
    np.testing.assert_allclose(found.logits.detach(), logits, atol=2e-3)  # of a scale of 100
    np.testing.assert_allclose(found.weights.detach(), weights, atol=1e-4)
    assert weights.std() > 0.01
    if gate == "image":
        assert found.weights.std(dim=1).max() < 1e-7 and found.weights[:, 0].std() > 1e-3
    labels = torch.arange(6) % 5
    expected = cross_entropy(found.logits, labels) + cross_entropy(100 * images.cls @ torch.tensor(texts[0]).float().T, labels)
    torch.testing.assert_close(model.loss(images, labels), expected, atol=1e-4, rtol=1e-5)


def test_two_classes_by_hand() -> None:
    model = model_of(names=("dog", "house"), evidence=None, meta="none", gate="fixed:0.25")
    of_global, of_local = torch.zeros(2, 32), torch.zeros(2, 32)
    of_global[0, 0] = of_global[1, 1] = of_local[0, 2] = of_local[1, 1] = 1
    model.features = lambda prompts: torch.stack([of_global, of_local])  # type: ignore[method-assign]
    cls = torch.zeros(1, 32)
    cls[0, :3] = torch.tensor([0.6, 0.0, 0.8])
    found = model.fuse(ImageFeatures(cls))
    # t of class 0 is (.75, 0, .25) / sqrt(.625): cosine (.45 + .2) / .790569; class 1 has one vector twice, at a right angle to g
    np.testing.assert_allclose(found.logits.detach(), [[100 * 0.65 / math.sqrt(0.625), 0]], atol=1e-3)
    np.testing.assert_allclose(found.global_logits.detach(), [[60, 0]], atol=1e-4)
    np.testing.assert_allclose(found.local_logits.detach(), [[80, 0]], atol=1e-4)


@pytest.mark.parametrize("gate", ["pair", "image"])
@pytest.mark.parametrize("meta", ["evidence", "cls", "none"])
def test_step_0_is_exactly_the_fixed_half_and_half_mix(gate: str, meta: str) -> None:
    model, plain = model_of(gate=gate, meta=meta), model_of(gate="fixed:0.5", meta="none", evidence=None)
    images = seen_by(model)
    found, mixed = model.fuse(images), plain.fuse(images)
    assert found.weights.eq(0.5).all()
    for field in ("logits", "global_logits", "local_logits"):
        torch.testing.assert_close(getattr(found, field), getattr(mixed, field), atol=2e-5, rtol=0)  # of a scale of 100


@pytest.mark.parametrize(("weight", "kept"), [("fixed:0", "global_logits"), ("fixed:1", "local_logits")])
def test_a_fixed_weight_of_0_or_1_is_one_prompt_alone(weight: str, kept: str) -> None:
    model = stirred(model_of(gate=weight))
    found = model.fuse(seen_by(model))
    torch.testing.assert_close(found.logits, getattr(found, kept), atol=2e-5, rtol=0)


def test_a_net_of_zeros_and_a_fixed_gate_are_a_fixed_mix() -> None:
    model = stirred(model_of(gate="fixed:0.3"))
    images = seen_by(model)
    assert model.meta is not None
    with torch.no_grad():
        for parameter in model.meta.parameters():
            parameter.zero_()
        of_global, of_local = model.features(model.global_prompt), model.features(model.local_prompt)
        expected = 100 * images.cls @ normalize(0.3 * of_local + 0.7 * of_global, dim=1).T
        torch.testing.assert_close(model(images), expected, atol=1e-4, rtol=1e-5)


def test_one_class_has_one_answer() -> None:
    model = stirred(model_of(names=("dog",)))
    found = model.fuse(seen_by(model))
    assert found.logits.shape == (6, 1) and found.logits.isfinite().all()
    assert model.loss(seen_by(model), torch.zeros(6, dtype=torch.long)).item() == 0
    # nothing to compare: the gate gets zeros, and so one weight for all images
    assert found.weights.std(dim=0).item() == 0


def test_gradient_reaches_what_is_trained_and_nothing_else() -> None:
    model = model_of()
    images, labels = seen_by(model), torch.arange(6) % 5
    assert images.evidence is not None and not images.evidence.features.requires_grad
    model.loss(images, labels).backward()
    assert model.global_prompt.grad is not None and model.local_prompt.grad is not None
    assert model.global_prompt.grad.abs().sum() > 0 and model.local_prompt.grad.abs().sum() > 0
    assert model.meta is not None and model.gate is not None
    # last layers move at once, though they start at zero; what is behind them waits a step
    for net in (model.meta, model.gate):
        assert net.out.weight.grad is not None and net.out.weight.grad.abs().sum() > 0
        assert net.hidden.weight.grad is not None and net.hidden.weight.grad.eq(0).all()
    assert all(p.grad is None for p in TOWER.parameters())


def test_without_noise_the_gate_gets_no_gradient_at_step_0() -> None:
    model = model_of(local_noise=0.0)
    model.loss(seen_by(model), torch.arange(6) % 5).backward()
    assert model.gate is not None and model.gate.out.weight.grad is not None
    # the reason for the noise: both text features are the same vector, up to rounding
    assert model.gate.out.weight.grad.abs().max() < 1e-6
    noisy = model_of()
    noisy.loss(seen_by(noisy), torch.arange(6) % 5).backward()
    assert noisy.gate is not None and noisy.gate.out.weight.grad is not None and noisy.gate.out.weight.grad.abs().max() > 1e-3


def test_lambdas_say_whose_own_loss_counts() -> None:
    images, labels = seen_by(model_of()), torch.arange(6) % 5
    losses = {}
    for pair in ((0.0, 0.0), (1.0, 0.0), (0.0, 1.0), (2.0, 3.0)):
        model = stirred(model_of(lambda_global=pair[0], lambda_local=pair[1]))
        losses[pair], found = model.loss(images, labels).item(), model.fuse(images)
    of = [cross_entropy(x, labels).item() for x in (found.logits, found.global_logits, found.local_logits)]
    expected = {(a, b): of[0] + a * of[1] + b * of[2] for a, b in losses}
    assert losses == pytest.approx(expected, rel=1e-5)


def test_trainable_anchors_take_evidence_with_gradient_from_the_present_prompt() -> None:
    model = stirred(model_of(anchors="trainable", lambda_global=0.0, gate="fixed:1"))
    assert model.needs == {"cls", "patches"} and model_of().needs == {"cls", "evidence"}
    assert model_of(evidence=None, meta="cls").needs == {"cls"}
    images = seen_by(model)
    frozen = stirred(model_of(lambda_global=0.0, gate="fixed:1"))
    torch.testing.assert_close(model(images), frozen(images), atol=1e-4, rtol=1e-5)
    # with w = 1 the global prompt matters through its anchors alone
    for one, moves in ((model, True), (frozen, False)):
        one.loss(images, torch.arange(6) % 5).backward()
        assert one.global_prompt.grad is not None and (one.global_prompt.grad.abs().sum() > 1e-4) == moves
    with pytest.raises(ModelError, match="reads the images' patches"):
        model(ImageFeatures(images.cls))


def test_evidence_follows_the_broadcast_prompt_not_the_present_one() -> None:
    model = model_of()
    images = seen_by(model)
    anchors = model.anchors()
    torch.testing.assert_close(anchors, TOWER(TOWER.embed("a photo of a"), TOWER.tokens(NAMES, 4)))
    stirred(model)
    assert images.evidence is not None and images.patches is not None
    again = evidence_of(images.patches, anchors, images.cls, EvidenceConfig())
    assert torch.equal(again.features, images.evidence.features)
    assert not torch.equal(model.evidence(images.patches, images.cls, model.anchors()).features, images.evidence.features)


def test_without_patches_nothing_of_them_is_read() -> None:
    model = stirred(model_of(evidence=None, meta="cls"))
    cls = units(4, 32, seed=1)
    found = model.fuse(ImageFeatures(cls))
    assert isinstance(found, Fused) and model.gate is not None and model.gate.hidden.in_features == 2 and mean_spread(found.weights) > 0.01
    with pytest.raises(ModelError, match="reads no patches"):
        model.evidence(units(4, 9, 32), cls, model.anchors())
    with pytest.raises(ModelError, match="reads the images' evidence"):
        model_of()(ImageFeatures(cls))
    # the meta-net's one residual for all classes still tells them apart
    assert (found.local_logits - 100 * cls @ model.features(model.local_prompt).T).std(dim=1).min() > 0.1


def test_parts_travel_and_return() -> None:
    model, other = stirred(model_of()), model_of(seed=1)
    shared, local = model.tensors(GLOBAL), model.tensors(LOCAL)
    assert {name: array.shape for name, array in shared.items()} == {"global_prompt": (4, 32)}
    assert set(local) == {"local_prompt", *(f"{net}.{layer}.{kind}" for net in ("meta", "gate") for layer in ("hidden", "out")
                                            for kind in ("weight", "bias"))}
    assert sum(array.size for name, array in local.items() if name.startswith("gate")) == 129
    assert model.parts == (GLOBAL, LOCAL)
    images = seen_by(model)
    for part, tensors in ((GLOBAL, shared), (LOCAL, local)):
        frozen = {name: array.copy() for name, array in tensors.items()}
        for array in frozen.values():
            array.flags.writeable = False
        other.load(part, frozen)
    assert torch.equal(other(images), model(images))
    with pytest.raises(ModelError, match="one of global-prompt, local"):
        model.tensors("head")
    with pytest.raises(ModelError, match="shape"):
        model.load(GLOBAL, {"global_prompt": np.zeros((4, 31), np.float32)})
    lean = model_of(gate="fixed:0.5", meta="none", evidence=None)
    assert set(lean.tensors(LOCAL)) == {"local_prompt"} and set(lean.trainable()) == {"global_prompt", "local_prompt"}
    assert set(model.trainable()) == {"global_prompt", "local_prompt", "meta", "gate"}


def test_a_prompt_starts_at_its_words_and_the_local_one_beside_it() -> None:
    model = model_of()
    assert model.global_prompt.eq(0).all() and torch.equal(model.words, TOWER.embed("a photo of a"))
    with torch.no_grad():
        model.global_prompt.fill_(0.01)
    model.start_local(5)
    noise, size = (model.local_prompt - model.global_prompt).detach(), (model.words + 0.01).square().mean().sqrt()
    assert noise.std() / size == pytest.approx(0.01, rel=0.2)
    first = model.local_prompt.detach().clone()
    model.start_local(5)
    assert torch.equal(first, model.local_prompt)
    model.start_local(6)
    assert not torch.equal(first, model.local_prompt)
    drawn = PromptStart(words="", tokens=16)
    assert model_of(start=drawn).global_prompt.std().item() == pytest.approx(TOWER.prompt_std, rel=0.1)
    assert model_of(start=drawn).words.eq(0).all() and torch.equal(drawn.offset(32, 0.05, 0), model_of(start=drawn).global_prompt)
    with pytest.raises(ModelError, match="must be prompt-tokens = 3 tokens of this text tower, got 4"):
        model_of(start=PromptStart(tokens=3))


def test_seeds_decide_and_the_global_one_is_left_alone() -> None:
    torch.manual_seed(5)
    expected_next = torch.rand(3)
    torch.manual_seed(5)
    first, again, other = model_of(seed=1), model_of(seed=1), model_of(seed=2)
    assert torch.equal(torch.rand(3), expected_next)
    for name, array in first.tensors(LOCAL).items():
        assert np.array_equal(array, again.tensors(LOCAL)[name])
    assert not np.array_equal(first.tensors(LOCAL)["meta.hidden.weight"], other.tensors(LOCAL)["meta.hidden.weight"])


def test_training_learns_to_tell_images_apart_and_moves_the_gate() -> None:
    model = model_of()
    images, labels = seen_by(model, images=30), torch.arange(30) % 5
    rates = {"global_prompt": 3e-3, "local_prompt": 3e-3, "meta": 3e-3, "gate": 1e-2}
    optimiser = torch.optim.Adam([{"params": held, "lr": rates[name]} for name, held in model.trainable().items()])
    before = model.loss(images, labels).item()
    for _ in range(40):
        optimiser.zero_grad()
        loss = model.loss(images, labels)
        loss.backward()
        optimiser.step()
    assert loss.item() < 0.7 * before
    # the pilot's dead gate had .0003
    assert mean_spread(model.fuse(images).weights.detach()) > 0.05


def test_one_step_of_the_full_size_builds_no_tensor_of_all_four_kinds() -> None:
    from torch.utils._python_dispatch import TorchDispatchMode

    classes, batch, patches, dim = 100, 32, 196, 512
    sizes: list[int] = []

    class Watch(TorchDispatchMode):
        def __torch_dispatch__(self, func, types, args=(), kwargs=None):  # type: ignore[no-untyped-def]
            out = func(*args, **(kwargs or {}))
            sizes.extend(x.numel() for x in (out if isinstance(out, tuple | list) else [out]) if isinstance(x, torch.Tensor))
            return out

    class Wide(torch.nn.Module):
        width, dim, logit_scale, prompt_std = 8, 512, 100.0, 0.05
        table = units(classes, dim)

        def embed(self, words: str) -> torch.Tensor:
            return torch.ones(4, 8)

        def tokens(self, names: tuple[str, ...], context: int) -> torch.Tensor:
            return torch.arange(len(names))[:, None]

        def forward(self, context: torch.Tensor, tokens: torch.Tensor) -> torch.Tensor:
            return normalize(self.table + context.mean(dim=(-1, -2), keepdim=True)[..., 0, None], dim=-1)

    model = PromptedClip(Wide(), [str(c) for c in range(classes)], ClipConfig())  # type: ignore[arg-type]
    cls, found = units(batch, dim), units(batch, patches, dim)
    with Watch():
        images = ImageFeatures(cls, None, model.evidence(found, cls, model.anchors()))
        model.loss(images, torch.arange(batch) % classes).backward()
    assert max(sizes) == batch * patches * dim  # one batch of patches, as stored; (B, M, C, D) would be 100 times that
    assert batch * classes * dim in sizes


def test_the_gate_standardises_over_classes() -> None:
    inputs = torch.tensor([[[1.0, 5.0], [2.0, 5.0], [3.0, 5.0]]])
    spread = math.sqrt(2 / 3)
    np.testing.assert_allclose(standardised(inputs), [[[-1 / spread, 0], [0, 0], [1 / spread, 0]]], atol=1e-5)
    # raw size and place of cosines do not matter
    gate = FusionGate(2)
    torch.nn.init.normal_(gate.out.weight)
    torch.testing.assert_close(gate(inputs), gate(0.02 * inputs + 0.25), atol=1e-4, rtol=1e-4)
    inputs.requires_grad_()
    standardised(inputs).square().sum().backward()
    assert inputs.grad is not None and inputs.grad.isfinite().all()
    assert mean_spread(torch.tensor([[0.2, 0.5], [0.4, 0.5]])) == pytest.approx(0.05) and mean_spread(torch.zeros(0, 2)) == 0
    assert MetaNet(8, 4)(torch.ones(3, 2, 8)).eq(0).all()


@pytest.mark.parametrize(("options", "says"), [
    ({"meta": "patches"}, "evidence, cls, none"), ({"anchors": "moving"}, "frozen, trainable"), ({"gate": "fixed:2"}, "W from 0 to 1"),
    ({"gate": "fixed:half"}, "pair, image or fixed:W"), ({"gate": "pairs"}, "pair, image"), ({"evidence": None}, "needs patch evidence"),
    ({"meta_width": 0}, "1 or more"), ({"lambda_global": -1.0}, "0 or more"), ({"local_noise": math.nan}, "0 or more"),
])
def test_settings_are_checked(options: dict[str, object], says: str) -> None:
    with pytest.raises(ModelError, match=says):
        ClipConfig(**options)  # type: ignore[arg-type]


def test_no_class_and_no_token_are_refused() -> None:
    with pytest.raises(ModelError, match="one class name or more"):
        model_of(names=())
    with pytest.raises(ModelError, match="1 token or more"):
        PromptStart(tokens=0)
