"""The feature cache: what is found is what was put, under the version it was put with, whatever happens to the disk."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from client_app.local import feature_file
from client_app.local.durable import StoreError, StoreFull
from client_app.local.feature_cache import CacheCounts, FeatureCache
from client_app.local.feature_file import RECORD
from tests.naive.feature_cache import NaiveCache

ROOT = Path(__file__).parent.parent
SECRET = "site-of-dr-who"
D = 5


def opened(folder: Path, **more: object) -> FeatureCache:
    return FeatureCache(folder / SECRET, "penultimate", (D,), **more)  # type: ignore[arg-type]


def features(ids: np.ndarray, version: int) -> np.ndarray:
    """(B, D) float32 that tell id and version apart."""
    return np.stack([np.random.default_rng([int(i), version]).normal(size=D) for i in ids]).astype(np.float32)


def ids(*numbers: int) -> np.ndarray:
    return np.array(numbers, np.int64)


def test_what_was_put_is_found_bit_for_bit_and_after_a_restart(tmp_path: Path) -> None:
    cache, asked = opened(tmp_path, dtype="float32"), ids(9, -4, 2**40)
    values = features(ids(9, 4, 40), 1)
    values[0, 0] = -0.0
    stored = cache.put(asked, 7, values, round_number=3, labels=ids(2, 0, 1), confidence=np.array([0.5, 0.25, 1.0]))
    assert (stored, len(cache)) == (3, 3)
    for again in (cache, opened(tmp_path, dtype="float32")):
        hit = again.get(ids(2**40, 5, 9), 7)
        assert hit.found.tolist() == [True, False, True]
        assert hit.features.tobytes() == np.stack([values[2], np.zeros(D, np.float32), values[0]]).tobytes()
        assert hit.features.dtype == np.float32
        assert [(int(e["id"]), int(e["version"]), int(e["round"]), int(e["label"]), float(e["confidence"])) for e in hit.entries] == [
            (2**40, 7, 3, 1, 1.0), (0, 0, 0, 0, 0.0), (9, 7, 3, 2, 0.5)]
        assert again.entries()["id"].tolist() == [-4, 9, 2**40]
        assert again.counts == CacheCounts()


def test_half_precision_rounds_and_clips(tmp_path: Path) -> None:
    cache = opened(tmp_path)
    values = np.array([[1e6, -1e6, 65504, 0.1, 1e-9]], np.float32)
    cache.put(ids(1), 0, values)
    assert cache.get(ids(1)).features.tolist() == [[65504, -65504, 65504, float(np.float16(0.1)), 0]]


def test_only_the_version_asked_for_is_found(tmp_path: Path) -> None:
    cache = opened(tmp_path)
    cache.put(ids(1, 2), 1, features(ids(1, 2), 1))
    cache.put(ids(2, 3), 2, features(ids(2, 3), 2))
    assert [cache.get(ids(1, 2, 3), v).found.tolist() for v in (1, 2, 3)] == [[True, False, False], [False, True, True], [False] * 3]
    assert cache.get(ids(1, 2, 3)).entries["version"].tolist() == [1, 2, 2]
    assert cache.invalidate(before_version=2) == 1
    assert cache.get(ids(1, 2, 3)).found.tolist() == [False, True, True]
    # views, layers and dtypes never meet
    for other in (opened(tmp_path, view=1), opened(tmp_path, dtype="float32"), FeatureCache(tmp_path / SECRET, "early", (D,))):
        assert len(other) == 0


def test_a_moved_encoder_is_served_stale_features_only_if_the_version_is_not_in_the_key(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    samples, labels, asked = rng.normal(size=(200, 4)).astype(np.float32), rng.integers(0, 3, 200), np.arange(200)
    samples[:, :3] += 8 * np.eye(3, dtype=np.float32)[labels]
    old = rng.normal(size=(4, D)).astype(np.float32)
    moved = np.roll(old, 1, axis=0)  # the encoder after training
    prototypes = np.stack([(samples[labels == c] @ moved).mean(0) for c in range(3)])

    def accuracy(seen: np.ndarray) -> float:
        return float((np.linalg.norm(seen[:, None] - prototypes, axis=2).argmin(1) == labels).mean())

    cache, mistaken = opened(tmp_path, dtype="float32"), NaiveCache("float32", versioned=False)
    for kept in (cache, mistaken):
        kept.put(asked, 1, samples @ old)
    stale = [mistaken.get(i, 2) for i in asked.tolist()]
    assert all(entry is not None for entry in stale)  # 200 hits, every one of them wrong
    served = np.stack([entry["features"] for entry in stale if entry])
    assert np.abs(served - samples @ moved).max(axis=1).min() > 0.01
    assert accuracy(samples @ moved) > 0.85 and accuracy(served) < 0.5
    assert cache.get(asked, 2).found.sum() == 0  # none is served
    cache.put(asked, 2, samples @ moved)
    assert np.array_equal(cache.get(asked, 2).features, samples @ moved)


def test_uses_confidence_and_marks(tmp_path: Path) -> None:
    cache = opened(tmp_path)
    cache.put(ids(1, 2, 3), 1, features(ids(1, 2, 3), 1))
    cache.touch(ids(1, 3, 3, 8), confidence=np.array([0.5, 0.1, 0.25, 0.9]))
    cache.mark(ids(2, 8))
    for again in (cache, opened(tmp_path)):
        entries = again.entries()
        assert entries["uses"].tolist() == [1, 0, 2] and entries["confidence"].tolist() == [0.5, 0, 0.25]
        assert entries["marked"].tolist() == [False, True, False]
    assert again.get(ids(2), 1).found.all()  # the caller decides what a mark means
    again.put(ids(1, 2), 2, features(ids(1, 2), 2))
    assert again.entries()["uses"].tolist() == [0, 0, 2] and not again.entries()["marked"].any()
    assert again.drop(ids(1, 1, 8)) == 1 and len(again) == 2


def test_entries_are_a_copy(tmp_path: Path) -> None:
    cache = opened(tmp_path)
    cache.put(ids(1), 1, features(ids(1), 1))
    cache.entries()["uses"] = 9
    cache.get(ids(1)).features[:] = 9
    assert cache.entries()["uses"].tolist() == [0] and not (cache.get(ids(1)).features == 9).any()


OPERATION = st.tuples(st.sampled_from(["put", "touch", "mark", "drop", "invalidate", "reopen"]),
                      st.lists(st.integers(0, 11), unique=True, max_size=6), st.integers(0, 5), st.booleans())


@settings(max_examples=60, deadline=None)
@given(st.lists(OPERATION, max_size=25), st.sampled_from(["float16", "float32"]))
def test_it_equals_a_dictionary(tmp_path_factory: pytest.TempPathFactory, operations: list, dtype: str) -> None:
    folder, naive = tmp_path_factory.mktemp("cache"), NaiveCache(dtype)
    cache = opened(folder, dtype=dtype)
    for number, (name, numbers, version, spoiled) in enumerate(operations):
        asked = np.array(numbers, np.int64)
        if name == "put" and numbers:
            values = features(asked, version) * 1e5
            values[-1, 0] = np.nan if spoiled else 1
            cache.put(asked, version, values, round_number=number, confidence=np.full(len(asked), 0.5))
            naive.put(numbers, version, values, number, 0.5)
        elif name == "reopen":
            cache = opened(folder, dtype=dtype)
        elif name == "invalidate":
            cache.invalidate(version)
            naive.invalidate(version)
        elif name != "put":
            getattr(cache, name)(asked)
            getattr(naive, name)(numbers)
        everyone = np.arange(12)
        for wanted in (None, version):
            hit = cache.get(everyone, wanted)
            expected = [naive.get(i, wanted) for i in range(12)]
            assert hit.found.tolist() == [entry is not None for entry in expected]
            for row, meta, entry in zip(hit.features, hit.entries, expected, strict=True):
                assert row.tolist() == ([0] * D if entry is None else entry["features"].tolist())
                assert entry is None or all(meta[k] == entry[k] for k in ("version", "round", "uses", "confidence", "marked"))
    assert len(cache) == len(naive.held) == len(cache.entries())


def test_numbers_that_are_none_are_not_stored_and_what_was_there_stays(tmp_path: Path) -> None:
    cache = opened(tmp_path)
    cache.put(ids(1, 2), 1, features(ids(1, 2), 1))
    values = features(ids(1, 2), 2)
    values[0, 3] = np.inf
    assert cache.put(ids(1, 2), 2, values) == 1
    assert cache.get(ids(1, 2)).entries["version"].tolist() == [1, 2] and cache.counts.not_finite == 1


def test_the_oldest_make_room(tmp_path: Path) -> None:
    row = RECORD.itemsize + 2 * D
    cache = opened(tmp_path, max_bytes=64 + 6 * row + 5)
    for number, version in ((1, 5), (2, 3), (2, 4)):
        asked = np.arange(2) + 10 * version
        assert cache.put(asked, version, features(asked, version), round_number=number) == 2
    # round 1 goes first, then the lower version of round 2; an entry that is replaced is no room for another
    cache.put(ids(50, 100, 101), 9, features(ids(50, 100, 101), 9), round_number=3)
    assert cache.entries()["id"].tolist() == [31, 40, 41, 50, 100, 101]
    assert cache.nbytes <= 64 + 6 * row + 5 and cache.counts == CacheCounts(evicted=2)
    # nothing as new as itself gives way: the rest is left out, and a sweep over more than fits keeps hitting the same ones
    assert cache.put(np.arange(200, 209), 9, features(np.arange(200, 209), 9), round_number=3) == 3
    assert cache.entries()["id"].tolist() == [50, 100, 101, 200, 201, 202]
    assert cache.counts == CacheCounts(evicted=5, left_out=6)
    assert opened(tmp_path, max_bytes=64 + 6 * row).get(ids(50, 200)).found.all()
    smaller = opened(tmp_path, max_bytes=64 + 5 * row)
    assert len(smaller) == 0 and smaller.counts.rebuilt == 1 and smaller.nbytes == 64


def test_rows_are_used_again(tmp_path: Path) -> None:
    cache = opened(tmp_path)
    for version in range(40):
        asked = np.arange(1000) + 1000 * version
        cache.put(asked, version, np.ones((1000, D)))
        cache.invalidate(version)
    assert len(cache) == 1000
    # 2000 at most at a time, and one growth of 2**18 bytes at most too many
    assert cache.nbytes < 64 + 2000 * (RECORD.itemsize + 2 * D) + 2**18 / (2 * D) * (RECORD.itemsize + 2 * D)


def damaged(path: Path, change: Callable[[bytes], bytes]) -> None:
    path.write_bytes(change(path.read_bytes()))


@pytest.mark.parametrize(("kind", "where"), [("payload", 0), ("payload", 2 * D - 1), ("records", 64 + 3), ("records", 64 + 15),
                                             ("records", 64 + 16), ("records", 64 + 28)])
def test_a_torn_row_is_dropped_and_counted(tmp_path: Path, kind: str, where: int) -> None:
    cache = opened(tmp_path)
    cache.put(np.arange(3), 1, features(np.arange(3), 1))
    cache.flush()
    path = tmp_path / SECRET / f"penultimate.0.float16.{kind}"
    damaged(path, lambda b: b[:where] + bytes([b[where] ^ 1]) + b[where + 1 :])
    again = opened(tmp_path)
    hit = again.get(again.entries()["id"])
    found = again.get(np.arange(3), 1)
    assert found.found.tolist() == [False, True, True] and not found.features[0].any() and len(again) == 2
    assert (again.counts.torn, hit.found.sum()) == (1, 2)
    again.put(ids(0), 1, features(ids(0), 1))
    assert again.get(np.arange(3), 1).found.all() and opened(tmp_path).get(np.arange(3), 1).found.all()


def test_any_flipped_byte_is_noticed_or_harmless(tmp_path: Path) -> None:
    bound, asked = 64 + 3 * (RECORD.itemsize + 4 * D), np.arange(3)
    cache = opened(tmp_path, dtype="float32", max_bytes=bound)
    cache.put(asked, 1, features(asked, 1))
    sound = {path: path.read_bytes() for path in (tmp_path / SECRET).iterdir()}
    found = []
    for path, content in sound.items():
        for place in range(len(content)):
            for other, whole in sound.items():
                other.write_bytes(whole)
            path.write_bytes(content[:place] + bytes([content[place] ^ 4]) + content[place + 1 :])
            hit = opened(tmp_path, dtype="float32", max_bytes=bound).get(asked, 1)
            assert hit.features.tobytes() == np.where(hit.found[:, None], features(asked, 1), 0).astype(np.float32).tobytes()
            assert (hit.entries["version"] == hit.found).all()
            found.append(int(hit.found.sum()))
    # a header costs all three entries; a checksum, a key, a number or a row's being live one; the rest is not vouched for
    unvouched = RECORD.itemsize - 32 - 1
    assert [found.count(n) for n in range(4)] == [64, 0, 3 * (4 * D + 32 + 1), 3 * unvouched]


@pytest.mark.parametrize("damage", ["emptied", "garbage", "header", "no payload", "no records", "short payload", "odd tail"])
def test_damaged_files_begin_anew_or_keep_what_is_whole(tmp_path: Path, damage: str, caplog: pytest.LogCaptureFixture) -> None:
    cache = opened(tmp_path)
    cache.put(np.arange(3), 1, features(np.arange(3), 1))
    records, payload = (tmp_path / SECRET / f"penultimate.0.float16.{kind}" for kind in ("records", "payload"))
    changes: dict[str, Callable[[], object]] = {
        "emptied": lambda: records.write_bytes(b""),
        "garbage": lambda: records.write_bytes(os.urandom(500)),
        "header": lambda: damaged(records, lambda b: b"\0" + b[1:]),
        "no payload": payload.unlink,
        "no records": records.unlink,
        "short payload": lambda: damaged(payload, lambda b: b[: 5 * D]),
        "odd tail": lambda: damaged(payload, lambda b: b + b"abc"),
    }
    changes[damage]()
    again = opened(tmp_path)
    kept = {"short payload": 2, "odd tail": 3}.get(damage, 0)
    assert again.get(np.arange(3), 1).found.sum() == kept and again.counts.torn == 0
    assert again.counts.rebuilt == (damage not in {"short payload", "odd tail", "no records"})
    assert SECRET not in caplog.text
    again.put(np.arange(3), 1, features(np.arange(3), 1))
    assert np.array_equal(opened(tmp_path).get(np.arange(3), 1).features, features(np.arange(3), 1).astype(np.float16))


def test_other_features_under_the_same_name_begin_anew(tmp_path: Path) -> None:
    opened(tmp_path).put(ids(1), 1, features(ids(1), 1))
    wider = FeatureCache(tmp_path / SECRET, "penultimate", (2, D))
    assert len(wider) == 0 and wider.counts.rebuilt == 1
    wider.put(ids(1), 1, np.arange(2 * D).reshape(1, 2, D).astype(np.float32))
    assert wider.get(ids(1), 1).features.tolist() == np.arange(2 * D).reshape(1, 2, D).tolist()


DYING = """
import os, signal, sys
import numpy as np
sys.path.insert(0, {root!r})
from client_app.local.feature_cache import FeatureCache

