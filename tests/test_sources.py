"""What the sources read and refuse: digits, npz files, CIFAR-10 batches and a user's own loader."""

from __future__ import annotations

import hashlib
import importlib
import pickle
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from client_app.data import DataError, manifest, open_data
from client_app.data.reading import Reading
from client_app.data.sources import Source, load_source, origin_of
from strategies.config import RunConfig
from tests.data_cases import FakeNode, node, write_npz


def test_digits_are_scaled_to_bytes() -> None:
    source = load_source(origin_of("digits"))
    assert source.images.shape == (1797, 1, 8, 8) and source.images.dtype == np.uint8
    # first row of the first digit is 0 0 5 13 9 1 0 0 out of 16
    assert source.images[0, 0, 0].tolist() == [0, 0, 80, 207, 143, 16, 0, 0]
    assert source.labels[:4].tolist() == [0, 1, 2, 3]
    assert source.classes == tuple("0123456789") and source.train_count == 1797
    assert not source.images.flags.writeable


def test_npz_pools_train_then_test(tmp_path: Path) -> None:
    source = load_source(origin_of(write_npz(tmp_path / "a.npz", y_test=np.arange(6)[:, None] % 3)))
    assert source.images.shape == (18, 1, 4, 4) and source.train_count == 12
    assert source.images[:, 0, 0, 0].tolist() == list(range(18))
    assert source.labels.tolist() == [0, 1, 2] * 6
    assert source.classes == ("ant", "bee", "cat")


@pytest.mark.parametrize(("shape", "expected"), [
    ((12, 6, 5), (1, 6, 5)), ((12, 6, 5, 3), (3, 6, 5)), ((12, 3, 6, 5), (3, 6, 5)),
    ((12, 6, 5, 1), (1, 6, 5)),
])
def test_npz_finds_the_channels(tmp_path: Path, shape: tuple[int, ...], expected: tuple[int, ...]) -> None:
    images = np.random.default_rng(0).integers(0, 256, shape, np.uint8)
    spec = write_npz(tmp_path / "a.npz", ("x_test", "y_test"), x_train=images)
    source = load_source(origin_of(spec))
    assert source.images.shape[1:] == expected and source.images.flags.c_contiguous
    wanted = images[7, 2, 3] if shape[1] == 6 else images[7, :, 2, 3]
    np.testing.assert_array_equal(source.images[7, :, 2, 3], np.atleast_1d(wanted))


@pytest.mark.parametrize("dtype", ["f2", "f4", ">f4", "f8"])
def test_npz_floats_become_float32_as_they_are(tmp_path: Path, dtype: str) -> None:
    images = np.full((12, 4, 4), 0.25, dtype)
    source = load_source(origin_of(write_npz(tmp_path / "a.npz", ("x_test", "y_test"), x_train=images)))
    assert str(source.images.dtype) == "float32" and (source.images == 0.25).all()


def test_npz_columns_become_text(tmp_path: Path) -> None:
    columns = {"domain": np.array(list("abc") * 6), "client": np.arange(18)}
    source = load_source(origin_of(write_npz(tmp_path / "a.npz", **columns)))
    assert source.meta["domain"].tolist() == list("abc") * 6 and source.meta["client"].tolist() == [str(n) for n in range(18)]
    assert not source.meta["client"].flags.writeable
    for wrong in ({"domain": np.zeros(12, int)}, {"client": np.zeros(18)}):
        with pytest.raises(DataError, match=f"key `{next(iter(wrong))}`: expected one text or whole number a sample"):
            load_source(origin_of(write_npz(tmp_path / f"{next(iter(wrong))}.npz", **wrong)))


