"""The head signal and its projection: hand-worked numbers, parity with loops, geometry, refusals."""

from __future__ import annotations

import subprocess
import sys

import numpy as np
import pytest

from strategies.head_descriptor import _components, flat_signal, head_difference, project
from tests.naive import descriptor as naive


def _head(weight, bias):
    return {"weight": np.asarray(weight, np.float32), "bias": np.asarray(bias, np.float32)}


def test_difference_worked_by_hand():
    head, initial = _head([[3, 1], [1, 5]], [2, 0]), _head([[1, 1], [1, 1]], [0, 0])
    # moved by [[2, 0 | 2], [0, 4 | 0]]; the class-common row is [1, 2, 1]
    assert head_difference(head, initial).tolist() == [[1, -2, 1], [-1, 2, -1]]
    assert flat_signal(head, initial).tolist() == [1, -2, 1, -1, 2, -1]


def test_difference_equals_loops_and_ignores_a_class_common_shift():
    rng = np.random.default_rng(0)
    w, w0, b, b0 = (rng.normal(size=s).astype(np.float32) for s in ((4, 7), (4, 7), (4,), (4,)))
    ours = head_difference(_head(w, b), _head(w0, b0))
    assert ours.shape == (4, 8) and ours.dtype == np.float64
    np.testing.assert_allclose(ours, naive.head_difference(w, b, w0, b0), rtol=0, atol=1e-12)
    np.testing.assert_allclose(ours.sum(axis=0), np.zeros(8), atol=1e-12)
    shifted = head_difference(_head(w + np.float32(0.5), b + np.float32(2)), _head(w0, b0))
    np.testing.assert_allclose(shifted, ours, atol=1e-6)


def test_project_equals_loops_in_float16():
    signal = np.random.default_rng(1).normal(size=40)
    ours = project(signal, width=16, seed=7)
    assert ours.dtype == np.float16 and ours.shape == (16,) and ours.nbytes == 32
    reference = naive.project(signal, _components(40, 16, 7).toarray())
    np.testing.assert_allclose(ours.astype(float), np.array(reference, float), rtol=2e-3, atol=1e-6)


def test_components_hold_the_documented_values():
    dense = _components(400, 64, 3).toarray()
    # density 1/sqrt(400) = 1/20: entries +-sqrt(20/64)
    assert set(np.unique(np.abs(dense)).round(9)) == {0.0, round((20 / 64) ** 0.5, 9)}
    assert abs((dense != 0).mean() - 0.05) < 0.005


def test_lengths_and_cosines_survive_the_projection():
    rng = np.random.default_rng(2)
    a, noise = rng.normal(size=5000), rng.normal(size=5000)
    b = a + noise  # cosine about .71
    pa, pb = (project(x, 512, seed=5).astype(float) for x in (a, b))
    assert abs(np.linalg.norm(pa) - 1) < 0.1
    cosine = a @ b / np.linalg.norm(a) / np.linalg.norm(b)
    assert abs(pa @ pb / np.linalg.norm(pa) / np.linalg.norm(pb) - cosine) < 0.1


def test_scale_does_not_matter_seed_does():
    signal = np.random.default_rng(3).normal(size=300)
    first = project(signal, 32, seed=1)
    np.testing.assert_array_equal(first, project(signal * 4, 32, seed=1))
    # seeds from derive_seed have 63 bits
    assert not np.array_equal(first, project(signal, 32, seed=2**62 + 2))


def test_a_head_that_has_not_moved_has_a_zero_descriptor():
    head = _head(np.ones((3, 4)), np.ones(3))
    descriptor = project(flat_signal(head, head), 8, seed=0)
    assert descriptor.tolist() == [0.0] * 8


def test_a_head_narrower_than_the_descriptor_does_not_warn():
    # warnings are errors in this suite
    assert project(np.array([1.0, 0, 0, 0, 0, 0]), 512, seed=0).shape == (512,)


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_not_finite_is_refused(bad):
    head = _head([[bad, 1]], [0])
    with pytest.raises(ValueError, match="finite head"):
        head_difference(head, _head([[0, 0]], [0]))
    with pytest.raises(ValueError, match="finite head signal"):
        project(np.array([1.0, bad]), 4, seed=0)


def test_wrong_shapes_and_names_are_refused():
    good = _head([[1, 2], [3, 4]], [0, 0])
    with pytest.raises(ValueError, match=r"one shape \(C, D\+1\), got \(2, 3\) and \(3, 3\)"):
        head_difference(good, _head(np.zeros((3, 2)), np.zeros(3)))
    with pytest.raises(ValueError, match=r"got shapes \(2, 2\) and \(3,\)"):
        head_difference({"weight": good["weight"], "bias": np.zeros(3, np.float32)}, good)
    with pytest.raises(ValueError, match=r"bias \(C,\), got \['weight'\]"):
        head_difference({"weight": good["weight"]}, good)
    with pytest.raises(ValueError, match="at least 1, got 0"):
        project(np.ones(3), 0, seed=0)
    with pytest.raises(ValueError, match=r"non-empty signal \(P,\), got shape \(2, 2\)"):
        project(np.ones((2, 2)), 4, seed=0)


def test_importing_the_server_maths_does_not_import_sklearn_or_scipy():
    code = (
        "import sys; from strategies import head_descriptor, head_clusters, mixture, reduce, tails; "
        "print('sklearn' in sys.modules, 'scipy' in sys.modules)"
    )
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert out.split() == ["False", "False"]