def features(ids, version):
    return np.outer(ids * 1000.0 + version, np.ones(6)).astype(np.float32)

def work(folder):
    cache = FeatureCache(folder, "layer", (6,), dtype="float32", max_bytes=64 + 12 * 68)
    for version in range(1, 4):
        for start in (0, 3, 6, 9):
            ids = np.arange(start, start + 5)
            cache.put(ids, version, features(ids, version), round_number=version)
        cache.touch(ids)
        cache.drop(np.array([4]))
        cache.invalidate(version - 1)

def killing(line):
    count = 0
    def trace(frame, event, argument):
        nonlocal count
        if "feature_" not in frame.f_code.co_filename:
            return None
        if event == "line":
            count += 1
            if count == line:
                os.kill(os.getpid(), signal.SIGKILL)
        return trace
    return trace

line, folder = {first}, sys.argv[1]
while True:
    place = os.path.join(folder, str(line))
    child = os.fork()
    if not child:
        sys.settrace(killing(line))
        work(place)
        os._exit(0)
    status = os.waitpid(child, 0)[1]
    cache = FeatureCache(place, "layer", (6,), dtype="float32", max_bytes=64 + 12 * 68)
    for version in (1, 2, 3):
        hit = cache.get(np.arange(20), version)
        expected = features(np.arange(20), version) * hit.found[:, None]
        assert (hit.features == expected).all(), line
        assert (hit.entries["version"] == version * hit.found).all(), line
    assert cache.counts.rebuilt <= 1
    work(place)
    assert FeatureCache(place, "layer", (6,), dtype="float32", max_bytes=64 + 12 * 68).get(np.arange(3), 3).found.all(), line
    if status == 0:
        break
    assert os.WTERMSIG(status) == signal.SIGKILL
    line += {step}
