"""What people really have on their disks: pipes, links, names that are no text, full disks. A plain word, and never a hang."""

from __future__ import annotations

import errno
import os
import signal
import sys
import zipfile
from collections.abc import Iterator
from io import BytesIO
from pathlib import Path

import numpy as np
import pytest

from client_app.data import DataError
from client_app.data.columns import declared_classes, find_columns, labels_of
from client_app.data.images import header
from client_app.data.reading import Reading
from client_app.data.source import Source
from client_app.data.sources import load_source, origin_of
from client_app.loop_settings import DeviceError, resolve_device
from deploy.cli import main
from strategies.config import ConfigError, RunConfig
from strategies.data_warnings import printable
from tests.image_files import encode, grey, write, write_folder


@pytest.fixture(autouse=True)
def no_hang() -> Iterator[None]:
    """A wait without end becomes a failure."""

    def stop(number: int, frame: object) -> None:
        raise TimeoutError("still waiting after a minute")

    before = signal.signal(signal.SIGALRM, stop)
    signal.alarm(60)
    yield
    signal.alarm(0)
    signal.signal(signal.SIGALRM, before)


def open_source(uri: str) -> Source:
    return load_source(origin_of(uri, Reading()))


def pets(root: Path) -> Path:
    return write_folder(root, all=[(f"{kind}/{n}", 10 * n) for kind in ("cat", "dog") for n in range(1, 7)])


