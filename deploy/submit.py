"""``fedhearth submit``: start a run on the sites that are connected, follow it, and end with its own exit code.

``flwr run`` exits with 0 even if the run fails (FLOWER.md 0.7), so the outcome is asked of the SuperLink, and a run is
only good if its summary is there too. Interrupting this command does not end the run.
"""

from __future__ import annotations

import argparse
import json
import secrets
import shlex
import shutil
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from deploy.flower_app import CONNECTION, Place, prepare
from deploy.flower_command import flower_command
from deploy.launch import Finished, Launch, new_run, resumed_run
from deploy.link_options import add_arguments, ca_of
from deploy.live import Display, display
from deploy.new_rounds import NewRounds
from deploy.overrides import parse_overrides
from deploy.running import outcome_table
from deploy.simulate import last_error
from server_app.progress import read_progress
from strategies.config import ConfigError, Scalar
from strategies.data_warnings import counted

if TYPE_CHECKING:
    from deploy.link import FlowerRun, Link

DEADLINE = 600.0
ROUND_POLL = 0.5
STATUS_POLL = 2.0
# what Flower 1.39 says of a run whose ServerApp is gone, a minute later; the run's log then holds no reason
HEARTBEAT = "No heartbeat"


def add_parser(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """The command ``submit``."""
    parser = commands.add_parser("submit", help="start a run on the connected sites and follow it")
    parser.add_argument("-c", dest="settings", metavar="KEY=VALUE", action="append", default=[],
                        help="a setting (all of them: fedhearth methods); clients defaults to the sites connected now, "
                             f"deadline to {DEADLINE:g}, out to STATE-DIR/runs/RUN-ID")
    add_arguments(parser)
    parser.add_argument("--state-dir", type=Path, default=Path("server"), metavar="DIR", help="the SuperLink's; default: server")
    parser.add_argument("--resume", default="", metavar="RUN_DIR", help="go on with the interrupted run in RUN_DIR")
    parser.add_argument("--quiet", action="store_true", help="one plain line a round, no bars")
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    """Submit and follow; returns the exit code, raises ``ConfigError`` for what cannot be started."""
    from deploy.link import COMPLETED, Link
    from server_app.watch import check_watchers

    ca = ca_of(options)
    with Link(options.link, ca) as link:
        try:
            launch = _launch(options.settings, options.resume, options.state_dir, link)
        except Finished as done:
            print(f"The run in {done.folder} is finished; there is nothing to resume. Its report: {done.folder / 'report.html'}")
            return 0
        check_watchers(launch.settings.run)
        number = start(launch, options.link, ca)
        again = f"fedhearth submit --resume {shlex.quote(str(launch.folder))}"
        config = launch.settings.run
        print(f"{launch.settings.method.name}, {counted(config.clients, 'site')}, {counted(config.rounds, 'round')}; run {number}\n"
              f"results: {launch.folder}", flush=True)
        try:
            with display(config.rounds, config.asked_each_round, options.quiet, config.deadline) as shown:
                ended = follow(link, number, launch.folder, shown)
        except KeyboardInterrupt:
            print(f"fedhearth: no longer followed, but the run goes on; see fedhearth status, or end it with fedhearth stop {number}",
                  file=sys.stderr)
            return 130
        summary = launch.folder / "summary.json"
        if ended.status != COMPLETED or not summary.exists():
            print(f"fedhearth: the run ended as {ended.status}: {reason(link, ended, launch.folder)}", file=sys.stderr)
            if (launch.folder / "checkpoints").exists():
                print(f"fedhearth: go on from the last complete round with: {again}", file=sys.stderr)
            return 1
    shutil.rmtree(launch.folder / "flower", ignore_errors=True)
    print(outcome_table(json.loads(summary.read_text(encoding="utf-8")), launch.folder), end="")
    return 0


def start(launch: Launch, address: str, ca: Path | None) -> int:
    """Hand the app and its settings to the SuperLink; returns Flower's number of the run.

    Raises
    ------
    ConfigError
        If Flower does not take it.
    """
    place = Place(launch.folder)
    prepare(place, launch.items, 0)
    trust = f"root-certificates = {json.dumps(str(ca))}" if ca else "insecure = true"
    (place.home / "config.toml").write_text(
        f'[superlink]\ndefault = "{CONNECTION}"\n\n[superlink.{CONNECTION}]\naddress = "{address}"\n{trust}\n', encoding="utf-8")
    command = flower_command("flwr", "run", str(place.app), CONNECTION, "--run-config", str(place.app.parent / "run-config.toml"),
                             "--format", "json", home=place.home)
    print(command.shown(), flush=True)
    done = subprocess.run(command.words, env=command.environment, capture_output=True, text=True, stdin=subprocess.DEVNULL)
    try:
        return int(json.loads(done.stdout)["run-id"])
    except (ValueError, KeyError, TypeError):
        told = (done.stdout + done.stderr).strip() or f"exit code {done.returncode}"
        raise ConfigError(f"Flower did not take the run: {told[-2000:]}") from None


def follow(link: Link, number: int, folder: Path, shown: Display) -> FlowerRun:
    """Show every new round until the run is over. A SuperLink that is away for a moment is waited for."""
    rounds, missed, asked = NewRounds(folder / "rounds.jsonl"), 0, 0.0
    while True:
        now = time.monotonic()
        found = None
        if now - asked >= STATUS_POLL:
            asked = now
            try:
                found, missed = link.run(number), 0
            except ConfigError:
                missed += 1
                if missed > 30:
                    raise
        for record in rounds.take():
            shown.round(record)
        if (now_at := read_progress(folder)) is not None and not now_at.closing and now_at.round > rounds.seen:
            shown.reply(now_at.round, now_at.replied, now_at.asked)
        if found is not None and found.over:
            return found
        time.sleep(ROUND_POLL)


def _launch(settings: Sequence[str], resume: str, state: Path, link: Link) -> Launch:
    given = parse_overrides(settings)
    online = sum(node.online for node in link.nodes())
    if not online:
        raise ConfigError("no site is connected; start fedhearth supernode on each (fedhearth status shows who is there) (FH-016)")
    if resume:
        launch = resumed_run(given, resume)
    else:
        launch = _new(given, state, online)
    if launch.settings.run.clients > online:
        raise ConfigError(f"clients is {launch.settings.run.clients}, but only {online} sites are connected (FH-017); start the others, "
                          f"or say -c clients={online}")
    for other in link.runs():
        if not other.over and other.out == str(launch.folder):
            raise ConfigError(f"run {other.id} is still writing to {launch.folder}; end it first (FH-031): fedhearth stop {other.id}")
    return launch


def _new(given: dict[str, Scalar], state: Path, online: int) -> Launch:
    name = str(given.get("run-id") or f"{time.strftime('%Y%m%d-%H%M%S')}-{secrets.token_hex(3)}")
    given = {"deadline": DEADLINE, "clients": online, **given, "run-id": name}
    launch = new_run(given, str(given.get("out") or state.absolute() / "runs" / name))
    # every site keeps its state where its own node config says
    return Launch(replace(launch.settings, run=replace(launch.settings.run, state_dir=str(given.get("state-dir", "")))), launch.folder)


def reason(link: Link, ended: FlowerRun, folder: Path) -> str:
    """Why a run did not complete; its log is put into its folder, as ``flower.log``."""
    if ended.status.endswith(":stopped"):
        return "somebody stopped it"
    if HEARTBEAT in ended.details:
        return f"its ServerApp or the SuperLink was killed (Flower says: {ended.details}) (FH-030)"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "flower.log").write_text(link.log(ended.id), encoding="utf-8")
    except (ConfigError, OSError):
        return ended.details or "Flower gives no reason"
    return f"{last_error(folder / 'flower.log')} (the whole log is {folder / 'flower.log'})"
