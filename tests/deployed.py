"""A deployment for tests: one server and sites, started by ``fedhearth`` commands, on loopback or on hosts of their own.

Every process has a log file, ``NAME.log`` in the root folder. A site is client-000, client-001, ..., with its part of
the digits, so that an in-process run of the same settings computes the same.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil

from deploy.simulate import free_ports
from server_app.report import read_rounds
from tests.multihost import SERVER, Network

ROOT = Path(__file__).parent.parent
# this machine may be busy with other tests; an idle one needs a tenth
PATIENCE = 120.0
SMALL = {"partition": "iid", "width": 4, "epochs": 1, "device": "cpu", "threads": 1}
CONNECTED = "is connected"
# a key that the server knows and no site uses
SPARE = "spare"
LOG_OF = ("import sys; from pathlib import Path; from deploy.link import Link\nwith Link(sys.argv[1], Path('certs/ca.crt')) as link:\n"
          "    print(*(link.log(run.id) for run in link.runs() if run.out == sys.argv[2]))")


@dataclass
class Cluster:
    """What runs. ``network`` is None on loopback."""

    root: Path
    sites: tuple[str, ...]
    network: Network | None
    fleet: str
    port: int
    running: dict[str, subprocess.Popen[bytes]] = field(default_factory=dict)

    def words(self, host: str, *words: str) -> list[str]:
        """One of our commands, as it is run on ``host``."""
        return [*self.on(host), sys.executable, "-m", "deploy.cli", *words]

    def on(self, host: str) -> tuple[str, ...]:
        return self.network.inside(host) if self.network else ()

    def run(self, host: str, *words: str, patience: float = PATIENCE) -> subprocess.CompletedProcess[str]:
        """A command of ours, to its end."""
        return self.other(host, *self.words(host, *words)[len(self.on(host)):], patience=patience)

    def other(self, host: str, *words: str, patience: float = PATIENCE) -> subprocess.CompletedProcess[str]:
        """Any command, to its end."""
        return subprocess.run([*self.on(host), *words], cwd=self.root, env=self.environment, capture_output=True, text=True,
                              timeout=patience, stdin=subprocess.DEVNULL)

    def asked(self, *words: str, patience: float = 4 * PATIENCE) -> subprocess.CompletedProcess[str]:
        """A command that talks to the SuperLink."""
        return self.run(SERVER, *words, "--link", f"127.0.0.1:{self.port}", patience=patience)

    def start(self, name: str, host: str, *words: str) -> None:
        """A command of ours that goes on. Its log goes on too, if it is started again."""
        with (self.root / f"{name}.log").open("ab") as log:
            self.running[name] = subprocess.Popen(self.words(host, *words), cwd=self.root, env=self.environment,
                                                  stdin=subprocess.DEVNULL, stdout=log, stderr=log)

    def start_server(self) -> None:
        """Start the SuperLink and wait until it is ready."""
        heard = self.heard(SERVER)
        self.start(SERVER, SERVER, "superlink", "--fleet", self.fleet, "--port", str(self.port))
        self.until(SERVER, "fedhearth: ready", heard)

    def site_words(self, name: str, *more: str) -> list[str]:
        """The words that start a SuperNode."""
        return ["supernode", "--superlink", self.fleet, "--site", name, "--state-dir", f"state-{name}", "--device", "cpu", *more]

    def start_site(self, name: str, *more: str) -> None:
        """Start a site with its part of the data."""
        self.start(name, name, *self.site_words(name, "--partition", f"{self.sites.index(name)}/{len(self.sites)}", *more))

    def connect(self, name: str, *more: str) -> None:
        """Start a site and wait until the server has let it in."""
        heard = self.heard(name)
        self.start_site(name, *more)
        self.until(name, f"fedhearth: {name} {CONNECTED}", heard)

    def submit(self, run: str, **settings: Any) -> Path:
        """Start a run and its follower, ``submit-RUN``; returns the run's folder."""
        given = {"run-id": run, "clients": len(self.sites), **SMALL, **settings}
        self.start(f"submit-{run}", SERVER, "submit", "--link", f"127.0.0.1:{self.port}", "--quiet",
                   *(word for key, value in given.items() for word in ("-c", f"{key}={value}")))
        return self.root / "server" / "runs" / run

    def finished(self, run: str, patience: float = 4 * PATIENCE) -> int:
        """The exit code of the follower of ``run``, once it has ended."""
        return self.running.pop(f"submit-{run}").wait(patience)

    def told(self, name: str) -> str:
        path = self.root / f"{name}.log"
        return path.read_text(errors="replace") if path.exists() else ""

    def heard(self, name: str) -> int:
        """How much ``name`` has said so far."""
        return len(self.told(name))

    def until(self, name: str, text: str, after: int = 0, patience: float = PATIENCE) -> None:
        """Wait until ``name`` has said ``text``, beyond its first ``after`` characters."""
        end = time.monotonic() + patience
        while text not in self.told(name)[after:]:
            alive = name not in self.running or self.running[name].poll() is None
            assert alive and time.monotonic() < end, f"{name} never said {text!r}:\n{self.told(name)[-3000:]}"
            time.sleep(0.1)

    def until_round(self, folder: Path, number: int, patience: float = PATIENCE) -> None:
        """Wait until round ``number`` of the run in ``folder`` is over."""
        end = time.monotonic() + patience
        while max((record["round"] for record in rounds_of(folder)), default=0) < number:
            assert time.monotonic() < end, f"round {number} of {folder.name} never ended; {self.told('submit-' + folder.name)[-3000:]}"
            time.sleep(0.1)

    def online(self) -> set[str]:
        """The sites that the server takes for connected."""
        told = self.asked("status")
        assert told.returncode == 0, told.stderr
        return {line.split()[0] for line in told.stdout.splitlines() if line.split()[1:2] == ["online"]}

    def app_log(self, folder: Path) -> str:
        """What the ServerApps of the runs in ``folder`` have logged; they are over."""
        told = self.other(SERVER, sys.executable, "-c", LOG_OF, f"127.0.0.1:{self.port}", str(folder))
        assert told.returncode == 0, told.stderr
        return told.stdout

    def kill(self, name: str) -> None:
        """As if the power went: SIGKILL for the command and all that it started."""
        child = self.running.pop(name)
        for member in [psutil.Process(child.pid), *psutil.Process(child.pid).children(recursive=True)]:
            try:
                member.kill()
            except psutil.NoSuchProcess:
                continue
        child.wait()

    def stop(self, name: str) -> int:
        """End it as a service manager would; its exit code."""
        return self._stop([name])[name]

    def stop_all(self) -> dict[str, int]:
        """End all that runs, at the same time; exit codes by name."""
        return self._stop(list(self.running))

    def _stop(self, names: list[str]) -> dict[str, int]:
        children = {name: self.running.pop(name) for name in names}
        for child in children.values():
            child.send_signal(signal.SIGTERM)
        for child in children.values():
            try:
                child.wait(PATIENCE)
            except subprocess.TimeoutExpired:
                child.kill()
        return {name: child.wait() for name, child in children.items()}

    def state_dir(self, site: str) -> Path:
        return self.root / f"state-{site}"

    @property
    def environment(self) -> dict[str, str]:
        return {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}


