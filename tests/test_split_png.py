"""``split.png``: which counts are written and how large, at every size, and that hostile names stay text."""

from __future__ import annotations

import io
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from server_app import split_png as drawing
from server_app.split_png import DPI, split_png, text_points, write_split_png
from tests.test_report import five


def split_of(clients: int, classes: int, **changes: Any) -> dict[str, Any]:
    counts = np.random.default_rng(0).poisson(30, (clients, classes)) + 1
    names = [f"client-{index:03d}" for index in range(clients)]
    return {"classes": [f"class {label}" for label in range(classes)], "train": dict(zip(names, counts.tolist(), strict=True)),
            "test": dict(zip(names, (counts // 4).tolist(), strict=True)), "hash": "ab" * 32, **changes}


@pytest.fixture
def written(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The texts that are put into cells, in their order."""
    from matplotlib.axes import Axes

    texts: list[str] = []
    put = Axes.text
    monkeypatch.setattr(Axes, "text", lambda self, x, y, text, **look: texts.append(text) or put(self, x, y, text, **look))
    return texts


@pytest.mark.parametrize(("clients", "classes", "counts"), [
    (1, 1, True), (4, 2, True), (20, 10, True), (40, 16, True), (100, 100, False), (500, 200, False),
])
def test_every_size_has_a_sensible_picture(clients: int, classes: int, counts: bool, written: list[str]) -> None:
    image = Image.open(io.BytesIO(split_png(split_of(clients, classes))))
    width, height = (pixels / DPI for pixels in image.size)
    assert 2 <= width <= 18 and 2 <= height <= 12
    assert len(written) == (2 * clients * classes if counts else 0)


def test_the_cells_hold_the_counts_and_zeros_stay_blank(written: list[str]) -> None:
    split = split_of(2, 2, train={"a": [12, 0], "b": [3, 4]}, test={"a": [4, 0], "b": [0, 1]})
    image = np.asarray(Image.open(io.BytesIO(split_png(split))).convert("RGB"), float)
    assert written == ["12", "3", "4", "4", "1"]
    # the largest count is the darkest blue, and nothing else is coloured than that ramp
    dark = np.abs(image - [0x08, 0x30, 0x6B]).sum(axis=2) < 6
    assert dark.sum() > 1000


def test_without_test_samples_there_is_one_panel() -> None:
    both, alone = (Image.open(io.BytesIO(split_png(split_of(5, 4, **change)))) for change in ({}, {"test": {}}))
    assert alone.size[0] < both.size[0] and alone.size[1] == both.size[1]


@pytest.mark.parametrize(("largest", "cell", "points"), [
    (99, (0.24, 0.46), 8.0),          # as large as text gets
    (9, (0.1, 0.46), 72 * 0.1 * 0.7),  # bounded by the height
    (12345, (0.24, 0.25), 72 * 0.25 * 0.9 / (0.62 * 5)),  # bounded by the width
    (9, (0.05, 0.46), 0.0), (12345, (0.24, 0.1), 0.0),
])
def test_text_is_as_large_as_fits(largest: int, cell: tuple[float, float], points: float) -> None:
    assert text_points(largest, cell) == pytest.approx(points)


def test_rows_name_what_sets_a_client_apart() -> None:
    split = split_of(2, 1, groups={"client-000": "90"}, natural={"client-000": "ada"}, held_out=["client-000"])
    assert drawing._row_name("client-000", split) == "client-000 · ada 90 · held out"
    assert drawing._row_name("client-001", split) == "client-001"


def test_hostile_names_stay_text_and_the_file_is_replaced_whole(tmp_path: Path) -> None:
    name = "<b>$\\frac{a}$ \x07 样"
    split = {"classes": [name], "train": {name: [3]}, "test": {name: [1]}, "dataset": name * 40, "groups": {name: name}}
    path = tmp_path / "split.png"
    path.write_bytes(b"old")
    write_split_png(json.loads(json.dumps(split)), path)
    assert path.read_bytes().startswith(b"\x89PNG") and [p.name for p in tmp_path.iterdir()] == ["split.png"]


@pytest.mark.parametrize("split", [True, False])
def test_a_finished_run_has_the_picture_if_it_has_a_split(split: bool, tmp_path: Path) -> None:
    five(tmp_path, split=split)
    assert (tmp_path / "split.png").exists() == split


def test_letters_that_matplotlib_lacks_come_from_an_installed_font(monkeypatch: pytest.MonkeyPatch) -> None:
    from matplotlib.font_manager import FontEntry, fontManager

    plain = [font for font in fontManager.ttflist if font.name not in drawing.FONTS]
    monkeypatch.setattr(fontManager, "ttflist", plain)
    assert drawing.families() == ["DejaVu Sans"]
    monkeypatch.setattr(fontManager, "ttflist", [*plain, *(FontEntry(name=name) for name in ("Yu Gothic", "PingFang SC"))])
    assert drawing.families() == ["DejaVu Sans", "PingFang SC", "Yu Gothic"]
