"""``fedhearth completion SHELL``: a script that completes commands, options, settings and files. Written once by shtab from the parser,
so that completing starts no Python.

A setting is offered with its values where there is a list of them, else with its default, to be changed. bash breaks words at ``=``, which
the script has to take from it (as npm's does).
"""

from __future__ import annotations

import argparse
import re

from deploy.examples import commands_of

SHELLS = ("bash", "zsh", "tcsh")
# what an option names is told by how the help calls it
FOLDERS, FILES = {"DIR", "RUN", "RUN_DIR"}, {"FILE", "FILES"}
# what no shell takes for anything but text
PLAIN = re.compile(r"[\w.,+-]*")


def add_parser(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """The command ``completion``."""
    parser = commands.add_parser("completion", help="a script that completes fedhearth's commands in a shell")
    parser.add_argument("shell", choices=SHELLS)
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    """Print the script."""
    print(script(options.shell))
    return 0


def script(shell: str) -> str:
    """The completion script for ``shell``, one of ``SHELLS``."""
    import shtab

    from deploy.cli import EVERY, parser
    from strategies.registry import METHODS

    top = parser(EVERY)
    words = {"methods": " ".join(METHODS), "settings": " ".join(_settings())}
    _name_words(top, words)
    functions = (f'_fedhearth_{name}() {{ compgen -W "{some}" -- "$1"; }}' for name, some in words.items())
    own = {"bash": "\n".join(['COMP_WORDBREAKS="${COMP_WORDBREAKS//=}"', *functions])}
    return shtab.complete(top, shell, preamble=own)  # type: ignore[arg-type]  # it takes one a shell, and says str


def _settings() -> list[str]:
    """``KEY=VALUE`` of every setting, those of all methods among them."""
    from strategies.config import RunConfig, items_of
    from strategies.partition_names import NAMES
    from strategies.registry import METHODS, find_method

    listed = {"method": tuple(METHODS), "partition": NAMES}
    items = items_of(RunConfig())
    for name in METHODS:
        items |= items_of(find_method(name).config_class()(), f"{name}.")
    found = []
    for key, default in items.items():
        values = listed.get(key, ("true", "false") if isinstance(default, bool) else (str(default),))
        found += [f"{key}={value}" if PLAIN.fullmatch(value) else f"{key}=" for value in values]
    return found


def _name_words(parser: argparse.ArgumentParser, words: dict[str, str]) -> None:
    """Tell shtab which options and arguments are files, folders, methods or settings, all the way down."""
    _name_files(parser)
    for action in parser._actions:  # noqa: SLF001
        kind = {"method": "methods", "settings": "settings"}.get(action.dest)
        if kind:
            action.complete = {"bash": f"_fedhearth_{kind}", "zsh": f"({words[kind]})", "tcsh": f"({words[kind]})"}  # type: ignore[attr-defined]
    for below in commands_of(parser).values():
        _name_words(below, words)


def _name_files(parser: argparse.ArgumentParser) -> None:
    """Tell shtab which of a command's options and arguments are files or folders."""
    import shtab

    for action in parser._actions:  # noqa: SLF001
        if action.metavar in FOLDERS:
            action.complete = shtab.DIRECTORY  # type: ignore[attr-defined]
        elif action.metavar in FILES:
            action.complete = shtab.FILE  # type: ignore[attr-defined]
