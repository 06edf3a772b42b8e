"""``fedhearth status``: the sites a SuperLink knows, its runs, and how far the present one is; once, or ``--watch``.

Who is connected the SuperLink says; accuracies, lost replies, bytes and the deadline are read from the run's folder, where
that lies on this machine. A round's accuracies were taken before its training; those of a run that is over are its closing ones.
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from deploy.link_options import add_arguments, ca_of
from deploy.live import Spent, figures, minutes
from strategies.config import ConfigError
from strategies.data_warnings import counted

if TYPE_CHECKING:
    from deploy.link import FlowerRun, Link, Node
    from deploy.status_records import Closing
    from server_app.progress import Progress

SHOWN = 5
EVERY = 2.0  # s between two looks
WIDTHS = (24, 14, 12, 28, 28)


@dataclass(frozen=True)
class Site:
    """One line: who, how connected, and what the present (or last) run knows of it."""

    name: str
    status: str
    seen: str
    served: str
    lost: str
    node: str


@dataclass(frozen=True)
class View:
    """One look at a deployment. ``closing``: the outcome of a run that is over; ``fault``: why there is nothing newer, "" if there is."""

    nodes: Sequence[Node] = ()
    runs: Sequence[FlowerRun] = ()
    records: Sequence[Mapping[str, Any]] = ()
    progress: Progress | None = None
    fault: str = ""
    closing: Closing | None = None

    @property
    def run(self) -> FlowerRun | None:
        """The run that goes on, else the latest."""
        return next((run for run in self.runs if not run.over), next(iter(self.runs), None))


def add_parser(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """The command ``status``."""
    parser = commands.add_parser("status", help="who is connected, and what runs")
    add_arguments(parser)
    parser.add_argument("--watch", nargs="?", type=_seconds, const=EVERY, default=0.0, metavar="SECONDS",
                        help=f"look again every so many seconds (default: {EVERY:g}) until Ctrl-C")
    parser.set_defaults(run=run)


def _seconds(text: str) -> float:
    try:
        found = float(text)
    except ValueError:
        found = 0.0
    if not 0.2 <= found <= 3600:
        raise argparse.ArgumentTypeError(f"expected seconds between 0.2 and 3600, got {text!r}")
    return found


def run(options: argparse.Namespace) -> int:
    """Print both tables, once or again and again."""
    from deploy.link import Link

    with Link(options.link, ca_of(options)) as link:
        first = look(link)
        if not options.watch:
            print(page(first, datetime.now(UTC)), end="")
            return 0
        from deploy.status_watch import watch

        return watch(first, lambda before: look_again(link, before), options.watch)


def look(link: Link) -> View:
    """What is there now; a run's files that are damaged are its fault. Raises ``ConfigError`` if the SuperLink does not answer."""
    from deploy.status_records import closing_of, rounds_of
    from server_app.finished import ComparisonError
    from server_app.progress import read_progress
    from server_app.report import DamagedRecords

    view = View(link.nodes(), link.runs())
    run = view.run
    if run is None or not run.out:
        return view
    folder = Path(run.out)
    try:
        view = replace(view, records=rounds_of(folder))
        return replace(view, closing=closing_of(folder)) if run.over else replace(view, progress=read_progress(folder))
    except (DamagedRecords, ComparisonError, OSError) as error:
        return replace(view, fault=str(error))


def look_again(link: Link, before: View) -> View:
    """As ``look``, but what went wrong is told beside what was seen before: a watch outlives a restart of the SuperLink."""
    try:
        return look(link)
    except ConfigError as error:
        return replace(before, progress=None, fault=str(error))


def page(view: View, now: datetime) -> str:
    """All of it as plain text."""
    return "".join([sites_table(view, now), headline(view, now.timestamp()) + "\n" if view.run and not view.run.over else "",
                    runs_table(view.runs), f"fedhearth: {view.fault}\n" if view.fault else ""])


def sites(view: View, now: datetime) -> list[Site]:
    """One line a registered site, by name."""
    return [Site(node.name or "(no name)", node.status, _ago(node.seen, now), *_known(node.name, view), str(node.id))
            for node in view.nodes]


def sites_table(view: View, now: datetime) -> str:
    """One line a site: name, status, when it was last heard of, its last served accuracy, its last lost reply, its node."""
    if not view.nodes:
        return "no site is registered\n"
    lines = [Site("site", "status", "last seen", "served accuracy", "last lost reply", "node"), *sites(view, now)]
    cells = [(line.name, line.status, line.seen, line.served, line.lost) for line in lines]
    return "".join("".join(f"{cell:<{width}}" for cell, width in zip(row, WIDTHS, strict=True)) + f" {line.node}\n"
                   for row, line in zip(cells, lines, strict=True))


def headline(view: View, now: float) -> str:
    """The run that goes on, in a line: round, replies, deadline, figures, bytes. ``now`` in seconds since 1970."""
    run, at = view.run, view.progress
    if run is None:
        return "no runs yet"
    done = view.records[-1]["round"] if view.records else 0
    parts = [f"run {run.id} {run.status}", f"round {at.round}/{at.rounds}" if at and not at.closing else f"{counted(done, 'round')} done"]
    if at:
        parts += ["closing evaluation"] if at.closing else [f"{at.replied} of {at.asked} replied", f"deadline in {minutes(at.left(now))}"]
    scored = next((f"{told} before round {record['round']}" for record in reversed(view.records) if (told := figures(record))), "")
    if view.closing:
        scored = f"{view.closing.told} at the end"
    spent = Spent()
    for record in view.records:
        spent = spent.after(record)
    return ", ".join(filter(None, [*parts, scored, spent.told()]))


def runs_table(runs: Sequence[FlowerRun]) -> str:
    """The latest runs, and the last round of those whose folder is on this machine."""
    if not runs:
        return "no runs yet\n"
    lines = [f"{'run':24}{'status':22}{'round':>9}  results"]
    for found in runs[:SHOWN]:
        records = _records(found)
        done = f"{records[-1]['round']}/{found.rounds}" if records and found.rounds else "-"
        lines.append(f"{found.id:<24}{found.status:22}{done:>9}  {found.out or '-'}")
        if records and not found.over and (told := figures(records[-1])):
            lines.append(f"{'':24}before its last round: {told}")
    return "\n".join(lines) + "\n"


def _records(run: FlowerRun) -> list[dict[str, Any]]:
    """The rounds of a run as far as this user can read them here."""
    from deploy.status_records import rounds_of
    from server_app.report import DamagedRecords

    try:
        return rounds_of(Path(run.out)) if run.out else []
    except (DamagedRecords, OSError):
        return []


def _ago(seen: datetime | None, now: datetime) -> str:
    return f"{max(0.0, (now - seen).total_seconds()):.0f} s ago" if seen else "never"


def _known(name: str, view: View) -> tuple[str, str]:
    """The site's last served accuracy and the reason of its last lost reply, and when each was; - for none."""
    served = lost = "-"
    for record in view.records:
        if (score := (record.get("served") or {}).get(name)) is not None:
            served = f"{100 * score:.1f} % (before round {record['round']})"
        if reason := (record.get("lost") or {}).get(name):
            lost = f"{reason} (round {record['round']})"
    if view.closing and (score := view.closing.served.get(name)) is not None:
        served = f"{100 * score:.1f} % (at the end)"
    return served, lost