def test_images_in_memory_are_scaled_when_they_are_asked_for(tmp_path: Path) -> None:
    digits = load_source(origin_of("digits"))
    assert load_source(origin_of("digits", Reading(image_size=8, channels=1))).images.shape == digits.images.shape
    scaled = load_source(origin_of("digits", Reading(image_size=4, channels=3)))
    assert scaled.image_shape == (3, 4, 4) and len(scaled) == 1797 and scaled.classes == digits.classes
    taken = scaled.take(np.array([5, 0])).images
    assert taken.shape == (2, 3, 4, 4) and taken.dtype == np.uint8 and (taken[:, 0] == taken[:, 2]).all()
    np.testing.assert_allclose(taken.mean(), digits.take(np.array([5, 0])).images.mean(), atol=5)
    data = open_data(RunConfig(image_size=4), node(0, 20))
    assert data.input_shape == (1, 4, 4)
    floats = write_npz(tmp_path / "a.npz", ("x_test", "y_test"), x_train=np.zeros((12, 4, 4), np.float32))
    with pytest.raises(DataError, match="image-size and channels can change uint8 images of 1 or 3 channels alone"):
        load_source(origin_of(floats, Reading(image_size=8)))


def test_a_start_without_files_loads_neither_pillow_nor_pyarrow() -> None:
    code = ("import sys, client_app.data as d, strategies.config as c, tests.data_cases as t; d.open_data(c.RunConfig(), t.node(0, 20)); "
            "sys.exit(bool({'PIL', 'pyarrow', 'datasets', 'torchvision', 'torch'} & set(sys.modules)))")
    assert subprocess.run([sys.executable, "-c", code], cwd=Path(__file__).parents[1]).returncode == 0


def test_npz_without_names_counts_classes(tmp_path: Path) -> None:
    spec = write_npz(tmp_path / "a.npz", ("class_names", "x_test", "y_test"), y_train=np.array([0, 4] * 6))
    assert load_source(origin_of(spec)).classes == ("0", "1", "2", "3", "4")


@pytest.mark.parametrize(("drop", "changes", "expected"), [
    (("x_train",), {}, "lacks the key `x_train`"),
    (("y_train",), {}, "lacks the key `y_train`"),
    (("y_test",), {}, "only one of `x_test` and `y_test`"),
    ((), {"y_train": np.array([0, 1, 3] * 4)}, "label out of range"),
    ((), {"y_test": np.array([0, 1, -1] * 2)}, "label out of range"),
    ((), {"y_train": np.zeros(12)}, "`y_train`: expected integers"),
    ((), {"y_train": np.zeros(11, int)}, "`x_train` and `y_train`: expected as many labels"),
    ((), {"x_train": np.zeros((12, 16), np.uint8)}, "`x_train`: expected shape.*got 2 axes"),
    ((), {"x_train": np.zeros((12, 5, 4, 5), np.uint8)}, "channels on either"),
    ((), {"x_train": np.zeros((12, 3, 4, 3), np.uint8)}, "channels on either"),
    ((), {"x_train": np.zeros((12, 4, 4), np.int32)}, "uint8 or float images, got int32"),
    ((), {"x_train": np.zeros((12, 5, 5), np.uint8)}, "one shape and one type"),
    ((), {"x_train": np.zeros((12, 4, 4), np.float32)}, "one shape and one type"),
    (("x_test", "y_test"), {"x_train": np.full((12, 4, 4), 1e300)}, "NaN or infinity"),
    (("x_test", "y_test"), {"x_train": np.zeros((0, 4, 4), np.uint8), "y_train": np.zeros(0, int)},
     "got none"),
    ((), {"class_names": np.array([1, 2, 3])}, "`class_names`: expected text"),
    ((), {"class_names": np.array(["a", None, "c"], object)}, "pickled"),
])
def test_a_malformed_npz_is_refused(
    tmp_path: Path, drop: tuple[str, ...], changes: dict[str, Any], expected: str
) -> None:
    spec = write_npz(tmp_path / "secret.npz", drop, **changes)
    with pytest.raises(DataError, match=expected) as caught:
        load_source(origin_of(spec))
    assert "secret" not in str(caught.value) and caught.value.path == spec[len("npz:"):]