def test_a_pipe_is_no_image_and_is_not_waited_for(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    os.mkfifo(tmp_path / "pipe.png")
    with pytest.raises(ValueError, match="a pipe or a device"):
        header(tmp_path / "pipe.png")
    (pets(tmp_path) / "pipe.png").rename(tmp_path / "cat" / "pipe.png")
    assert main(["data", "check", f"folder:{tmp_path}"]) == 1
    told = capsys.readouterr().out
    assert f"{tmp_path}/cat/pipe.png (ValueError: no file: expected an image file" in told and "STOP  unreadable" in told


def test_a_link_to_a_folder_above_brings_no_images_of_other_classes(tmp_path: Path) -> None:
    pets(tmp_path / "pets")
    (tmp_path / "pets" / "cat" / "up").symlink_to("..")
    (tmp_path / "pets" / "dog" / "self").symlink_to(".")
    write(tmp_path / "more" / "1.png", encode(grey(1)))
    (tmp_path / "pets" / "dog" / "more").symlink_to(tmp_path / "more")
    for left in ("@eaDir", "$RECYCLE.BIN", "lost+found"):
        (tmp_path / "pets" / left).mkdir()
    source = open_source(f"folder:{tmp_path / 'pets'}")
    assert source.classes == ("cat", "dog")
    assert np.bincount(source.labels).tolist() == [6, 7]  # 6 each, and the one that is linked to from elsewhere


def test_a_class_folder_that_may_not_be_read_stops(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    scandir = os.scandir

    def refusing(path: str) -> object:
        if Path(path).name == "dog":
            raise PermissionError(errno.EACCES, "Permission denied", path)
        return scandir(path)

    pets(tmp_path)
    monkeypatch.setattr(os, "scandir", refusing)
    with pytest.raises(DataError, match="the folder or one below it cannot be read") as caught:
        open_source(f"folder:{tmp_path}")
    assert "dog" not in str(caught.value)


@pytest.mark.skipif(sys.platform == "darwin", reason="its disks hold no such names")
def test_names_that_are_no_text(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write(pets(tmp_path) / "cat" / os.fsdecode(b"\xff.png"), b"no image")
    write(tmp_path / "dog" / "two\nlines\x1b[2J.png", b"no image")
    assert main(["data", "check", f"folder:{tmp_path}"]) == 1
    lines = capsys.readouterr().out.splitlines()
    assert f"{tmp_path}/cat/\\udcff.png (no image of a kind known here)" in [line.strip() for line in lines]
    assert f"{tmp_path}/dog/two\\nlines\\x1b[2J.png (no image of a kind known here)" in [line.strip() for line in lines]
    for path in (tmp_path / "cat" / os.fsdecode(b"\xff.png"), tmp_path / "dog" / "two\nlines\x1b[2J.png"):
        path.unlink()
    write(tmp_path / os.fsdecode(b"c\xff") / "1.png", encode(grey(1)))
    assert main(["data", "check", f"folder:{tmp_path}"]) == 1
    assert "expected class names that UTF-8 can hold" in capsys.readouterr().out
    assert main(["data", "split", "-c", f"dataset=folder:{tmp_path}", "--out", str(tmp_path / "split")]) == 2
    assert "expected class names that UTF-8 can hold" in capsys.readouterr().err


def test_printable() -> None:
    assert printable("naïve 日本 'a b'") == "naïve 日本 'a b'"
    assert printable("a\nb\x1b[0m\udcff") == "a\\nb\\x1b[0m\\udcff"


def test_columns_and_labels_that_say_nothing() -> None:
    with pytest.raises(DataError, match="more than one column of the name that the label column has"):
        find_columns(["image", "label", "label"], {})
    assert find_columns(["image", "label", "note", "note"], {}) == {"image": "image", "label": "label"}
    with pytest.raises(DataError, match="2 of the samples have no label"):
        labels_of(["a", "  ", "b", "\t"])
    with pytest.raises(DataError, match="holds an empty name"):
        declared_classes({"classes": "ant,,bee"})


@pytest.mark.parametrize(("content", "told"), [
    ("sep=;\nimage;label\n1.png;a\n", "no image column"),  # as Excel writes it
    ("\n\nimage,label\n1.png,a\n", "no image column"),
    ("image,label\n1.png\n", "1 rows of the table have another number of columns than its header, its first line"),
])
def test_a_first_line_that_is_no_header(tmp_path: Path, content: str, told: str) -> None:
    (tmp_path / "t.csv").write_text(content)
    with pytest.raises(DataError, match=told):
        open_source(f"table:{tmp_path / 't.csv'}")


def test_an_archive_beyond_the_memory(tmp_path: Path) -> None:
    claimed = BytesIO()
    np.lib.format.write_array_header_2_0(claimed, {"descr": "|u1", "fortran_order": False, "shape": (2**50,)})
    with zipfile.ZipFile(tmp_path / "a.npz", "w") as archive:
        archive.writestr("x_train.npy", claimed.getvalue())
    with pytest.raises(DataError, match="do not fit into this machine's memory"):
        open_source(f"npz:{tmp_path / 'a.npz'}")


@pytest.mark.parametrize(("fault", "told"), [
    (MemoryError("Unable to allocate 8 GiB"), "fedhearth: this machine's memory is full (Unable to allocate 8 GiB): use smaller"),
    (OSError(errno.ENOSPC, "No space left on device", "/a/file"), "fedhearth: a file or disk failed: /a/file: No space left on device"),
])
def test_a_full_machine_is_told_in_a_line(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], fault: Exception,
                                          told: str) -> None:
    def fails() -> str:
        raise fault

    monkeypatch.setattr("deploy.listing.methods", fails)
    assert main(["methods"]) == 1
    assert capsys.readouterr().err.startswith(told)


def test_a_closed_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdout", None)
    assert main(["version"]) == 0


def test_a_split_that_cannot_be_written_leaves_nothing_half_done(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["data", "split", "-c", f"dataset=folder:{pets(tmp_path / 'pets')}", "-c", "partition=iid", "-c", "clients=2", "--out"]
    for taken in ("split.json", "split.png"):
        out = tmp_path / taken.replace(".", "-")
        (out / taken).mkdir(parents=True)
        assert main([*words, str(out)]) == 2
        assert "cannot write to" in capsys.readouterr().err
        assert {path.name for path in out.iterdir()} <= {"split.json", "split.png"}


def test_limits() -> None:
    assert RunConfig(clients=1_000_000).clients == 1_000_000
    with pytest.raises(ConfigError, match="clients must be at most 1000000, got 1000001"):
        RunConfig(clients=1_000_001)
    with pytest.raises(DeviceError, match="expected cpu, cuda or cuda:NUMBER, got 'gpu'"):
        resolve_device("gpu")
