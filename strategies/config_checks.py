"""What a setting must be: the error about it, and the checks that raise it."""

from __future__ import annotations

import difflib
import re

from strategies.partition_names import DIVISIONS, GROUPS, LIBRARY, NAMES, parse_partition, reordered


class ConfigError(ValueError):
    """A run config that cannot be run. The text says what was expected and what came."""


def require(condition: bool, key: str, expected: str, got: object) -> None:
    """Raise a ``ConfigError`` about ``key`` unless ``condition`` holds."""
    if not condition:
        raise ConfigError(f"{key} must be {expected}, got {got!r}")


def choice(key: str, options: tuple[str, ...], got: str) -> None:
    """Raise a ``ConfigError`` naming the nearest option unless ``got`` is one of ``options``."""
    if got not in options:
        raise ConfigError(f"{key} must be one of {', '.join(options)}; got {got!r}{nearest(got, options)}")


def nearest(got: str, options: tuple[str, ...]) -> str:
    """``; did you mean 'x'?`` or nothing."""
    close = difflib.get_close_matches(got, options, n=1, cutoff=0.5)
    return f"; did you mean {close[0]!r}?" if close else ""


def check_partition(text: str) -> None:
    """Raise a ``ConfigError`` that names the nearest partition unless ``text`` is the name of one."""
    if parse_partition(text) is None:
        known = reordered(text)
        hint = f"; did you mean {known!r}?" if known else nearest(text, NAMES)
        raise ConfigError(f"partition must be one of {', '.join((*DIVISIONS, *GROUPS))}, or {' or '.join(GROUPS)} and another joined by "
                          f"'+', or {LIBRARY}PARTITIONER?key=value; got {text!r}{hint}")


def check_site_name(name: str) -> None:
    """A client's name is a folder name on two machines, so its alphabet is narrow."""
    check_name("a site name", name)


def check_name(what: str, name: str) -> None:
    """Raise a ``ConfigError`` about ``what`` unless ``name`` may name a folder. The text leaves the name out."""
    if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}", name):
        raise ConfigError(f"{what} must be 1 to 64 letters, digits, '.', '_' or '-', starting with a letter or digit")
