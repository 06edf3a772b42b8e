"""What the server may take a client to hold, for ``wire-delta = lossless``: see ``strategies.thin``.

Up, the base is what the server itself sent in the message that is answered. Down, it is a shared slot of the state before, if the
client answered a message with it: a client keeps what came before it answers. In memory are the shared slots of this state and
of the last one, and two digests a client: nothing grows with clients times model. What a client alone was sent is computed
again from the rule when its reply comes. A client that missed a round, is new, or has lost what it kept gets the whole.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from typing import Protocol

from flwr.app import ArrayRecord, RecordDict

from strategies.contract import Wire
from strategies.delta import digest_of
from strategies.thin import is_thin, may_thin, restored, thinned, whole_of
from strategies.types import Layout

# shared slots kept of one state, for a method that has one a cluster
MOST = 8


class Bases(Protocol):
    """What an exchange asks of them: see ``SentBases``."""

    def turn(self, state: object) -> Counter[str]: ...
    def down(self, client: str, content: RecordDict, shared: frozenset[str]) -> RecordDict: ...
    def up(self, client: str, content: RecordDict, again: Callable[[str], ArrayRecord]) -> RecordDict: ...
    def answered(self, client: str) -> None: ...
    def lost(self, client: str) -> None: ...


def bases_of(wire: Wire, parts: Mapping[str, Layout]) -> Bases:
    """Those of a run with this contract."""
    return SentBases(wire, parts) if wire.delta == "lossless" else NoBases()


class NoBases:
    """Everything travels whole."""

    def turn(self, state: object) -> Counter[str]:
        return Counter()

    def down(self, client: str, content: RecordDict, shared: frozenset[str]) -> RecordDict:
        return content

    def up(self, client: str, content: RecordDict, again: Callable[[str], ArrayRecord]) -> RecordDict:
        return content

    def answered(self, client: str) -> None:
        return None

    def lost(self, client: str) -> None:
        return None


class SentBases:
    """The server's half of a run whose encoders may travel as a difference."""

    def __init__(self, wire: Wire, parts: Mapping[str, Layout]) -> None:
        slots = {"down": wire.slots("down"), "up": wire.slots("up") | wire.slots("join")}
        expected = {way: {name: slot.expected(parts) for name, slot in named.items()} for way, named in slots.items()}
        self._layouts = {way: {name: layout for name, layout in named.items() if may_thin(layout)} for way, named in expected.items()}
        self._travel = wire.travel
        self._state: object = None
        self._moved = False
        self._now: dict[str, bytes] = {}
        self._before: dict[str, bytes] = {}
        self._digests: dict[int, tuple[ArrayRecord, str]] = {}
        self._made: dict[tuple[int, str], ArrayRecord] = {}
        self._gave: dict[str, dict[str, str]] = {}  # client -> slot -> digest of what it is asked with
        self._held: dict[str, dict[str, str]] = {}  # client -> the same of what it last answered
        self._counts: Counter[str] = Counter()

    def turn(self, state: object) -> Counter[str]:
        """Before an exchange: once something else than the last shared slots is sent of ``state``, those are of the state before.

        Returns what will count the exchange: slots that go and come as a difference (``down``, ``up``) and whole (``down-whole``,
        ``up-whole``).
        """
        self._counts = Counter()
        self._gave.clear()
        self._digests.clear()
        self._made.clear()
        self._moved, self._state = self._moved or state is not self._state, state
        return self._counts

    def down(self, client: str, content: RecordDict, shared: frozenset[str]) -> RecordDict:
        """A message's ``content`` with what ``client`` can restore as a difference. ``shared``: slots whose record others get too."""
        given: dict[str, str] = {}
        here: dict[str, bytes] = {}
        out = RecordDict(dict(content))
        for name in self._layouts["down"]:
            record = content.get(name)
            whole = whole_of(record)
            if not isinstance(record, ArrayRecord) or whole is None:
                continue
            if name in shared:
                given[name] = self._kept(record, whole)
                out[name] = self._made_for(client, record)
                here[given[name]] = whole
            else:
                out[name] = thinned(record, here)
                given |= {name: digest_of(whole)} if name in self._layouts["up"] else {}
            self._counts["down" if is_thin(out[name]) else "down-whole"] += 1
        self._gave[client] = given
        return out

    def up(self, client: str, content: RecordDict, again: Callable[[str], ArrayRecord]) -> RecordDict:
        """A reply's ``content`` made whole. ``again(slot)`` is the record that the client was sent. Raises ``WireViolation``."""
        gave = {digest: name for name, digest in self._gave.get(client, {}).items()}

        def base_of(digest: str) -> bytes | None:
            if digest not in gave:
                return None
            whole = self._base(digest) or whole_of(again(gave[digest]))
            return whole if whole is not None and (self._base(digest) or digest_of(whole) == digest) else None

        whole = restored(content, self._layouts["up"], self._travel, base_of)
        for name in self._layouts["up"].keys() & content.keys():
            self._counts["up" if is_thin(content[name]) else "up-whole"] += 1
        return whole

    def answered(self, client: str) -> None:
        """Its reply was accepted: so it has kept what it was sent."""
        self._held[client] = self._gave.get(client, {})

    def lost(self, client: str) -> None:
        """It says that it has not kept what it was sent."""
        self._held.pop(client, None)

    def _base(self, digest: str) -> bytes | None:
        return self._now.get(digest) or self._before.get(digest)

    def _kept(self, record: ArrayRecord, whole: bytes) -> str:
        """The digest of a shared ``record``, which is kept as a base if there is room."""
        known = self._digests.get(id(record))
        if known is not None:
            return known[1]
        digest = digest_of(whole)
        if digest not in self._now:
            if self._moved:
                self._before, self._now, self._moved = self._now, {}, False
            if len(self._now) >= MOST:
                return digest
            self._now[digest] = whole
        self._digests[id(record)] = (record, digest)  # the record stays beside its digest, so that the id stays its own
        return digest

    def _made_for(self, client: str, record: ArrayRecord) -> ArrayRecord:
        """A shared ``record`` as ``client`` gets it: one difference for all who hold the same base, as Flower uploads it once."""
        for digest in self._held.get(client, {}).values():
            base = self._base(digest)
            if base is None:
                continue
            key = (id(record), digest)
            made = self._made.get(key) or thinned(record, {digest: base})
            if id(record) in self._digests and len(self._made) < MOST:
                self._made[key] = made
            if is_thin(made):
                return made
        self.lost(client)  # it keeps what comes, and what that was a difference to: after a whole one, nothing older
        return record
