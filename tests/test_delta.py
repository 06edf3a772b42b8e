"""Encoders as a lossless difference: the arithmetic, damaged and hostile ones, who gets one, and runs that must not differ by it."""

from __future__ import annotations

import shutil
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from flwr.app import Array, ArrayRecord, Message, RecordDict
from hypothesis import given, settings
from hypothesis import strategies as st

from client_app.local.kept_bases import KeptBases
from deploy.inprocess import identify
from strategies import delta
from strategies.contract import Slot, Wire, WireViolation
from strategies.packing import key_of
from strategies.sent_bases import MOST, NoBases, SentBases, bases_of
from strategies.thin import STYPE, is_thin, may_thin, restored, thinned, whole_of
from strategies.types import Layout
from strategies.wire import bytes_of, pack_slot, unpack
from tests.running import Ran, about, failing, run

identify()
NAME = "ab" * 16
LAYOUT: Layout = {f"t{n}": ((12, 12), "float32") for n in range(9)}
PARTS = {"encoder": LAYOUT, "head": {"weight": ((2, 4), "float32")}}
ENCODER = Slot("encoder", "all", "shared", like="encoder")
OWN = Slot("mixture", "all", "its own", like="encoder", optional=True, serves=True)
WIRE = Wire(down=(ENCODER, OWN), up=(ENCODER,), local=("head",), delta="lossless")


def tensors(seed: int, near: int | None = None, step: float = 1e-3) -> dict[str, np.ndarray]:
    """Nine random tensors; near those of the seed ``near``, if that is given."""
    rng = np.random.default_rng(seed)
    drawn = {name: rng.standard_normal(shape).astype(np.float32) for name, (shape, _) in LAYOUT.items()}
    return drawn if near is None else {name: t + np.float32(step) * drawn[name] for name, t in tensors(near).items()}


def bytes_at(record: object) -> bytes:
    found = whole_of(record)
    assert found is not None
    return found


# --- the arithmetic


def test_by_hand() -> None:
    """Half floats: 1.0 is 0x3C00 and the next one 0x3C01; 0.0 is 0x0000 and -0.0 is 0x8000, its neighbour in the floats' order."""
    base = np.array([0x3C00, 0x3C00, 0x3C00, 0x0000, 0x8000], np.uint16)
    new = np.array([0x3C00, 0x3C01, 0x3BFF, 0x8000, 0x0000], np.uint16)
    assert delta._folded(new, base).tolist() == [0, 2, 1, 1, 2]  # 0, +1, -1, -1, +1
    assert delta._unfolded(np.array([0, 2, 1, 1, 2], np.uint16), base).tolist() == new.tolist()
    assert delta._planes(np.array([0x0102, 0x0304], np.uint16)).tolist() == [[2, 4], [1, 3]]


def slow_folded(new: int, base: int, bits: int) -> int:
    def ordered(n: int) -> int:
        return (2**bits - 1) - n if n >= 2 ** (bits - 1) else n + 2 ** (bits - 1)

    difference = (ordered(new) - ordered(base)) % 2**bits
    return 2 * difference if difference < 2 ** (bits - 1) else 2 * (2**bits - difference) - 1


@given(st.sampled_from([16, 32]), st.integers(0, 2**32 - 1), st.integers(0, 40))
@settings(max_examples=40, deadline=None)
def test_any_bits_come_back(bits: int, seed: int, count: int) -> None:
    """NaN, infinities and both zeros too; and each number folds as the loop over Python's integers says."""
    rng = np.random.default_rng(seed)
    base = rng.integers(0, 2**bits, count, dtype=f"u{bits // 8}")
    new = np.where(rng.random(count) < 0.5, rng.integers(0, 2**bits, count, dtype=base.dtype), base)
    assert delta._folded(new, base).tolist() == [slow_folded(int(n), int(b), bits) for n, b in zip(new, base, strict=True)]
    data = delta.encode(new, base, NAME)
    assert delta.base_named(data) == NAME and delta.decode(data, base).tolist() == new.tolist()


