"""Which rows of a user's ``.npz`` file are wrong, once its reader has refused it. For this machine's terminal only."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np

from client_app.data.npz import DAMAGE
from strategies.data_warnings import few

SHOWN = 8


def wrong_rows(uri: str) -> list[str]:
    """A phrase a kind of mistake, with its rows; empty for other kinds of data and for files that cannot be read at all."""
    kind, _, where = uri.partition(":")
    if kind != "npz":
        return []
    try:
        with Path(where).expanduser().open("rb") as file, np.load(file, allow_pickle=False) as archive:
            arrays = {key: archive[key] for key in ("x_train", "y_train", "x_test", "y_test", "class_names") if key in archive.files}
    except DAMAGE:
        return []
    names = arrays.get("class_names")
    return [phrase for part in ("train", "test") for phrase in (
        *_labels(f"y_{part}", arrays.get(f"y_{part}"), None if names is None else names.size),
        *_images(f"x_{part}", arrays.get(f"x_{part}")))]


def _labels(key: str, labels: np.ndarray | None, classes: int | None) -> Iterator[str]:
    if labels is None or labels.dtype.kind not in "iuf":
        return
    labels = labels.reshape(-1)
    odd = ~np.isfinite(labels) | (labels != np.rint(np.nan_to_num(labels))) if labels.dtype.kind == "f" else np.zeros(len(labels), bool)
    yield from _phrase(key, labels, odd, "no whole numbers")
    yield from _phrase(key, labels, ~odd & (labels < 0), "negative")
    if classes is not None:
        yield from _phrase(key, labels, ~odd & (labels >= classes), f"beyond the last of {classes} classes, {classes - 1}")


def _images(key: str, images: np.ndarray | None) -> Iterator[str]:
    if images is not None and images.dtype.kind == "f" and images.ndim > 1:
        rows = np.flatnonzero(~np.isfinite(images.reshape(len(images), -1)).all(1))
        if len(rows):
            yield f"{key}: NaN or infinity in {len(rows)} images: {few([f'{key}[{row}]' for row in rows], SHOWN)}"


def _phrase(key: str, labels: np.ndarray, wrong: np.ndarray, what: str) -> Iterator[str]:
    rows = np.flatnonzero(wrong)
    if len(rows):
        yield f"{key}: {what} in {len(rows)} places: {few([f'{key}[{row}] = {labels[row]}' for row in rows], SHOWN)}"
