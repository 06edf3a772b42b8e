"""``folder:PATH``: layouts, class order, what is no image, and what cannot be read."""

from __future__ import annotations

import logging
import os
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from client_app.data import DataError, manifest, open_data
from client_app.data.reading import Reading
from client_app.data.source import Source
from client_app.data.sources import load_source, origin_of
from strategies.config import RunConfig
from tests.data_cases import FakeNode, node
from tests.image_files import encode, grey, write, write_folder

PETS = [("dog/b", 30), ("dog/a", 20), ("Cat/x", 10), ("dog/deep/er", 40)]


def open_folder(root: Path, **reading: object) -> Source:
    return load_source(origin_of(f"folder:{root}", Reading(**reading)))  # type: ignore[arg-type]


def everything(source: Source) -> list[int]:
    return source.take(np.arange(len(source))).images[:, 0, 0, 0].tolist()


def test_classes_are_sorted_folders_and_samples_sorted_paths(tmp_path: Path) -> None:
    source = open_folder(write_folder(tmp_path, all=PETS))
    assert source.classes == ("Cat", "dog") and source.labels.tolist() == [0, 1, 1, 1] and source.labels.dtype == np.int64
    assert everything(source) == [10, 20, 30, 40]
    assert source.image_shape == (1, 4, 4) and source.train_count == len(source) == 4 and source.skipped == 0
    taken = source.take(np.array([3, 0]))
    assert (taken.images[:, 0, 0, 0].tolist(), taken.labels.tolist(), taken.ids.tolist()) == ([40, 10], [1, 0], [3, 0])
    assert source.take(np.array([], int)).images.shape == (0, 1, 4, 4)


@pytest.mark.parametrize(("sets", "classes", "train", "pixels"), [
    ({"train": [("b/1", 1)], "test": [("a/2", 2), ("b/3", 3)]}, ("a", "b"), 1, [1, 2, 3]),
    ({"train": [("b/1", 1)], "val": [("a/2", 2)]}, ("a", "b"), 1, [1, 2]),
    ({"Training": [("b/1", 1)], "validation": [("a/2", 2)]}, ("a", "b"), 1, [1, 2]),
    ({"train": [("b/1", 1)], "val": [("a/2", 2)], "test": [("c/3", 3)]}, ("a", "b", "c"), 2, [1, 2, 3]),
    ({"train": [("b/1", 1), ("a/2", 2)]}, ("a", "b"), 2, [2, 1]),
    # no set, but a class of things that run on rails
    ({"all": [("train/1", 1), ("car/2", 2)]}, ("car", "train"), 2, [2, 1]),
    ({"all": [("train/1", 1)]}, ("train",), 1, [1]),
    ({"test": [("a/1", 1)]}, ("test",), 1, [1]),
])
def test_official_sets(tmp_path: Path, sets: dict[str, list[tuple[str, int]]], classes: tuple[str, ...], train: int,
                       pixels: list[int]) -> None:
    source = open_folder(write_folder(tmp_path, **sets))
    assert (source.classes, source.train_count, everything(source)) == (classes, train, pixels)


def test_an_empty_folder_is_a_class_and_what_is_no_image_is_left_out(tmp_path: Path) -> None:
    write_folder(tmp_path, all=[("a/1", 1), (".hidden/2", 2), ("a/.3", 3), ("__MACOSX/4", 4)])
    (tmp_path / "b").mkdir()
    (tmp_path / "a" / "notes.txt").write_text("no image")
    (tmp_path / "readme.md").write_text("no class")
    write(tmp_path / "a" / "5.JPEG", encode(grey(5), form="JPEG"))
    source = open_folder(tmp_path)
    assert source.classes == ("a", "b") and everything(source) == [1, 5]


def test_links_are_followed_and_a_circle_is_entered_once(tmp_path: Path) -> None:
    write_folder(tmp_path / "data", all=[("a/1", 1)])
    write(tmp_path / "elsewhere" / "2.png", encode(grey(2)))
    (tmp_path / "data" / "a" / "more").symlink_to(tmp_path / "elsewhere", target_is_directory=True)
    (tmp_path / "data" / "a" / "circle").symlink_to(tmp_path / "data" / "a", target_is_directory=True)
    assert everything(open_folder(tmp_path / "data")) == [1, 2]


def test_sizes_must_agree_or_image_size_makes_them(tmp_path: Path) -> None:
    write_folder(tmp_path, all=[("a/1", 1)])
    write(tmp_path / "a" / "2.png", encode(grey(2, 6, 9)))
    with pytest.raises(DataError, match="differ in size: set image-size"):
        open_folder(tmp_path)
    source = open_folder(tmp_path, image_size=5)
    assert source.image_shape == (1, 5, 5)
    assert source.take(np.arange(2)).images.tolist() == [np.full((1, 5, 5), value).tolist() for value in (1, 2)]


def test_one_coloured_image_makes_all_coloured_unless_the_run_says_otherwise(tmp_path: Path) -> None:
    write_folder(tmp_path, all=[("a/1", 1)])
    write(tmp_path / "a" / "2.png", encode((200, 100, 50), "RGB"))
    assert open_folder(tmp_path).take(np.arange(2)).images[:, :, 0, 0].tolist() == [[1, 1, 1], [200, 100, 50]]
    assert open_folder(tmp_path, channels=1).take(np.arange(2)).images[:, :, 0, 0].tolist() == [[1], [124]]
    assert open_folder(tmp_path, channels=3).image_shape == (3, 4, 4)


