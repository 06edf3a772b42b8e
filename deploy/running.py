"""``fedhearth run``: start an engine, show progress, end with a small table."""

from __future__ import annotations

import json
import logging
import shlex
import signal
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from deploy.fork_server import warm
from deploy.launch import Finished, Launch, check_data, cores, importable_here, locked, new_run, resumed_run
from deploy.live import Display, display
from deploy.overrides import parse_overrides
from strategies.config import ConfigError, RunConfig


def run(settings: Sequence[str], engine: str, workers: int | None, out: str, resume: str, quiet: bool) -> int:
    """Train, and return the exit code; raises ``ConfigError`` for input that cannot be used."""
    from server_app.watch import check_watchers

    importable_here()
    given = parse_overrides(settings)
    if resume and out:
        raise ConfigError("--out names a new run's folder and --resume an old one's; give one of them")
    try:
        launch = resumed_run(given, resume) if resume else new_run(given, out)
    except Finished as done:
        print(f"The run in {done.folder} is finished; there is nothing to resume. Its report: {done.folder / 'report.html'}")
        return 0
    workers = processes(launch.settings.run, engine, workers)
    check_watchers(launch.settings.run)
    if workers > 1 and engine == "inprocess":
        warm()  # workers load while this process does
    check_data(launch.settings)
    with locked(launch.folder) as lock:
        return _supervised(launch, engine, workers, lock, quiet)


def processes(run: RunConfig, engine: str, asked: int | None) -> int:
    """How many processes train: as many as ``asked``, else one a core; a cohort is trained in one.

    Raises
    ------
    ConfigError
        If the run wants a cohort, and an engine or workers that cannot have one.
    """
    if run.cohort == 1:
        # more workers than clients would only take memory
        return min(asked or cores(), run.clients)
    if engine == "ray" or (asked or 1) > 1:
        raise ConfigError(f"cohort = {run.cohort} trains clients at once in one process of the in-process engine, got --engine {engine}"
                          f"{f' --workers {asked}' if asked else ''}; leave these out, or set cohort = 1")
    return 1


def _supervised(launch: Launch, engine: str, workers: int, lock: int, quiet: bool) -> int:
    """Run under the folder's lock, and say in one line how it ended."""
    from server_app.checkpoint import CheckpointError
    from server_app.encoder_shelf import ShelfError
    from server_app.report import DamagedRecords
    from server_app.roster import CannotStart
    from server_app.rounds import RunFailed

    config = launch.settings.run
    resume = f"fedhearth run --resume {shlex.quote(str(launch.folder))}" + (" --engine ray" if engine == "ray" else "")
    print(f"{launch.settings.method.name} on {config.dataset}, partition {config.partition}, {counted(config.clients, 'client')}, "
          f"{counted(config.rounds, 'round')}, {engine} engine, {counted(workers, 'worker')}\nresults: {launch.folder}", flush=True)
    try:
        with logged(launch.folder / "run.log"), display(config.rounds, config.asked_each_round, quiet, config.deadline) as shown:
            summary = _on_ray(launch, workers, lock, shown) if engine == "ray" else _in_process(launch, workers, shown)
    except KeyboardInterrupt:
        print(f"fedhearth: interrupted; go on with: {resume}", file=sys.stderr)
        return 130
    except CannotStart as error:
        print(f"fedhearth: {error}", file=sys.stderr)
        return 2
    except (RunFailed, CheckpointError, ShelfError, DamagedRecords, OSError) as error:
        print(f"fedhearth: {error}", file=sys.stderr)
        if (launch.folder / "checkpoints").exists():
            print(f"fedhearth: go on from the last complete round with: {resume}", file=sys.stderr)
        return 1
    print(outcome_table(summary, launch.folder), end="")
    return 0