def test_more_numbers_than_are_worked_on_at_a_time() -> None:
    rng = np.random.default_rng(0)
    base = rng.standard_normal(delta._CHUNK + 5).astype(np.float32)
    new = base + rng.standard_normal(len(base)).astype(np.float32) * np.float32(1e-3)
    data = delta.encode(new.view(np.uint32), base.view(np.uint32), NAME)
    assert delta.decode(data, base.view(np.uint32)).tobytes() == new.tobytes()
    assert 0.5 * new.nbytes < len(data) < 0.8 * new.nbytes  # the mantissa is noise
    assert len(delta.encode(new.view(np.uint32), new.view(np.uint32), NAME)) < 0.01 * new.nbytes


# --- damaged and hostile differences


def bits(seed: int, near: int | None = None) -> np.ndarray:
    return np.concatenate([t.reshape(-1) for t in tensors(seed, near).values()]).view(np.uint32)


def rebuilt(planes: list[tuple[int, bytes]]) -> bytes:
    table = b"".join(delta._PLANE.pack(kind, len(body)) for kind, body in planes)
    return b"".join((delta._HEAD.pack(b"FHD1", bytes.fromhex(NAME), 0), table, *(body for _, body in planes)))


def raw_deflate(content: bytes) -> bytes:
    packer = zlib.compressobj(9, zlib.DEFLATED, -zlib.MAX_WBITS)
    return packer.compress(content) + packer.flush()


COUNT = 9 * 144
RAW = (0, bytes(COUNT))
DAMAGE: dict[str, tuple[Callable[[bytes], bytes], str]] = {
    "empty": (lambda data: b"", "begin like a difference"),
    "another format": (lambda data: b"PK" + data[2:], "begin like a difference"),
    "cut in its table": (lambda data: data[:30], "cut short"),
    "cut": (lambda data: data[:-7], "says otherwise"),
    "longer": (lambda data: data + b"x", "says otherwise"),
    "a number changed": (lambda data: data[:-1] + bytes([data[-1] ^ 1]), "checksum|inflate"),
    "of noise": (lambda data: rebuilt([RAW, RAW, RAW, (1, b"\xff" * 40)]), "cannot be inflated"),
    "a plane too small": (lambda data: rebuilt([RAW, RAW, RAW, (0, bytes(3))]), "another size"),
    "a plane of unknown kind": (lambda data: rebuilt([RAW, RAW, RAW, (7, bytes(COUNT))]), "unknown kind"),
    "a bomb": (lambda data: rebuilt([RAW, RAW, RAW, (1, raw_deflate(bytes(10**7)))]), f"another size than {COUNT}"),
    "inflating to too little": (lambda data: rebuilt([RAW, RAW, RAW, (1, raw_deflate(bytes(COUNT - 1)))]), f"another size than {COUNT}"),
    "unfinished": (lambda data: rebuilt([RAW, RAW, RAW, (1, raw_deflate(bytes(COUNT))[:-2])]), f"another size than {COUNT}"),
    "with a tail": (lambda data: rebuilt([RAW, RAW, RAW, (1, raw_deflate(bytes(COUNT)) + b"tail")]), f"another size than {COUNT}"),
    "right but for its checksum": (lambda data: rebuilt([RAW] * 4), "checksum"),
}


@pytest.mark.parametrize("how", DAMAGE)
def test_a_damaged_difference_is_refused_with_a_reason(how: str) -> None:
    change, reason = DAMAGE[how]
    base, new = bits(1), bits(2, near=1)
    with pytest.raises(delta.DeltaError, match=reason):
        delta.decode(change(delta.encode(new, base, NAME)), base)


