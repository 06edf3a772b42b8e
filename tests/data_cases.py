"""Small data that the tests of client data share."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from hypothesis import strategies as st

from client_app.data import Split
from client_app.node import client_name

seeds = st.integers(0, 2**32)


@dataclass(frozen=True)
class FakeNode:
    name: str = "client-000"
    index: int = 0
    count: int = 1
    data: str = ""
    state_dir: Path = Path()
    simulated: bool = True


def node(index: int, count: int) -> FakeNode:
    return FakeNode(client_name(index), index, count)


def split(n: int = 4, first_id: int = 0, **changes: Any) -> Split:
    fields: dict[str, Any] = {"images": np.zeros((n, 1, 2, 2), np.uint8), "labels": np.arange(n) % 2,
                              "ids": np.arange(first_id, first_id + n)}
    return Split(**{**fields, **changes})


def write_npz(path: Path, drop: tuple[str, ...] = (), **changes: Any) -> str:
    """A file of 12 grey 4x4 training images of 3 classes and 6 test images; pixel value = position."""
    fields: dict[str, Any] = {
        "x_train": np.arange(12, dtype=np.uint8)[:, None, None] * np.ones((1, 4, 4), np.uint8),
        "y_train": np.arange(12) % 3,
        "x_test": np.arange(12, 18, dtype=np.uint8)[:, None, None] * np.ones((1, 4, 4), np.uint8),
        "y_test": np.arange(6) % 3,
        "class_names": np.array(["ant", "bee", "cat"]),
    }
    fields.update(changes)
    np.savez(path, **{key: value for key, value in fields.items() if key not in drop})
    return f"npz:{path}"


def rng(seed: int = 0) -> np.random.Generator:
    return np.random.default_rng(seed)


@st.composite
def label_vectors(draw: st.DrawFn, minimum: int = 1) -> np.ndarray:
    """Up to 400 labels of up to 10 classes, common and rare."""
    generator = rng(draw(seeds))
    frequencies = generator.dirichlet(np.full(draw(st.integers(1, 10)), 0.7))
    return generator.choice(len(frequencies), draw(st.integers(minimum, 400)), p=frequencies)


@st.composite
def labels_and_clients(draw: st.DrawFn, each: int = 1) -> tuple[np.ndarray, int]:
    """Labels, and 1 to 60 clients that could have ``each`` samples each."""
    labels = draw(label_vectors(each))
    return labels, draw(st.integers(1, min(60, len(labels) // each)))
