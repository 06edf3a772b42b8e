"""The client's half of ``wire-delta = lossless``: what comes in is made whole before anybody reads it, what goes out is thinned last.

So learners, ``seal`` and the guard's check see whole tensors, whatever travels. Up, the base is what came down in the same
message; down, it is what the last message brought, kept beside the site's state.
"""

from __future__ import annotations

from collections.abc import Mapping

from flwr.app import RecordDict

from client_app.local.kept_bases import KeptBases
from client_app.local.store import LocalStore, StoreError
from strategies.contract import Wire, WireViolation
from strategies.delta import digest_of
from strategies.thin import base_of_record, may_thin, restored, thinned_slots, whole_of
from strategies.types import Layout
from strategies.wire import unpack_round


class BaseLost(StoreError):
    """What an earlier message brought is missing or damaged; the server sends the whole next time."""


class ThinDoor:
    """One message's way in and out."""

    def __init__(self, wire: Wire, parts: Mapping[str, Layout], store: LocalStore) -> None:
        layouts = {name: slot.expected(parts) for name, slot in wire.slots("down").items()}
        self._layouts = {name: layout for name, layout in layouts.items() if may_thin(layout)}
        self._private = {slot.name for slot in wire.down if slot.serves}
        self._travel, self._store = wire.travel, store
        self._kept = KeptBases(store.location)
        self._came: dict[str, bytes] = {}
        self._used: list[str] = []

    def come_in(self, content: RecordDict) -> None:
        """Make ``content`` whole, in place.

        Raises
        ------
        WireViolation
            If a difference cannot be undone.
        BaseLost, StateLost
            If its base is no longer here: ``StateLost`` if the version that the server acknowledged is gone too.
        """
        self._used = [digest for name in self._layouts if (digest := base_of_record(content.get(name)))]
        try:
            whole = restored(content, self._layouts, self._travel, self._kept.get)
        except WireViolation as wrong:
            if wrong.kind != "no-base":
                raise
            with self._store as store:
                store.load(unpack_round(content).acked)
            raise BaseLost("what an earlier message brought is missing here; the server sends the whole next time") from None
        for name in self._layouts.keys() & whole.keys():
            content[name] = whole[name]
            if name not in self._private and (bytes_ := whole_of(whole[name])) is not None:
                self._came[name] = bytes_

    def go_out(self, content: RecordDict) -> RecordDict:
        """``content``, which has passed every check, with what came in this message as bases; and keep that for the next one."""
        came = {name: (digest_of(whole), whole) for name, whole in self._came.items()}
        if came:
            self._kept.keep(dict(came.values()), self._used)
        return thinned_slots(content, came)