def rounds_of(folder: Path) -> list[dict[str, Any]]:
    """The round records of a run so far."""
    return read_rounds(folder / "rounds.jsonl")


def summary_of(folder: Path) -> dict[str, Any]:
    return json.loads((folder / "summary.json").read_text())


@contextmanager
def deployed(root: Path, count: int, network: Network | None = None, faulty: Sequence[str] = ()) -> Iterator[Cluster]:
    """A server with ``count`` sites connected, secured; everything is ended on the way out.

    ``faulty`` : more words to start the last site with.
    """
    sites = tuple(f"client-{index:03d}" for index in range(count))
    fleet, port = free_ports(2) if network is None else (9092, 8000)
    address = network.addresses[SERVER] if network else "127.0.0.1"
    made = Cluster(root, sites, network, f"{address}:{fleet}", port)
    done = made.run(SERVER, "certs", "--server", address, *(word for name in (*sites, SPARE) for word in ("--site", name)))
    assert done.returncode == 0, done.stderr
    try:
        made.start_server()
        for name in sites:
            made.start_site(name, *(faulty if name == sites[-1] else ()))
        for name in sites:
            made.until(name, f"fedhearth: {name} {CONNECTED}")
        yield made
        codes = made.stop_all()
        assert set(codes.values()) == {0}, codes
    finally:
        made.stop_all()


def host_names(count: int) -> Sequence[str]:
    """The hosts of a network for ``count`` sites, and one for somebody else."""
    return [*(f"client-{index:03d}" for index in range(count)), "stranger"]
