"""The server's state on disk, so that a run goes on after the server stopped at any moment.

A state is whatever a rule makes of frozen dataclasses, mappings, lists, tuples, numpy arrays and plain
values. `dump` splits it into arrays and a JSON tree, `restore` puts it together again; neither runs code
from the file (no pickle): a dataclass comes back only if the caller lists its type. Our own choices: one
safetensors file a round, with the tree and a checksum in its header, and two rounds kept.
"""

from __future__ import annotations

import dataclasses
import json
import logging
import re
import typing
import zlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save_file

from server_app.durable import replacing

log = logging.getLogger(__name__)

T = TypeVar("T")
Tree = Any  # a plain value, or [kind, content] for everything that is not

_FORMAT = "fedhearth-checkpoint-1"
_FILE = re.compile(r"round-([0-9]{5,})\.safetensors")
_PLAIN = (type(None), bool, int, float, str)


class CheckpointError(RuntimeError):
    """A state cannot be written or read; the message says why and what to do."""


def dump(state: Any) -> tuple[dict[str, np.ndarray], Tree]:
    """``state`` as named arrays (not copied if contiguous) and a tree that ``json`` can write.

    Any mapping counts as a dict, with string keys. Raises `CheckpointError` for what has no place in a
    state, naming where it stands.
    """
    arrays: dict[str, np.ndarray] = {}
    return arrays, _dump(state, "state", arrays, {})


def _dump(value: Any, where: str, arrays: dict[str, np.ndarray], seen: dict[int, tuple[str, Any]]) -> Tree:
    if type(value) in _PLAIN:
        return value
    if isinstance(value, np.ndarray | np.generic):
        # an array that occurs twice is written once, and comes back as one; holding it keeps its id its own
        key, _ = seen.setdefault(id(value), (str(len(arrays)), value))
        if key not in arrays:
            arrays[key] = _plain_array(np.asarray(value), where)
        return ["array" if isinstance(value, np.ndarray) else "scalar", key]
    if isinstance(value, Mapping):
        if bad := [key for key in value if type(key) is not str]:
            raise CheckpointError(f"{where}: expected string keys, got {bad[0]!r}; write it as a string")
        return ["dict", {key: _dump(item, f"{where}[{key!r}]", arrays, seen) for key, item in value.items()}]
    if type(value) in (list, tuple):
        items = [_dump(item, f"{where}[{i}]", arrays, seen) for i, item in enumerate(value)]
        return ["list" if type(value) is list else "tuple", items]
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        names = [field.name for field in dataclasses.fields(value) if field.init]
        content = {name: _dump(getattr(value, name), f"{where}.{name}", arrays, seen) for name in names}
        return ["data", [_type_name(type(value)), content]]
    raise CheckpointError(
        f"{where}: expected a dataclass, mapping, list, tuple, numpy array or plain value, "
        f"got {type(value).__name__}; turn it into one of these"
    )


def _plain_array(array: np.ndarray, where: str) -> np.ndarray:
    if array.dtype.kind not in "biuf" or array.dtype.itemsize > 8:
        raise CheckpointError(f"{where}: expected numbers of at most 64 bits, got dtype {array.dtype}")
    # safetensors writes the memory as it lies, so what is not contiguous would be saved wrongly
    return np.asarray(array, dtype=array.dtype.newbyteorder("<"), order="C")


def restore(tree: Tree, arrays: Mapping[str, np.ndarray], types: tuple[type, ...] = ()) -> Any:
    """What `dump` took apart. A dataclass in the tree must be one of ``types``; its checks run again.

    Raises `CheckpointError` for another type, for fields that its type does not have (the checkpoint of
    another version), and for a damaged tree.
    """
    try:
        return _restore(tree, arrays, {_type_name(cls): cls for cls in types})
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise CheckpointError(f"the tree of the checkpoint is damaged ({error!r})") from error


def _restore(tree: Tree, arrays: Mapping[str, np.ndarray], types: Mapping[str, type]) -> Any:
    if not isinstance(tree, list):
        return tree
    kind, content = tree
    match kind:
        case "array":
            return arrays[content]
        case "scalar":
            return arrays[content][()]
        case "dict":
            return {key: _restore(item, arrays, types) for key, item in content.items()}
        case "list":
            return [_restore(item, arrays, types) for item in content]
        case "tuple":
            return tuple(_restore(item, arrays, types) for item in content)
        case "data":
            name, fields = content
            values = {key: _restore(item, arrays, types) for key, item in fields.items()}
            return _build(name, values, types)
        case _:
            raise CheckpointError(f"unknown kind {kind!r} in a checkpoint; it is of another version")


def _build(name: str, values: dict[str, Any], types: Mapping[str, type]) -> Any:
    if name not in types:
        raise CheckpointError(f"expected a state of {sorted(types)}, got {name}; is it another method's?")
    known = {field.name for field in dataclasses.fields(types[name]) if field.init}
    if known != values.keys():
        raise CheckpointError(
            f"{name} has the fields {sorted(known)}, the checkpoint {sorted(values)}; "
            "go on with the version that wrote it, or start anew"
        )
    try:
        return types[name](**values)
    except (TypeError, ValueError) as error:
        raise CheckpointError(f"{name} refuses what the checkpoint holds: {error}") from error


