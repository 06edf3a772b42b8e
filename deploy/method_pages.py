"""One page a method: prose in ``strategies/pages``, and in it settings and contract as the code has them.

    python -m deploy.method_pages    # writes the generated parts of all pages anew

Generated parts stand between ``<!-- NAME -->`` and ``<!-- /NAME -->``; everything else is written by hand. ``fedhearth methods NAME``
prints a page with these parts laid out for a terminal, and for a method without a page these parts alone.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path

import strategies.registry
from deploy.listing import notes, settings, shown
from deploy.privacy import contracts, markdown, text
from strategies.config import items_of
from strategies.registry import METHODS, Method, find_method

PAGES = Path(strategies.registry.__file__).parent / "pages"
INDEX = PAGES / "README.md"
NO_SETTINGS = "None of its own.\n"
BARE = """# {name}

{summary}.

## Settings

<!-- settings -->
<!-- /settings -->

## What leaves the client

<!-- wire -->
<!-- /wire -->
"""


def page(name: str) -> str:
    """The page of the method ``name`` for a terminal; an unknown one is a ``ConfigError``."""
    method = find_method(name)
    file = PAGES / f"{name}.md"
    written = file.read_text(encoding="utf-8") if file.is_file() else BARE.format(name=name, summary=method.summary)
    return re.sub(r"<!-- /?\w+ -->\n", "", filled(written, {"settings": _listed(method), "wire": _told(method)}))


def renewed(written: str, method: Method) -> str:
    """A method's page with the generated parts as the code has them now."""
    return filled(written, {"settings": settings_table(method), "wire": markdown(contracts(method.name)).partition("\n\n")[0] + "\n"})


def renewed_index(written: str) -> str:
    """The index with the methods of today."""
    rows = [f"| [{method.name}]({method.name}.md) | {method.summary} |" for method in METHODS.values()]
    return filled(written, {"methods": "\n".join(["| method | in one line |", "| --- | --- |", *rows]) + "\n"})


def filled(written: str, parts: Mapping[str, str]) -> str:
    """``written`` with the text between the marks of each part replaced."""
    for part, content in parts.items():
        written = re.sub(rf"(<!-- {part} -->\n).*?(<!-- /{part} -->)", _between(content), written, flags=re.DOTALL)
    return written


def _between(content: str) -> Callable[[re.Match[str]], str]:
    return lambda marks: marks[1] + content + marks[2]


def settings_table(method: Method) -> str:
    """A row a setting, or for settings that are explained together; those that another row explains come last."""
    items = items_of(method.config_class()())
    told = [(names, meaning) for names, meaning in notes(method.config_class()) if set(names) <= items.keys()]
    explained = {name for names, _ in told for name in names}
    rows = [*told, *(((name,), "") for name in items if name not in explained)]
    lines = [f"| {_code(f'{method.name}.{name}' for name in names)} | {_code(shown(items[name]) for name in names)} | {_inline(meaning)} |"
             for names, meaning in rows]
    return "\n".join(["| setting | default | meaning |", "| --- | --- | --- |", *lines]) + "\n" if lines else NO_SETTINGS


def _code(words: Iterable[str]) -> str:
    return ", ".join(f"`{word}`" for word in words)


def _inline(meaning: str) -> str:
    """reStructuredText's code as Markdown's, and a class that is named as a link to its file."""
    linked = re.sub(r"``models\.(\w+)\.(\w+)``", r"[`\2`](../../models/\1.py)", meaning)
    return linked.replace("``", "`").replace("|", r"\|").replace("**", r"\*\*")


def _listed(method: Method) -> str:
    lines = settings(method.config_class(), f"{method.name}.")
    return "\n".join(lines) + "\n" if lines else NO_SETTINGS


def _told(method: Method) -> str:
    """The contracts as ``fedhearth wire`` tells them, without what holds for all methods."""
    found = contracts(method.name)
    return "\n\n".join(text(found).split("\n\n")[:len(found)]) + "\n"


def main() -> None:
    """Write the generated parts of every page, and of the index, anew."""
    for method in METHODS.values():
        file = PAGES / f"{method.name}.md"
        file.write_text(renewed(file.read_text(encoding="utf-8"), method), encoding="utf-8")
    INDEX.write_text(renewed_index(INDEX.read_text(encoding="utf-8")), encoding="utf-8")


if __name__ == "__main__":
    main()
