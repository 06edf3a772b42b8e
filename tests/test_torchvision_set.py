"""``torchvision:NAME@ROOT``: sets with pixels in memory and with files, by ``train=`` and by ``split=``; never downloaded."""

from __future__ import annotations

import struct
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torchvision.datasets as sets

from client_app.data import DataError
from client_app.data.reading import Reading
from client_app.data.source import Source
from client_app.data.sources import load_source, origin_of
from tests.image_files import encode, grey, write


def open_set(uri: str, **reading: Any) -> Source:
    return load_source(origin_of(f"torchvision:{uri}", Reading(**reading)))


def write_mnist(root: Path, name: str = "MNIST", words: tuple[str, str] = ("train", "t10k")) -> Path:
    """Three training and two test images of 28x28 in MNIST's own format; pixel value = position."""
    values = {words[0]: [0, 1, 2], words[1]: [3, 4]}
    for word, numbers in values.items():
        pixels = np.stack([grey(value, 28, 28) for value in numbers])
        write(root / name / "raw" / f"{word}-images-idx3-ubyte", struct.pack(">4i", 2051, *pixels.shape) + pixels.tobytes())
        write(root / name / "raw" / f"{word}-labels-idx1-ubyte", struct.pack(">2i", 2049, len(numbers)) + bytes(9 - v for v in numbers))
    return root


def test_mnist_is_read_from_its_own_files(tmp_path: Path) -> None:
    source = open_set(f"MNIST@{write_mnist(tmp_path)}")
    assert source.image_shape == (1, 28, 28) and source.train_count == 3
    assert source.images[:, 0, 5, 5].tolist() == [0, 1, 2, 3, 4] and source.labels.tolist() == [9, 8, 7, 6, 5]
    assert source.classes[:2] == ("0 - zero", "1 - one") and len(source.classes) == 10
    scaled = open_set(f"MNIST@{tmp_path}", image_size=32, channels=3)
    assert scaled.image_shape == (3, 32, 32)
    assert scaled.take(np.array([4, 1])).images[:, :, 9, 9].tolist() == [[4] * 3, [1] * 3]


def test_further_arguments_stand_in_the_uri(tmp_path: Path) -> None:
    write_mnist(tmp_path, "EMNIST", ("emnist-letters-train", "emnist-letters-test"))
    source = open_set(f"EMNIST@{tmp_path}?split=letters")
    assert source.train_count == 3 and source.images[:, 0, 0, 0].tolist() == [0, 1, 2, 3, 4]
    assert source.classes[:3] == ("N/A", "a", "b")


def test_sets_by_split_and_of_files(tmp_path: Path) -> None:
    for name, value in (("a/1.jpg", 10), ("b/2.jpg", 20), ("a/3.jpg", 30), ("b/4.jpg", 40)):
        write(tmp_path / "dtd" / "dtd" / "images" / name, encode(grey(value), form="JPEG", quality=100))
    for part, names in (("train", "b/2.jpg\na/1.jpg"), ("val", "a/3.jpg"), ("test", "b/4.jpg")):
        write(tmp_path / "dtd" / "dtd" / "labels" / f"{part}1.txt", names.encode())
    source = open_set(f"DTD@{tmp_path}")
    assert source.classes == ("a", "b") and source.labels.tolist() == [1, 0, 0, 1] and source.train_count == 3
    assert source.take(np.arange(4)).images[:, 0, 0, 0].tolist() == [20, 10, 30, 40]


def test_colour_channels_move_to_the_second_axis_and_no_official_set_is_one_pool(tmp_path: Path) -> None:
    import scipy.io as io

    for part, values in (("train", [1, 2, 3]), ("test", [4, 5])):
        pixels = np.zeros((32, 32, 3, len(values)), np.uint8)
        pixels[:, :, 0], pixels[:, :, 2] = values, [v + 1 for v in values]
        io.savemat(tmp_path / f"{part}_32x32.mat", {"X": pixels, "y": np.array(values)[:, None]})
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sets.SVHN, "_check_integrity", lambda self: True)
        source = open_set(f"SVHN@{tmp_path}")
    assert source.image_shape == (3, 32, 32) and source.train_count == 3 and source.labels.tolist() == [1, 2, 3, 4, 5]
    assert source.take(np.array([3])).images[0, :, 7, 7].tolist() == [4, 0, 5]
    for name, value in (("Forest", 1), ("River", 2)):
        write(tmp_path / "eurosat" / "2750" / name / "1.jpg", encode(grey(value), form="JPEG", quality=100))
    pool = open_set(f"EuroSAT@{tmp_path}")
    assert (pool.classes, pool.train_count, pool.take(np.arange(2)).images[:, 0, 0, 0].tolist()) == (("Forest", "River"), 2, [1, 2])


@pytest.mark.parametrize(("uri", "expected"), [
    ("MNIST", "expected `torchvision:NAME@ROOT`"), ("MNIST@", "expected `torchvision:NAME@ROOT`"),
    ("Secret@{}", "no data set of this name"), ("os@{}", "no data set of this name"),
    ("MNIST@{}", "missing or damaged"), ("SVHN@{}", "missing or damaged"), ("DTD@{}", "missing or damaged"),
    ("MNIST@{}?secret=1", "an argument does not fit"), ("EMNIST@{}", "an argument does not fit"),
    ("FakeData@{}", "keeps its images in a way not known|an argument does not fit"),
])
def test_what_cannot_be_read_is_refused_without_its_path(tmp_path: Path, uri: str, expected: str) -> None:
    with pytest.raises(DataError, match=expected) as caught:
        open_set(uri.format(tmp_path))
    assert str(tmp_path) not in str(caught.value) and "ecret" not in str(caught.value)
    assert not list(tmp_path.iterdir())
