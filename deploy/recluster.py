"""``fedhearth recluster``: what a finished HDC-FL run would have served with other clusters, without training anything.

Goes to the terminal, and to ``recluster.json`` in the run's folder, where later calls add to it.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from deploy.arguments import count
from deploy.finished_run import counted_off, finished_run, to_ask_again
from deploy.launch import cores, importable_here, locked, place
from deploy.overrides import parse_overrides
from deploy.run_log import logged
from strategies.config import ConfigError, Scalar
from strategies.registry import Settings, items_of_all

FILE = "recluster.json"
# what METHODS 1.8 says matters most: the control, one cluster (what FedPer serves), harder and softer mixtures, larger clusters
USUAL = ("hdc-fl.grouping=random", "hdc-fl.num-clusters=1", "hdc-fl.temperature=0.1", "hdc-fl.temperature=1.0", "hdc-fl.shrink=true",
         "hdc-fl.min-cluster-size=3")


def add_parser(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """The command ``recluster``."""
    parser = commands.add_parser("recluster", help="what a finished hdc-fl run would have served with other clusters, without training")
    parser.add_argument("folder", metavar="RUN", help="the folder of a finished hdc-fl run on this machine")
    parser.add_argument("--try", dest="tries", metavar="KEY=VALUE", action="append", default=[],
                        help="settings of one try, several in quotes: --try 'hdc-fl.temperature=0.1 hdc-fl.shrink=true'; may be "
                             "repeated; default: random clusters, one cluster, two other temperatures, shrunk, clusters of 3 or more")
    parser.add_argument("--workers", type=count, metavar="N", help="processes that score; default: a core each")
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    """Try and show what came of it; returns the exit code, raises ``ConfigError`` for input that cannot be used."""
    from server_app.checkpoint import CheckpointError
    from server_app.encoder_shelf import ShelfError
    from server_app.recluster import changed
    from server_app.roster import CannotStart
    from server_app.rounds import RunFailed

    importable_here()
    folder = place("RUN", options.folder)
    settings = finished(folder)
    tries: list[Mapping[str, Scalar]] = [{}, *(parse_overrides([text], "--try") for text in options.tries or USUAL)]
    for given in tries:
        changed(settings, given)  # before anything is started
    with locked(folder):
        try:
            with logged(None), counted_off("tried") as shown:
                found = tried(folder, settings, tries, options.workers or cores(), shown)
        except CannotStart as error:
            raise ConfigError(str(error)) from error
        except (RunFailed, CheckpointError, ShelfError) as error:
            print(f"fedhearth: {error}", file=sys.stderr)
            return 1
        _note(folder, found)
    print(table(found), end="")
    if items_of_all(settings).get("hdc-fl.serve") == "better":
        print("clients of this run chose between mixture and shared encoder (hdc-fl.serve = better); these are the mixtures alone")
    if absent := sorted(scored_in(folder) - found[0]["served"].keys()):
        print(f"without {', '.join(absent)}, from whom no score came (why: above); the first row is not quite the run's own, therefore")
    print(f"by client: {folder / FILE}")
    return 0


def tried(folder: Path, settings: Settings, tries: Sequence[Mapping[str, Scalar]], workers: int,
          on_try: Callable[[int, int], None] | None = None) -> list[dict[str, Any]]:
    """What the run in ``folder`` would have served under each of ``tries``; raises as ``server_app.recluster`` does."""
    from deploy.inprocess import InProcessGrid
    from server_app.recluster import recluster

    with InProcessGrid(items_of_all(settings), settings.run.clients, min(workers, settings.run.clients)) as grid:
        return [found.to_json() for found in recluster(grid, folder, settings, tries, on_try)]


def scored_in(folder: Path) -> set[str]:
    """The clients that took part in training and that the run itself has a served score of; none without a readable ``clients.csv``."""
    from server_app.finished import client_lines

    try:
        return {line["client"] for line in client_lines(folder / "clients.csv") if line.get("served") and line.get("held_out") != "yes"}
    except (OSError, ValueError, KeyError):
        return set()


def finished(folder: Path) -> Settings:
    """Settings of the finished run in ``folder``, under which its clients, who all lie on this machine, can be asked again."""
    settings, state = finished_run(folder)
    if not state.is_dir():
        raise ConfigError(f"the clients' own state of this run is not here (looked in {state}); it stays at the sites, and only a run on "
                          "one machine can be looked at again")
    return to_ask_again(settings, state)


def _note(folder: Path, found: Sequence[Mapping[str, Any]]) -> None:
    """Add ``found`` to ``recluster.json``, in the place of earlier tries of the same settings."""
    from server_app.report import replace_text

    path, now = folder / FILE, [told["settings"] for told in found]
    try:
        before = json.loads(path.read_text(encoding="utf-8")) if path.exists() else []
        kept = [told for told in before if told["settings"] not in now]
    except (ValueError, TypeError, KeyError):
        raise ConfigError(f"{path} is damaged; delete it and try again") from None
    replace_text(path, json.dumps([*kept, *found], indent=1) + "\n")


def table(found: Sequence[Mapping[str, Any]]) -> str:
    """A row a try, for a terminal; accuracies in %."""
    names = [", ".join(f"{key.removeprefix('hdc-fl.')} = {_shown(value)}" for key, value in told["settings"].items()) or "as it ran"
             for told in found]
    width = max(map(len, names)) + 2
    lines = [f"{'served, in %':{width}}{'mean':>7}{'worst':>7}{'bottom 20 %':>13}{'clusters':>10}{'silhouette':>12}"]
    for name, told in zip(names, found, strict=True):
        tails = told.get("served_tails")
        figures = [f"{100 * tails[key]:.1f}" if tails else "–" for key in ("mean", "worst", "bottom20")]
        lines.append(f"{name:{width}}{figures[0]:>7}{figures[1]:>7}{figures[2]:>13}{told['clusters']:>10}{told['silhouette']:>12.2f}")
    return "\n".join([*lines, ""])


def _shown(value: Scalar) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)
