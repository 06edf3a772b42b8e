"""``fedhearth stop``: end a run. What it finished is kept, and ``fedhearth submit --resume`` goes on from there."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from deploy.link_options import add_arguments, ca_of
from strategies.config import ConfigError

if TYPE_CHECKING:
    from deploy.link import FlowerRun


def add_parser(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """The command ``stop``."""
    parser = commands.add_parser("stop", help="end a run")
    parser.add_argument("run_id", nargs="?", type=int, metavar="RUN_ID", help="Flower's number of the run; default: the one that runs")
    add_arguments(parser)
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    """Stop it; 0 once Flower has."""
    from deploy.link import Link

    with Link(options.link, ca_of(options)) as link:
        found = chosen(link.runs(), options.run_id)
        link.stop(found.id)
    print(f"run {found.id} is stopped" + (f"; go on with: fedhearth submit --resume {found.out}" if found.out else ""))
    return 0


def chosen(runs: list[FlowerRun], number: int | None) -> FlowerRun:
    """The run that is meant. Raises ``ConfigError`` if there is none, or more than one without a number."""
    going = [run for run in runs if not run.over]
    if number is not None:
        for run in runs:
            if run.id == number:
                if run.over:
                    raise ConfigError(f"run {number} is over already ({run.status})")
                return run
        raise ConfigError(f"there is no run {number}; fedhearth status lists them")
    if len(going) != 1:
        raise ConfigError(f"{len(going)} runs are going on ({', '.join(str(run.id) for run in going)}); give the number of one"
                          if going else "no run is going on")
    return going[0]
