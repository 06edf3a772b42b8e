"""The Ray engine: the app as Flower's own simulation runs it, with the right environment and an honest exit.

``flwr run`` by itself leaves a server behind that later runs would reuse, with this run's environment, and exits with 0
when a run fails (FLOWER.md 0.7, 2.2). So each run has a SuperLink of its own, on a free port, with a private
``FLWR_HOME``; the outcome comes from ``flwr ls``; and whatever was started is ended.
"""

from __future__ import annotations

import json
import math
import os
import re
import shutil
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from deploy.flower_app import CONNECTION, ON_RAY, Place, prepare
from deploy.new_rounds import NewRounds
from server_app.failures import CannotStart, RunFailed
from strategies.config import Scalar

# of Flower's nodes, for each actor: see deploy.ray_server
NODES_AN_ACTOR = 4
START_LIMIT = 90.0
# how a log says that we ourselves gave up, and why
OUR_FAULTS = r"\b(?:\w+\.)*(?:RunFailed|CannotStart|ConfigError): "
UNFIT = r"\b(?:CannotStart|ConfigError): "
OFFLINE = {"FLWR_TELEMETRY_ENABLED": "0", "FLWR_DISABLE_UPDATE_CHECK": "1", "RAY_USAGE_STATS_ENABLED": "0",
           "FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION": "1"}


def simulate(items: Mapping[str, Scalar], folder: Path, workers: int, gpus: int, lock: int,
             on_round: Callable[[dict[str, Any]], None]) -> None:
    """Run ``items`` on Ray to the end.

    Parameters
    ----------
    folder : the run's own, absolute. workers : Ray actors. gpus : how many GPUs they share, an equal part each.
    lock : file descriptor of the folder's lock, which the server's warden inherits: it is held while anybody writes.
    on_round : called with each line of rounds.jsonl as it appears.

    Raises
    ------
    RunFailed
        If the run did not complete, with the last error of its log; ``CannotStart``, as in one process, if that error says
        that the settings or the clients will not do, and no round was played.
    """
    place = Place(folder)
    port, control = free_ports(2)
    prepare(place, items, port, ON_RAY)
    environment = make_environment(place, int(items["threads"]))
    federation = resources(workers, gpus, bool(os.environ.get("RAY_ADDRESS")))
    with place.log.open("ab") as log, superlink(environment, port, control, log, lock):
        command = [tool("flwr", environment), "run", str(place.app), CONNECTION, "--stream",
                   "--run-config", str(place.app.parent / "run-config.toml"),
                   "--federation-config", " ".join(f"{key}={value}" for key, value in federation.items())]
        before = log.tell()  # a resumed run goes on in the log of the one that failed
        with guarded(command, environment, log) as submitted:
            played = watch(submitted, folder / "rounds.jsonl", on_round)
        status = outcome(environment)
    if status != "finished:completed" or not (folder / "summary.json").exists():
        raise failure(place.log, before, played, status)
    shutil.rmtree(place.app.parent.parent, ignore_errors=True)


def resources(workers: int, gpus: int, cluster: bool) -> dict[str, int | float]:
    """What Flower is told of its nodes and actors: ``workers`` actors of a core each, which share ``gpus``.

    In a ``cluster`` (``RAY_ADDRESS`` names it) the actors are as many as its machines have cores for, and Ray refuses to be told
    how many cores those have.
    """
    # rounded down, so that the last actor still fits
    told = {"num-supernodes": NODES_AN_ACTOR * workers, "client-resources-num-cpus": 1,
            "client-resources-num-gpus": math.floor(1e4 * min(1.0, gpus / workers)) / 1e4}
    return told if cluster else {**told, "init-args-num-cpus": workers}


def make_environment(place: Place, threads: int) -> dict[str, str]:
    """This process's environment, with Flower at home in the run's folder and nothing calling out."""
    scripts = str(Path(sys.executable).parent)
    return {**os.environ, **OFFLINE, "FLWR_HOME": str(place.home), "OMP_NUM_THREADS": str(threads), "PYTHONUNBUFFERED": "1",
            "PATH": os.pathsep.join([scripts, os.environ.get("PATH", "")])}


def tool(name: str, environment: Mapping[str, str]) -> str:
    """Path of one of Flower's commands."""
    found = shutil.which(name, path=environment["PATH"])
    if found is None:
        raise RunFailed(f"the command {name!r} is missing; install flwr[simulation] into the environment of this Python")
    return found


