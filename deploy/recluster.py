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
    tries: list[Mapping[str, Scalar]] = [{}]
    for text in options.tries or USUAL:
        given = parse_overrides([text], "--try")
        changed(settings, given)  # before anything is started
        tries += [given] if given not in tries else []
    with locked(folder):
        before = noted(folder)
        try:
            with logged(None), counted_off("tried") as shown:
                found = tried(folder, settings, tries, options.workers or cores(), shown)
        except CannotStart as error:
            raise ConfigError(str(error)) from error
        except (RunFailed, CheckpointError, ShelfError) as error:
            print(f"fedhearth: {error}", file=sys.stderr)
            return 1
        print(table(found), end="")
        better = items_of_all(settings).get("hdc-fl.serve") == "better"
        if better:
            print("clients of this run chose between mixture and shared encoder (hdc-fl.serve = better); these are the mixtures alone")
        served = scored_in(folder)
        if unasked := sorted(served.keys() - found[0]["served"].keys() - set(found[0]["silent"])):
            print(f"without {', '.join(unasked)}, whom the run served the shared encoder: no part of any refresh")
        if wrong := doubts(found, {} if better else served):
            print(f"fedhearth: {wrong}; nothing is kept of this", file=sys.stderr)
            return 1
        note(folder, before, found)
    print(f"by client: {folder / FILE}")
    return 0


def tried(folder: Path, settings: Settings, tries: Sequence[Mapping[str, Scalar]], workers: int,
          on_try: Callable[[int, int], None] | None = None) -> list[dict[str, Any]]:
    """What the run in ``folder`` would have served under each of ``tries``; raises as ``server_app.recluster`` does."""
    from deploy.inprocess import InProcessGrid
    from server_app.recluster import recluster

    with InProcessGrid(items_of_all(settings), settings.run.clients, min(workers, settings.run.clients)) as grid:
        return [found.to_json() for found in recluster(grid, folder, settings, tries, on_try)]


def doubts(found: Sequence[Mapping[str, Any]], served: Mapping[str, float]) -> str:
    """Why figures are not those of the run with other clusters; "" if they are.

    ``served``: the run's own scores, which its own settings must give again, to the bit.
    """
    if silent := sorted({client for row in found for client in row["silent"]}):
        return f"no answer came from {', '.join(silent)} (why: above), and these figures are without"
    own = found[0]["served"]
    if other := [client for client, score in served.items() if client in own and own[client] != score]:
        client = other[0]
        return (f"the run's own clusters must give its own scores again, and {len(other)} of {len(own)} differ, such as {client}'s "
                f"({100 * own[client]:.2f} %, and {100 * served[client]:.2f} % in clients.csv): the data, the clients' files or the device "
                "are not what they were. Restore them")
    return ""


def scored_in(folder: Path) -> dict[str, float]:
    """The run's own served scores, by client that took part in training; none without a readable ``clients.csv``."""
    from server_app.finished import trained_lines

    try:
        return {line["client"]: float(line["served"]) for line in trained_lines(folder / "clients.csv") if line.get("served")}
    except (OSError, ValueError, KeyError):
        return {}


def finished(folder: Path) -> Settings:
    """Settings of the finished run in ``folder``, under which its clients, who all lie on this machine, can be asked again."""
    settings, state = finished_run(folder)
    if not state.is_dir():
        raise ConfigError(f"the clients' own state of this run is not here (looked in {state}); it stays at the sites, and only a run on "
                          "one machine can be looked at again")
    return to_ask_again(settings, state)


def noted(folder: Path) -> list[dict[str, Any]]:
    """What ``recluster.json`` holds; raises ``ConfigError`` if it cannot be read."""
    path = folder / FILE
    try:
        held = json.loads(path.read_text(encoding="utf-8")) if path.exists() else []
        return [row for row in held if row["settings"] is not None]
    except (OSError, ValueError, TypeError, KeyError, RecursionError):
        raise ConfigError(f"{path} is damaged; delete it and try again") from None


def note(folder: Path, before: Sequence[Mapping[str, Any]], found: Sequence[Mapping[str, Any]]) -> None:
    """Leave ``found`` in ``recluster.json``, in the place of earlier tries of the same settings; raises ``OSError`` if it cannot be."""
    from server_app.report import replace_text

    now = [told["settings"] for told in found]
    text = json.dumps([*(told for told in before if told["settings"] not in now), *found], indent=1, allow_nan=False)
    try:
        replace_text(folder / FILE, text + "\n")
    except OSError as error:  # no fault of the input: the command line ends with 1
        raise OSError(error.errno, f"{error.strerror}, and the figures above are kept nowhere", str(folder / FILE)) from None


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
