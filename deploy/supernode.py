"""``fedhearth supernode``: a site's side. Starts Flower's SuperNode, says why it gets no answer, and starts it again.

After a crash a SuperLink takes a site for online for up to a minute and refuses it meanwhile, and Flower's SuperNode
gives up at the first refusal (FLOWER.md 3.4). So it is started again, after 5, 10 and then every 20 seconds.
"""

from __future__ import annotations

import argparse
import itertools
import math
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import FrameType

from deploy.flower_command import FlowerCommand, end, flower_command, flower_path
from deploy.launch import locked, place
from deploy.reach import Address, look
from deploy.simulate import free_ports
from deploy.state_dir import private_directory
from deploy.warm import COMMAND, WarmClients, usable
from strategies.config import ConfigError, check_site_name

# Flower's own default is a look every second
BRISK = {"FLWR_SUPEREXEC_TASK_POLL_INTERVAL": "0.1"}
DELAYS = (5.0, 10.0, 20.0)
TELL_AGAIN = 60.0
ACCEPTED = "SuperNode ID: "
# what Flower 1.39 says when it gets no answer, when it is refused, and when TLS fails
SILENCE, REFUSED, NO_TLS = "Connection attempt failed", "Failed to activate SuperNode", "handshake"
NOT_LET_IN = ("the server does not let this site in. Either its key is not registered there (on the server: fedhearth superlink "
              "--authorize with {site}.pub), or another SuperNode uses this key, or this site crashed less than a minute "
              "ago and still counts as online, which passes (FH-001)")
STILL_ONLINE = "the server still counts this site as online from before; that passes within a minute"


