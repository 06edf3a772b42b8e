"""LocalStore: nothing acknowledged is lost, nothing damaged is served, nothing local is told."""

from __future__ import annotations

import errno
import json
import os
import random
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from client_app.local import slot_file
from client_app.local.store import LocalStore, StateLost, StoreBusy, StoreError, StoreFull, read_export

ROOT = Path(__file__).parent.parent
SECRET = "site-of-dr-who"


def slots_of(round_number: int) -> dict[str, dict[str, np.ndarray]]:
    rng = np.random.default_rng(round_number)
    return {"head": {"weight": rng.normal(size=(4, 3)).astype(np.float32), "bias": np.full(4, round_number)}}


def assert_same(got: object, expected: object) -> None:
    assert isinstance(got, dict) and isinstance(expected, dict)
    assert list(got) == list(expected)
    for slot, tensors in expected.items():
        assert list(got[slot]) == list(tensors)
        for name, array in tensors.items():
            assert got[slot][name].dtype == array.dtype and got[slot][name].shape == array.shape
            assert got[slot][name].tobytes() == array.tobytes()


@pytest.fixture
def opened(tmp_path: Path):
    with LocalStore(tmp_path, "run", SECRET) as store:
        yield store


def test_everything_comes_back_bit_for_bit_and_in_order(opened: LocalStore) -> None:
    grid = np.arange(12, dtype=np.float32).reshape(3, 4)
    slots = {
        "zeta": {
            "b": np.array([np.nan, -0.0, np.inf, 1e-45], np.float32),
            "a": grid.T,
            "strided": grid[:, ::2],
        },
        "alpha": {"half": grid.astype(np.float16), "flag": grid > 3, "scalar": np.array(7, np.int64)},
        "none": {},
        "odd": {
            "empty": np.zeros((0, 3)),
            "wide": np.broadcast_to(grid[0], (2, 4)),
            "u/8": np.array([1, 255], np.uint8),
        },
    }
    opened.commit(1, slots, base=0)
    assert_same(opened.load(1), slots)
    opened.commit(2, {"big": {"endian": grid.astype(">f4")}}, base=1)
    again = opened.load(2)
    assert again is not None and np.array_equal(again["big"]["endian"], grid)


def test_acked_picks_the_version_and_two_are_kept(opened: LocalStore) -> None:
    assert opened.load(0) is None and opened.versions() == () and opened.site == SECRET
    opened.commit(3, slots_of(3), base=0)
    opened.commit(4, slots_of(4), base=3)
    assert opened.versions() == (3, 4)
    # the reply of round 4 was lost: the server says 3, and round 6 continues from there
    assert_same(opened.load(3), slots_of(3))
    opened.commit(6, slots_of(6), base=3)
    assert opened.versions() == (3, 6)
    assert_same(opened.load(6), slots_of(6))
    opened.commit(6, slots_of(60), base=3)  # run again, since the server resumed; then acknowledged
    assert_same(opened.load(6), slots_of(60))
    opened.commit(7, slots_of(7), base=6)
    assert opened.versions() == (6, 7) and opened.load(0) is None
    pytest.raises(StateLost, opened.load, 3).match("starts again from the initial state")


@pytest.mark.parametrize(("round_number", "base"), [(3, 3), (3, 4), (3, -1), (0, 0)])
def test_a_base_that_is_not_earlier_is_refused(opened: LocalStore, round_number: int, base: int) -> None:
    with pytest.raises(ValueError, match="0 <= base < round_number"):
        opened.commit(round_number, slots_of(3), base)
    assert opened.versions() == ()


def test_a_flipped_byte_is_noticed_or_harmless(opened: LocalStore) -> None:
    opened.commit(1, slots_of(1), base=0)
    path = opened.location / "v1.safetensors"
    sound = path.read_bytes()
    noticed, places = 0, range(0, len(sound), 3)
    for place in places:
        path.write_bytes(sound[:place] + bytes([sound[place] ^ 4]) + sound[place + 1 :])
        try:
            assert_same(opened.load(1), slots_of(1))
        except StateLost:
            noticed += 1
    # only padding and the base, which is not read, could pass
    assert noticed >= len(places) - 4


@pytest.mark.parametrize("damage", ["truncated", "emptied", "garbage", "other round", "no metadata"])
def test_damage_is_state_lost(opened: LocalStore, damage: str) -> None:
    opened.commit(1, slots_of(1), base=0)
    opened.commit(2, slots_of(2), base=1)
    path = opened.location / "v2.safetensors"
    contents = {
        "truncated": path.read_bytes()[:-5],
        "emptied": b"",
        "garbage": random.Random(0).randbytes(400),
        "other round": (opened.location / "v1.safetensors").read_bytes(),
        "no metadata": slot_file.save({"head/bias": np.zeros(4)}),
    }
    path.write_bytes(contents[damage])
    assert_tells_nothing(pytest.raises(StateLost, opened.load, 2).value, opened)
    assert_same(opened.load(1), slots_of(1))


