"""``fedhearth data check``: everything that can be known to be wrong with data before a run, a line a finding.

It runs on the machine where the data lie, and nothing leaves it: files, labels and numbers are named freely. The checks are
those of a client's start (``client_app.data.checks``), over all images instead of the first thousands, and beside them what only
this machine may look at: which images cannot be read, which rows of a file are wrong, how class names differ, what two clients
of a simulation share. Exit code 0 (warnings are allowed), 1 if a finding says STOP, 2 if the input cannot be used.
"""

from __future__ import annotations

import argparse
import json
import logging
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import asdict, replace
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from client_app.data.findings import Finding
    from strategies.registry import Settings

LISTED = frozenset({"unreadable", "rows"})  # findings whose names are listed one a line, all of them


def add_parser(commands: Any) -> None:
    """Add ``check`` to the commands of ``fedhearth data``."""
    parser = commands.add_parser("check", help="say what is wrong with data, and what to do about it")
    parser.add_argument("uri", metavar="URI", help="as in -c dataset=URI or --data URI, e.g. folder:/data/scans")
    parser.add_argument("-c", dest="settings", metavar="KEY=VALUE", action="append", default=[],
                        help="a setting of the run to come, e.g. -c model=resnet18 -c image-size=64")
    parser.add_argument("--clients", type=int, default=0, metavar="N",
                        help="check each client of a simulation that divides the data among N; default: one site's own data")
    parser.add_argument("--batch", type=int, default=0, metavar="N", help="the run's batch; the same as -c batch=N")
    agreed = parser.add_mutually_exclusive_group()
    agreed.add_argument("--classes", default="", metavar="A,B,C", help="the class names all sites agreed on, in their order")
    agreed.add_argument("--expect", default="", metavar="URI", help="other data here, whose classes and image shape these must have")
    parser.add_argument("--json", action="store_true", help="one JSON object instead of lines")
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    """Check and report; returns the exit code. Raises ``ConfigError`` for input that cannot be used."""
    from deploy.checks.data_findings import findings
    from deploy.checks.data_opened import usable
    from deploy.launch import importable_here

    importable_here()
    settings = _settings(options)
    for uri in (options.uri, *filter(None, [options.expect])):
        usable(uri)
    found = findings(settings, options.clients, tuple(filter(None, options.classes.split(","))), options.expect)
    # the readers log what a client would; here it is in the findings
    quiet, readers = logging.NullHandler(), logging.getLogger("client_app")
    readers.addHandler(quiet)
    try:
        return _json(options.uri, found) if options.json else _lines(found)
    finally:
        readers.removeHandler(quiet)


def _settings(options: argparse.Namespace) -> Settings:
    from deploy.overrides import parse_overrides
    from strategies.config import ConfigError
    from strategies.registry import parse_run_config

    if options.clients < 0 or options.batch < 0:
        raise ConfigError("--clients and --batch expect a whole number, 1 or more")
    given = parse_overrides(options.settings) | {"dataset": options.uri}
    return parse_run_config(given | {key: getattr(options, key) for key in ("clients", "batch") if getattr(options, key)})


def _lines(found: Iterable[Finding]) -> int:
    from strategies.data_warnings import printable

    count: Counter[str] = Counter()
    for finding in found:
        count[finding.verdict] += 1
        listed = finding.named if finding.kind in LISTED else ()
        brief = replace(finding, named=(), here=f"{len(listed)} in all") if listed else finding
        print(printable(f"{finding.verdict}  {finding.kind:15} {brief.local()}"), flush=True)
        for name in listed:
            print(printable(f"      {'':15} {name}"), flush=True)
    print(f"{count['STOP']} to mend before a run, {count['WARN']} to look at, {count['PASS']} passed")
    return 1 if count["STOP"] else 0


def _json(uri: str, found: Iterable[Finding]) -> int:
    listed: list[Mapping[str, Any]] = [asdict(finding) for finding in found]
    worst = max((finding["verdict"] for finding in listed), key=("PASS", "WARN", "STOP").index)
    print(json.dumps({"uri": uri, "verdict": worst, "findings": listed}, indent=1))
    return 1 if worst == "STOP" else 0


