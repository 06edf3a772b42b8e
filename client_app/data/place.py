"""The parts of a data URI: its kind, the place on this machine's disk, and what stands around it.

``folder:PATH``, ``npz:FILE``, ``cifar10:FOLDER``, ``table:FILE?label=NAME``, ``torchvision:NAME@ROOT?split=NAME``, and
``hub:PATH`` or ``hub:NAME#CONFIG``: a hub's name has no place on the disk.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from pathlib import Path
from urllib.parse import parse_qsl

from client_app.data.client_data import DataError

PLAIN = ("npz", "cifar10", "folder")
SPLIT_FOLDERS = {"train": "train", "training": "train", "test": "test", "testing": "test",
                 "val": "val", "valid": "val", "validation": "val"}
_QUERY = re.compile(r"\?([a-z_]+=[^?]*)$")


def divided(uri: str) -> tuple[str, str, str]:
    """``uri`` as (before the place, place, after it), "" for a place that it does not name. Joined, they are ``uri``."""
    kind, colon, rest = uri.partition(":")
    if kind in PLAIN:
        return kind + colon, rest, ""
    place, query = _without_query(rest)
    if kind == "table":
        return kind + colon, place, query
    if kind == "torchvision" and "@" in place:
        name, at, root = place.partition("@")
        return f"{kind}:{name}{at}", root, query
    if kind == "hub":
        for where in (place, place.partition("#")[0]):
            if where and is_there(where):
                return kind + colon, where, place[len(where):] + query
    return uri, "", ""


def with_absolute_place(uri: str, absolute: Callable[[str], Path]) -> str:
    """``uri`` with its place, if it names one, as ``absolute`` makes it: other processes have another current folder."""
    before, place, after = divided(uri)
    return f"{before}{absolute(place)}{after}" if place else uri


def options(where: str) -> tuple[str, dict[str, str]]:
    """``FILE?label=NAME&split=`` -> (``FILE``, its options)."""
    place, query = _without_query(where)
    return place, dict(parse_qsl(query[1:], keep_blank_values=True))


def check_options(given: dict[str, str], known: tuple[str, ...]) -> None:
    """Raise ``DataError`` unless every option of a URI is known."""
    if set(given) - set(known):
        raise DataError(f"a dataset URI takes the options {', '.join(known)} after `?`, got another one")


def is_there(place: str) -> bool:
    """Whether something lies at ``place`` that this process may see."""
    try:
        return Path(place).expanduser().exists()
    except (OSError, RuntimeError):  # no permission to look; a home that nobody has
        return False


def changed(place: str) -> tuple[int, int]:
    """(time of the last change in ns, size) of a file; of a folder, the latest time and the number of its class folders.

    Adding, removing or renaming a file changes its folder's time; a file written anew in place does not. (0, 0) if
    nothing is there.
    """
    try:
        path = Path(place).expanduser()
        if not place or not path.is_dir():
            status = path.stat()
            return (status.st_mtime_ns, status.st_size) if place else (0, 0)
        times = [folder.stat().st_mtime_ns for folder in _folders(path)]
    except (OSError, RuntimeError):  # the reader says what is wrong
        return 0, 0
    return max(times), len(times)


def _folders(root: Path) -> Iterator[Path]:
    yield root
    for child in root.iterdir():
        if child.is_dir():
            yield child
            if child.name.lower() in SPLIT_FOLDERS:
                yield from (below for below in child.iterdir() if below.is_dir())


def _without_query(rest: str) -> tuple[str, str]:
    found = _QUERY.search(rest)
    return (rest[: found.start()], found.group()) if found else (rest, "")
