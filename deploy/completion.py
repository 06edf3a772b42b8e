"""``fedhearth completion SHELL``: a script that completes commands, options and files. Written once by shtab from the parser, so
that completing starts no Python."""

from __future__ import annotations

import argparse

from deploy.examples import commands_of

SHELLS = ("bash", "zsh", "tcsh")
# what an option names is told by how the help calls it
FOLDERS, FILES = {"DIR", "RUN", "RUN_DIR"}, {"FILE", "FILES"}


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
    _name_files(top)
    methods = " ".join(METHODS)
    for action in (*commands_of(top)["wire"]._actions, *commands_of(top)["methods"]._actions):  # noqa: SLF001
        if action.dest == "method":
            action.complete = {"bash": "_fedhearth_methods", "zsh": f"({methods})", "tcsh": f"({methods})"}  # type: ignore[attr-defined]
    own = {"bash": f'_fedhearth_methods() {{ compgen -W "{methods}" -- "$1"; }}'}
    return shtab.complete(top, shell, preamble=own)  # type: ignore[arg-type]  # it takes one a shell, and says str


def _name_files(parser: argparse.ArgumentParser) -> None:
    """Tell shtab which options and arguments are files or folders, all the way down."""
    import shtab

    for action in parser._actions:  # noqa: SLF001
        if action.metavar in FOLDERS:
            action.complete = shtab.DIRECTORY  # type: ignore[attr-defined]
        elif action.metavar in FILES:
            action.complete = shtab.FILE  # type: ignore[attr-defined]
    for below in commands_of(parser).values():
        _name_files(below)