def test_a_bomb_is_not_inflated(monkeypatch: pytest.MonkeyPatch) -> None:
    """zlib is never asked for more than one byte beyond what there may be."""
    asked: list[int] = []
    real = zlib.decompressobj

    class Counting:
        def __init__(self, bits: int) -> None:
            self.real = real(bits)

        def decompress(self, body: memoryview, limit: int) -> bytes:
            asked.append(limit)
            return self.real.decompress(body, limit)

        def __getattr__(self, name: str) -> Any:
            return getattr(self.real, name)

    monkeypatch.setattr(delta.zlib, "decompressobj", Counting)
    with pytest.raises(delta.DeltaError):
        delta.decode(rebuilt([RAW, RAW, RAW, (1, raw_deflate(bytes(10**8)))]), bits(1))
    assert asked == [COUNT + 1]


def changed(record: ArrayRecord, **fields: Any) -> RecordDict:
    array = next(iter(record.values()))
    given = {"dtype": array.dtype, "shape": array.shape, "stype": array.stype, "data": array.data, "key": key_of(LAYOUT)} | fields
    return RecordDict({"encoder": ArrayRecord({given.pop("key"): Array(**given)})})


def test_what_a_difference_declares_is_checked_before_it_is_undone() -> None:
    base = pack_slot(tensors(1))
    name, whole = delta.digest_of(bytes_at(base)), bytes_at(base)
    thin = thinned(pack_slot(tensors(2, near=1)), {name: whole})
    assert is_thin(thin)

    def kind(content: RecordDict, held: bytes | None = whole) -> str:
        with pytest.raises(WireViolation) as wrong:
            restored(content, {"encoder": LAYOUT}, "float32", lambda digest: held if digest == name else None)
        return wrong.value.kind

    assert kind(changed(thin, key="packed-other")) == "names"
    assert kind(changed(thin, dtype="float16")) == "shape" and kind(changed(thin, shape=(COUNT + 1,))) == "shape"
    assert kind(changed(thin, data=b"FHD1" + bytes(4 * COUNT + 500))) == "size"
    assert kind(changed(thin, data=b"nonsense")) == "delta"
    assert kind(changed(thin), held=None) == "no-base"
    assert kind(changed(thin), held=whole[:-4]) == "delta"
    assert kind(changed(thin), held=bytes_at(pack_slot(tensors(3)))) == "delta"  # not the base it was made against
    assert kind(RecordDict({"head": thin})) == "delta"
    # with the setting off, a difference is an array of an unknown kind
    with pytest.raises(WireViolation, match="serialisation 'numpy.ndarray'"):
        unpack(WIRE, "up", RecordDict({"encoder": thin}), PARTS)


@pytest.mark.parametrize("travel", ["float32", "float16", "bfloat16"])
def test_what_comes_back_is_what_would_have_travelled_whole(travel: str) -> None:
    base, whole = pack_slot(tensors(1), travel), pack_slot(tensors(2, near=1), travel)
    thin = thinned(whole, {delta.digest_of(bytes_at(base)): bytes_at(base)})
    back = restored(RecordDict({"encoder": thin}), {"encoder": LAYOUT}, travel, lambda _: bytes_at(base))
    assert is_thin(thin) and bytes_at(back["encoder"]) == bytes_at(whole)
    assert bytes_of(RecordDict({"encoder": thin}))["encoder"] == len(thin[key_of(LAYOUT)].data) < len(bytes_at(whole))
    # what saves nothing, or has no base of its own kind, travels whole
    noise = ArrayRecord({key_of(LAYOUT): whole[key_of(LAYOUT)]})
    assert thinned(noise, {NAME: bytes_at(pack_slot(tensors(1), "float16" if travel != "float16" else "float32"))}) is noise
    assert thinned(noise, {}) is noise


def test_only_large_slots_of_float32_may_travel_so() -> None:
    assert may_thin(LAYOUT) and not may_thin(PARTS["head"])
    assert not may_thin({f"t{n}": ((2,), "float32") for n in range(9)})
    assert not may_thin({f"t{n}": ((200, 2), "float16") for n in range(9)})
    with pytest.raises(ValueError, match="delta must be one of none, lossless"):
        Wire((), (), (), delta="xor")
    assert isinstance(bases_of(Wire((), (), ()), PARTS), NoBases)


# --- who gets one: the server's book


