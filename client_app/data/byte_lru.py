"""A cache bounded by bytes, for the client data a worker keeps between messages.

Only memoisation: losing an entry costs time, never a result.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Hashable
from threading import Lock

from client_app.data.client_data import ClientData


class ByteLru:
    """The most recently used ``ClientData``, at most ``limit`` bytes of arrays in all."""

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self._kept: OrderedDict[Hashable, ClientData] = OrderedDict()
        self._bytes = 0
        self._lock = Lock()

    def __len__(self) -> int:
        return len(self._kept)

    def get(self, key: Hashable, make: Callable[[], ClientData]) -> ClientData:
        """The data under ``key``, read-only; made, and kept if it fits, when it is not there.

        ``make`` runs outside the lock: two threads may both make the same data, which is the same.
        """
        with self._lock:
            if key in self._kept:
                self._kept.move_to_end(key)
                return self._kept[key]
        data = make().read_only()
        with self._lock:
            self._keep(key, data)
        return data

    def _keep(self, key: Hashable, data: ClientData) -> None:
        if key in self._kept or data.nbytes > self.limit:
            return
        self._kept[key] = data
        self._bytes += data.nbytes
        while self._bytes > self.limit:
            _, dropped = self._kept.popitem(last=False)
            self._bytes -= dropped.nbytes
