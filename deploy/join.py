"""``fedhearth join``: make a new data set a client of a finished run, on the machine where the run lies.

The same client code, the same messages and the same checks as for a client held out of training, in this process. The
run's own files stay as they are; ``joined.json`` is added, and the new client's personal model lies beside the others'.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from deploy.launch import importable_here, locked, place, saved_settings, state_of, to_finish, told_here
from deploy.run_log import logged
from strategies.config import ConfigError, check_site_name, items_of
from strategies.data_warnings import counted
from strategies.registry import Settings, items_of_all, parse_run_config


def add_parser(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """The command ``join``."""
    parser = commands.add_parser("join", help="make a new data set a client of a finished run")
    parser.add_argument("--run", dest="folder", required=True, metavar="DIR", help="the folder of a finished run on this machine")
    parser.add_argument("--data", required=True, metavar="URI", help="the new client's data, as for the setting dataset")
    parser.add_argument("--name", required=True, metavar="NAME", help="the new client's name")
    parser.add_argument("--state-dir", default="", metavar="DIR", help="where its state and personal model go; default: beside the others'")
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    """Let the client join; returns the exit code, raises ``ConfigError`` for input that cannot be used."""
    from deploy.one_site import OneSite
    from server_app.checkpoint import CheckpointError
    from server_app.encoder_shelf import ShelfError
    from server_app.join import JOINED, join_finished, note_joined
    from server_app.roster import CannotStart
    from server_app.rounds import RunFailed

    importable_here()
    check_site_name(options.name)
    if not options.data:
        raise ConfigError("--data names no data: expected the new client's own, as for the setting dataset, e.g. folder:scans")
    folder = place("--run", options.folder)
    settings, state = _finished(folder, options.state_dir)
    node_config = {"site": options.name, "data": options.data, "state-dir": str(state)}
    with locked(folder):
        _check_name(folder, options.name)
        _check_data(settings, node_config)
        try:
            with logged(None), OneSite(items_of_all(settings), node_config) as grid:
                line = join_finished(grid, folder, settings, options.name)
        except CannotStart as error:
            raise ConfigError(str(error)) from error
        except (RunFailed, CheckpointError, ShelfError) as error:
            print(f"fedhearth: {error}", file=sys.stderr)
            return 1
        note_joined(folder, {**line, "data": options.data})
    print(_told(line, settings))
    print(f"personal model: {state / (settings.run.run_id or 'run') / options.name / 'personal.safetensors'}\n"
          f"noted in {folder / JOINED}")
    return 0


def _finished(folder: Path, state_dir: str) -> tuple[Settings, Path]:
    """Settings and root of the clients' state of the finished run in ``folder``."""
    saved = saved_settings(folder)
    if not (folder / "summary.json").exists():
        raise ConfigError(f"the run in {folder} is not finished, and a client can only join after its last round; {to_finish(folder)}")
    state = place("--state-dir", state_dir) if state_dir else state_of(folder, saved).parent
    return parse_run_config(saved), state


def _check_name(folder: Path, name: str) -> None:
    from server_app.join import taken

    # names are folders, and some disks do not tell a from A
    alike = [other for other in sorted(taken(folder)) if other.casefold() == name.casefold()]
    if alike:
        raise ConfigError(f"the run already has a client named {alike[0]!r}; give the new one another --name")


def _check_data(settings: Settings, node_config: Mapping[str, Any]) -> None:
    """Open the data here first: on this machine an error may say where they were looked for."""
    from client_app.data import DataError, PartitionError, open_data
    from client_app.node import open_node

    try:
        open_data(settings.run, open_node(node_config, settings.run))
    except (DataError, PartitionError) as error:
        if "FH-022" in str(error):  # its advice is a setting, and those of the run are fixed
            raise ConfigError("--data: the images differ in size, and the run scaled none: bring them to the size of the run's own images "
                              "first (model.input-shape in its summary.json: channels, height, width)") from error
        raise ConfigError(f"--data: {told_here(error)}") from error


def _told(line: Mapping[str, Any], settings: Settings) -> str:
    """One line a person: what the new client is served."""
    from server_app.sections import raw_words

    if line["served"] is None:
        score = "it has no test images, so no score"
    else:
        words = raw_words(settings.method.name, items_of(settings.run))
        raw = f" ({100 * line['served_raw']:.1f} {words})" if words and line["served_raw"] is not None else ""
        score = f"served accuracy {100 * line['served']:.1f} %{raw}"
    mixture = f"; its mixture of the clusters: {', '.join(f'{share:.2f}' for share in line['mixture'])}" if line.get("mixture") else ""
    return f"{line['client']} joined ({settings.method.name}, {counted(settings.run.rounds, 'round')}): {score}{mixture}"