class Book:
    """A server that sends one shared record a state, and a client that keeps what came, as ``client_app.thin_door`` does."""

    def __init__(self) -> None:
        self.bases = SentBases(WIRE, PARTS)
        self.kept: dict[str, dict[str, bytes]] = {}

    def round(self, state: ArrayRecord, clients: str, answering: str = "", own: dict[str, ArrayRecord] | None = None) -> dict[str, bool]:
        """Whether each of ``clients`` got a difference; it must be able to undo it. Those ``answering`` reply with one."""
        self.counts, thin = self.bases.turn(state), {}
        for client in clients:
            content = {"encoder": state, **({"mixture": own[client]} if own else {})}
            sent = self.bases.down(client, RecordDict(content), frozenset({"encoder"}))
            back = restored(sent, {name: LAYOUT for name in content}, "float32", self.kept.get(client, {}).get)
            assert all(bytes_at(back[name]) == bytes_at(record) for name, record in content.items())
            thin[client] = is_thin(sent["encoder"])
        for client in answering:
            name = delta.digest_of(bytes_at(state))
            self.kept[client] = {name: bytes_at(state)}
            update = pack_slot(tensors(ord(client), near=9))
            reply = RecordDict({"encoder": thinned(update, self.kept[client])})
            back = self.bases.up(client, reply, lambda slot: pytest.fail("the shared slot is at hand"))
            assert bytes_at(back["encoder"]) == bytes_at(update)
            self.bases.answered(client)
        return thin


def state_of(number: int) -> ArrayRecord:
    return pack_slot(tensors(number, near=9))


def test_a_client_gets_a_difference_if_it_answered_with_the_state_before() -> None:
    book = Book()
    states = [state_of(n) for n in range(6)]
    assert book.round(states[0], "abc", answering="ab") == {"a": False, "b": False, "c": False}
    assert dict(book.counts) == {"down-whole": 3, "up": 2}
    assert book.round(states[1], "abc", answering="a") == {"a": True, "b": True, "c": False}  # c never answered
    assert dict(book.counts) == {"down": 2, "down-whole": 1, "up": 1}
    # b missed round 2, and what it has is two states old; d is new
    assert book.round(states[2], "abd", answering="ab") == {"a": True, "b": False, "d": False}
    book.bases.lost("a")
    assert book.round(states[3], "ab", answering="ab") == {"a": False, "b": True}
    # a void round leaves the state; they hold it already, so the difference is nothing
    assert book.round(states[3], "ab") == {"a": True, "b": True}
    assert book.round(states[4], "ab") == {"a": True, "b": True}
    # a server that starts again knows nothing of anybody
    book.bases = SentBases(WIRE, PARTS)
    assert book.round(states[5], "ab", answering="a") == {"a": False, "b": False}


def test_all_who_hold_the_same_get_the_same_record() -> None:
    book = Book()
    book.round(state_of(0), "abc", answering="abc")
    state = state_of(1)
    book.bases.turn(state)
    sent = [book.bases.down(c, RecordDict({"encoder": state}), frozenset({"encoder"}))["encoder"] for c in "abc"]
    assert is_thin(sent[0]) and sent[0] is sent[1] is sent[2]


def test_a_slot_of_a_clients_own_is_a_difference_to_the_shared_one() -> None:
    book = Book()
    book.round(state_of(0), "a", own={"a": pack_slot(tensors(5, near=9))})
    assert dict(book.counts) == {"down-whole": 1, "down": 1}


def test_the_book_does_not_grow_with_the_clients() -> None:
    bases = SentBases(WIRE, PARTS)
    for number in range(3):
        state = object()
        bases.turn(state)
        for client in map(str, range(3 * MOST)):  # a method with a shared record for each of them
            record = pack_slot(tensors(int(client), near=number))
            bases.down(client, RecordDict({"encoder": record}), frozenset({"encoder"}))
            bases.answered(client)
    assert len(bases._now) <= MOST and len(bases._before) <= MOST and len(bases._made) <= MOST and len(bases._digests) <= MOST


