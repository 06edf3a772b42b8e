"""``-c KEY=VALUE``: run-config items from the command line, in Flower's own notation.

A value is a TOML scalar; a bare word is text, so ``-c method=fedper`` needs no inner quotes, and ``.03`` or ``1.`` is the
number it looks like. One ``-c`` may hold several pairs, as in ``-c 'method="fedper" seed=1'``, which is how a report writes
down the command of its run.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterable

from strategies.config import ConfigError, Scalar

_KEY = r"[A-Za-z][\w.-]*"
_VALUE = r'"(?:[^"\\]|\\.)*"|\'[^\']*\'|[^\s"\']+'
_PAIRS = re.compile(rf"\s*(?:{_KEY}=(?:{_VALUE})(?:\s+|$))+")
_PAIR = re.compile(rf"({_KEY})=({_VALUE})")
# numbers that TOML has no notation for
_BARE_POINT = re.compile(r"[+-]?(?:\.\d+|\d+\.)(?:[eE][+-]?\d+)?")


def parse_overrides(arguments: Iterable[str], option: str = "-c") -> dict[str, Scalar]:
    """The items that ``arguments`` (the text of every ``-c``, or of another ``option``) give; later ones win.

    Raises
    ------
    ConfigError
        If a piece has no ``KEY=``.
    """
    items: dict[str, Scalar] = {}
    for text in arguments:
        if _PAIRS.fullmatch(text):
            items |= {key: scalar(value) for key, value in _PAIR.findall(text)}
            continue
        key, equals, value = text.partition("=")
        if not equals or not re.fullmatch(_KEY, key.strip()):
            raise ConfigError(f"{option} expects KEY=VALUE, got {text!r}")
        items[key.strip()] = scalar(value.strip())
    return items


def scalar(text: str) -> Scalar:
    """``text`` as the TOML scalar it is, or as it stands where it is none."""
    try:
        parsed = tomllib.loads(f"value = {text}")
    except tomllib.TOMLDecodeError:
        return float(text) if _BARE_POINT.fullmatch(text) else text
    value = parsed["value"]
    return value if len(parsed) == 1 and isinstance(value, bool | int | float | str) else text
