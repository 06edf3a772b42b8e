"""Means: hand-worked numbers, bit-identity of one client, refusals, memory, BatchNorm moments."""

from __future__ import annotations

import tracemalloc

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from strategies.reduce import _CHUNK, MomentMean, WeightedMean, make_mean, momentum, simplex
from tests.naive import batchnorm as naive


def _mean(pairs, kind=WeightedMean):
    mean = kind()
    for tensors, weight in pairs:
        mean.add(tensors, weight)
    return mean.result()


def _bn(mean, var):
    return {"bn.running_mean": np.float32([mean]), "bn.running_var": np.float32([var])}


def test_mean_worked_by_hand():
    a = {"w": np.float32([[1, 2]]), "b": np.array([4.0])}
    b = {"w": np.float32([[5, 6]]), "b": np.array([0.0])}
    out = _mean([(a, 1), (b, 3)])
    assert out["w"].tolist() == [[4.0, 5.0]] and out["w"].dtype == np.float32
    assert out["b"].tolist() == [1.0] and out["b"].dtype == np.float64
    assert list(out) == ["w", "b"]


@pytest.mark.parametrize("kind", [WeightedMean, MomentMean])
@settings(deadline=None)
@given(weight=st.floats(1e-6, 1e9), seed=st.integers(0, 999))
def test_one_client_alone_comes_back_bit_for_bit(kind, weight, seed):
    rng = np.random.default_rng(seed)
    bits = rng.integers(0, 2**32, 300, dtype=np.uint32).view(np.float32)
    raw = np.append(bits[np.isfinite(bits)], np.float32([0.0, -0.0, 1e-45]))
    client = {
        "w": raw,
        "h": rng.normal(size=5).astype(np.float16),
        "bn.running_mean": rng.normal(size=40).astype(np.float32) * 100,
        "bn.running_var": rng.random(40, dtype=np.float32),
    }
    out = _mean([(client, weight)], kind)
    assert {n: (t.dtype, t.tobytes()) for n, t in out.items()} == {
        n: (t.dtype, t.tobytes()) for n, t in client.items()
    }


