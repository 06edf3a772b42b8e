"""What a run shows while it runs: bars on a terminal, one plain line a round anywhere else.

A round's served scores were taken before its training, so they are figures of the state after the round before.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import Any, Protocol

from server_app.summary import tail


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


def display(rounds: int, asked: int, quiet: bool) -> Display:
    """Bars on a terminal, else (or if ``quiet``) lines. ``asked``: clients of one round."""
    return Lines(rounds) if quiet or not sys.stdout.isatty() else Bars(rounds, asked)


def figures(record: Mapping[str, Any]) -> str:
    """``served mean 81.2 %, bottom-20 % 70.1 %``, or nothing in a round without scores."""
    found = tail(record.get("served"), {})
    return f"served mean {100 * found['mean']:.1f} %, bottom-20 % {100 * found['bottom20']:.1f} %" if found else ""


def dropped(record: Mapping[str, Any]) -> str:
    """``2 replies dropped (non-finite)``, or nothing."""
    reasons = record.get("dropped") or {}
    return f"{sum(reasons.values())} replies dropped ({', '.join(sorted(reasons))})" if reasons else ""


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
    """Rounds, the clients of this round, the time left, and the last served figures."""

    def __init__(self, rounds: int, asked: int) -> None:
        # rich is only worth importing on a terminal
        from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

        self._bars = Progress(TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn(),
                              TextColumn("{task.fields[told]}"), transient=True)
        self._asked = asked
        self._all = self._bars.add_task("rounds", total=rounds, told="")
        self._now = self._bars.add_task("clients", total=asked, told="waiting for the first round")

    def __enter__(self) -> Bars:
        self._bars.start()
        return self

    def __exit__(self, *fault: object) -> None:
        self._bars.stop()

    def reply(self, number: int, replied: int, asked: int) -> None:
        if number > 0:  # 0 is the hello
            self._bars.update(self._now, completed=replied, total=max(self._asked, asked), told=f"round {number}")

    def round(self, record: Mapping[str, Any]) -> None:
        self._bars.update(self._all, completed=record["round"], told=figures(record))
        self._bars.reset(self._now, total=self._asked, told=dropped(record))