def assert_tells_nothing(error: BaseException, store: LocalStore) -> None:
    text = f"{error!r} {error}"
    assert SECRET not in text and "head" not in text and "safetensors" not in text and os.sep not in text
    assert str(store.location.parent) not in text and error.__suppress_context__


def refusing(code: int) -> Callable[..., None]:
    def refuse(path: object, *_: object, **__: object) -> None:
        raise OSError(code, os.strerror(code), str(path))

    return refuse


@pytest.mark.parametrize(("call", "code"), [("fsync", errno.ENOSPC), ("replace", errno.EDQUOT)])
def test_a_full_disk_leaves_the_last_versions(
    opened: LocalStore, monkeypatch: pytest.MonkeyPatch, code: int, call: str
) -> None:
    opened.commit(1, slots_of(1), base=0)
    opened.commit(2, slots_of(2), base=1)

    with monkeypatch.context() as patch:
        patch.setattr(os, call, refusing(code))
        with pytest.raises(StoreFull, match="free some space") as caught:
            opened.commit(3, slots_of(3), base=2)
    assert_tells_nothing(caught.value, opened)
    assert sorted(path.name for path in opened.location.iterdir()) == [
        "lock",
        "v1.safetensors",
        "v2.safetensors",
    ]
    assert_same(opened.load(2), slots_of(2))


@pytest.mark.skipif(sys.platform != "linux" or os.geteuid() != 0, reason="mounting needs root")
def test_a_really_full_disk(tmp_path: Path) -> None:
    if subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=64k", "tmpfs", tmp_path], capture_output=True
    ).returncode:
        pytest.skip("mounting is not allowed here")
    try:
        with LocalStore(tmp_path, "run", SECRET) as store:
            store.commit(1, slots_of(1), base=0)
            pytest.raises(StoreFull, store.commit, 2, {"head": {"weight": np.zeros(50_000)}}, base=1)
            assert_same(store.load(1), slots_of(1))
            assert not list(store.location.glob(".tmp*"))
    finally:
        subprocess.run(["umount", tmp_path], check=True)


def test_a_disk_that_refuses_to_read_is_not_lost_state(
    opened: LocalStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened.commit(1, slots_of(1), base=0)

    monkeypatch.setattr(slot_file, "safe_open", refusing(errno.EACCES))
    with pytest.raises(StoreError, match="Permission denied") as caught:
        opened.load(1)
    assert type(caught.value) is StoreError
    assert_tells_nothing(caught.value, opened)


COMMITTER = """
import sys
import numpy as np
from client_app.local.store import LocalStore
assert not {"flwr", "torch", "strategies"} & sys.modules.keys()
root, start, base = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
with LocalStore(root, "run", "site") as store:
    for number in range(start, 1_000_000):
        store.commit(number, {"head": {"weight": np.full((40, 30), number)}}, base)
        # every third reply is lost: the next round continues from the same base
        base = base if number % 3 == 0 else number
        print(number, base, flush=True)
"""


def test_killed_at_any_moment_the_acknowledged_version_loads(tmp_path: Path) -> None:
    rng = random.Random(20)
    number = base = 0
    for _ in range(10):
        command = [sys.executable, "-c", COMMITTER, str(tmp_path), str(number + 1), str(base)]
        child = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=ROOT)
        assert child.stdout is not None
        lines = [child.stdout.readline() for _ in range(rng.randrange(1, 25))]
        for _ in range(rng.randrange(20_000)):
            pass  # the child goes on committing meanwhile, so it dies anywhere in a commit
        child.kill()
        rest = child.communicate()[0]
        whole = [line for line in ("".join(lines) + rest).splitlines(keepends=True) if line.endswith("\n")]
        before = number
        number, base = (int(part) for part in whole[-1].split())
        assert number > before
        with LocalStore(tmp_path, "run", "site", lock_timeout=5) as store:
            assert not list(store.location.glob(".tmp*"))
            assert base in store.versions() and len(store.versions()) <= 3
            # a round that was committed but not told is whole too
            for version in store.versions():
                assert_same(store.load(version), {"head": {"weight": np.full((40, 30), version)}})


HOLDER = """
import sys
from client_app.local.store import LocalStore
with LocalStore(sys.argv[1], "run", sys.argv[2]):
    print("held", flush=True)
    sys.stdin.read()
"""


