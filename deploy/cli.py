"""The console script ``fedhearth``: all its commands. Those of a deployment define themselves, a module each.

Exit codes: 0 done, 1 the run failed, 2 the input cannot be used, 130 interrupted. Whatever takes seconds to import is
imported where it is needed, so that the rest answers at once.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from importlib import import_module
from io import TextIOWrapper
from pathlib import Path

from deploy.arguments import count
from deploy.examples import add_epilogs

# a module each, with its own options, which is only loaded when it is meant
DEPLOYMENT = {
    "certs": "make the certificates and node keys of a deployment",
    "superlink": "run the server that sites connect to",
    "supernode": "run a site that takes part",
    "submit": "start a run on the connected sites and follow it",
    "status": "who is connected, and what runs",
    "stop": "end a run",
    "join": "make a new data set a client of a finished run",
    "donor-swap": "let clients try each other's encoders: do those fit best whose heads are most alike?",
    "recluster": "what a finished hdc-fl run would have served with other clusters, without training",
    "predict": "let a client's personal model classify images",
    "export": "a client's personal model as a file for other programs",
    "data": "look at data before a run",
    "doctor": "check a machine before it joins, or when something is wrong",
    "completion": "a script that completes fedhearth's commands in a shell",
}
EVERY = "*"  # no command is called so


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command; returns the exit code."""
    words = sys.argv[1:] if arguments is None else list(arguments)
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, TextIOWrapper):  # names of files and classes may hold what the terminal's encoding lacks
            stream.reconfigure(errors="backslashreplace")
    from strategies.config import ConfigError

    try:
        options = parser(words[0] if words else "").parse_args(words)
        code = options.run(options)
        if sys.stdout:  # None if it was closed before we began
            sys.stdout.flush()
        return code
    except ConfigError as error:
        print(f"fedhearth: {error}", file=sys.stderr)
        return 2
    except MemoryError as error:
        print(f"fedhearth: this machine's memory is full{f' ({error})' if str(error) else ''}: use smaller or fewer images, or fewer "
              "workers", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("fedhearth: interrupted", file=sys.stderr)
        return 130
    except BrokenPipeError:
        # whoever read our output has had enough (`| head`); nothing more can be said, not even when Python ends
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    except OSError as error:
        about = f"{error.filename}: {error.strerror}" if error.filename and error.strerror else str(error)
        print(f"fedhearth: a file or disk failed: {about}; mend that and try again", file=sys.stderr)
        return 1


def parser(meant: str = "") -> argparse.ArgumentParser:
    """All commands; those of a deployment without their options, but for the command ``meant`` (``EVERY``: all with them)."""
    top = argparse.ArgumentParser(prog="fedhearth", description="Personalised federated learning on Flower.")
    commands = top.add_subparsers(metavar="COMMAND", required=True)
    run = commands.add_parser("run", help="train a federation and write its report")
    run.add_argument("-c", dest="settings", metavar="KEY=VALUE", action="append", default=[],
                     help="a setting, e.g. -c method=fedper -c rounds=20 (all of them: fedhearth methods)")
    run.add_argument("--engine", choices=("inprocess", "ray"), default="inprocess", help="default: inprocess")
    run.add_argument("--workers", type=count, metavar="N", help="processes that train clients; default: a core each")
    run.add_argument("--out", default="", metavar="DIR", help="the run's folder; default: runs/METHOD-DATASET-PARTITION-SEED-TIME")
    run.add_argument("--resume", default="", metavar="DIR", help="go on with the interrupted run in DIR")
    run.add_argument("--quiet", action="store_true", help="one plain line a round, no bars")
    run.set_defaults(run=_run)
    methods = commands.add_parser("methods", help="the methods and every setting with its default, or the page of one method")
    methods.add_argument("method", nargs="?", default="", metavar="METHOD")
    methods.set_defaults(run=_methods)
    wire = commands.add_parser("wire", help="what crosses the wire, and what never does")
    wire.add_argument("method", nargs="?", default="", metavar="METHOD")
    wire.add_argument("--markdown", action="store_true")
    wire.set_defaults(run=_wire)
    compare = commands.add_parser("compare", help="finished runs side by side")
    compare.add_argument("runs", nargs="+", type=Path, metavar="RUN",
                         help="folders of finished runs; the first is the reference, seeds of a method are one row. RUN@served or "
                              "RUN@adapted asks for one kind of figures")
    compare.add_argument("--format", choices=("text", "markdown", "latex", "csv"), default="text", help="default: text")
    compare.add_argument("--markdown", dest="format", action="store_const", const="markdown", help="the same as --format markdown")
    compare.add_argument("--different-splits", action="store_true", help="compare runs over different splits all the same")
    compare.add_argument("--mix-served-adapted", action="store_true", help="put served and adapted figures into one table all the same")
    compare.set_defaults(run=_compare)
    commands.add_parser("version", help="the version of this program").set_defaults(run=_version)
    for name, told in DEPLOYMENT.items():
        if meant in (name, EVERY):
            import_module(f"deploy.{name.replace('-', '_')}").add_parser(commands)
        else:
            commands.add_parser(name, help=told)
    add_epilogs(top)
    return top


def _run(options: argparse.Namespace) -> int:
    from deploy.running import run

    return run(options.settings, options.engine, options.workers, options.out, options.resume, options.quiet)


def _methods(options: argparse.Namespace) -> int:
    from deploy.listing import methods
    from deploy.method_pages import page

    print(page(options.method) if options.method else methods(), end="")
    return 0


def _wire(options: argparse.Namespace) -> int:
    from deploy.privacy import contracts, markdown, text

    found = contracts(options.method)
    print(markdown(found) if options.markdown else text(found), end="")
    return 0


def _compare(options: argparse.Namespace) -> int:
    from server_app.compare import compare
    from server_app.compare_tables import RENDERERS
    from server_app.finished import ComparisonError

    try:
        found = compare(options.runs, options.different_splits, options.mix_served_adapted)
    except ComparisonError as error:
        print(f"fedhearth: {error}", file=sys.stderr)
        return 2
    print(RENDERERS[options.format](found), end="")
    return 0


def _version(options: argparse.Namespace) -> int:
    from importlib.metadata import version

    print(version("fedhearth"))
    return 0


if __name__ == "__main__":
    sys.exit(main())
