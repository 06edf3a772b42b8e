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
        config = method.config_class()
        blocks.append("\n".join([f"{method.name}: {method.summary}", *_settings(config, f"{method.name}.")]))
    blocks.append("\n".join(["Settings of every method (-c KEY=VALUE)", *_settings(RunConfig, "")]))
    return "\n\n".join(blocks) + "\n"


def _settings(config: type, prefix: str) -> list[str]:
    """A line a setting, and the notes of the class's docstring."""
    items = items_of(config(), prefix)
    lines = [f"  {key} = {_shown(value)}" for key, value in items.items()]
    return [*lines, *_notes(config)] if lines else []


def _notes(config: type) -> list[str]:
    """The ``Attributes`` section, its field names written as the keys they are."""
    _, _, notes = inspect.cleandoc(config.__doc__ or "").partition("Attributes\n----------\n")
    text = re.sub(r"``(\w+)``", lambda name: dashed(name[1]) if name[1] in config.__dict__ else name[1], notes)
    text = re.sub(r"``(\w+) = ", lambda name: f"``{dashed(name[1])} = " if name[1] in config.__dict__ else name[0], text)
    paragraphs = re.split(r"\n(?=\S)", text.replace("``", "")) if text else []
    return [line for p in paragraphs for line in textwrap.wrap(_dashed_names(" ".join(p.split())), WIDTH, initial_indent="    ",
                                                               subsequent_indent="      ")]


def _dashed_names(paragraph: str) -> str:
    names, colon, rest = paragraph.partition(" : ")
    return f"{dashed(names)}: {rest}" if colon else paragraph


def _shown(value: Scalar) -> str:
    return f'"{value}"' if isinstance(value, str) else str(value).lower() if isinstance(value, bool) else str(value)