def state_types(*roots: type) -> tuple[type, ...]:
    """``roots`` and every dataclass that their annotations mention, at any depth."""
    found: dict[type, None] = {}
    waiting: list[Any] = list(roots)
    while waiting:
        hint = waiting.pop()
        waiting.extend(typing.get_args(hint))
        if isinstance(hint, type) and dataclasses.is_dataclass(hint) and hint not in found:
            found[hint] = None
            waiting.extend(typing.get_type_hints(hint).values())
    return tuple(found)


def _type_name(cls: type) -> str:
    return f"{cls.__module__}:{cls.__qualname__}"


class Checkpoints:
    """The checkpoints of one run in ``directory``: the last round's and the one before it."""

    def __init__(self, directory: Path | str) -> None:
        self.directory = Path(directory)

    def save(self, round_number: int, state: Any, extra: Mapping[str, Any] | None = None) -> None:
        """Makes ``state`` and ``extra`` (both as `dump` takes them) the checkpoint of ``round_number``.

        When this returns, they survive a crash of the machine; stopped at any moment before, the previous
        checkpoint stays the latest. Raises `CheckpointError`, and then the previous one stays as well.
        """
        arrays, tree = dump({"state": state, "extra": dict(extra or {})})
        meta = {"format": _FORMAT, "round": str(round_number), "tree": json.dumps(tree)}
        meta["crc32"] = str(_checksum(meta, arrays))
        try:
            self.directory.mkdir(parents=True, exist_ok=True)
            write_durably(self._path(round_number), arrays, meta)
            self._forget_all_but(round_number)
        except (OSError, SafetensorError) as error:
            raise CheckpointError(
                f"the checkpoint of round {round_number} could not be written ({error}); "
                "the one before is untouched: free disk space or fix the directory, then resume (FH-033)"
            ) from error

    def _path(self, round_number: int) -> Path:
        return self.directory / f"round-{round_number:05d}.safetensors"

    def _forget_all_but(self, round_number: int) -> None:
        rounds = self.rounds()
        # a later round is of a run that was given up when this one resumed before it
        keep = {round_number, max((r for r in rounds if r < round_number), default=round_number)}
        for old in set(rounds) - keep:
            self._path(old).unlink(missing_ok=True)
        for torn in self.directory.glob(".tmp*"):
            torn.unlink(missing_ok=True)

    def rounds(self) -> tuple[int, ...]:
        """The rounds whose checkpoint is on disk, in ascending order, sound or not."""
        found = (_FILE.fullmatch(path.name) for path in self.directory.glob("round-*.safetensors"))
        return tuple(sorted(int(match[1]) for match in found if match))

    def latest(self, cls: type[T], *more: type) -> tuple[int, T, dict[str, Any]] | None:
        """(round, state, extra) of the newest sound checkpoint, None if nothing was ever saved.

        The state must be a ``cls``; dataclasses inside it must occur in its annotations or in ``more``.
        A damaged newest checkpoint is logged and passed over. Raises `CheckpointError` if all are.
        """
        types = state_types(cls, *more)
        failures: list[str] = []
        for round_number in reversed(self.rounds()):
            try:
                state, extra = self._load(round_number, types)
            except CheckpointError as error:
                log.warning("checkpoint of round %d passed over: %s", round_number, error)
                failures.append(f"round {round_number}: {error}")
                continue
            if not isinstance(state, cls):
                raise CheckpointError(
                    f"expected a {cls.__name__} in {self.directory}, got {type(state).__name__}"
                )
            return round_number, state, extra
        if failures:
            raise CheckpointError(
                f"no checkpoint in {self.directory} can be used ({'; '.join(failures)}); "
                "put a sound copy there, or start anew in another directory"
            )
        return None

    def _load(self, round_number: int, types: tuple[type, ...]) -> tuple[Any, dict[str, Any]]:
        try:
            with safe_open(self._path(round_number), framework="numpy") as file:
                meta: dict[str, str] = file.metadata() or {}
                # in the order of writing: the checksum runs through it
                arrays = {key: file.get_tensor(key) for key in sorted(file.keys(), key=int)}
            if meta.pop("crc32") != str(_checksum(meta, arrays)) or meta["round"] != str(round_number):
                raise CheckpointError("its checksum is wrong: the file is damaged")
            both = restore(json.loads(meta["tree"]), arrays, types)
            return both["state"], both["extra"]
        except (OSError, SafetensorError, KeyError, ValueError, TypeError) as error:
            raise CheckpointError(f"the file is damaged ({type(error).__name__}: {error})") from error


def _checksum(meta: Mapping[str, str], arrays: Mapping[str, np.ndarray]) -> int:
    """crc32 over the arrays and over what gives them their meaning: tree, round, dtypes, shapes."""
    shapes = [[array.dtype.name, array.shape] for array in arrays.values()]
    crc = zlib.crc32(json.dumps([sorted(meta.items()), shapes]).encode())
    for array in arrays.values():
        crc = zlib.crc32(array.data, crc)
    return crc


def write_durably(path: Path, arrays: dict[str, np.ndarray], meta: dict[str, str]) -> None:
    """``path`` holds its former content or all of the new one, whenever the machine stops."""
    with replacing(path) as torn:
        save_file(arrays, torn, metadata=meta)