def add_parser(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """The command ``supernode``."""
    parser = commands.add_parser("supernode", help="run a site that takes part")
    parser.add_argument("--superlink", required=True, metavar="HOST:PORT", help="the server's Fleet port")
    parser.add_argument("--site", required=True, metavar="NAME", help="this site's name, always the same")
    parser.add_argument("--ca", type=Path, default=Path("certs/ca.crt"), metavar="FILE", help="default: certs/ca.crt")
    parser.add_argument("--key", type=Path, metavar="FILE", help="this site's private key; default: certs/sites/NAME")
    parser.add_argument("--state-dir", type=Path, required=True, metavar="DIR", help="where this site keeps what never leaves it")
    parser.add_argument("--data", default="", metavar="URI",
                        help="folder:PATH, table:FILE, npz:FILE, cifar10:FOLDER, torchvision:NAME@ROOT, hub:NAME or module:function; "
                             "default: the run's dataset")
    parser.add_argument("--device", default="", metavar="DEVICE", help="cpu or cuda:N; default: the run's")
    parser.add_argument("--threads", type=int, default=1, metavar="N", help="CPU threads; default: 1")
    parser.add_argument("--module-path", type=Path, default=Path(), metavar="DIR", help="where module:function is found; default: here")
    parser.add_argument("--partition", metavar="I/N", help="for trying things out: this site is part I (from 0) of a data set divided in N")
    parser.add_argument("--cold", action="store_true", help="start every client process from nothing: seconds slower a message, some "
                                                            "hundred MB less memory between messages")
    parser.add_argument("--insecure", action="store_true", help="the SuperLink was started with --insecure")
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    """Keep a SuperNode running until SIGTERM or Ctrl-C; returns the exit code."""
    config, settings = node_config(options), environment(options)
    ca = None if options.insecure else _file(options.ca, "--ca")
    key = None if options.insecure else _file(options.key or Path("certs", "sites", options.site), "--key")
    try:
        Address.parse(options.superlink)
    except ValueError as error:
        raise ConfigError(f"--superlink: {error}") from None
    own = private_directory(options.state_dir.absolute()) / f"{options.site}.supernode"
    with ExitStack() as held:
        try:
            lock = held.enter_context(locked(own))
        except ConfigError as error:
            raise ConfigError(f"a SuperNode of the site {options.site} runs on this machine already, or its state directory "
                              f"cannot be used: {error} (FH-009)") from None
        found = look(options.superlink, ca)
        if found.hopeless:
            raise ConfigError(found.text)
        command = partial(supernode_command, options.superlink, ca, key, config, own / "flower", settings)
        ahead: tuple[str, ...] = ()
        if usable() and not options.cold:
            ahead = (str(held.enter_context(WarmClients(own, flower_path(COMMAND), command().settings)).scripts),)
        return Supervision(options.site, options.superlink, ca, lock).run(lambda: replace(command(), ahead=ahead))


def node_config(options: argparse.Namespace) -> str:
    """What the client app is told of this site, in Flower's notation. Raises ``ConfigError`` for what that cannot carry."""
    check_site_name(options.site)
    items = {"site": options.site, "state-dir": str(options.state_dir.absolute()), "data": _absolute(options.data),
             "device": _device(options.device)[0]}
    for key, value in items.items():
        if any(sign in value for sign in "\"'\\\n"):
            raise ConfigError(f"--{key} must not contain quotes, backslashes or line ends, got {value!r}")
    words = [f'{key}="{value}"' for key, value in items.items() if value]
    if options.partition:
        index, slash, count = options.partition.partition("/")
        if not (slash and index.isdecimal() and count.isdecimal() and int(index) < int(count)):
            raise ConfigError(f"--partition expects I/N with I from 0 to N - 1, got {options.partition!r}")
        words += [f"partition-id={int(index)}", f"num-partitions={int(count)}"]
    return " ".join(words)


def environment(options: argparse.Namespace) -> dict[str, str]:
    """Threads, visible GPUs and the search path of this site's own modules."""
    if options.threads < 1:
        raise ConfigError(f"--threads must be 1 or more, got {options.threads}")
    visible = _device(options.device)[1]
    paths = [str(options.module_path.absolute()), *filter(None, os.environ.get("PYTHONPATH", "").split(os.pathsep))]
    return {"OMP_NUM_THREADS": str(options.threads), **BRISK, "PYTHONPATH": os.pathsep.join(dict.fromkeys(paths)),
            **({"CUDA_VISIBLE_DEVICES": visible} if visible is not None else {})}


def supernode_command(superlink: str, ca: Path | None, key: Path | None, config: str, home: Path,
                      settings: dict[str, str]) -> FlowerCommand:
    """Flower's command; its local port is one that is free now."""
    secure = ["--insecure"] if ca is None else ["--root-certificates", str(ca), "--auth-supernode-private-key", str(key)]
    return flower_command("flower-supernode", *secure, "--superlink", superlink, "--node-config", config, "--host", "127.0.0.1",
                          "--port", str(free_ports(1)[0]), "--isolation", "subprocess", home=home, **settings)


class Supervision:
    """One site's SuperNode, again and again."""

    def __init__(self, site: str, superlink: str, ca: Path | None, lock: int) -> None:
        self._site, self._superlink, self._ca, self._lock = site, superlink, ca, lock
        self._stop = threading.Event()
        self._accepted = self._ever_accepted = False
        self._told: dict[str, float] = {}

    def run(self, command: Callable[[], FlowerCommand]) -> int:
        """Start, wait, start again; 0 once SIGTERM or SIGINT came."""
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, self._asked_to_stop)
        delays = _delays()
        for attempt in itertools.count():
            given, self._accepted = command(), False
            if attempt == 0:
                print(given.shown(), flush=True)
            code = self._once(given)
            if self._stop.is_set():
                break
            if self._accepted:
                delays = _delays()
            delay = next(delays)
            _say(f"the SuperNode ended (exit code {code}); it is started again in {delay:g} s")
            if self._stop.wait(delay):
                break
        _say("stopped")
        return 0

    def _once(self, command: FlowerCommand) -> int | None:
        # the SuperNode holds the lock too, should this process be killed and not it
        child = command.start(stdout=subprocess.PIPE, stderr=subprocess.STDOUT, pass_fds=(self._lock,))
        reader = threading.Thread(target=self._read, args=(child,), daemon=True)
        reader.start()
        try:
            while child.poll() is None and not self._stop.wait(0.2):
                pass
            code = child.poll()
        finally:
            end(child)
        reader.join(timeout=2)
        return code

    def _read(self, child: subprocess.Popen[bytes]) -> None:
        assert child.stdout is not None
        with child.stdout as lines:
            for raw in lines:
                line = raw.decode(errors="replace")
                sys.stdout.write(line)
                sys.stdout.flush()
                self._judge(line)

    def _judge(self, line: str) -> None:
        """Note what the line means, and say the reason if it is bad news."""
        if ACCEPTED in line and not self._accepted:
            self._accepted = self._ever_accepted = True
            self._told.clear()
            _say(f"{self._site} is connected")
        elif REFUSED in line:
            self._tell(STILL_ONLINE if self._ever_accepted else NOT_LET_IN.format(site=self._site))
        elif (SILENCE in line or NO_TLS in line) and not (found := look(self._superlink, self._ca)).reached:
            self._tell(found.text)

    def _tell(self, text: str) -> None:
        """Say it, and the same again only after a minute."""
        if time.monotonic() - self._told.get(text, -math.inf) >= TELL_AGAIN:
            self._told[text] = time.monotonic()
            _say(text)

    def _asked_to_stop(self, number: int, frame: FrameType | None) -> None:
        self._stop.set()


def _delays() -> Iterator[float]:
    return itertools.chain(DELAYS, itertools.repeat(DELAYS[-1]))


def _say(text: str) -> None:
    print(f"fedhearth: {text}", flush=True)


def _file(path: Path, option: str) -> Path:
    if not path.is_file():
        raise ConfigError(f"{option}: {path} does not exist; it comes from fedhearth certs on the server")
    return path.absolute()


def _absolute(data: str) -> str:
    """Flower starts client processes in a folder of its own."""
    from client_app.data.place import with_absolute_place

    return with_absolute_place(data, lambda where: place("--data", where))


def _device(device: str) -> tuple[str, str | None]:
    """The device that the app is told, and ``CUDA_VISIBLE_DEVICES`` if it is to be set.

    A process that sees one GPU cannot take memory on another by mistake. Whoever set the variable keeps it.
    """
    kind, _, number = device.partition(":")
    if device == "" or "CUDA_VISIBLE_DEVICES" in os.environ:
        return device, None
    if kind == "cpu":
        return device, ""
    return ("cuda:0", number) if number else (device, None)
