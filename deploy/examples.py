"""What ``--help`` says below the options: examples to copy, and what the exit code means. Plain data, so that help stays quick.

Every command has an entry; tests/test_help.py parses every example with the real parser.
"""

from __future__ import annotations

import argparse
import textwrap
from dataclasses import dataclass

WIDTH = 118
UNUSABLE = "2 the input cannot be used and nothing was done, 130 interrupted (Ctrl-C)"
TOP = f"""exit codes: 0 done, 1 it failed, {UNUSABLE}
`fedhearth COMMAND --help` has examples, and says where a command's codes mean more. Messages with a code like FH-012 are
explained in deploy/RUNBOOK.md under that code."""


@dataclass(frozen=True)
class Help:
    """``examples`` without their first word; ``codes`` for 0 and 1, and for 2 and 130 if those mean something else."""

    examples: tuple[str, ...]
    codes: str = "0 done, 1 it failed"
    others: str = UNUSABLE


COMMANDS: dict[str, Help] = {
    "run": Help(("run", "run -c method=hdc-fl -c clients=8 -c rounds=5 --out hdc-run",
                 "run -c dataset=folder:shapes -c partition=dirichlet -c alpha=1 -c clients=6",
                 "run --resume hdc-run"),
                "0 the run is finished, 1 it failed (its last words say how to go on)"),
    "methods": Help(("methods", "methods fedper")),
    "wire": Help(("wire hdc-fl", "wire --markdown")),
    "compare": Help(("compare runs/fedavg runs/hdc-fl", "compare runs/fedavg-* runs/hdc-fl-* --format latex",
                     "compare runs/fedavg@adapted runs/hdc-fl@served --mix-served-adapted"),
                    "0 done", "2 the runs cannot be compared as they are (the message names what allows it), 130 interrupted (Ctrl-C)"),
    "completion": Help(("completion bash > ~/.local/share/bash-completion/completions/fedhearth",
                        "completion zsh > ~/.zfunc/_fedhearth")),
    "version": Help(("version",)),
    "certs": Help(("certs --site north --site south", "certs --server fl.example.org --site north", "certs --rotate-server")),
    "superlink": Help(("superlink", "superlink --fleet 127.0.0.1:9092 --state-dir server"),
                      "0 it was ended by SIGTERM or Ctrl-C, 1 it ended by itself", "2 the input cannot be used and nothing was started"),
    "supernode": Help(("supernode --superlink fl.example.org:9092 --site north --state-dir sites/north --data folder:scans",
                       "supernode --superlink 127.0.0.1:9092 --site south --state-dir sites/south --partition 1/2"),
                      "0 it was ended by SIGTERM or Ctrl-C, 1 it failed", "2 the input cannot be used and nothing was started"),
    "submit": Help(("submit -c rounds=5", "submit -c method=fedper -c model=resnet18 -c rounds=50 -c deadline=900",
                    "submit --resume server/runs/20260101-120000-abc123"),
                   "0 the run is finished, 1 it failed or was stopped",
                   "2 it could not be started, 130 no longer followed (the run goes on)"),
    "status": Help(("status", "status --watch", "status --watch 10 --link 127.0.0.1:8000"), "0 done, also after Ctrl-C with --watch",
                   "2 no SuperLink answers, or the input cannot be used"),
    "stop": Help(("stop", "stop 2744540565070331314"), "0 the run is stopped", "2 no such run goes on, 130 interrupted (Ctrl-C)"),
    "join": Help(("join --run shapes-run --data folder:west --name west",), "0 it joined, 1 it could not"),
    "donor-swap": Help(("donor-swap hdc-run", "donor-swap hdc-run --donors 3")),
    "recluster": Help(("recluster hdc-run",
                       "recluster hdc-run --try hdc-fl.temperature=0.1 --try 'hdc-fl.num-clusters=4 hdc-fl.shrink=true'")),
    "predict": Help(("predict --run shapes-run --client client-003 west/disc shapes/ring/001.png --out answers.csv",
                     "predict --state-dir sites/north --client north scans --format json"),
                    "0 done, 1 a file could not be used (its row says why)"),
    "export": Help(("export --run shapes-run --client client-003 --format safetensors --out client-003.safetensors",
                    "export --run shapes-run --client client-003 --format onnx --out client-003.onnx"),
                   "0 done, 1 the exported file does not give the model's answers and was not kept"),
    "data": Help(("data check folder:shapes", "data split -c dataset=folder:shapes -c partition=dirichlet -c alpha=1 -c clients=6"),
                 "as those of check and split"),
    "data check": Help(("data check folder:shapes", "data check folder:north --classes disc,ring,square",
                        "data check folder:shapes --clients 6 -c partition=dirichlet -c alpha=1"), "0 usable, 1 a finding says STOP"),
    "data split": Help(("data split -c dataset=folder:shapes -c partition=dirichlet -c alpha=1 -c clients=6",
                        "data split -c dataset=table:shapes.csv -c partition=natural -c clients=6 --out split-by-pen")),
    "doctor": Help(("doctor server",
                    "doctor site --superlink fl.example.org:9092 --site north --state-dir sites/north --data folder:scans"),
                   "as those of server and site"),
    "doctor server": Help(("doctor server", "doctor server --certs /etc/fedhearth/certs --state-dir /var/lib/fedhearth/server"),
                          "0 nothing to mend, 1 a line says FAIL"),
    "doctor site": Help(("doctor site --superlink fl.example.org:9092 --site north --state-dir sites/north --data folder:scans "
                         "--classes 3 --shape 1x28x28",), "0 nothing to mend, 1 a line says FAIL"),
}


def add_epilogs(parser: argparse.ArgumentParser, name: str = "") -> None:
    """Give ``parser`` and its commands their examples and exit codes."""
    told = COMMANDS.get(name)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    if told:
        lines = [f"  fedhearth {example}" for example in told.examples]
        codes = textwrap.fill(f"exit codes: {told.codes}, {told.others}", WIDTH, subsequent_indent="  ")
        parser.epilog = "\n".join(["examples:", *lines, codes])
    elif not name:
        parser.epilog = TOP
    for word, below in commands_of(parser).items():
        add_epilogs(below, f"{name} {word}".strip())


def commands_of(parser: argparse.ArgumentParser) -> dict[str, argparse.ArgumentParser]:
    """The commands right below ``parser``, by name."""
    return {word: below for action in parser._actions if isinstance(action, argparse._SubParsersAction)  # noqa: SLF001
            for word, below in action.choices.items()}
