"""Tensors that go to many worker processes: written once, and only named in the messages.

A round's equal payload is one ``ArrayRecord`` for all clients (``strategies.adapter``). Pickled with every message, a model of
45 MB costs each client three copies of it. Here a record is put where all workers can read it, and what is pickled in its
stead says where; a worker's record is a view of that place, so all of them together hold it once. Our own choices: a mapped
file in the folder for temporary files and not POSIX shared memory, which containers keep to 64 MB and which, full, ends the
process instead of raising; small records travel in the message.
"""

from __future__ import annotations

import mmap
import os
import uuid
import weakref
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, Protocol, TypeGuard

from flwr.app import Array, ArrayRecord, Message

from deploy.scratch import Scratch

SHARE_FROM = 64 * 1024
ALIGNED = 64

# key, dtype, shape, serialisation of each array of a record
Labels = tuple[tuple[str, str, tuple[int, ...], str], ...]


class Home(Protocol):
    """Where the bytes of a record's arrays lie. Pickled, it is an address."""

    def buffers(self) -> Sequence[memoryview | bytes]:
        """The arrays' bytes, in their order, read-only."""
        ...


class SharedRecord(ArrayRecord):
    """An ``ArrayRecord`` that another process gets as a view of its ``home``."""

    def __init__(self, record: ArrayRecord, home: Home) -> None:
        super().__init__()
        self.update(record)
        self.__dict__["home"] = home

    def __reduce__(self) -> tuple[Callable[..., ArrayRecord], tuple[Home, Labels]]:
        labels = tuple((key, array.dtype, tuple(array.shape), array.stype) for key, array in self.items())
        return record_at, (self.__dict__["home"], labels)


def record_at(home: Home, labels: Labels) -> ArrayRecord:
    """The record whose arrays' bytes are ``home``'s."""
    record = ArrayRecord()
    for (key, dtype, shape, stype), data in zip(labels, home.buffers(), strict=True):
        record[key] = _view(dtype, shape, stype, data)
    return record


def _view(dtype: str, shape: tuple[int, ...], stype: str, data: memoryview | bytes) -> Array:
    array = Array(dtype, shape, stype, b"")
    array.data = data  # type: ignore[assignment]  # Flower's constructor insists on bytes, its users only read
    return array


class MappedFile:
    """A record's bytes in a file, which goes when nobody on the writing side holds this any more."""

    def __init__(self, path: Path, datas: Sequence[Any]) -> None:
        self.path, self.spans = str(path), written(path, datas)
        weakref.finalize(self, _remove, self.path)

    def __reduce__(self) -> tuple[Callable[..., MappedFile], tuple[Any, ...]]:
        return _address, (type(self), self.path, self.spans)

    def buffers(self) -> Sequence[memoryview | bytes]:
        with open(self.path, "rb") as file:
            whole = memoryview(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ))
        return [whole[start:end] for start, end in self.spans]


def written(path: Path, datas: Sequence[Any]) -> list[tuple[int, int]]:
    """Write ``datas`` one after the other into a new file; where each begins and ends."""
    spans, start = [], 0
    try:
        with path.open("xb") as file:
            for data in datas:
                start = -(-start // ALIGNED) * ALIGNED
                spans.append((start, start + len(data)))
                file.seek(start)
                file.write(data)
                start += len(data)
    except OSError:
        _remove(str(path))
        raise
    return spans


def _address(kind: type[MappedFile], path: str, spans: list[tuple[int, int]]) -> MappedFile:
    """One that another process wrote."""
    found = object.__new__(kind)
    found.path, found.spans = path, spans
    return found


def _remove(path: str) -> None:
    try:
        os.unlink(path)
    except OSError:  # Windows keeps what is mapped; then it goes with its folder
        pass


class Parcel(MappedFile):
    """A record's bytes in a file for one reader, who takes it away: a reply, which is too large for a pipe."""

    def __init__(self, path: Path, datas: Sequence[Any]) -> None:
        self.path, self.spans = str(path), written(path, datas)

    def __reduce__(self) -> tuple[Callable[..., MappedFile], tuple[Any, ...]]:
        return _address, (type(self), self.path, self.spans)

    def buffers(self) -> Sequence[bytes]:
        # read and not mapped, since Windows removes no mapped file, and replies would fill the disk
        found = []
        with open(self.path, "rb") as file:
            for start, end in self.spans:
                file.seek(start)
                found.append(file.read(end - start))
        _remove(self.path)
        return found


def post(reply: Message, folder: str) -> Message:
    """``reply`` with its large records as parcels in ``folder``, as far as there is room; to be pickled once, and read once."""
    for slot, record in list(reply.content.items()) if reply.has_content() else ():
        if large(record):
            with suppress(OSError):  # without room it travels in the pipe
                parcel = Parcel(Path(folder, uuid.uuid4().hex), [array.data for array in record.values()])
                reply.content[slot] = SharedRecord(record, parcel)
    return reply


def large(record: object) -> TypeGuard[ArrayRecord]:
    """Whether it is worth a file: an ``ArrayRecord`` of many bytes."""
    return isinstance(record, ArrayRecord) and sum(len(array.data) for array in record.values()) >= SHARE_FROM


class Lending:
    """What is lent to worker processes: a home a record, as long as the record lives or a message that names it has no answer.

    ``settle`` makes a home of a record's bytes; the default writes files into a folder of its own, which `close` removes.
    """

    def __init__(self, settle: Callable[[list[Any]], Home] | None = None) -> None:
        self._folder = None if settle else Scratch()
        self._settle = settle or self._to_file
        self._known: dict[int, tuple[weakref.ref[ArrayRecord], Home]] = {}
        self.written = 0

    def lend(self, message: Message) -> None:
        """Put ``message``'s large records where its reader can see them. They stay there as long as somebody keeps its metadata."""
        lent = message.metadata.__dict__.setdefault("lent", [])
        for slot, record in list(message.content.items()):
            if large(record):
                with suppress(OSError):  # without room it travels in the message
                    home = self._home_of(record)
                    lent.append(home)
                    message.content[slot] = SharedRecord(record, home)

    @property
    def folder(self) -> str:
        """Where the files lie; "" if there are none."""
        return self._folder.name if self._folder else ""

    def close(self) -> None:
        """Give everything up."""
        self._known.clear()
        if self._folder:
            self._folder.close()

    def _home_of(self, record: ArrayRecord) -> Home:
        # by identity: equal tensors are one record, and comparing megabytes would cost what sharing saves
        known = self._known.get(id(record))
        if known is not None and known[0]() is record:
            return known[1]
        home = self._settle([array.data for array in record.values()])
        self.written += 1
        key = id(record)
        self._known[key] = weakref.ref(record, lambda _: self._known.pop(key, None)), home
        return home

    def _to_file(self, datas: list[Any]) -> Home:
        assert self._folder is not None
        return MappedFile(Path(self._folder.name, str(self.written)), datas)
