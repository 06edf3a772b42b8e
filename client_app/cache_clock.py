"""How old a client's cached features are: an odometer of the encoder's path, and the history that thresholds come from.

The server tells the version of its encoder and the length of the path it has come; a client that trains on alone adds its own
steps. The odometer only ever grows, so a feature never gets younger. Part of the client's committed state.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from statistics import median

import numpy as np

HISTORY = 5


@dataclass(frozen=True)
class Clock:
    """Where the encoder stands for this client.

    Attributes
    ----------
    reading : of the odometer.
    flushed : its reading at the last full refresh.
    version : of the server's encoder that the client was last sent; -1 before the first.
    path : the server's path length at that version.
    silent : rounds in a row in which the client kept its update.
    moves : the last moves of the encoder, newest last, at most `HISTORY`.
    norms : relative lengths of the client's last updates, the same way.
    """

    reading: float = 0.0
    flushed: float = 0.0
    version: int = -1
    path: float = 0.0
    silent: int = 0
    moves: tuple[float, ...] = ()
    norms: tuple[float, ...] = ()

    @classmethod
    def from_tensors(cls, kept: Mapping[str, np.ndarray] | None) -> Clock:
        """Of what `tensors` made, or a new one."""
        if kept is None:
            return cls()
        kinds = {"version": int, "silent": int, "moves": tuple, "norms": tuple}
        return cls(**{field.name: kinds.get(field.name, float)(kept[field.name].tolist()) for field in fields(cls)})

    def tensors(self) -> dict[str, np.ndarray]:
        """As the local store keeps it."""
        return {field.name: np.array(getattr(self, field.name), np.float64) for field in fields(self)}

    def told(self, version: int, path: float) -> Clock:
        """After the server has said where its encoder stands."""
        moved = max(0.0, path - self.path) if self.version >= 0 else 0.0
        return replace(self.moved(moved), version=version, path=path)

    def moved(self, move: float) -> Clock:
        """After the encoder has moved by ``move``, 0 or more."""
        return replace(self, reading=self.reading + move, moves=_last(self.moves, move)) if move > 0 else self

    def keeps_update(self, norm: float, share: float, most: int) -> bool:
        """Whether an update of relative length ``norm`` stays at home: it is below ``share`` of the median of the client's own
        last ones, and fewer than ``most`` stayed in a row. The first never does."""
        return bool(self.norms) and self.silent < most and norm < share * median(self.norms)

    def updated(self, norm: float, kept: bool) -> Clock:
        """After an update of length ``norm`` that was ``kept`` at home or sent."""
        return replace(self, norms=_last(self.norms, norm), silent=self.silent + 1 if kept else 0)


def _last(values: tuple[float, ...], value: float) -> tuple[float, ...]:
    return (*values, value)[-HISTORY:]
