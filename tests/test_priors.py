"""The client's class prior: hand-worked numbers, and what holds for any labels."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from client_app.local.priors import class_prior


def test_four_labels_by_hand() -> None:
    """Counts 3, 0, 1 of three classes: 3.5, .5 and 1.5 of 5.5."""
    np.testing.assert_allclose(class_prior(np.array([0, 2, 0, 0]), 3), [3.5 / 5.5, 0.5 / 5.5, 1.5 / 5.5], rtol=1e-15)


@pytest.mark.parametrize("labels", [None, np.zeros(0, np.int64)])
def test_without_labels_it_is_flat(labels: np.ndarray | None) -> None:
    np.testing.assert_array_equal(class_prior(labels, 4), [0.25] * 4)


def test_a_label_outside_is_refused_without_being_named() -> None:
    with pytest.raises(ValueError, match=r"0\.\.C-1") as refused:
        class_prior(np.array([0, 7531]), 3)
    assert "7531" not in str(refused.value)


@given(st.lists(st.integers(0, 6), max_size=60), st.randoms())
def test_it_is_a_prior_ordered_as_the_counts_are_and_blind_to_order(labels: list[int], random: object) -> None:
    given = np.array(labels, np.int64)
    prior = class_prior(given, 7)
    assert prior.shape == (7,) and (prior > 0).all() and abs(prior.sum() - 1) < 1e-12
    counts = np.bincount(given, minlength=7)
    for a in range(7):
        for b in range(7):
            assert (prior[a] < prior[b]) == (counts[a] < counts[b])
    random.shuffle(labels)  # type: ignore[attr-defined]
    np.testing.assert_array_equal(class_prior(np.array(labels, np.int64), 7), prior)
