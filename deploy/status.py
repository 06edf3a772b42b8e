"""``fedhearth status``: the sites a SuperLink knows, its runs, and how far the present one is."""

from __future__ import annotations

import argparse
from datetime import UTC, datetime
from pathlib import Path

from deploy.link import FlowerRun, Link, Node, add_arguments, ca_of
from deploy.live import figures
from server_app.report import read_rounds

SHOWN = 5


def add_parser(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """The command ``status``."""
    parser = commands.add_parser("status", help="who is connected, and what runs")
    add_arguments(parser)
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    """Print both tables."""
    with Link(options.link, ca_of(options)) as link:
        nodes, runs = link.nodes(), link.runs()
    print(sites_table(nodes, datetime.now(UTC)), end="")
    print(runs_table(runs), end="")
    return 0


def sites_table(nodes: list[Node], now: datetime) -> str:
    """One line a site: name, status, seconds since it was last heard of."""
    if not nodes:
        return "no site is registered\n"
    lines = [f"{'site':24}{'status':14}{'last seen':>14}  node"]
    for node in nodes:
        ago = f"{max(0.0, (now - node.seen).total_seconds()):.0f} s ago" if node.seen else "never"
        lines.append(f"{node.name or '(no name)':24}{node.status:14}{ago:>14}  {node.id}")
    return "\n".join(lines) + "\n"


def runs_table(runs: list[FlowerRun]) -> str:
    """The latest runs, and the last round of those whose folder is on this machine."""
    if not runs:
        return "no runs yet\n"
    lines = [f"{'run':24}{'status':22}{'round':>9}  results"]
    for found in runs[:SHOWN]:
        records = read_rounds(Path(found.out) / "rounds.jsonl") if found.out else []
        done = f"{records[-1]['round']}/{found.rounds}" if records and found.rounds else "-"
        lines.append(f"{found.id:<24}{found.status:22}{done:>9}  {found.out or '-'}")
        if records and not found.over and (told := figures(records[-1])):
            lines.append(f"{'':24}before its last round: {told}")
    return "\n".join(lines) + "\n"