def free_ports(count: int) -> list[int]:
    """TCP ports on loopback that nobody uses now."""
    sockets = [socket.socket() for _ in range(count)]
    try:
        for each in sockets:
            each.bind(("127.0.0.1", 0))
        return [each.getsockname()[1] for each in sockets]
    finally:
        for each in sockets:
            each.close()


@contextmanager
def guarded(command: list[str], environment: Mapping[str, str], log: Any, keep: tuple[int, ...] = ()) -> Iterator[subprocess.Popen[bytes]]:
    """Run ``command`` under a warden: it ends with this context, or with this process, and so does all that it started.

    ``keep`` : file descriptors that the warden holds open as long as it lives.
    """
    warden = subprocess.Popen([sys.executable, "-P", str(Path(__file__).with_name("warden.py")), *command], env=environment, stdout=log,
                              stderr=log, stdin=subprocess.PIPE, start_new_session=True, pass_fds=keep)
    try:
        yield warden
    finally:
        assert warden.stdin is not None
        warden.stdin.close()
        warden.wait()


@contextmanager
def superlink(environment: Mapping[str, str], port: int, control: int, log: Any, lock: int) -> Iterator[None]:
    """A SuperLink for this run alone."""
    command = [tool("flower-superlink", environment), "--insecure", "--simulation", "--isolation", "subprocess", "--host", "127.0.0.1",
               "--port", str(port), "--control-api-address", f"127.0.0.1:{control}"]
    with guarded(command, environment, log, keep=(lock,)) as server:
        wait_until_healthy(server, port)
        yield


def wait_until_healthy(server: subprocess.Popen[bytes], port: int) -> None:
    """Until the SuperLink answers; ``RunFailed`` if it does not."""
    end = time.monotonic() + START_LIMIT
    while time.monotonic() < end and server.poll() is None:
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{port}/health", timeout=1):
                return
        except (urllib.error.URLError, OSError):
            time.sleep(0.1)
    raise RunFailed(f"Flower's SuperLink did not start within {START_LIMIT:g} s; its log is flower.log in the run's folder")


def watch(submitted: subprocess.Popen[bytes], lines: Path, on_round: Callable[[dict[str, Any]], None]) -> int:
    """Hand on every new round until ``flwr run --stream`` ends, which it does when the run does. Returns how many there were."""
    rounds, ended = NewRounds(lines), False
    before = rounds.seen
    while not ended:
        ended = submitted.poll() is not None
        for record in rounds.take():
            on_round(record)
        if not ended:
            time.sleep(0.3)
    return rounds.seen - before


def outcome(environment: Mapping[str, str]) -> str:
    """Flower's status of the run, ``finished:completed`` if all went well."""
    command = [tool("flwr", environment), "ls", CONNECTION, "--format", "json"]
    shown = subprocess.run(command, env=environment, capture_output=True, text=True)
    try:
        runs = json.loads(shown.stdout)["runs"]
        return runs[0]["status"] if runs else "never started"
    except (ValueError, KeyError, TypeError):
        return "unknown"


def failure(log: Path, start: int, played: int, status: str) -> RunFailed:
    """The exception that the ServerApp's log, from byte ``start`` on, tells of, after ``played`` rounds.

    A client may log a ``ConfigError`` of its own in a run that fails for another reason, hence the rounds.
    """
    chosen = telling_line(log, start)
    kind = CannotStart if re.search(UNFIT, chosen) and not played else RunFailed
    return kind(f"{without_name(chosen)} (status {status}; the whole log is {log})")


def last_error(log: Path) -> str:
    """The most telling line at the end of the log, without the name of our exception."""
    return without_name(telling_line(log))


def without_name(line: str) -> str:
    return re.sub(rf"^.*?{OUR_FAULTS}", "", line)


def telling_line(log: Path, start: int = 0) -> str:
    """The last line of the log, from byte ``start`` on, that names our exception; else any exception; else the last."""
    text = re.sub(r"\x1b\[[0-9;]*m", "", log.read_bytes()[start:].decode("utf-8", errors="replace"))
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    told = [line for line in lines if re.search(r"\b\w*Error\b: ", line)]
    ours = [line for line in lines if re.search(OUR_FAULTS, line)]
    return (ours or told or lines or ["nothing was logged"])[-1]
