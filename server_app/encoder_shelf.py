"""The server's cached client encoders: on disk, one safetensors file a client and round.

HDC-FL blends the encoders of many clients (METHODS.md, D3), which together can exceed the server's memory.
So `get` gives a mapping that reads a tensor when it is asked for it, and blending tensor by tensor never
holds more than one client's tensor. Our own choices: files are atomic at once but durable only after
`sync`, since a crash makes the server run its round again anyway; only what a checkpoint refers to must last.

The order in a round: ``put`` for every client, ``sync``, save the checkpoint, ``prune``.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from pathlib import Path

import numpy as np
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save_file

from server_app.durable import replacing, sync_to_disk

_NAME = re.compile(r"[A-Za-z0-9._-]{1,64}")
_FILE = re.compile(r"r([0-9]+)\.safetensors")
_RESTORE = "restore the file in the run's folder, or resume from an earlier checkpoint"


class ShelfError(LookupError):
    """An encoder is not on the shelf, is damaged, or cannot be put there; the message says which."""


class EncoderShelf:
    """`strategies.types.Shelf` in ``directory``: ``<client>/r<round>.safetensors``."""

    def __init__(self, directory: Path | str) -> None:
        self.directory = Path(directory)
        self._unsynced: set[Path] = set()

    def put(self, client: str, round_number: int, tensors: Mapping[str, np.ndarray]) -> None:
        """Keeps ``tensors`` (any shapes; float, integer or boolean) for (``client``, ``round_number``).

        Replaces what was there as a whole. Raises `ShelfError` if the disk refuses.
        """
        path = self._path(client, round_number)
        arrays = {name: _plain(name, tensor) for name, tensor in tensors.items()}
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            with replacing(path, durable=False) as torn:
                # safetensors sorts by name, and sums over a mapping depend on its order
                save_file(arrays, torn, metadata={"names": json.dumps(list(arrays))})
        except (OSError, SafetensorError) as error:
            raise ShelfError(
                f"the encoder of {client}, round {round_number}, could not be put on the shelf ({error}); "
                "free disk space or fix the directory"
            ) from error
        self._unsynced.add(path)

    def get(self, client: str, round_number: int) -> Mapping[str, np.ndarray]:
        """The tensors that `put` got, in the same order, each read from disk whenever it is asked for.

        The mapping keeps the file mapped but nothing of it in memory; ask for a tensor once and let it go.
        It stays valid when the file is replaced or pruned. Raises `ShelfError` if there is none.
        """
        what = f"the encoder of {client}, round {round_number},"
        return _TensorsOnDisk(self._path(client, round_number), what)

    def sync(self) -> None:
        """Makes everything put so far survive a crash of the machine; to be called before a checkpoint."""
        directories = {path.parent for path in self._unsynced}
        for path in sorted(self._unsynced) + sorted(directories):
            sync_to_disk(path)
        if directories:
            sync_to_disk(self.directory)
        self._unsynced.clear()

    def prune(self, *keep: Mapping[str, int]) -> None:
        """Deletes every encoder whose (client, round) is in no ``keep``, and what a crash left torn.

        To be called only after the checkpoint that refers to ``keep`` is on disk. Give the ``keep`` of
        every checkpoint that may still be resumed: the one before it counts as long as it is there.
        """
        kept = {pair for mapping in keep for pair in mapping.items()}
        for path in [*self.directory.glob("*/r*.safetensors"), *self.directory.glob("*/.tmp*")]:
            match = _FILE.fullmatch(path.name)
            if match is None or (path.parent.name, int(match[1])) not in kept:
                path.unlink(missing_ok=True)
                self._unsynced.discard(path)
        for folder in list(self.directory.glob("*/")):
            if not any(folder.iterdir()):
                folder.rmdir()

    def _path(self, client: str, round_number: int) -> Path:
        if not _NAME.fullmatch(client) or client in {".", ".."}:
            raise ShelfError(
                f"a client's name is 1 to 64 of A-Z a-z 0-9 . _ - and not . or .., got {client!r}; rename it"
            )
        if round_number < 0:
            raise ShelfError(f"a round is 0 or later, got {round_number}")
        return self.directory / client / f"r{round_number}.safetensors"


class _TensorsOnDisk(Mapping[str, np.ndarray]):
    """Reads a tensor from its file at every access."""

    def __init__(self, path: Path, what: str) -> None:
        self._what = what
        try:
            # holds a memory map, no file descriptor, so thousands can be open
            self._file = safe_open(path, framework="numpy")
            self._names: dict[str, None] = dict.fromkeys(json.loads(self._file.metadata()["names"]))
        except FileNotFoundError:
            raise ShelfError(f"{what} is not on the shelf; {_RESTORE}") from None
        except (OSError, SafetensorError, KeyError, TypeError, ValueError) as error:
            raise ShelfError(f"{what} is damaged ({error}); {_RESTORE}") from error

    def __getitem__(self, name: str) -> np.ndarray:
        if name not in self._names:
            raise KeyError(name)
        try:
            return self._file.get_tensor(name)
        except SafetensorError as error:
            raise ShelfError(f"{self._what} is damaged ({error}); {_RESTORE}") from error

    def __contains__(self, name: object) -> bool:
        return name in self._names

    def __iter__(self) -> Iterator[str]:
        return iter(self._names)

    def __len__(self) -> int:
        return len(self._names)


def _plain(name: str, tensor: np.ndarray) -> np.ndarray:
    if tensor.dtype.kind not in "biuf" or tensor.dtype.itemsize > 8:
        raise ShelfError(f"{name}: expected numbers of at most 64 bits, got dtype {tensor.dtype}")
    # safetensors writes the memory as it lies, so what is not contiguous would be saved wrongly
    return np.asarray(tensor, dtype=tensor.dtype.newbyteorder("<"), order="C")
