"""EncoderShelf: exact, lazy, and only as much on disk as the last checkpoint refers to."""

from __future__ import annotations

import os
import tracemalloc
from pathlib import Path

import numpy as np
import pytest

from server_app import encoder_shelf
from server_app.encoder_shelf import EncoderShelf, ShelfError
from strategies.types import Shelf


def files(root: Path) -> list[str]:
    return sorted(str(path.relative_to(root)) for path in root.rglob("*") if path.is_file())


def test_an_encoder_comes_back_bit_for_bit_and_in_order(tmp_path: Path) -> None:
    shelf: Shelf = EncoderShelf(tmp_path)
    grid = np.arange(12, dtype=np.float32).reshape(3, 4)
    tensors = {
        "z": grid.T,
        "a": grid[:, ::2],
        "n": np.array([np.nan, -0.0]),
        "s": np.array(5),
        "e": np.zeros((0, 2)),
    }
    shelf.put("c0", 4, tensors)
    got = shelf.get("c0", 4)
    assert list(got) == list(tensors) and len(got) == 5 and "z" in got and "y" not in got
    for name, tensor in tensors.items():
        assert got[name].dtype == tensor.dtype and got[name].shape == tensor.shape
        assert got[name].tobytes() == tensor.tobytes()
    with pytest.raises(KeyError, match="'y'"):
        got["y"]
    # a mapping from the shelf can be put back as it is
    shelf.put("c1", 5, got)
    assert np.array_equal(shelf.get("c1", 5)["z"], grid.T)
    assert files(tmp_path) == ["c0/r4.safetensors", "c1/r5.safetensors"]


def test_putting_again_replaces_and_leaves_open_mappings_alone(tmp_path: Path) -> None:
    shelf = EncoderShelf(tmp_path)
    shelf.put("c0", 1, {"w": np.zeros(3)})
    before = shelf.get("c0", 1)
    shelf.put("c0", 1, {"w": np.ones(3)})
    assert before["w"].tolist() == [0, 0, 0] and shelf.get("c0", 1)["w"].tolist() == [1, 1, 1]


def test_prune_keeps_exactly_what_is_referred_to(tmp_path: Path) -> None:
    shelf = EncoderShelf(tmp_path)
    for client, number in [("c0", 1), ("c0", 2), ("c1", 1), ("c2", 2), ("c2", 12)]:
        shelf.put(client, number, {"w": np.full(2, number)})
    (tmp_path / "c0" / ".tmp-r3.safetensors").write_bytes(b"half")
    shelf.prune({"c0": 2, "c2": 2, "c9": 1}, {"c0": 1, "c2": 2})
    assert files(tmp_path) == ["c0/r1.safetensors", "c0/r2.safetensors", "c2/r2.safetensors"]
    shelf.prune({"c0": 2, "c2": 2, "c9": 1})
    assert files(tmp_path) == ["c0/r2.safetensors", "c2/r2.safetensors"]
    assert not (tmp_path / "c1").exists()
    shelf.sync()  # what was pruned before it was synced is not missed
    with pytest.raises(ShelfError, match="the encoder of c0, round 1, is not on the shelf"):
        shelf.get("c0", 1)
    shelf.prune({})
    assert files(tmp_path) == []
    EncoderShelf(tmp_path / "never-made").prune({"c0": 1})


def test_sync_reaches_every_file_put_since_the_last(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    synced: list[Path] = []
    monkeypatch.setattr(encoder_shelf, "sync_to_disk", synced.append)
    shelf = EncoderShelf(tmp_path)
    shelf.sync()
    assert synced == []
    shelf.put("c0", 1, {"w": np.zeros(1)})
    shelf.put("c1", 1, {"w": np.zeros(1)})
    assert synced == []
    shelf.sync()
    one, other = tmp_path / "c0", tmp_path / "c1"
    assert synced == [one / "r1.safetensors", other / "r1.safetensors", one, other, tmp_path]
    shelf.sync()
    assert len(synced) == 5
    monkeypatch.undo()
    shelf.put("c0", 2, {"w": np.zeros(1)})
    shelf.sync()
    assert shelf.get("c0", 2)["w"].tolist() == [0]


@pytest.mark.parametrize("content", [b"", b"\xff" * 200, b"cut"])
def test_damage_is_told(tmp_path: Path, content: bytes) -> None:
    shelf = EncoderShelf(tmp_path)
    shelf.put("c0", 1, {"w": np.zeros(100)})
    path = tmp_path / "c0" / "r1.safetensors"
    path.write_bytes(path.read_bytes()[:-9] if content == b"cut" else content)
    with pytest.raises(ShelfError, match="the encoder of c0, round 1, is damaged"):
        shelf.get("c0", 1)


@pytest.mark.parametrize("client", ["", "..", "a/b", "x" * 65])
def test_a_bad_name_is_refused(tmp_path: Path, client: str) -> None:
    for use in (lambda s: s.put(client, 1, {}), lambda s: s.get(client, 1)):
        with pytest.raises(ShelfError, match="a client's name is"):
            use(EncoderShelf(tmp_path))
    with pytest.raises(ShelfError, match="got dtype object"):
        EncoderShelf(tmp_path).put("c0", 1, {"w": np.array([None])})
    assert files(tmp_path) == []


def test_a_disk_that_refuses_leaves_nothing_torn(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "replace", refuse)
    with pytest.raises(ShelfError, match="c0, round 1, could not be put .*No space left"):
        EncoderShelf(tmp_path).put("c0", 1, {"w": np.zeros(3)})
    assert files(tmp_path) == []


def test_blending_ten_clients_holds_one_model_and_one_tensor(tmp_path: Path) -> None:
    names = [f"layer{i}" for i in range(8)]
    shelf = EncoderShelf(tmp_path)
    for client in range(10):
        shelf.put(f"c{client}", 1, {name: np.full(50_000, client, np.float32) for name in names})
    model_bytes = 8 * 50_000 * 4
    weights = np.arange(1, 11, dtype=np.float32) / 55
    tracemalloc.start()
    try:
        members = [shelf.get(f"c{client}", 1) for client in range(10)]
        blend = {}
        for name in names:
            total = np.zeros(50_000, np.float32)
            for weight, member in zip(weights, members, strict=True):
                total += weight * member[name]
            blend[name] = total
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    # sum of k (k + 1) / 55 for k = 0..9 is 330 / 55
    assert np.allclose(blend["layer7"], 6.0)
    assert model_bytes <= peak < 1.5 * model_bytes
