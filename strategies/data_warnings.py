"""Which warnings about its data a client may name in its hello, as bare kinds: no number, no label, no place.

Our own choice. What is named here says how a data set was *made*. What says how its labels are distributed (classes without
a sample, one class far ahead, few samples) stays at home, because that is what a site may want to keep: with
``weighting = uniform`` not even the number of its samples leaves it.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Sequence

MEANING = {
    "test-in-train": "test images that are training images too",
    "duplicates": "training images that occur more than once",
    "constant": "images of one colour only",
    "scale": "float pixels on a scale that models do not expect",
    "grey-mix": "grey images among coloured ones",
    "skipped": "unreadable images that were left out",
    "numbered": "bare numbers as the class names that text prompts are made of",
    "unscored": "no test image, so no score",
}
_ANY = f"(?:{'|'.join(MEANING)})"
FORM = rf"(?:{_ANY}(?:,{_ANY})*)?"


def told(kinds: tuple[str, ...]) -> str:
    """Those of ``kinds`` that may travel, in the order of ``MEANING``, joined by commas."""
    return ",".join(kind for kind in MEANING if kind in kinds)


def heard(text: str) -> tuple[str, ...]:
    """The kinds that a hello names; each once."""
    return tuple(kind for kind in MEANING if kind in text.split(","))


def printable(text: str) -> str:
    """``text`` on one line of any terminal or log: names may hold line ends, commands to a terminal, or bytes that are no text."""
    return "".join(char if char.isprintable() else char.encode("unicode_escape").decode() for char in text)


def display_width(text: str) -> int:
    """Columns that ``text`` takes in a terminal: a Chinese, Japanese or Korean character takes two, a combining mark none."""
    return sum(0 if unicodedata.combining(char) else 2 if unicodedata.east_asian_width(char) in "WF" else 1 for char in text)


def counted(number: int | str, thing: str) -> str:
    """``1 round``, ``2 rounds``, ``2 or 3 rounds``."""
    return f"{number} {thing}{'' if str(number) == '1' else 's'}"


def few(names: Sequence[str], shown: int = 8) -> str:
    """``a, b, c and 5 more``."""
    more = len(names) - shown
    return ", ".join(names[:shown]) + (f" and {more} more" if more > 0 else "")