def _in_process(launch: Launch, workers: int, shown: Display) -> dict[str, Any]:
    from flwr.app import Context, RecordDict

    from deploy.inprocess import RUN_ID, SERVER_NODE, InProcessGrid
    from server_app.main import serve

    # Ctrl-C is for this process alone; workers inherit that they ignore it and end when their pipe closes
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        grid = InProcessGrid(launch.items, launch.settings.run.clients, workers)
    finally:
        signal.signal(signal.SIGINT, before)
    try:
        context = Context(RUN_ID, SERVER_NODE, {}, RecordDict(), dict(launch.items))
        return serve(grid, context, "inprocess", shown.reply, shown.round)
    finally:
        grid.close()


def _on_ray(launch: Launch, workers: int, lock: int, shown: Display) -> dict[str, Any]:
    from deploy.simulate import simulate

    gpus = 0
    if launch.settings.run.device != "cpu":
        import torch

        gpus = torch.cuda.device_count()
    simulate(launch.items, launch.folder, workers, gpus, lock, shown.round)
    return json.loads((launch.folder / "summary.json").read_text(encoding="utf-8"))


def outcome_table(summary: Mapping[str, Any], folder: Path) -> str:
    """Served and adapted figures over clients, clusters if there are any, and where the report is."""
    from server_app.sections import raw_words

    lines = ["", f"{'accuracy in %, over clients':28}{'mean':>14}{'worst':>14}{'bottom 20 %':>14}"]
    raw = raw_words(str(summary.get("method")), summary.get("run_config") or {})
    for kind, when in (("served", "before local training"), ("adapted", "after local training")):
        if summary.get(kind):
            cells = "".join(f"{_figure(summary, kind, name, bool(raw)):>14}" for name in ("mean", "worst", "bottom20"))
            lines.append(f"{f'{kind} ({when})':28} {cells[1:]}")
    if tails := (summary.get("held_out") or {}).get("tails"):
        cells = "".join(f"{100 * tails[name]:>14.1f}" for name in ("mean", "worst", "bottom20"))
        lines.append(f"{'held-out clients, served':28}{cells}")
    elif (summary.get("held_out") or {}).get("cannot_serve"):
        lines.append(f"held-out clients, served{'–':>18}  this method cannot serve a client that it has not trained with")
    if summary.get("served_raw") and raw:
        lines.append(f"in brackets: {raw}")
    if clusters := summary.get("clusters"):
        silhouette = f", silhouette {clusters['silhouette']:.2f}" if clusters.get("silhouette") is not None else ""
        lines.append(f"clusters: {clusters['k']}{silhouette}" + (
            f", agreement with the true groups {clusters['adjusted_rand']:.2f} (adjusted Rand)" if "adjusted_rand" in clusters else ""))
    if summary["dropped"]:
        lines.append("dropped replies: " + ", ".join(f"{count} {reason}" for reason, count in summary["dropped"].items()))
    return "\n".join([*lines, f"report: {folder / 'report.html'}"]) + "\n"


def counted(number: int, thing: str) -> str:
    """``1 round``, ``2 rounds``."""
    return f"{number} {thing}{'' if number == 1 else 's'}"


def _figure(summary: Mapping[str, Any], kind: str, name: str, with_raw: bool) -> str:
    raw = summary.get(f"{kind}_raw") if with_raw else None
    return f"{100 * summary[kind][name]:.1f}" + (f" ({100 * raw[name]:.1f})" if raw else "")


class _Brief(logging.Formatter):
    """The message alone: tracebacks belong in the run's log."""

    def format(self, record: logging.LogRecord) -> str:
        return f"fedhearth: {record.getMessage()}"


@contextmanager
def logged(file: Path | None) -> Iterator[None]:
    """Everything into the run's log, if there is one; warnings, without tracebacks, to stderr."""
    whole = logging.FileHandler(file, encoding="utf-8") if file else logging.NullHandler()
    brief = logging.StreamHandler()
    whole.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(name)s: %(message)s"))
    brief.setFormatter(_Brief())
    brief.setLevel(logging.WARNING)
    root = logging.getLogger()
    before, level = list(root.handlers), root.level
    root.handlers[:] = [whole, brief]
    root.setLevel(logging.INFO)
    try:
        yield
    finally:
        root.handlers[:] = before
        root.setLevel(level)
        whole.close()
