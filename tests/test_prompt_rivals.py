"""The rivals' forwards: parity with loops, cases by hand, what each is at step 0, what travels, and baselines without training."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from torch.nn.functional import cross_entropy, normalize

from models.frozen_baselines import fit_logistic, zero_shot
from models.prompt_classifier import GLOBAL, LOCAL, PromptClassifier, PromptStart
from models.prompt_rivals import ConditionalPrompt, ExpertPrompts, LowRankPrompt, contrast
from models.prompt_transport import Transport, TransportPrompts, transport_plan
from models.prompted_clip import ClipConfig, PromptedClip
from models.split import ModelError
from models.towers import ImageFeatures, TextTower, empty_text_tower, load_text_tower
from tests.naive.prompted_clip import attended as naive_attended
from tests.naive.prompted_clip import dykstra

NAMES = ("dog", "fire_truck", "house")
TOWER, START = load_text_tower("text-tiny-random"), PromptStart()


def units(*shape: int, seed: int = 0) -> torch.Tensor:
    return normalize(torch.randn(*shape, generator=torch.Generator().manual_seed(seed)), dim=-1)


IMAGES = ImageFeatures(units(4, 32, seed=1), units(4, 9, 32, seed=2))
LABELS = torch.tensor([0, 1, 2, 0])


def every_model(tower: TextTower = TOWER, start: PromptStart = START) -> dict[str, PromptClassifier]:
    return {"promptfl": PromptClassifier(tower, NAMES, start), "cocoop": ConditionalPrompt(tower, NAMES, start),
            "fedpgp": LowRankPrompt(tower, NAMES, start, rank=2), "pfedmoap": ExpertPrompts(tower, NAMES, start, width=16, heads=4),
            "fedotp": TransportPrompts(tower, NAMES, start, Transport()),
            "mix": PromptedClip(tower, NAMES, ClipConfig(start=start, meta="none", evidence=None, gate="fixed:0.5"))}


@pytest.mark.parametrize("name", every_model())
def test_parts_return_and_only_they_get_a_gradient(name: str) -> None:
    model, other = every_model()[name], every_model()[name]
    with torch.no_grad():
        for held in model.trainable().values():
            for parameter in held:
                parameter.add_(0.05 * torch.randn(parameter.shape, generator=torch.Generator().manual_seed(1)))
    for part in model.parts:
        other.load(part, model.tensors(part))
    assert torch.equal(other(IMAGES), model(IMAGES)) and model(IMAGES).shape == (4, 3)
    assert model.tensors(GLOBAL)["global_prompt"].shape == (4, 32)
    model.loss(IMAGES, LABELS).backward()
    asked = {id(parameter) for held in model.trainable().values() for parameter in held}
    got = {id(parameter) for parameter in model.parameters() if parameter.grad is not None and parameter.grad.ne(0).any()}
    unused = {id(p) for p in getattr(model, "query", torch.nn.Module()).parameters()} if name == "pfedmoap" else set()
    assert got <= asked and got and (name == "pfedmoap" or got == asked - unused)


@pytest.mark.parametrize("name", every_model())
@pytest.mark.parametrize("words", ["a photo of a", ""])
def test_a_server_starts_the_same_global_prompt_without_a_text_tower(name: str, words: str) -> None:
    start = PromptStart(words, 4)
    full, empty = (every_model(tower, start)[name] for tower in (TOWER, empty_text_tower("text-tiny-random")))
    expected, found = full.tensors(GLOBAL), empty.tensors(GLOBAL)
    assert expected.keys() == found.keys() and all(np.array_equal(expected[key], found[key]) for key in expected)


@pytest.mark.parametrize("name", ["cocoop", "fedpgp", "pfedmoap"])
def test_step_0_is_promptfl(name: str) -> None:
    models = every_model()
    expected = 100 * IMAGES.cls @ TOWER(TOWER.embed("a photo of a"), TOWER.tokens(NAMES, 4)).T
    torch.testing.assert_close(models["promptfl"](IMAGES), expected, atol=1e-4, rtol=1e-5)
    torch.testing.assert_close(models[name](IMAGES), expected, atol=1e-4, rtol=1e-5)
    torch.testing.assert_close(models["promptfl"].loss(IMAGES, LABELS), cross_entropy(expected, LABELS))


def test_cocoop_moves_every_token_of_an_images_prompt_alike() -> None:
    model = ConditionalPrompt(TOWER, NAMES, START)
    torch.nn.init.normal_(model.meta[2].weight, std=0.1)  # type: ignore[arg-type]
    logits = model(IMAGES).detach()
    for b, g in enumerate(IMAGES.cls):
        text = TOWER(model.words + model.meta(g), model.names).detach()
        torch.testing.assert_close(logits[b], 100 * text @ g, atol=1e-3, rtol=1e-5)
    assert (logits - PromptClassifier(TOWER, NAMES, START)(IMAGES)).abs().max() > 0.1
    assert set(model.tensors(GLOBAL)) == {"global_prompt", "meta.0.weight", "meta.0.bias", "meta.2.weight", "meta.2.bias"}


def test_one_prompts_plan_by_hand() -> None:
    # two patches, one prompt, mass .5: a softmax of -cost / eps shares it, unless that exceeds a patch's .5
    cost, eps = torch.tensor([[0.2], [0.3]]), 0.1
    share = 1 / (1 + math.exp(-1))
    plan = transport_plan(cost, Transport(eps, 0.5, 200, 0.0))
    np.testing.assert_allclose(plan, [[0.5 * share], [0.5 * (1 - share)]], atol=1e-6)
    # mass .8: the better patch gives its .5 and no more
    np.testing.assert_allclose(transport_plan(cost, Transport(eps, 0.8, 200, 0.0)), [[0.5], [0.3]], atol=1e-5)


@pytest.mark.parametrize("mass", [0.3, 0.8, 1.0])
def test_plans_equal_dykstras(mass: float) -> None:
    cost = 1 - torch.rand(3, 2, 7, 2, generator=torch.Generator().manual_seed(0))
    plan = transport_plan(cost, Transport(0.1, mass, 2000, 0.0))
    for b in range(3):
        for c in range(2):
            np.testing.assert_allclose(plan[b, c], dykstra(cost[b, c].double().numpy(), 0.1, mass, 2000), atol=2e-6)
    np.testing.assert_allclose(plan.sum(dim=2), np.full((3, 2, 2), mass / 2), rtol=1e-5)
    assert plan.sum(dim=3).max() <= 1 / 7 + 1e-5


def test_transport_keeps_its_columns_when_cut_short_and_at_small_eps() -> None:
    cost = 1 - torch.rand(5, 196, 2, generator=torch.Generator().manual_seed(0))
    for transport in (Transport(iterations=1), Transport(eps=0.01), Transport()):
        plan = transport_plan(cost, transport)
        assert plan.isfinite().all() and plan.min() >= 0
        np.testing.assert_allclose(plan.sum(dim=1), np.full((5, 2), transport.mass / 2), rtol=1e-5)
    close, exact = transport_plan(cost, Transport()), transport_plan(cost, Transport(stop=0, iterations=5000))
    assert (close - exact).abs().sum(dim=(1, 2)).max() < 0.01


def test_fedotp_reads_patches_by_its_plan() -> None:
    model = TransportPrompts(TOWER, NAMES, START, Transport(mass=0.6, stop=0, iterations=500))
    with torch.no_grad():
        model.local_prompt.add_(0.05)
        logits = model(IMAGES)
        texts = [model.features(prompt) for prompt in (model.global_prompt, model.local_prompt)]
    assert IMAGES.patches is not None
    for b in range(4):
        for c in range(3):
            cosines = torch.stack([IMAGES.patches[b] @ text[c] for text in texts], dim=1)
            plan = dykstra(1 - cosines.double().numpy(), 0.1, 0.6, 500)
            assert logits[b, c].item() == pytest.approx(100 * (plan * cosines.numpy()).sum(), abs=0.02)
    with pytest.raises(ModelError, match="reads the images' patches"):
        model(ImageFeatures(IMAGES.cls))


def test_fedpgps_contrast_by_hand() -> None:
    sigma, personal, words = torch.tensor([[1.0, 0.0]]), torch.tensor([[0.6, 0.8]]), torch.tensor([[0.8, 0.6]])
    near, far = math.exp(0.8 / 0.5), math.exp(0.6 / 0.5)
    assert contrast(sigma, personal, words, 0.5).item() == pytest.approx(-math.log(near / (near + far)), rel=1e-5)
    model = LowRankPrompt(TOWER, NAMES, START, rank=2, mu=0.7)
    with torch.no_grad():
        model.v.normal_(std=0.1, generator=torch.Generator().manual_seed(0))
        model.global_prompt.add_(0.02)
    texts = [model.features(prompt) for prompt in (model.global_prompt, model.global_prompt + model.u @ model.v)]
    expected = cross_entropy(model(IMAGES), LABELS) + 0.7 * contrast(*texts, model.zero_shot, 0.5)
    torch.testing.assert_close(model.loss(IMAGES, LABELS), expected)
    assert {name: array.shape for name, array in model.tensors(LOCAL).items()} == {"u": (4, 2), "v": (2, 32)}
    assert set(model.tensors(GLOBAL)) == {"global_prompt"}


def test_pfedmoap_mixes_experts_as_loops_do() -> None:
    model = ExpertPrompts(TOWER, NAMES, START, width=16, heads=4, scaling=10.0)
    prompts = [np.random.default_rng(seed).normal(0, 0.05, (4, 32)).astype(np.float32) for seed in range(3)]
    model.set_experts(prompts)
    with torch.no_grad():
        texts = [model.features(torch.tensor(prompt)) for prompt in (np.zeros((4, 32), np.float32), *prompts)]
        logits = model(IMAGES)
    thinned = np.stack([text[:, ::2].double().numpy() for text in texts])
    layers = {name: array.astype(np.float64) for name, array in model.tensors(LOCAL).items()}
    mixed = naive_attended(IMAGES.cls[:, ::2].double().numpy(), thinned, layers, 4, 10.0)
    own = 100 * IMAGES.cls.numpy() @ texts[0].numpy().T
    expected = 0.5 * own + 100 * np.einsum("bw,bcw->bc", IMAGES.cls[:, ::2].numpy(), mixed)
    np.testing.assert_allclose(logits, expected, atol=1e-3)
    model.set_experts([])
    np.testing.assert_allclose(model(IMAGES).detach(), own, atol=1e-3)
    with pytest.raises(ModelError, match=r"shape \(4, 32\)"):
        model.set_experts([prompts[0][:2]])
    with pytest.raises(ModelError, match="must divide the feature width 32"):
        ExpertPrompts(TOWER, NAMES, START)


def test_experts_get_no_gradient_and_the_gate_does() -> None:
    model = ExpertPrompts(TOWER, NAMES, START, width=16, heads=4)
    model.set_experts([np.full((4, 32), 0.05, np.float32)])
    model.loss(IMAGES, LABELS).backward()
    assert not model.experts.requires_grad
    for parameter in (model.global_prompt, model.query.weight, model.key.weight, model.value.weight, model.out.weight):
        assert parameter.grad is not None and parameter.grad.ne(0).any()


def test_zero_shot_with_what_a_client_knows() -> None:
    cls, text = torch.tensor([[0.6, 0.8]]), torch.eye(2)
    np.testing.assert_allclose(zero_shot(cls, text, 10), [[6, 8]], atol=1e-6)
    assert zero_shot(cls, text, 10, present=torch.tensor([True, False])).tolist() == [[pytest.approx(6), -math.inf]]
    prior = torch.tensor([0.9, 0.1])
    np.testing.assert_allclose(zero_shot(cls, text, 10, prior=prior), [[6 + math.log(0.9), 8 + math.log(0.1)]], rtol=1e-6)


def test_logistic_regression_is_scikit_learns_on_scaled_features() -> None:
    from sklearn.linear_model import LogisticRegression

    cls, labels = units(40, 8, seed=4).numpy(), np.arange(40) % 3 * 2  # classes 0, 2 and 4 of 6
    fit = fit_logistic(cls, labels, 6, penalty=2.0)
    reference = LogisticRegression(C=0.5, max_iter=1000).fit(cls * 8**0.5, labels)
    logits = fit.logits(cls)
    assert (logits[:, [1, 3, 5]] == -np.inf).all()
    np.testing.assert_allclose(logits[:, ::2], reference.decision_function(cls * 8**0.5), atol=1e-4)
    two = fit_logistic(cls, labels // 4, 3)
    odds = LogisticRegression(max_iter=1000).fit(cls * 8**0.5, labels // 4).decision_function(cls * 8**0.5)
    np.testing.assert_allclose(two.logits(cls)[:, 1] - two.logits(cls)[:, 0], odds, atol=1e-4)
    one = fit_logistic(cls, np.full(40, 2), 3)
    assert one.logits(cls).argmax(axis=1).tolist() == [2] * 40 and one.logits(cls)[0].tolist() == [-math.inf, -math.inf, 0]
    with pytest.raises(ModelError, match="one sample or more"):
        fit_logistic(cls[:0], labels[:0], 3)


@pytest.mark.parametrize("options", [{"eps": 0.001}, {"mass": 0.0}, {"mass": 1.1}, {"iterations": 0}, {"stop": -1.0}])
def test_transport_settings_are_checked(options: dict[str, float]) -> None:
    with pytest.raises(ModelError, match="transport needs eps .01 or more"):
        Transport(**options)  # type: ignore[arg-type]


def test_low_rank_settings_are_checked() -> None:
    for options in ({"rank": 0}, {"mu": -1.0}, {"temperature": 0.0}):
        with pytest.raises(ModelError, match="rank 1 or more"):
            LowRankPrompt(TOWER, NAMES, START, **options)  # type: ignore[arg-type]
