"""``fedhearth donor-swap``: every client of a finished run tries the others' encoders with its own head.

The same client code and the same messages as in a run with the setting ``donor-swap``, in this process. What is found goes to the
terminal, to ``donor_swap.json`` in the run's folder, and into its report.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

from deploy.arguments import count
from deploy.finished_run import counted_off, finished_run, to_ask_again
from deploy.launch import cores, importable_here, locked, place
from deploy.run_log import logged
from strategies.config import ConfigError
from strategies.registry import SPLIT_MODEL, Settings, items_of_all
from strategies.types import Slots

DONORS = 50


def add_parser(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """The command ``donor-swap``."""
    parser = commands.add_parser("donor-swap", help="let clients try each other's encoders: do those fit best whose heads are most alike?")
    parser.add_argument("folder", metavar="RUN", help="the folder of a finished run on this machine")
    parser.add_argument("--donors", type=count, default=DONORS, metavar="N",
                        help=f"try at most N donors, drawn by the run's seed, the same for all; default: {DONORS}")
    parser.add_argument("--workers", type=count, metavar="N", help="processes that score; default: a core each")
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    """Swap and show what came of it; returns the exit code, raises ``ConfigError`` for input that cannot be used."""
    from deploy.inprocess import InProcessGrid
    from server_app.checkpoint import CheckpointError
    from server_app.donor_swap_file import FILE
    from server_app.donor_swap_finished import private_heads, swap_finished
    from server_app.encoder_shelf import ShelfError
    from server_app.roster import CannotStart
    from server_app.rounds import RunFailed

    importable_here()
    folder = place("RUN", options.folder)
    settings, state = _swappable(folder)
    settings = to_ask_again(settings, state, options.donors)
    personal = partial(_personal, state)
    workers = min(options.workers or cores(), settings.run.clients)
    with locked(folder):
        heads = private_heads(settings, _participants(settings, folder), personal)
        try:
            with (logged(None), InProcessGrid(items_of_all(settings), settings.run.clients, workers) as grid,
                  counted_off("encoders tried") as shown):
                told = swap_finished(grid, folder, settings, personal, heads, shown)
        except CannotStart as error:
            raise ConfigError(str(error)) from error
        except (RunFailed, CheckpointError, ShelfError) as error:
            print(f"fedhearth: {error}", file=sys.stderr)
            return 1
        written = _report(folder)
    print(table(told), end="")
    print(f"all of it: {folder / FILE}{f', and the report: {written}' if written else ''}")
    return 0


def _swappable(folder: Path) -> tuple[Settings, Path]:
    """Settings, and the folder of the clients' state, of the finished run in ``folder``, whose clients all lie on this machine."""
    settings, state = finished_run(folder)
    if settings.method.model != SPLIT_MODEL:
        raise ConfigError(f"a donor swap needs a method of an encoder and a head, and {settings.method.name} is none")
    if not state.is_dir():
        raise ConfigError(f"the clients' own state of this run is not here (looked in {state}). On separate machines it stays at the "
                          "sites: give the run the setting donor-swap, and they score each other's encoders at its end")
    return settings, state


def _participants(settings: Settings, folder: Path) -> list[str]:
    from client_app.node import client_name
    from server_app.record import held_out_before

    outside = set(held_out_before(folder) or ())
    return [name for name in map(client_name, range(settings.run.clients)) if name not in outside]


def _personal(state: Path, name: str) -> Slots | None:
    from client_app.personal import PersonalError, load_personal

    try:
        return load_personal(state / name).kept
    except PersonalError:
        return None


def _report(folder: Path) -> Path | None:
    """Draw the run's report anew with what was found; None if what the run's folder holds would not give that run's report."""
    from server_app.redraw import draw_again

    try:
        return draw_again(folder)
    except OSError as error:
        print(f"fedhearth: the report stays as it was: {error.filename or folder}: {error.strerror or error}", file=sys.stderr)
        return None
    except (ValueError, LookupError, TypeError, AttributeError, ArithmeticError, RecursionError) as error:
        print(f"fedhearth: the report stays as it was, since the run's folder is incomplete or damaged ({type(error).__name__}: {error})",
              file=sys.stderr)
        return None


def table(told: Mapping[str, Any]) -> str:
    """What a donor swap found, for a terminal."""
    from server_app.donor_swap_words import association_rows, drop_rows, facts

    rows = association_rows(told)
    width = max(len(row[0]) for row in rows) + 2
    lines = [*facts(told), "", f"{'do alike heads mean fitting encoders?':{width}}{'mean':>8}  {'95 % interval':>16}{'above 0':>9}"]
    lines += [f"{name:{width}}{mean:>8}  {interval:>16}{positive:>9}  {note}".rstrip() for name, mean, interval, positive, note in rows]
    if found := drop_rows(told):
        lines += ["", f"{'donors, a third each':{width}}{'accuracy':>8}  {'drop, points':>16}"]
        lines += [f"{name:{width}}{level:>8}  {drop:>16}" for name, level, drop in found]
    return "\n".join([*lines, ""])
