"""The gate between cached and fresh features: weights that add up, trust that only wears, gradients that stay finite."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from models.gate import GATES, START, CeilingSchedule, Gate, Gated, LogGate, Standing, build_gate, penalty
from tests.naive import gate as naive

D = 6


def standing(n: int = 1, age: float = 0, drift: float = 0, uses: float = 0, confidence: float = 0) -> Standing:
    return Standing(*(torch.full((n,), float(x)) for x in (age, drift, uses, confidence)))


def built(kind: str, width: int = D, seed: int = 0) -> Gate:
    gate = build_gate(kind, width, seed)
    assert gate is not None
    return gate


def silent(odds: float, width: int = D) -> LogGate:
    """A gate whose log-odds before clamp and ceiling are ``odds`` for fresh entries, whatever the features."""
    gate = built("log", width)
    assert isinstance(gate, LogGate)
    with torch.no_grad():
        gate.query.weight.zero_()
        gate.bias.fill_(odds)
    return gate


def features(n: int, width: int = D, seed: int = 0) -> tuple[torch.Tensor, torch.Tensor]:
    rng = np.random.default_rng(seed)
    return tuple(torch.tensor(rng.normal(size=(n, width)), dtype=torch.float32) for _ in range(2))  # type: ignore[return-value]


def test_by_hand() -> None:
    # ell = 0 (tanh and no ceiling leave it): half of (3, 4), half of (0, 1) brought to length 5
    gated = silent(0.0, 2)(torch.tensor([[3.0, 4.0]]), torch.tensor([[0.0, 1.0]]), standing(), ceiling=1.0)
    assert gated.features.tolist() == [[1.5, 4.5]]
    assert gated.cached_weight.tolist() == gated.fresh_weight.tolist() == [0.5]
    assert gated.cosine.item() == pytest.approx(0.8)
    # ell = 0 under a ceiling of one half: 0 - log 2, which is odds of 1 to 2
    assert silent(0.0, 2)(torch.ones(1, 2), torch.ones(1, 2), standing(), 0.5).cached_weight.item() == pytest.approx(1 / 3)
    # one round old, one use: two coefficients of softplus(-4), each times log 2
    worn = silent(0.0, 2)(torch.ones(1, 2), torch.ones(1, 2), standing(age=1, uses=1), 1.0)
    odds = -10 * math.tanh(2 * math.log1p(math.exp(-4)) * math.log(2) / 10)
    assert worn.cached_weight.item() == pytest.approx(1 / (1 + math.exp(-odds)), abs=1e-7)


@pytest.mark.parametrize("ceiling", [0.05, 0.3, 0.8, 1.0])
def test_log_gate_equals_the_slow_reference(ceiling: float) -> None:
    rng = np.random.default_rng(3)
    gate = LogGate(D, content_dim=4)
    with torch.no_grad():
        for weight in gate.parameters():
            weight.copy_(torch.tensor(rng.normal(size=weight.shape)))
    fresh, cached = features(40)
    cached[3:6] *= 1e-5  # the ratio of lengths reaches its clamp
    known = {"age": rng.uniform(0, 9, 40), "drift": rng.exponential(0.1, 40), "uses": rng.integers(0, 9, 40),
             "confidence": rng.uniform(size=40)}
    gated = gate(fresh, cached, Standing(**{k: torch.tensor(v, dtype=torch.float32) for k, v in known.items()}), ceiling)
    weights = {name: tensor.double().tolist() for name, tensor in gate.state_dict().items()}
    for i in range(40):
        row = {k: float(v[i]) for k, v in known.items()}
        odds = naive.log_odds(weights, fresh[i].tolist(), cached[i].tolist(), **row, ceiling=ceiling)
        weight, blended = naive.blend(odds, fresh[i].tolist(), cached[i].tolist())
        assert gated.cached_weight[i].item() == pytest.approx(weight, abs=2e-6)
        assert gated.fresh_weight[i].item() == pytest.approx(1 - weight, abs=2e-6)
        assert gated.features[i].tolist() == pytest.approx(blended, abs=2e-5)
        assert gated.cosine[i].item() == pytest.approx(naive.cosine(fresh[i].tolist(), cached[i].tolist()), abs=1e-6)


@pytest.mark.parametrize("width", [16, 512])
def test_it_begins_with_about_five_percent_of_trust(width: int) -> None:
    weights = []
    for seed in range(20):
        fresh, cached = features(64, width, seed)
        known = standing(64, age=2, drift=0.05, uses=2, confidence=0.7)
        weights.append(built("log", width, seed)(fresh, 0.9 * fresh + 0.1 * cached, known, 0.8).cached_weight)
    assert torch.cat(weights).mean().item() == pytest.approx(0.05, abs=0.01)
    # the bias alone: 0.053 after the clamp and a ceiling of 0.8, and about half of 0.05 under one of 0.05
    alone = [silent(START)(torch.ones(1, D), torch.ones(1, D), standing(), ceiling).cached_weight.item() for ceiling in (0.8, 0.05)]
    assert alone == pytest.approx([0.0534, 0.0267], abs=1e-4)


@pytest.mark.parametrize("dtype", [None, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("odds", [-200.0, -10.0, 0.0, 10.0, 200.0])
def test_weights_add_up_at_the_ends(odds: float, dtype: torch.dtype | None) -> None:
    gate = silent(odds)
    fresh, cached = features(8)
    if dtype is None:
        gated = gate(fresh, cached, standing(8), 1.0)
    else:
        with torch.autocast("cpu", dtype=dtype):
            gated = gate(fresh.to(dtype), cached.to(dtype), standing(8), 1.0)
    assert gated.cached_weight.dtype == gated.features.dtype == torch.float32
    assert (gated.cached_weight + gated.fresh_weight - 1).abs().max().item() <= 1e-6
    expected = naive.sigmoid(10 * math.tanh(odds / 10))  # 0.99954 for 10, 0.9999546 for 200: never all
    assert gated.cached_weight.tolist() == pytest.approx([expected] * 8, rel=1e-4)
    # the parts that are weighed, not only the weights
    assert torch.allclose(gated.fresh_weight, torch.sigmoid(torch.tensor(-10 * math.tanh(odds / 10))), rtol=1e-4)


def test_autocast_changes_nothing() -> None:
    gate = built("log")
    fresh, cached = features(8)
    plain = gate(fresh, cached, standing(8, age=3, drift=0.1), 0.8)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        island = gate(fresh, cached, standing(8, age=3, drift=0.1), 0.8)
    assert torch.equal(plain.features, island.features) and torch.equal(plain.cached_weight, island.cached_weight)


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 2**16), st.sampled_from(["age", "drift", "uses"]), st.floats(0, 1e4), st.floats(0, 1e4),
       st.sampled_from([0.05, 0.8, 1.0]))
def test_more_wear_never_raises_trust(seed: int, what: str, low: float, more: float, ceiling: float) -> None:
    gate = built("log", seed=seed)
    with torch.no_grad():
        for weight in gate.parameters():
            weight.copy_(torch.tensor(np.random.default_rng(seed).normal(scale=3, size=weight.shape)))
    fresh, cached = features(4, seed=seed)
    before, after = (gate(fresh, cached, standing(4, confidence=0.5, **{what: x}), ceiling).cached_weight for x in (low, low + more))
    assert (after <= before * (1 + 1e-6)).all()  # torch's tanh is monotone but for its last bit


def test_wear_does_lower_trust() -> None:
    fresh, cached = features(4)
    for what in ("age", "drift", "uses"):
        weights = [built("log")(fresh, cached, standing(4, **{what: x}), 0.8).cached_weight for x in (0, 1, 10)]
        assert (weights[0] > weights[1]).all() and (weights[1] > weights[2]).all()


@pytest.mark.parametrize("kind", ["log", "fixed", "sigmoid"])
def test_gradients_are_finite_where_formulas_are_not(kind: str) -> None:
    gate = built(kind)
    fresh = torch.tensor([[1.0] * D, [1.0] * D, [0.0] * D, [1.0] * D, [0.0] * D, [1e-30] * D], requires_grad=True)
    cached = torch.tensor([[2.0] * D, [-2.0] * D, [1.0] * D, [0.0] * D, [0.0] * D, [1e-30] * D])
    gated = gate(fresh, cached, standing(6, age=1e6, drift=1e6, uses=1e6, confidence=1), 0.05)
    assert gated.cosine.tolist() == pytest.approx([1, -1, 0, 0, 0, 0])
    (gated.features.square().sum() + penalty(gated, 0.05)).backward()
    assert gated.features.isfinite().all() and fresh.grad is not None and fresh.grad.isfinite().all()
    assert all(p.grad is not None and p.grad.isfinite().all() for p in gate.parameters())


def test_the_encoder_gets_the_fresh_weight_of_the_gradient_and_no_more() -> None:
    fresh, cached = features(5)
    fresh.requires_grad_()
    cached.requires_grad_()
    gated = built("log")(fresh, cached, standing(5), 0.8)
    gated.features.sum().backward()
    assert fresh.grad is not None and torch.allclose(fresh.grad, gated.fresh_weight[:, None].expand(5, D))
    assert cached.grad is None


def test_the_gate_learns_end_to_end_and_under_its_lowest_ceiling() -> None:
    fresh, cached = features(5)
    for ceiling in (0.05, 0.8):
        gate = built("log")
        gate(fresh, cached, standing(5, age=1, drift=0.1, uses=1, confidence=0.5), ceiling).features.square().sum().backward()
        assert all(p.grad is not None and p.grad.abs().max() > 1e-8 for p in gate.parameters())


@pytest.mark.parametrize("kind", ["log", "fixed", "sigmoid"])
def test_a_ceiling_of_zero_bypasses_the_gate(kind: str) -> None:
    fresh, cached = features(5)
    half = fresh.to(torch.bfloat16)
    gated = built(kind)(half, cached.to(torch.bfloat16), standing(5), 0.0)
    assert gated.features is half
    assert gated.cached_weight.tolist() == [0] * 5 and gated.fresh_weight.tolist() == [1] * 5


def test_no_trust_above_the_ceiling() -> None:
    fresh, cached = features(5)
    assert (silent(200.0)(fresh, cached, standing(5), 0.8).cached_weight < 0.8).all()
    assert (silent(200.0)(fresh, cached, standing(5), 0.8).cached_weight > 0.79).all()


def test_the_ablations() -> None:
    fresh, cached = features(5)
    for kind in ("fixed", "sigmoid"):
        gated = built(kind)(fresh, cached, standing(5, age=4), 0.05)
        assert torch.allclose(gated.features, (fresh + cached) / 2) and gated.cached_weight.tolist() == [0.5] * 5
    free = built("sigmoid")
    with torch.no_grad():
        free.linear.bias.fill_(20.0)  # type: ignore[union-attr]
    assert free(fresh, cached, standing(5), 0.05).cached_weight.tolist() == [1.0] * 5  # nothing holds it
    assert build_gate("none", D) is None
    assert len(list(built("fixed").parameters())) == 0


def test_the_ceiling_over_a_run() -> None:
    ceiling = CeilingSchedule()
    assert [ceiling(p) for p in (0, 0.05, 0.1)] == [0.05] * 3
    assert ceiling(0.3) == pytest.approx(0.425) and ceiling(0.2) == pytest.approx(0.05 + 0.75 * (1 - math.sqrt(0.5)) / 2)
    assert [ceiling(p) for p in (0.5, 0.9, 1.0)] == pytest.approx([0.8] * 3)
    ramp = [ceiling(p) for p in np.linspace(0, 1, 101)]
    assert ramp == sorted(ramp)
    assert CeilingSchedule(low=0.8)(0.0) == 0.8
    step = CeilingSchedule(begin=0.5, end=0.5)
    assert (step(0.5), step(0.51)) == (0.05, 0.8)


def test_the_penalty_by_hand_and_by_the_slow_reference() -> None:
    def of(weights: list[float], cosines: list[float]) -> Gated:
        w = torch.tensor(weights)
        return Gated(torch.zeros(len(weights), D), w, 1 - w, torch.tensor(cosines))

    # 0.1 x (0 + 0.04) / 2 + 0.05 x (0.25 x 0 + 1 x 2) / 2
    assert penalty(of([0.25, 1.0], [1.0, -1.0]), 0.8).item() == pytest.approx(0.002 + 0.05)
    rng = np.random.default_rng(5)
    weights, cosines = rng.uniform(size=9).tolist(), rng.uniform(-1, 1, size=9).tolist()
    assert penalty(of(weights, cosines), 0.3).item() == pytest.approx(naive.penalty(weights, cosines, 0.3), rel=1e-5)


def test_the_penalty_lowers_trust_in_what_disagrees() -> None:
    gate = built("log")
    fresh, _ = features(5)
    penalty(gate(fresh, -fresh, standing(5), 0.8), 0.8).backward()
    assert gate.bias.grad is not None and gate.bias.grad.item() > 0  # type: ignore[union-attr]


def test_a_seed_decides_and_the_global_state_stays() -> None:
    torch.manual_seed(1)
    expected = torch.rand(3)
    torch.manual_seed(1)
    a, b, c = (built("log", seed=s).state_dict() for s in (4, 4, 5))
    assert torch.equal(torch.rand(3), expected)
    assert all(torch.equal(a[k], b[k]) for k in a) and not torch.equal(a["query.weight"], c["query.weight"])


def test_bad_arguments_are_named() -> None:
    assert set(GATES) == {"none", "log", "fixed", "sigmoid"}
    with pytest.raises(ValueError, match="did you mean 'sigmoid'"):
        build_gate("sigmoids", D)
    with pytest.raises(ValueError, match="width of 1 or more"):
        build_gate("log", 0)
    fresh, cached = features(2)
    for wrong in ((fresh[:, :3], cached[:, :3], standing(2), 0.5), (fresh, cached[:1], standing(2), 0.5), (fresh, cached, standing(3), 0.5),
                  (fresh, cached, standing(2), 1.5)):
        with pytest.raises(ValueError, match="a gate needs fresh and cached"):
            built("log")(*wrong)
    with pytest.raises(ValueError, match="one shape"):
        Standing(torch.zeros(2), torch.zeros(3), torch.zeros(2), torch.zeros(2))
    for name, value in (("low", 0.9), ("high", 1.2), ("begin", 0.6), ("end", 2.0)):
        with pytest.raises(ValueError, match="a ceiling needs"):
            CeilingSchedule(**{name: value})
