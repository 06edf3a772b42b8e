"""``fedhearth data``: look at data before a run. ``check`` says what is wrong with them, ``split`` who would get what."""

from __future__ import annotations

import argparse

from deploy import data_check, data_split


def add_parser(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """The command ``data`` and what it can look at."""
    data = commands.add_parser("data", help="look at data before a run")
    kinds = data.add_subparsers(metavar="WHAT", required=True)
    data_check.add_parser(kinds)
    data_split.add_parser(kinds)