def test_what_a_client_alone_was_sent_is_computed_again() -> None:
    bases, own = SentBases(WIRE, PARTS), pack_slot(tensors(1))
    bases.turn(None)
    bases.down("a", RecordDict({"encoder": own}), frozenset())
    update = pack_slot(tensors(2, near=1))
    thin = RecordDict({"encoder": thinned(update, {delta.digest_of(bytes_at(own)): bytes_at(own)})})
    assert bytes_at(bases.up("a", thin, lambda slot: pack_slot(tensors(1)))["encoder"]) == bytes_at(update)
    for client, again in (("a", pack_slot(tensors(3))), ("b", own)):  # a rule that is not pure; a client that was not asked
        with pytest.raises(WireViolation) as wrong:
            bases.up(client, thin, lambda slot, again=again: again)
        assert wrong.value.kind == "no-base"


def test_kept_bases_are_checked_and_tidied(tmp_path: Path) -> None:
    kept, contents = KeptBases(tmp_path / "site"), [bytes([n]) * 100 for n in range(3)]
    names = [delta.digest_of(content) for content in contents]
    kept.keep({names[0]: contents[0]}, [])
    kept.keep({names[1]: contents[1]}, [names[0], NAME])
    assert [kept.get(name) for name in names] == [contents[0], contents[1], None]
    kept.keep({names[2]: contents[2]}, [names[1]])
    assert [kept.get(name) for name in names] == [None, contents[1], contents[2]]
    next((tmp_path / "site").glob(f"*{names[1]}*")).write_bytes(contents[0])
    assert kept.get(names[1]) is None


# --- whole runs


def same(ran: Ran) -> dict[str, Any]:
    """All that must not depend on the setting."""
    rounds = [{k: v for k, v in record.items() if k not in ("bytes", "delta")} for record in ran.rounds]
    return {**ran.everything(), "rounds": rounds}


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> Ran:
    return run(tmp_path_factory.mktemp("plain") / "run", "fedper", rounds=4)


def deltas(ran: Ran) -> list[dict[str, int]]:
    return [record["delta"] for record in ran.records if "delta" in record]


def test_a_run_is_the_same_bit_for_bit_and_the_bytes_are_those_that_travelled(plain: Ran, tmp_path: Path) -> None:
    sent: list[int] = []

    def count(message: Message, reply: Callable[[], Message]) -> Message:
        if about(message)[::2] == ("train", 2):
            sent.append(len(next(iter(message.content["encoder"].values())).data))  # type: ignore[union-attr]
        return reply()

    thin = run(tmp_path, "fedper", count, rounds=4, wire_delta="lossless")
    assert same(thin) == same(plain)
    assert deltas(thin)[:2] == [{"down-whole": 4, "up": 4}, {"down": 4, "up": 4}]
    assert thin.records[1]["bytes"]["down"]["encoder"] == sum(sent) < plain.records[1]["bytes"]["down"]["encoder"]
    assert thin.records[0]["bytes"]["up"]["encoder"] < plain.records[0]["bytes"]["up"]["encoder"]


def test_mixtures_in_half_floats(tmp_path: Path) -> None:
    settings = {"rounds": 2, "wire_dtype": "bfloat16", "hdc_fl__num_clusters": 2, "hdc_fl__refresh_first": 1, "hdc_fl__refresh_every": 1}
    whole, thin = (run(tmp_path / d, "hdc-fl", **settings, wire_delta=d) for d in ("none", "lossless"))
    assert same(thin) == same(whole)
    down = {d: ran.summary["bytes"]["by_slot"]["down"] for d, ran in (("none", whole), ("lossless", thin))}
    assert down["lossless"]["mixture"] < down["none"]["mixture"] and down["lossless"]["encoder"] < down["none"]["encoder"]


class Stop(Exception):
    """Ends a run from within."""