def test_a_second_process_is_kept_out_until_the_first_is_gone(tmp_path: Path) -> None:
    command = [sys.executable, "-c", HOLDER, str(tmp_path), SECRET]
    child = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=ROOT)
    assert child.stdout is not None and child.stdout.readline() == "held\n"
    store = LocalStore(tmp_path, "run", SECRET, lock_timeout=0.1)
    with (
        pytest.raises(StoreBusy, match="another process is using this site's state; stop it") as caught,
        store,
    ):
        pass
    assert_tells_nothing(caught.value, store)
    with LocalStore(tmp_path, "run", "another-site", lock_timeout=0.1):
        child.kill()
        child.communicate()
    with LocalStore(tmp_path, "run", SECRET, lock_timeout=5) as store:
        assert store.versions() == ()


def test_torn_files_are_swept_and_what_is_not_open_is_refused(tmp_path: Path) -> None:
    store = LocalStore(tmp_path, "run", "site")
    with store:
        store.commit(1, slots_of(1), base=0)
    (store.location / ".tmp-v2.safetensors").write_bytes(b"half")
    pytest.raises(StoreError, store.load, 1).match("is not open")
    pytest.raises(StoreError, store.commit, 2, {}, 1).match("is not open")
    with store:
        assert sorted(path.name for path in store.location.iterdir()) == ["lock", "v1.safetensors"]
    if os.name == "posix":
        assert all(folder.stat().st_mode & 0o077 == 0 for folder in (store.location, *list(store.location.parents)[:2]))


@pytest.mark.parametrize("name", ["", ".", "..", "a/b", "a\\b", "x" * 65, "dr who", "é", "a\n"])
def test_a_bad_name_is_refused_without_being_repeated(tmp_path: Path, name: str) -> None:
    for arguments in ((tmp_path, name, "site"), (tmp_path, "run", name)):
        with pytest.raises(ValueError, match="must be 1 to 64 characters") as caught:
            LocalStore(*arguments)
        assert not (len(name) > 2 and name in str(caught.value))
    assert not list(tmp_path.iterdir())


def test_the_personal_model_outlives_the_rounds(opened: LocalStore) -> None:
    assert opened.exported("personal") is None
    opened.export("personal", slots_of(9))
    opened.commit(1, slots_of(1), base=0)
    opened.commit(2, slots_of(2), base=0)
    assert opened.versions() == (2,)
    assert_same(opened.exported("personal"), slots_of(9))
    for name in ("v3", ".tmp-x", "../x"):
        pytest.raises(ValueError, opened.export, name, slots_of(9)).match("export's name")
    (opened.location / "personal.safetensors").write_bytes(b"garbage")
    pytest.raises(StoreError, opened.exported, "personal").match("damaged; restore the file, or have it written again")


def test_what_an_export_says_of_itself_is_part_of_it(opened: LocalStore, tmp_path: Path) -> None:
    """In one file with the numbers, so that both are replaced in one step, and under one checksum; beside it for people."""
    facts = {"classes": ["ä", "\x00"], "served": 1 / 3, "round": 2}
    opened.export("personal", slots_of(9), facts)
    copy = tmp_path / "elsewhere.safetensors"
    copy.write_bytes((opened.location / "personal.safetensors").read_bytes())
    slots, told = read_export(copy)
    assert_same(slots, slots_of(9))
    assert told == facts == json.loads((opened.location / "personal.json").read_text(encoding="utf-8"))
    copy.write_bytes(copy.read_bytes().replace(b"0.333", b"0.999"))
    pytest.raises(StoreError, read_export, copy).match("damaged")
    pytest.raises(FileNotFoundError, read_export, tmp_path / "nothing")
    pytest.raises(ValueError, opened.export, "personal", slots_of(8), {"served": float("nan")})
    assert_same(opened.exported("personal"), slots_of(9))
    opened.export("bare", slots_of(9))
    assert read_export(opened.location / "bare.safetensors")[1] == {} and not (opened.location / "bare.json").exists()


@pytest.mark.parametrize("bad", [np.array(["x"]), np.array([None]), np.zeros(2, np.complex64), 1.5])
def test_only_arrays_of_numbers_are_kept(opened: LocalStore, bad: np.ndarray) -> None:
    with pytest.raises(TypeError, match="a slot holds numpy arrays"):
        opened.commit(1, {"head": {"weight": bad}}, base=0)
    with pytest.raises(ValueError, match="slash"):
        opened.commit(1, {"a/b": {"weight": np.zeros(1)}}, base=0)
    assert opened.versions() == ()


def test_a_small_head_costs_under_two_milliseconds(opened: LocalStore) -> None:
    head = {"head": {"weight": np.ones((10, 500), np.float32), "bias": np.ones(10, np.float32)}}
    start = time.process_time()
    for number in range(1, 21):
        opened.commit(number, head, base=number - 1)
    assert time.process_time() - start < 20 * 2e-3
