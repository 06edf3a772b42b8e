"""Decoded images on a client's own disk: decoded once, made anew when they must be, bounded, and never in the way."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

import client_app.data.file_source as file_source
import client_app.data.opening as opening
from client_app.data import ClientData, DataError, open_data
from client_app.data.byte_lru import ByteLru
from client_app.data.decoded import DecodedShelf
from client_app.data.sources import load_source
from strategies.config import RunConfig
from tests.data_cases import FakeNode
from tests.image_files import encode, grey, write, write_folder


def numbers(n: int = 3) -> np.ndarray:
    return np.arange(n * 16, dtype=np.uint8).reshape(n, 1, 4, 4)


class Making:
    """Counts how often the array had to be made."""

    def __init__(self, array: np.ndarray) -> None:
        self.array, self.times = array, 0

    def __call__(self) -> np.ndarray:
        self.times += 1
        return self.array


def test_what_was_made_once_is_mapped_the_next_time(tmp_path: Path) -> None:
    make, shelf = Making(numbers()), DecodedShelf(tmp_path / "decoded")
    first, second = (shelf.images("k", (3, 1, 4, 4), make) for _ in range(2))
    np.testing.assert_array_equal(first, second)
    assert make.times == 1 and isinstance(second.base, np.memmap) and not second.flags.writeable
    assert (tmp_path / "decoded").stat().st_mode & 0o777 == 0o700
    assert [path.name for path in (tmp_path / "decoded").iterdir()] == ["k.npy"]


@pytest.mark.parametrize("damage", [
    lambda content: b"", lambda content: content[:-1], lambda content: content[:90], lambda content: content + b"x",
    lambda content: content[:150] + bytes([content[150] ^ 1]) + content[151:], lambda content: b"no array at all",
    lambda content: content[:-4] + b"\0\0\0\0",
])
def test_a_torn_or_damaged_file_is_made_anew(tmp_path: Path, damage: Callable[[bytes], bytes]) -> None:
    make, shelf = Making(numbers()), DecodedShelf(tmp_path)
    shelf.images("k", (3, 1, 4, 4), make)
    (tmp_path / "k.npy").write_bytes(damage((tmp_path / "k.npy").read_bytes()))
    for times in (2, 2):
        np.testing.assert_array_equal(shelf.images("k", (3, 1, 4, 4), make), numbers())
        assert make.times == times


def test_a_file_of_another_shape_is_made_anew(tmp_path: Path) -> None:
    shelf = DecodedShelf(tmp_path)
    shelf.images("k", (3, 1, 4, 4), Making(numbers()))
    assert shelf.images("k", (2, 1, 4, 4), Making(numbers(2))).shape == (2, 1, 4, 4)


def test_the_longest_unused_goes_first_beyond_files_and_bytes(tmp_path: Path) -> None:
    def names() -> set[str]:
        return {path.stem for path in tmp_path.glob("*.npy")}

    shelf = DecodedShelf(tmp_path, most_files=2)
    for time, key in enumerate("aba"):
        shelf.images(key, (3, 1, 4, 4), Making(numbers()))
        os.utime(tmp_path / f"{key}.npy", ns=(time, time))
    shelf.images("c", (3, 1, 4, 4), Making(numbers()))
    assert names() == {"a", "c"}
    size = (tmp_path / "a.npy").stat().st_size
    DecodedShelf(tmp_path, most_bytes=size).images("d", (3, 1, 4, 4), Making(numbers()))
    assert names() == {"d"}
    whole = Making(numbers(100))
    for _ in range(2):
        DecodedShelf(tmp_path, most_bytes=size).images("e", (100, 1, 4, 4), whole)
    assert names() == {"d"} and whole.times == 2


def test_a_full_disk_keeps_nothing_and_stops_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
                                                    caplog: pytest.LogCaptureFixture) -> None:
    def full(*_: object, **__: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    make, shelf = Making(numbers()), DecodedShelf(tmp_path)
    with monkeypatch.context() as patch:
        patch.setattr(np, "save", full)
        np.testing.assert_array_equal(shelf.images("k", (3, 1, 4, 4), make), numbers())
    assert not list(tmp_path.iterdir()) and "No space left" in caplog.text and str(tmp_path) not in caplog.text
    blocked = DecodedShelf(write(tmp_path / "file", b"") / "below")
    np.testing.assert_array_equal(blocked.images("k", (3, 1, 4, 4), make), numbers())
    blocked.keep_note("k", 1)
    assert blocked.note("k") is None


def test_unfinished_files_of_dead_processes_are_removed(tmp_path: Path) -> None:
    for name, when in (("old", 0), ("new", 2**61)):
        os.utime(write(tmp_path / f"{name}.npy.1.part", b""), ns=(when, when))
    DecodedShelf(tmp_path).keep_note("k", {"a": [1]})
    assert {path.name for path in tmp_path.iterdir()} == {"new.npy.1.part", "k.json"}
    assert DecodedShelf(tmp_path).note("k") == {"a": [1]}


@pytest.fixture
def counts(monkeypatch: pytest.MonkeyPatch) -> dict[str, int]:
    """How often a header was read and an image decoded."""
    seen = {"header": 0, "pixels": 0}
    for name in seen:
        real = getattr(file_source, name)

        def counted(*args: object, name: str = name, real: Callable[..., object] = real, **more: object) -> object:
            seen[name] += 1  # under the interpreter's lock, and so exact to within what the test asks
            return real(*args, **more)

        monkeypatch.setattr(file_source, name, counted)
    return seen


def new_process() -> None:
    load_source.cache_clear()
    opening._CACHE = ByteLru(opening.CACHE_BYTES)


def opened(config: RunConfig, node: FakeNode) -> ClientData:
    new_process()
    return open_data(config, node)


def test_a_second_process_of_a_site_decodes_nothing_of_2000_images(tmp_path: Path, counts: dict[str, int]) -> None:
    for value in range(2000):
        write(tmp_path / "data" / "ab"[value % 2] / f"{value:04d}.jpg", encode(grey(value % 250, 8, 8), form="JPEG", quality=100))
    site = FakeNode("clinic", data=f"folder:{tmp_path / 'data'}", state_dir=tmp_path / "state", simulated=False)
    config = RunConfig()
    first = opened(config, site)
    assert counts == {"header": 2000, "pixels": 2000} and len(first.train) + len(first.test) == 2000
    second = opened(config, site)
    assert counts == {"header": 2000, "pixels": 2000}
    for one, other in ((first.train, second.train), (first.test, second.test)):
        np.testing.assert_array_equal(one.images, other.images)
        assert one.images[:, 0, 0, 0].tolist() == (one.ids % 1000 * 2 + one.ids // 1000).__mod__(250).tolist()
    # a file written anew is decoded anew, with all that lie in the same share
    write(tmp_path / "data" / "a" / "0000.jpg", encode(grey(255, 8, 8), form="JPEG"))
    third = opened(config, site)
    assert counts["header"] == 4000 and counts["pixels"] == 4000
    assert sorted([*third.train.images[third.train.ids == 0, 0, 0, 0], *third.test.images[third.test.ids == 0, 0, 0, 0]]) == [255]


def test_the_kept_images_are_those_of_the_same_reading_and_indices(tmp_path: Path, counts: dict[str, int]) -> None:
    write_folder(tmp_path / "data", all=[(f"{'ab'[v % 2]}/{v}", v) for v in range(8)])
    site = FakeNode("clinic", data=f"folder:{tmp_path / 'data'}", state_dir=tmp_path / "state", simulated=False)
    for changes, decoded in (({}, 8), ({}, 8), ({"image_size": 2}, 16), ({"channels": 3}, 24), ({"seed": 1}, 32), ({"lr": 0.5}, 32)):
        data = opened(RunConfig(**changes), site)
        assert counts["pixels"] == decoded
        assert data.input_shape == (changes.get("channels", 1), *([changes.get("image_size", 4)] * 2))
    opened(RunConfig(), FakeNode("clinic", data=site.data))  # a simulation keeps nothing on the disk
    assert counts["pixels"] == 40


def test_a_site_whose_images_are_skipped_remembers_which(tmp_path: Path, counts: dict[str, int]) -> None:
    write_folder(tmp_path / "data", all=[(f"a/{v}", v) for v in range(4)])
    bad = write(tmp_path / "data" / "a" / "bad.png", encode(np.random.default_rng(0).integers(0, 256, (4, 4), np.uint8))[:60])
    site = FakeNode("clinic", data=f"folder:{tmp_path / 'data'}", state_dir=tmp_path / "state", simulated=False)
    config = RunConfig(bad_images="skip", test_fraction=0.0)
    for _ in range(2):
        assert sorted(opened(config, site).train.images[:, 0, 0, 0].tolist()) == [0, 1, 2, 3]
        assert counts == {"header": 5, "pixels": 4}
    with pytest.raises(DataError, match="1 of the images cannot be read"):
        opened(RunConfig(), site)
    # a damaged note is made anew
    for note in (tmp_path / "state" / "decoded").glob("*.json"):
        note.write_text('[["a"], {}]')
    opened(config, site)
    write(bad, encode(grey(9)))
    assert sorted(opened(config, site).train.images[:, 0, 0, 0].tolist()) == [0, 1, 2, 3, 9]
