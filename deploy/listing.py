"""``fedhearth methods``: every method and every setting, read from the dataclasses that define them."""

from __future__ import annotations

import inspect
import re
import textwrap

from strategies.config import RunConfig, Scalar, dashed, items_of
from strategies.registry import METHODS

WIDTH = 118


def methods() -> str:
    """The methods with their own settings, then the settings all methods share."""
    blocks = ["Methods (-c method=NAME)"]
    for method in METHODS.values():
        blocks.append("\n".join([f"{method.name}: {method.summary}", *settings(method.config_class(), f"{method.name}.")]))
    blocks.append("\n".join(["Settings of every method (-c KEY=VALUE)", *settings(RunConfig, "")]))
    return "\n\n".join(blocks) + "\n"


def settings(config: type, prefix: str) -> list[str]:
    """A line a setting, and the notes of the class's docstring; nothing for a class without settings."""
    items = items_of(config(), prefix)
    lines = [f"  {key} = {shown(value)}" for key, value in items.items()]
    return [*lines, *_wrapped(config)] if lines else []


def notes(config: type) -> list[tuple[tuple[str, ...], str]]:
    """The paragraphs of the ``Attributes`` section as (fields, text), fields written as the keys they are."""
    _, _, section = inspect.cleandoc(config.__doc__ or "").partition("Attributes\n----------\n")
    text = re.sub(r"``(\w+)``", lambda name: f"``{dashed(name[1])}``" if name[1] in config.__dict__ else name[0], section)
    text = re.sub(r"``(\w+) = ", lambda name: f"``{dashed(name[1])} = " if name[1] in config.__dict__ else name[0], text)
    paragraphs = [" ".join(paragraph.split()) for paragraph in re.split(r"\n(?=\S)", text) if paragraph.strip()]
    return [(tuple(dashed(names).split(", ")), meaning) for names, _, meaning in (p.partition(" : ") for p in paragraphs)]


def shown(value: Scalar) -> str:
    """A default as it is typed in ``pyproject.toml``."""
    return f'"{value}"' if isinstance(value, str) else str(value).lower() if isinstance(value, bool) else str(value)


def _wrapped(config: type) -> list[str]:
    return [line for names, meaning in notes(config)
            for line in textwrap.wrap(f"{', '.join(names)}: {meaning}".replace("``", ""), WIDTH, initial_indent="    ",
                                      subsequent_indent="      ")]
