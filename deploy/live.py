"""What a run shows while it runs: bars on a terminal, one plain line a round anywhere else.

A round's served scores were taken before its training, so they are figures of the state after the round before.
"""

from __future__ import annotations

import sys
import time
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol

from strategies.data_warnings import counted

if TYPE_CHECKING:
    from rich.console import RenderableType

NARROWEST = 60  # columns; with fewer the bars lose their counts


class Display(Protocol):
    """Shows a run's progress; a context manager."""

    def __enter__(self) -> Display: ...
    def __exit__(self, *fault: object) -> None: ...
    def reply(self, number: int, replied: int, asked: int) -> None:
        """A client of round ``number`` has answered; ``asked`` counts the messages sent so far."""
        ...

    def round(self, record: Mapping[str, Any]) -> None:
        """A round is over; ``record`` is its line of rounds.jsonl."""
        ...


def display(rounds: int, asked: int, quiet: bool, deadline: float = 0.0) -> Display:
    """Bars on a terminal, else (or if ``quiet``) lines. ``asked``: clients of one round; ``deadline``: seconds it may take."""
    return Bars(rounds, asked, deadline) if not quiet and drawable() else Lines(rounds)


def drawable() -> bool:
    """Whether stdout is a terminal that can draw over what it shows, and is wide enough for bars and tables."""
    if not sys.stdout.isatty():
        return False
    # rich is only worth importing on a terminal
    from rich.console import Console

    console = Console()
    return console.is_interactive and console.width >= NARROWEST


@dataclass(frozen=True)
class Spent:
    """What the rounds so far have sent and lost."""

    up: int = 0
    down: int = 0
    dropped: Mapping[str, int] = field(default_factory=dict)
    void: int = 0

    def after(self, record: Mapping[str, Any]) -> Spent:
        """With one round more; ``record`` is its line of rounds.jsonl."""
        sizes = {way: sum(slots.values()) for way, slots in (record.get("bytes") or {}).items()}
        return Spent(self.up + sizes.get("up", 0), self.down + sizes.get("down", 0),
                     dict(Counter(self.dropped) + Counter(record.get("dropped") or {})), self.void + bool(record.get("void")))

    def told(self) -> str:
        """``sent 1.2 MB down, 1.0 MB up; dropped: 2 non-finite; 1 round void``."""
        from rich.filesize import decimal

        lost = ", ".join(f"{count} {reason}" for reason, count in sorted(self.dropped.items()))
        parts = [f"sent {decimal(self.down)} down, {decimal(self.up)} up" if self.up or self.down else "",
                 f"dropped: {lost}" if lost else "",
                 f"{counted(self.void, 'round')} void" if self.void else ""]
        return "; ".join(filter(None, parts))


def minutes(seconds: float) -> str:
    """``4:05``, ``1:00:00``."""
    whole = int(seconds)
    hours, rest = divmod(whole, 3600)
    return f"{hours}:{rest // 60:02}:{rest % 60:02}" if hours else f"{rest // 60}:{rest % 60:02}"


def figures(record: Mapping[str, Any]) -> str:
    """``served mean 81.2 %, bottom-20 % 70.1 %``, or nothing in a round without scores."""
    from server_app.summary import tail  # numpy

    found = tail(record.get("served"), {})
    return tails_told(found) if found else ""


def tails_told(tails: Mapping[str, float]) -> str:
    """The same of tails that are known."""
    return f"served mean {100 * tails['mean']:.1f} %, bottom-20 % {100 * tails['bottom20']:.1f} %"


def dropped(record: Mapping[str, Any]) -> str:
    """``2 replies dropped (non-finite)``, or nothing."""
    reasons = record.get("dropped") or {}
    count = sum(reasons.values())
    return f"{count} {'reply' if count == 1 else 'replies'} dropped ({', '.join(sorted(reasons))})" if reasons else ""


class Lines:
    """One line a round on stdout."""

    def __init__(self, rounds: int) -> None:
        self._rounds = rounds

    def __enter__(self) -> Lines:
        return self

    def __exit__(self, *fault: object) -> None:
        return None

    def reply(self, number: int, replied: int, asked: int) -> None:
        return None

    def round(self, record: Mapping[str, Any]) -> None:
        found = figures(record)
        told = [f"{record['seconds']:.1f} s", f"before it: {found}" if found else "", "void" if record.get("void") else "", dropped(record)]
        print(f"round {record['round']}/{self._rounds}  " + "  ".join(filter(None, told)), flush=True)


class Bars:
    """Rounds, the clients of this round with what is left until its deadline, the last served figures, bytes and dropped replies."""

    def __init__(self, rounds: int, asked: int, deadline: float = 0.0, clock: Callable[[], float] = time.monotonic) -> None:
        from rich.console import Console
        from rich.live import Live
        from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

        console = Console()
        self._bars = Progress(TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn(),
                              TextColumn("{task.fields[told]}"), console=console)
        self._rounds, self._asked, self._deadline, self._clock = rounds, asked, deadline, clock
        self._began: float | None = None
        self._done = 0
        self._served, self._spent = "", Spent()
        self._all = self._bars.add_task("rounds", total=rounds, told="")
        self._now = self._bars.add_task("clients", total=asked, told="waiting for the first round")
        # lines on stderr go above the bars, unless stderr leads elsewhere than to this terminal
        self._live = Live(get_renderable=self.shown, console=console, refresh_per_second=2, transient=True,
                          redirect_stderr=sys.stderr.isatty())

    def __enter__(self) -> Bars:
        self._live.start()
        return self

    def __exit__(self, *fault: object) -> None:
        self._live.stop()

    def reply(self, number: int, replied: int, asked: int) -> None:
        if number <= 0:  # the hello
            return
        if self._began is None:
            self._began = self._clock()
        self._bars.update(self._now, completed=replied, total=max(self._asked, asked), told=self._doing(number))

    def round(self, record: Mapping[str, Any]) -> None:
        self._spent = self._spent.after(record)
        self._began, self._done = self._clock(), int(record["round"])
        # shown below the bars, since on a narrow terminal it would take the place of their counts
        if found := figures(record):
            self._served = f"before round {self._done}: {found}"
        self._bars.update(self._all, completed=record["round"])
        self._bars.reset(self._now, total=self._asked, told=self._doing(self._done + 1))

    def _doing(self, number: int) -> str:
        return f"round {number}" if self._done < self._rounds else "closing evaluation"

    def shown(self) -> RenderableType:
        """Both bars, and a line below them."""
        from rich.console import Group
        from rich.text import Text

        left = max(0.0, self._began + self._deadline - self._clock()) if self._began is not None and self._deadline else None
        told = [f"deadline of this round in {minutes(left)}" if left is not None else "", self._served, self._spent.told()]
        return Group(self._bars, Text("  ".join(filter(None, told))))