def test_killed_and_resumed_it_begins_again_with_the_whole(plain: Ran, tmp_path: Path) -> None:
    def stop(record: Any) -> None:
        if record["round"] == 2:
            raise Stop

    with pytest.raises(Stop):
        run(tmp_path, "fedper", on_round=stop, rounds=4, wire_delta="lossless")
    again = run(tmp_path, "fedper", rounds=4, resume=True, wire_delta="lossless")
    assert same(again) == same(plain)
    assert deltas(again)[2:4] == [{"down-whole": 4, "up": 4}, {"down": 4, "up": 4}]


def test_a_reply_that_was_lost_leaves_the_client_with_what_the_server_believes_in(tmp_path: Path) -> None:
    """It trained in round 2 and was not heard: in round 3 the base is gone, in round 4 it has one again."""
    hook = failing(("client-001", 2), after=True)
    whole, thin = (run(tmp_path / d, "fedper", hook, rounds=4, wire_delta=d) for d in ("none", "lossless"))
    assert same(thin) == same(whole)
    assert deltas(thin)[1:4] == [{"down": 4, "up": 3}, {"down": 3, "down-whole": 1, "up": 4}, {"down": 4, "up": 4}]


@pytest.mark.parametrize("what", ["all", "base"])
def test_a_client_that_lost_its_files_gets_the_whole_and_is_counted(what: str, tmp_path: Path) -> None:
    """With all its state: as without the setting, it starts again. Its base alone: one reply is dropped, and it goes on."""
    def lose(folder: Path) -> Callable[[Any], None]:
        def after(record: Any) -> None:
            state = folder / "clients" / "test" / "client-002"
            if record["round"] == 2:
                for path in state.glob("base-*" if what == "base" else "*"):
                    shutil.move(path, folder / f"moved-{path.name}")
        return after

    whole, thin = (run(tmp_path / d, "fedper", rounds=4, wire_delta=d, on_round=lose(tmp_path / d)) for d in ("none", "lossless"))
    assert thin.records[2]["dropped"] == ({"StateLost": 1} if what == "all" else {"BaseLost": 1})
    assert deltas(thin)[3] == {"down": 3, "down-whole": 1, "up": 4}
    if what == "all":
        assert same(thin) == same(whole)
    assert len(thin.records[3]["accepted"]) == 4


@pytest.mark.parametrize(("spoil", "kind"), [
    (lambda data: data[:4] + bytes(16) + data[20:], "no-base"),
    (lambda data: data[: len(data) // 2], "delta"),
    (lambda data: data + bytes(10**6), "size"),
], ids=["another base", "cut", "too large"])
def test_a_hostile_reply_is_dropped_and_counted(spoil: Callable[[bytes], bytes], kind: str, tmp_path: Path) -> None:
    def hostile(message: Message, reply: Callable[[], Message]) -> Message:
        answer = reply()
        if about(message) == ("train", "client-001", 2):
            key, array = next(iter(answer.content["encoder"].items()))  # type: ignore[union-attr]
            assert array.stype == STYPE
            answer.content["encoder"] = ArrayRecord({key: Array(array.dtype, array.shape, STYPE, spoil(array.data))})
        return answer

    ran = run(tmp_path, "fedper", hostile, wire_delta="lossless")
    assert ran.records[1]["dropped"] == {kind: 1} and len(ran.records[1]["accepted"]) == 3
    assert set(ran.records[1]["bytes"]["up"]) == {"encoder", "metrics", "refused"}


def test_a_hostile_message_is_refused_by_the_client(tmp_path: Path) -> None:
    def hostile(message: Message, reply: Callable[[], Message]) -> Message:
        if about(message) == ("train", "client-001", 2):
            key, array = next(iter(message.content["encoder"].items()))  # type: ignore[union-attr]
            message.content["encoder"] = ArrayRecord({key: Array(array.dtype, array.shape, STYPE, array.data[:-9])})
        return reply()

    ran = run(tmp_path, "fedper", hostile, wire_delta="lossless")
    assert ran.records[1]["dropped"] == {"WireViolation": 1} and len(ran.records[1]["accepted"]) == 3
