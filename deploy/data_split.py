"""``fedhearth data split``: who would get which samples, as a table, ``split.json`` and ``split.png``, without training.

The settings are those of ``fedhearth run``, and so is the split: its hash is the one that a run of them reports.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Mapping, Sequence
from typing import Any

from strategies.data_warnings import display_width, printable

MOST_COLUMNS = 20  # classes beyond which a terminal has no room for a column each


def add_parser(commands: Any) -> None:
    """Add ``split`` to the commands of ``fedhearth data``."""
    parser = commands.add_parser("split", help="show how a run would divide its data among clients, without training")
    parser.add_argument("-c", dest="settings", metavar="KEY=VALUE", action="append", default=[],
                        help="a setting, e.g. -c dataset=folder:/data/scans -c partition=dirichlet -c clients=20")
    parser.add_argument("--out", default="split", metavar="DIR", help="folder of split.json and split.png; default: split")
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    """Print the table and write both files; raises ``ConfigError`` for input that cannot be used."""
    from client_app.data import DataError, PartitionError, write_manifest
    from deploy.launch import importable_here, is_there, place, told_here
    from deploy.overrides import parse_overrides
    from server_app.split_png import write_split_png
    from strategies.config import ConfigError
    from strategies.registry import parse_run_config

    importable_here()
    folder = place("--out", options.out)
    if is_there(folder / "run.json"):
        raise ConfigError(f"{folder} holds a run, which has its own split.json; give another folder with --out")
    config = parse_run_config({**parse_overrides(options.settings), "out": str(folder)}).run
    try:
        write_manifest(config)
        split = json.loads((folder / "split.json").read_text(encoding="utf-8"))
        write_split_png(split, folder / "split.png")
    except (DataError, PartitionError) as error:
        raise ConfigError(told_here(error)) from error
    except OSError as error:
        raise ConfigError(f"cannot write to {folder}: {error.strerror}") from error
    print(table(split), end="")
    print(f"written: {folder / 'split.json'}, {folder / 'split.png'}")
    return 0


def table(split: Mapping[str, Any]) -> str:
    """A line a client: its group, samples to train on and to test on, classes, and samples of each class (train/test)."""
    from server_app.summary import whose

    names = split["classes"]
    named = len(names) <= MOST_COLUMNS
    head = ["client", "group", "train", "test", "classes", *(map(str, names) if named else ())]
    lines: list[Sequence[str]] = [head]
    for client, train in split["train"].items():
        test = split["test"][client]
        cells = [f"{a}/{b}" if a or b else "-" for a, b in zip(train, test, strict=True)] if named else []
        held = " (held out)" if client in split["held_out"] else ""
        lines.append([client + held, whose(split, client) or "-", str(sum(train)), str(sum(test)), str(sum(n > 0 for n in train)), *cells])
    sizes = [sum(train) for train in split["train"].values()]
    return (_aligned(lines)
            + f"{len(sizes)} clients, {len(names)} classes; training samples a client: {min(sizes)} to {max(sizes)}"
            + f"; unused samples: {split['unused']}\n"
            + ("" if named else f"more than {MOST_COLUMNS} classes: counts by class are in the files\n")
            + f"split hash: {split['hash']}\n")


def _aligned(given: Sequence[Sequence[str]]) -> str:
    lines = [[printable(cell) for cell in line] for line in given]
    widths = [max(map(display_width, column)) for column in zip(*lines, strict=True)]
    blanks = ([" " * (width - display_width(cell)) for cell, width in zip(line, widths, strict=True)] for line in lines)
    rows = ("  ".join(cell + blank if place < 2 else blank + cell for place, (cell, blank) in
                      enumerate(zip(line, missing, strict=True))).rstrip() for line, missing in zip(lines, blanks, strict=True))
    return "\n".join(rows) + "\n"