print(line)
"""


def test_killed_at_any_line_what_is_found_is_what_was_put(tmp_path: Path) -> None:
    runs = []
    for first in (1, 5):  # in steps, since the same lines run dozens of times in one piece of work
        script = DYING.format(root=str(ROOT), first=first, step=11)
        done = subprocess.run([sys.executable, "-c", script, str(tmp_path)], capture_output=True, text=True, timeout=300)
        assert done.returncode == 0, done.stderr
        runs.append(int(done.stdout))
    assert min(runs) > 800


def test_a_full_disk_stores_nothing_and_loses_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(feature_file, "_ZEROS", bytes(4 * D))  # two rows a growth
    cache = opened(tmp_path)
    cache.put(ids(1, 2), 1, features(ids(1, 2), 1))
    size = cache.nbytes

    def full(file: object, content: bytes) -> None:
        file.write(content[: len(content) // 2])  # type: ignore[attr-defined]
        raise OSError(errno.ENOSPC, "no space", str(tmp_path))

    with monkeypatch.context() as patch:
        patch.setattr(feature_file, "_write_all", full)
        with pytest.raises(StoreFull, match="free some space") as caught:
            cache.put(ids(2, 3, 4, 5), 2, features(ids(2, 3, 4, 5), 2))
        assert SECRET not in str(caught.value)
        assert cache.put(ids(1), 3, features(ids(1), 3)) == 1  # room that is there stays usable
    assert cache.get(ids(1, 2, 3)).entries["version"].tolist() == [3, 1, 0]
    assert cache.nbytes == size and sum(p.stat().st_size for p in (tmp_path / SECRET).iterdir()) == size
    cache.put(ids(2, 3, 4, 5), 2, features(ids(2, 3, 4, 5), 2))
    assert opened(tmp_path).get(ids(2, 3, 4, 5), 2).found.all()


def test_a_really_full_disk(tmp_path: Path) -> None:
    if subprocess.run(["mount", "-t", "tmpfs", "-o", "size=64k", "tmpfs", tmp_path], capture_output=True).returncode:
        pytest.skip("mounting is not allowed here")
    try:
        cache = FeatureCache(tmp_path, "layer", (1000,), max_bytes=64 + 20 * (RECORD.itemsize + 2000))
        cache.put(np.arange(10), 1, np.ones((10, 1000)))
        other = FeatureCache(tmp_path, "other", (1000,), max_bytes=10**7)
        pytest.raises(StoreFull, other.put, np.arange(100), 1, np.ones((100, 1000)))
        assert len(other) == 0 and cache.get(np.arange(10), 1).features.sum() == 10_000
        cache.put(np.arange(10), 2, np.ones((10, 1000)))
        assert cache.get(np.arange(10), 2).found.all()
    finally:
        subprocess.run(["umount", "-l", tmp_path], check=True)


def test_a_disk_that_refuses_to_open(tmp_path: Path) -> None:
    (tmp_path / SECRET).write_text("a file, not a folder")
    with pytest.raises(StoreError, match="cannot be read or written") as caught:
        opened(tmp_path)
    assert SECRET not in str(caught.value)


def test_bad_arguments_are_named(tmp_path: Path) -> None:
    for wrong in ({"dtype": "int8"}, {"view": -1}, {"max_bytes": 70}):
        with pytest.raises(ValueError, match="feature cache needs|max_bytes"):
            opened(tmp_path, **wrong)
    for layer, shape in (("../up", (D,)), ("", (D,)), ("layer", ()), ("layer", (3, 0))):
        with pytest.raises(ValueError, match="feature cache needs"):
            FeatureCache(tmp_path, layer, shape)
    cache = opened(tmp_path)
    good = features(ids(1, 2), 1)
    for numbers, version, values in ((ids(1, 2), 1, good[:, :3]), (ids(1, 2), 1, good[:1]), (ids(1, 2), 1, good.astype(int)),
                                     (ids(1, 1), 1, good), (ids(1, 2), -1, good), (np.array([1.0, 2.0]), 1, good)):
        with pytest.raises(ValueError, match="features must be|a put needs|sample ids must be"):
            cache.put(numbers, version, values)
    assert len(cache) == 0 and cache.get(ids()).features.shape == (0, D) and cache.put(ids(), 1, np.zeros((0, D))) == 0