def test_a_missing_npz_is_refused_without_its_path(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="missing") as caught:
        load_source(origin_of(f"npz:{tmp_path / 'secret.npz'}"))
    assert "secret" not in str(caught.value) and caught.value.path.endswith("secret.npz")


@pytest.mark.parametrize("damage", ["empty", "text", "truncated", "flipped", "npy"])
def test_a_damaged_npz_is_refused(tmp_path: Path, damage: str) -> None:
    path = tmp_path / "a.npz"
    write_npz(path)
    content = bytearray(path.read_bytes())
    content[300] ^= 255
    if damage == "npy":
        np.save(tmp_path / "a.npy", np.zeros(3))
    path.write_bytes({"empty": b"", "text": b"label,pixel\n", "truncated": content[: len(content) // 2],
                      "flipped": bytes(content), "npy": b""}[damage])
    if damage == "npy":
        path.write_bytes((tmp_path / "a.npy").read_bytes())
    with pytest.raises(DataError, match="damaged"):
        load_source(origin_of(f"npz:{path}"))


@pytest.mark.parametrize("spec", ["mnist", "", "npz:", "cifar10"])
def test_an_unknown_dataset_names_the_known_ones(spec: str) -> None:
    with pytest.raises(DataError, match="digits, folder:PATH, table:FILE, npz:FILE, .* or module:function"):
        open_data(RunConfig(dataset=spec), node(0, 20))


def _fake_cifar(root: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The six batches of a CIFAR-10 with 2 images a batch, and torchvision's checksums turned to them."""
    from torchvision.datasets import CIFAR10

    folder = root / "cifar-10-batches-py"
    folder.mkdir()

    def write(name: str, content: dict[str, Any]) -> list[str]:
        raw = pickle.dumps(content)
        (folder / name).write_bytes(raw)
        return [name, hashlib.md5(raw).hexdigest()]

    def batch(number: int) -> dict[str, Any]:
        pixels = np.arange(2 * 3072).reshape(2, 3072) // 1024 + 10 * number  # constant within a channel
        return {"data": pixels.astype(np.uint8), "labels": [number, 9 - number]}

    train = [write(f"data_batch_{i}", batch(i)) for i in range(1, 6)]
    monkeypatch.setattr(CIFAR10, "train_list", train)
    monkeypatch.setattr(CIFAR10, "test_list", [write("test_batch", batch(6))])
    _, md5 = write("batches.meta", {"label_names": [f"class {i}" for i in range(10)]})
    monkeypatch.setattr(CIFAR10, "meta", {"filename": "batches.meta", "key": "label_names", "md5": md5})
    return folder


def test_cifar_is_read_checked_and_never_downloaded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(DataError, match="CIFAR-10 is missing or damaged.*unpack") as caught:
        load_source(origin_of(f"cifar10:{tmp_path}"))
    assert str(tmp_path) not in str(caught.value) and caught.value.path == str(tmp_path)

    folder = _fake_cifar(tmp_path, monkeypatch)
    for where in (tmp_path, folder):
        source = load_source(origin_of(f"cifar10:{where}"))
        assert source.images.shape == (12, 3, 32, 32) and source.train_count == 10
        assert source.images[0, :, 5, 7].tolist() == [10, 11, 12]
        assert source.images[11, :, 0, 0].tolist() == [63, 64, 65]
        assert source.labels.tolist() == [1, 8, 2, 7, 3, 6, 4, 5, 5, 4, 6, 3]
        assert source.classes[9] == "class 9"

    (folder / "data_batch_3").write_bytes(b"damaged")
    load_source.cache_clear()
    with pytest.raises(DataError, match="missing or damaged"):
        load_source(origin_of(f"cifar10:{tmp_path}"))


def write_loader(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, body: str) -> str:
    name = f"loader_{tmp_path.name}"
    head = "import numpy as np\nfrom client_app.data import ClientData, Split\n"
    (tmp_path / f"{name}.py").write_text(head + body)
    monkeypatch.syspath_prepend(str(tmp_path))
    importlib.invalidate_caches()
    monkeypatch.delitem(sys.modules, name, raising=False)
    return f"{name}:load"


def test_a_loader_decides_by_node_and_seed_and_is_called_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    spec = write_loader(tmp_path, monkeypatch, """
calls = []
def load(node, seed):
    calls.append((node.name, seed))
    n = node.index + 1
    train = Split(np.full((n, 1, 2, 3), seed, np.uint8), np.zeros(n, int), np.arange(n))
    return ClientData(train, train.empty_like(), ("one", "two"), group=node.name)
""")
    config = RunConfig(dataset=spec, clients=2, seed=5)
    data = open_data(config, node(1, 2))
    assert data.train.images.tolist() == [[[[5, 5, 5], [5, 5, 5]]]] * 2 and data.group == "client-001"
    assert open_data(config, node(1, 2)) is data
    assert sys.modules[spec.partition(":")[0]].calls == [("client-001", 5)]
    assert open_data(replace(config, seed=6), node(1, 2)).train.images[0, 0, 0, 0] == 6
    # a site's own loader wins over the run's data set
    site = open_data(RunConfig(dataset="digits", seed=7), FakeNode("clinic", data=spec))
    assert (site.group, site.train.images[0, 0, 0, 0]) == ("clinic", 7)

    record = manifest(config)
    assert record["train"] == {"client-000": [1, 0], "client-001": [2, 0]}
    assert (record["partition"], record["unused"]) == ("loader", 0)
    assert record["groups"] == {"client-000": "client-000", "client-001": "client-001"}


@pytest.mark.parametrize(("body", "expected"), [
    ("def load(node, seed): return {'secret': 1}", "expected the data loader to return ClientData, got dict"),
    ("def load(node, seed): raise KeyError('secret')", "failed with KeyError"),
    ("def load(node): return 'secret'", "failed with TypeError"),
    ("other = 'secret'", "cannot be imported .AttributeError"),
    ("raise RuntimeError('secret')", "cannot be imported .RuntimeError"),
    ("def load(node, seed): return Split(np.zeros((1, 2)), np.zeros(1), np.zeros(1))", "4 axes"),
])
def test_a_loader_that_fails_is_refused_without_its_words(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, body: str, expected: str
) -> None:
    spec = write_loader(tmp_path, monkeypatch, body)
    with pytest.raises(DataError, match=expected) as caught:
        open_data(RunConfig(dataset=spec), node(0, 20))
    assert "secret" not in str(caught.value) and "loader_" not in str(caught.value)


@pytest.mark.parametrize(("body", "line"), [
    ("def load(node, seed):\n    return 1 / 0", ", line 4"),
    ("def mean(x):\n    return 1 / x\ndef load(node, seed):\n    return mean(0)", ", line 4"),
    ("def load(node, seed):\n    return np.stack([])", ", line 4"),  # numpy's own lines say nothing to a user
    ("def load(node): return 1", ""),
])
def test_a_loader_that_fails_is_told_its_line_on_its_own_machine(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, body: str, line: str
) -> None:
    spec = write_loader(tmp_path, monkeypatch, body)
    with pytest.raises(DataError, match="failed with") as caught:
        open_data(RunConfig(dataset=spec), node(0, 20))
    assert caught.value.path == spec + line and "line" not in str(caught.value)


def test_a_loader_that_is_not_there_is_refused() -> None:
    with pytest.raises(DataError, match="cannot be imported .ModuleNotFoundError.*module:function"):
        open_data(RunConfig(dataset="no_such_module:load"), node(0, 20))


def test_a_source_checks_its_own_counts() -> None:
    with pytest.raises(DataError, match="as many entries in every further column"):
        Source(np.zeros((2, 1, 2, 2), np.uint8), np.zeros(2, int), ("a",), 2, {"domain": np.array(["x"])})
    with pytest.raises(DataError, match="got none"):
        Source(np.zeros((2, 1, 2, 2), np.uint8), np.zeros(2, int), ("a",), train_count=0)
