"""``progress.json``: where a run is right now, for whoever looks at it from another process.

Beside rounds.jsonl, which says what lies behind: the round that goes on, when it began, how long it may take, and how many
have answered. Written at most twice a second and not durably, since it is worth nothing once the process has ended.
"""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from server_app.durable import replacing
from server_app.finished import is_number

log = logging.getLogger(__name__)
NAME = "progress.json"
EVERY = 0.5  # s


@dataclass(frozen=True)
class Progress:
    """One moment of a run. ``began`` is when the round began, in seconds since 1970; ``deadline`` in seconds after it.

    ``closing``: the rounds are over; what goes on is the evaluation after them.
    """

    round: int
    rounds: int
    began: float
    deadline: float
    asked: int = 0
    replied: int = 0
    closing: bool = False

    def left(self, now: float) -> float:
        """Seconds until the deadline, 0 once it has passed."""
        return max(0.0, self.began + self.deadline - now)


class ProgressFile:
    """Keeps ``progress.json`` in ``folder`` up to date; ``clock`` gives seconds since 1970."""

    def __init__(self, folder: Path, rounds: int, deadline: float, clock: Callable[[], float] = time.time) -> None:
        self._path, self._clock = folder / NAME, clock
        self._now = Progress(0, rounds, clock(), deadline)
        self._written = 0.0

    def begins(self, number: int) -> None:
        """Round ``number`` begins; one beyond the last stands for the closing evaluation."""
        closing = number > self._now.rounds
        self._now = Progress(min(number, self._now.rounds), self._now.rounds, self._clock(), self._now.deadline, closing=closing)
        self._write()

    def reply(self, replied: int, asked: int) -> None:
        """So many have answered well, of those asked so far."""
        self._now = replace(self._now, replied=replied, asked=asked)
        # no exception for the last of those asked so far: one process asks one client at a time, and each would be it
        if self._clock() - self._written >= EVERY:
            self._write()

    def remove(self) -> None:
        """The run is over, however it ended."""
        self._path.unlink(missing_ok=True)

    def _write(self) -> None:
        self._written = self._clock()
        try:
            with replacing(self._path, durable=False) as part:
                part.write_text(json.dumps(asdict(self._now)), encoding="utf-8")
        except OSError as error:  # a full disk ends the run where it matters, not here
            log.warning("%s is not written (%s)", NAME, error.strerror)


def read_progress(folder: Path) -> Progress | None:
    """Where the run in ``folder`` is; None if none goes on there or the file cannot be read or is damaged."""
    try:
        found = Progress(**json.loads((folder / NAME).read_text(encoding="utf-8")))
    except (OSError, ValueError, TypeError):
        return None
    whole = all(map(is_whole, (found.round, found.rounds, found.asked, found.replied)))
    return found if whole and is_number(found.began) and is_number(found.deadline) and isinstance(found.closing, bool) else None


def is_whole(value: object) -> bool:
    """Whether a value of a JSON file is a whole number that fits a float."""
    return isinstance(value, int) and is_number(value)