def damaged_folder(root: Path) -> Path:
    """Six sound images, one that is no image, one that is cut short, and one that leads nowhere."""
    noise = encode(np.random.default_rng(0).integers(0, 256, (16, 16), np.uint8))
    write_folder(root, all=[])
    for number in range(6):
        write(root / "ab"[number % 2] / f"{number}.png", encode(grey(number, 16, 16)))
    write(root / "a" / "secret-text.png", b"no image")
    write(root / "b" / "secret-cut.png", noise[: len(noise) // 2])
    (root / "b" / "secret-link.png").symlink_to(root / "nowhere.png")
    return root


def test_images_that_cannot_be_read_stop_the_run_by_a_number_alone(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    damaged_folder(tmp_path)
    with pytest.raises(DataError, match=r"^2 of the images cannot be read; run `fedhearth data check`") as caught:
        open_folder(tmp_path)
    (tmp_path / "a" / "secret-text.png").unlink()
    (tmp_path / "b" / "secret-link.png").unlink()
    source = open_folder(tmp_path)  # a header says nothing of an end that is missing
    with pytest.raises(DataError, match=r"^1 of the images cannot be read") as cut:
        source.take(np.arange(len(source)))
    for error, names in ((caught.value, ["secret-text.png", "secret-link.png"]), (cut.value, ["secret-cut.png"])):
        assert "secret" not in str(error) and str(tmp_path) not in str(error)
        assert all(name in error.path and name in caplog.text for name in names)


def test_images_that_cannot_be_read_are_skipped_and_counted_on_demand(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING)
    source = open_folder(damaged_folder(tmp_path), bad_images="skip")
    assert (source.skipped, len(source), source.train_count) == (3, 6, 6)
    assert [Path(name.split(" (")[0]).name for name in source.unreadable] == ["secret-text.png", "secret-cut.png", "secret-link.png"]
    assert everything(source) == [0, 2, 4, 1, 3, 5] and source.labels.tolist() == [0, 0, 0, 1, 1, 1]
    assert "images that cannot be read (3)" in caplog.text

    config = RunConfig(dataset=f"folder:{tmp_path}", clients=2, partition="iid", test_fraction=0.0, bad_images="skip")
    record = manifest(config)
    assert sum(map(sum, record["train"].values())) == 6
    shares = [open_data(config, node(index, 2)).train for index in range(2)]
    assert sorted(np.concatenate([share.images[:, 0, 0, 0] for share in shares]).tolist()) == list(range(6))
    for path in tmp_path.glob("[ab]/?.png"):
        path.write_bytes(b"")
    load_source.cache_clear()
    with pytest.raises(DataError, match="9 of the images cannot be read"):
        open_folder(tmp_path, bad_images="skip")


@pytest.mark.parametrize(("make", "expected"), [
    (lambda root: root / "nowhere", "the folder is missing"),
    (lambda root: write(root / "file.png", encode(grey(1))), "the folder is missing"),
    (lambda root: root, "no class folders"),
    (lambda root: write(root / "secret.png", encode(grey(1))).parent, "no class folders"),
    (lambda root: write(root / "secret" / "a.txt", b"").parents[1], "hold no image"),
    (lambda root: write_folder(root, test=[("secret/1", 1)], train=[]) / "test" / "secret" / "1.png", "the folder is missing"),
])
def test_a_folder_of_another_kind_is_refused_without_its_path(tmp_path: Path, make: object, expected: str) -> None:
    with pytest.raises(DataError, match=expected) as caught:
        open_folder(make(tmp_path))  # type: ignore[operator]
    assert str(tmp_path) not in str(caught.value) and "secret" not in str(caught.value) and caught.value.path


def test_only_test_images_are_refused(tmp_path: Path) -> None:
    write_folder(tmp_path, test=[("a/1", 1)])
    (tmp_path / "train" / "a").mkdir(parents=True)
    with pytest.raises(DataError, match="at least one training sample, got none"):
        open_folder(tmp_path)


def test_a_site_splits_its_folder_and_notices_new_files(tmp_path: Path) -> None:
    write_folder(tmp_path, train=[("a/1", 1), ("a/2", 2), ("b/3", 3), ("b/4", 4)], test=[("a/5", 5), ("b/6", 6)])
    clinic, config = FakeNode("clinic", data=f"folder:{tmp_path}"), RunConfig(test_split="official")
    data = open_data(config, clinic)
    assert sorted(data.train.images[:, 0, 0, 0].tolist()) == [1, 2, 3, 4]
    assert sorted(data.test.images[:, 0, 0, 0].tolist()) == [5, 6]
    assert data.test.labels[data.test.images[:, 0, 0, 0].argsort()].tolist() == [0, 1]
    own = open_data(replace(config, test_split="own", test_fraction=0.5), clinic)
    assert len(own.train) == len(own.test) == 3
    assert open_data(config, clinic) is data
    write(tmp_path / "train" / "a" / "7.png", encode(grey(7)))
    os.utime(tmp_path / "train" / "a", ns=(1, 2**62))
    assert sorted(open_data(config, clinic).train.images[:, 0, 0, 0].tolist()) == [1, 2, 3, 4, 7]