def test_chunks_strides_and_shapes_do_not_change_the_numbers():
    rng = np.random.default_rng(0)
    a, b = (rng.normal(size=(3, _CHUNK // 2 + 7)).astype(np.float32) for _ in range(2))
    out = _mean([({"w": a.T}, 2), ({"w": b.T}, 1), ({"w": a.T}, 0.5)])["w"]
    expected = (2.5 * a.astype(float) + b.astype(float)) / 3.5
    assert out.shape == a.T.shape
    np.testing.assert_allclose(out, expected.T, rtol=1e-7)


def test_scalars_and_read_only_tensors_are_averaged():
    one, two = np.array(1.0, np.float32), np.array(2.0, np.float32)
    one.flags.writeable = False
    out = _mean([({"s": one}, 1), ({"s": two}, 1)])["s"]
    assert out.shape == () and float(out) == 1.5
    assert float(one) == 1.0


@settings(deadline=None)
@given(st.permutations(range(6)))
def test_the_order_of_clients_is_rounding_only(order):
    rng = np.random.default_rng(1)
    clients = [({"w": rng.normal(size=50).astype(np.float32)}, float(i + 1)) for i in range(6)]
    base, other = _mean(clients)["w"], _mean([clients[i] for i in order])["w"]
    np.testing.assert_allclose(other, base, rtol=2e-7, atol=1e-8)


def test_a_client_of_weight_zero_adds_nothing():
    out = _mean([({"w": np.float32([np.inf])}, 0), ({"w": np.float32([2])}, 3), ({"w": np.float32([9])}, 0)])
    assert out["w"].tolist() == [2.0]


@pytest.mark.parametrize("kind", [WeightedMean, MomentMean])
def test_refusals_leave_the_sums_alone(kind):
    mean = kind()
    mean.add({"w": np.float32([2, 4]), "v": np.float32([1])}, 1)
    for bad in (-1.0, float("nan"), float("inf")):
        with pytest.raises(ValueError, match="finite weight of 0 or more"):
            mean.add({"w": np.float32([0, 0]), "v": np.float32([0])}, bad)
    with pytest.raises(ValueError, match=r"missing \['v'\], unexpected \['u'\]"):
        mean.add({"w": np.float32([0, 0]), "u": np.float32([0])}, 1)
    with pytest.raises(ValueError, match=r"expected v of shape \(1,\), got \(2,\)"):
        mean.add({"w": np.float32([0, 0]), "v": np.float32([0, 0])}, 1)
    with pytest.raises(TypeError, match="v is int64: integer counters are never averaged"):
        mean.add({"w": np.float32([0, 0]), "v": np.array([3])}, 1)
    assert mean.result()["w"].tolist() == [2.0, 4.0]


@pytest.mark.parametrize("kind", [WeightedMean, MomentMean])
def test_nothing_to_average_is_refused(kind):
    with pytest.raises(ValueError, match="at least one update to average, got none"):
        kind().result()
    mean = kind()
    mean.add({"w": np.float32([1])}, 0)
    with pytest.raises(ValueError, match="positive total weight, got 0"):
        mean.result()
    with pytest.raises(TypeError, match="steps is int64"):
        kind().add({"steps": np.array(3)}, 1)


@pytest.mark.parametrize("kind", [WeightedMean, MomentMean])
def test_a_mean_is_taken_once(kind):
    mean = kind()
    mean.add(_bn(1, 1), 1)
    mean.result()
    with pytest.raises(ValueError, match="already taken"):
        mean.result()
    with pytest.raises(ValueError, match="already taken"):
        mean.add(_bn(1, 1), 1)


def test_memory_is_one_float64_sum_and_a_chunk():
    model = {f"layer{i}": np.ones(500_000, np.float32) for i in range(8)}
    size = sum(t.nbytes for t in model.values())  # 16 MB
    tracemalloc.start()
    try:
        mean = WeightedMean()
        for _ in range(3):
            mean.add(model, 2.0)
        _, folded = tracemalloc.get_traced_memory()
        out = mean.result()
        left, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    one_tensor = size / 8
    assert folded < 2 * size + 2**20  # the sums, 8 B an element, and the scratch
    assert peak < 2 * size + 2 * one_tensor + 2**20
    assert left < size + 2**20 and out["layer7"].max() == out["layer0"].min() == 1.0


def test_moments_worked_by_hand():
    # equal parts N(0, 1) and N(4, 3): mean 2, variance (1 + 3)/2 + 2^2
    out = _mean([(_bn(0, 1), 5), (_bn(4, 3), 5)], MomentMean)
    assert out["bn.running_mean"].tolist() == [2.0] and out["bn.running_var"].tolist() == [6.0]
    assert out["bn.running_var"].dtype == np.float32


def test_moments_equal_the_pooled_activations():
    rng = np.random.default_rng(2)
    groups = [rng.normal(m, s, n).tolist() for m, s, n in ((0, 1, 30), (5, 2, 50), (-3, 0.5, 20))]
    pairs = []
    for group in groups:
        mean, var = naive.mean_and_variance(group)
        pairs.append(({"running_mean": np.array([mean]), "running_var": np.array([var])}, len(group)))
    out = _mean(pairs, MomentMean)
    mean, var = naive.pooled(groups)
    np.testing.assert_allclose([out["running_mean"][0], out["running_var"][0]], [mean, var], rtol=1e-12)


def test_moments_do_not_cancel_at_a_large_mean():
    # in float32 squares of 1e4 are 8 apart: the naive sum would lose a variance of 1e-3
    out = _mean([(_bn(1e4, 1e-3), 1), (_bn(1e4, 3e-3), 1)], MomentMean)
    np.testing.assert_allclose(out["bn.running_var"], [2e-3], rtol=1e-6)
    assert _mean([(_bn(1e4, 0), 1), (_bn(1e4, 0), 2)], MomentMean)["bn.running_var"].tolist() == [0.0]


def test_moments_leave_other_tensors_to_the_plain_mean():
    names = ("w", "x.running_mean", "y.running_var")
    a = _bn(0, 1) | {name: np.float32([x]) for name, x in zip(names, (1, 2, 7), strict=True)}
    b = _bn(2, 1) | {name: np.float32([x]) for name, x in zip(names, (3, 4, 9), strict=True)}
    out, plain = _mean([(a, 1), (b, 1)], MomentMean), _mean([(a, 1), (b, 1)])
    assert list(out) == list(a)
    assert {n: float(t[0]) for n, t in out.items()} == {
        "bn.running_mean": 1.0, "bn.running_var": 2.0, "w": 2.0, "x.running_mean": 3.0, "y.running_var": 8.0
    }  # fmt: skip
    assert plain["bn.running_var"].tolist() == [1.0]


def test_make_mean_follows_the_setting():
    assert isinstance(make_mean("moments"), MomentMean)
    assert isinstance(make_mean("recompute"), WeightedMean) and isinstance(make_mean("average"), WeightedMean)
    with pytest.raises(ValueError, match="bn must be recompute, average or moments, got 'mean'"):
        make_mean("mean")


def test_simplex():
    assert simplex([1, 3]).tolist() == [0.25, 0.75]
    for bad in ([], [0, 0], [1, -1], [float("nan")], [float("inf"), 1]):
        with pytest.raises(ValueError, match="expected"):
            simplex(bad)


def test_momentum():
    old, new = {"p": np.float32([[0, 10]])}, {"p": np.float32([[4, 20]])}
    assert momentum(old, new, 0.25)["p"].tolist() == [[3.0, 17.5]]
    assert momentum(old, new, 1.0)["p"].tobytes() == old["p"].tobytes()
    assert momentum(old, new, 0.0)["p"].tobytes() == new["p"].tobytes()
    assert momentum(old, new, 0.5)["p"].dtype == np.float32
    with pytest.raises(ValueError, match=r"rho must be in \[0, 1\], got 1.1"):
        momentum(old, new, 1.1)
    with pytest.raises(ValueError, match="missing"):
        momentum(old, {"q": new["p"]}, 0.5)
