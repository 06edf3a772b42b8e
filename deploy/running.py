"""``fedhearth run``: start an engine, show progress, end with a small table."""

from __future__ import annotations

import errno
import json
import shlex
import signal
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from deploy.fork_server import warm
from deploy.launch import Finished, Launch, check_data, cores, importable_here, locked, new_run, resumed_run
from deploy.live import Display, display
from deploy.overrides import parse_overrides
from deploy.run_log import logged
from strategies.config import ConfigError, RunConfig
from strategies.data_warnings import counted

# what a disk answers that cannot be written to
OF_A_DISK = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO, errno.EROFS}
NO_SCORE = "no served accuracy: none of the clients that took part and answered the closing evaluation has test images"


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
        with display(config.rounds, config.asked_each_round, quiet, config.deadline) as shown, logged(launch.folder / "run.log"):
            summary = _on_ray(launch, workers, lock, shown) if engine == "ray" else _in_process(launch, workers, shown)
    except KeyboardInterrupt:
        print(f"fedhearth: interrupted; go on with: {resume}", file=sys.stderr)
        return 130
    except CannotStart as error:
        print(f"fedhearth: {error}", file=sys.stderr)
        return 2
    except (RunFailed, CheckpointError, ShelfError, DamagedRecords, OSError) as error:
        print(f"fedhearth: {fault(error, launch.folder)}", file=sys.stderr)
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


def fault(error: Exception, folder: Path) -> str:
    """Why a run ended, with the file that could not be read or written, or at least its ``folder`` if the disk failed."""
    if not isinstance(error, OSError) or not error.strerror:
        return str(error)
    where = error.filename or (folder if error.errno in OF_A_DISK else "")
    return f"{where}: {error.strerror}" if where else str(error)


def outcome_table(summary: Mapping[str, Any], folder: Path) -> str:
    """Figures over clients, void rounds and clusters if there are any, what was lost, and where the report is."""
    lines = ["", *_scores(summary)]
    if void := summary.get("void_rounds"):
        lines.append(f"void rounds: {void} of {summary['rounds']} (too few valid replies; a void round changes nothing)")
    if clusters := summary.get("clusters"):
        silhouette = f", silhouette {clusters['silhouette']:.2f}" if clusters.get("silhouette") is not None else ""
        lines.append(f"clusters: {clusters['k']}{silhouette}" + (
            f", agreement with the true groups {clusters['adjusted_rand']:.2f} (adjusted Rand)" if "adjusted_rand" in clusters else ""))
    if summary["dropped"]:
        lines.append("dropped replies: " + ", ".join(f"{count} {reason}" for reason, count in summary["dropped"].items()))
    return "\n".join([*lines, f"report: {folder / 'report.html'}"]) + "\n"


def _scores(summary: Mapping[str, Any]) -> list[str]:
    """The table of figures over clients, served and adapted; where nobody was scored, why there is none."""
    from server_app.sections import raw_words

    lines = []
    raw = raw_words(str(summary.get("method")), summary.get("run_config") or {})
    for kind, when in (("served", "before local training"), ("adapted", "after local training")):
        if summary.get(kind):
            cells = "".join(f"{_figure(summary, kind, name, bool(raw)):>14}" for name in ("mean", "worst", "bottom20"))
            lines.append(f"{f'{kind} ({when})':28} {cells[1:]}{_over(summary, kind)}")
    if tails := (summary.get("held_out") or {}).get("tails"):
        cells = "".join(f"{100 * tails[name]:>14.1f}" for name in ("mean", "worst", "bottom20"))
        lines.append(f"{'held-out clients, served':28}{cells}")
    if lines:
        lines.insert(0, f"{'accuracy in %, over clients':28}{'mean':>14}{'worst':>14}{'bottom 20 %':>14}")
    if not tails and (summary.get("held_out") or {}).get("cannot_serve"):
        lines.append(f"held-out clients, served{'–':>18}  this method cannot serve a client that it has not trained with")
    if summary.get("served_raw") and raw:
        lines.append(f"in brackets: {raw}")
    return lines if summary.get("served") else [*lines, NO_SCORE]


def _over(summary: Mapping[str, Any], kind: str) -> str:
    """``  3 of 20 clients``, where the figures are over fewer clients than took part."""
    scored, clients = summary[kind].get("n"), summary.get("clients")
    return f"  {scored} of {counted(clients, 'client')}" if scored and clients and scored != clients else ""


def _figure(summary: Mapping[str, Any], kind: str, name: str, with_raw: bool) -> str:
    raw = summary.get(f"{kind}_raw") if with_raw else None
    return f"{100 * summary[kind][name]:.1f}" + (f" ({100 * raw[name]:.1f})" if raw else "")
