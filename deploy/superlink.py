"""``fedhearth superlink``: the server's side, secure unless told otherwise.

Flower's Control and Runtime APIs know no authentication (FLOWER.md 4.5): whoever reaches them can run code on every
site. So they listen on loopback only, and the Fleet port, which sites connect to, is the only one that may be public.

Flower's SuperLink runs under a warden, which ends it however this process ends, and holds the state directory's lock
until then: two of them on one database would deliver messages twice.
"""

from __future__ import annotations

import argparse
import glob
import ipaddress
import signal
import ssl
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from types import FrameType

from deploy.admission import admit, authorised, say
from deploy.certs import Certs
from deploy.flower_command import FlowerCommand, flower_command
from deploy.launch import locked
from deploy.simulate import START_LIMIT, guarded
from deploy.state_dir import private_directory
from strategies.config import ConfigError

FLEET = "0.0.0.0:9092"
PORT = 8000
HANDOVER = 15.0  # s: what a killed one left behind ends within about ten
GIVEN_UP = ("--insecure: nothing is encrypted, and whoever reaches the Fleet port takes part in every run and receives its models; "
            "for tests on one machine only")


@dataclass
class Wishes:
    """What this process was asked by signals: to ``stop`` (SIGTERM, SIGINT), to ``reread`` the sites' keys (SIGHUP)."""

    stop: bool = False
    reread: bool = False

    @classmethod
    def heard(cls) -> Wishes:
        """Wishes that signals make come true from now on; they do nothing else."""
        made = cls()

        def note(number: int, frame: FrameType | None) -> None:
            made.stop = made.stop or number in (signal.SIGTERM, signal.SIGINT)
            made.reread = made.reread or number == getattr(signal, "SIGHUP", None)

        for name in ("SIGTERM", "SIGINT", "SIGHUP"):
            if number := getattr(signal, name, None):  # Windows knows no SIGHUP
                signal.signal(number, note)
        return made


def add_parser(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """The command ``superlink``."""
    parser = commands.add_parser("superlink", help="run the server that sites connect to")
    parser.add_argument("--certs", type=Path, default=Path("certs"), metavar="DIR", help="what fedhearth certs made; default: certs")
    parser.add_argument("--state-dir", type=Path, default=Path("server"), metavar="DIR", help="the database; default: server")
    parser.add_argument("--fleet", default=FLEET, metavar="ADDRESS:PORT", help=f"where sites connect; default: {FLEET}")
    parser.add_argument("--port", type=int, default=PORT, help=f"loopback port of the Control API; default: {PORT}")
    parser.add_argument("--authorize", action="append", default=[], metavar="'GLOB'",
                        help="public keys of the sites that may take part; default: CERTS/sites/*.pub")
    parser.add_argument("--insecure", action="store_true", help="no TLS and no node keys")
    parser.add_argument("--i-know-anyone-can-join", action="store_true", help="allow --insecure on an address that others can reach")
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    """Run a SuperLink in the foreground until SIGTERM or Ctrl-C; returns the exit code. SIGHUP reads the sites' keys again."""
    check_exposure(options.fleet, options.insecure, options.i_know_anyone_can_join)
    certs, state = Certs(options.certs.absolute()), options.state_dir.absolute()
    patterns = [] if options.insecure else options.authorize or [glob.escape(str(certs.root / "sites")) + "/*.pub"]
    authorised(patterns)  # what is wrong there is said before anything starts
    command = superlink_command(certs, state, options.fleet, options.port, options.insecure)
    wishes = Wishes.heard()
    with ExitStack() as held:
        try:
            lock = held.enter_context(locked(state, HANDOVER))
        except ConfigError as error:
            raise ConfigError(f"a SuperLink uses this state directory already, or it cannot be used: {error} (FH-014)") from None
        print(command.shown(), flush=True)
        if options.insecure:
            say(GIVEN_UP)
        child = held.enter_context(guarded(list(command.words), command.environment, None, keep=(lock,)))
        _serve(child, options, patterns, None if options.insecure else certs.ca, wishes)
        code = child.poll()
    if not wishes.stop:
        say(f"the SuperLink ended by itself (exit code {code}); its last words are above")
    return 0 if wishes.stop else 1


def _serve(child: subprocess.Popen[bytes], options: argparse.Namespace, patterns: Sequence[str], ca: Path | None, wishes: Wishes) -> None:
    """Until it ends by itself, or is to be ended."""
    control = f"127.0.0.1:{options.port}"
    if _until_healthy(child, options.port, ca, wishes):
        if not admit(authorised(patterns), control, ca) and ca is not None:
            say("no site's public key is registered from here, so none may be able to connect; see --authorize")
        say(f"ready; sites connect to {options.fleet}, runs are submitted to {control}")
    while child.poll() is None and not wishes.stop:
        if wishes.reread:
            wishes.reread = False
            _admit_again(patterns, control, ca)
        time.sleep(0.2)


def _admit_again(patterns: Sequence[str], control: str, ca: Path | None) -> None:
    """Whatever is wrong now, the SuperLink goes on with the sites that it has."""
    try:
        admitted = admit(authorised(patterns), control, ca)
    except ConfigError as error:
        say(f"warning: the sites' keys were not all read: {error}")
    else:
        say(f"the sites' keys were read again; {admitted} may take part")


def check_exposure(fleet: str, insecure: bool, known: bool) -> None:
    """Raise ``ConfigError`` if the Fleet address is none, or is open to others without protection."""
    host, colon, port = fleet.rpartition(":")
    if not colon or not host or not port.isdecimal() or not 0 < int(port) < 65536:
        raise ConfigError(f"--fleet expects ADDRESS:PORT, got {fleet!r}")
    if insecure and not known and not _loopback(host.strip("[]")):
        raise ConfigError(f"{GIVEN_UP}. {fleet} can be reached by others: use --fleet 127.0.0.1:{port}, or certificates "
                          "(fedhearth certs), or say --i-know-anyone-can-join as well")


def superlink_command(certs: Certs, state: Path, fleet: str, port: int, insecure: bool) -> FlowerCommand:
    """Flower's command. Raises ``ConfigError`` if a certificate is missing."""
    for path in () if insecure else (certs.ca, certs.server, certs.server_key):
        if not path.exists():
            raise ConfigError(f"{path} does not exist; make it with fedhearth certs --server NAME_OR_IP --site NAME, "
                              "or try things out on this machine with --insecure --fleet 127.0.0.1:9092")
    private_directory(state)
    secure = ["--insecure"] if insecure else ["--ssl-ca-certfile", str(certs.ca), "--ssl-certfile", str(certs.server),
                                              "--ssl-keyfile", str(certs.server_key), "--enable-supernode-auth"]
    return flower_command("flower-superlink", *secure, "--fleet-api-address", fleet, "--host", "127.0.0.1", "--port", str(port),
                          "--database", str(state / "link.db"), "--isolation", "subprocess", "--disable-runtime-dependency-installation",
                          home=state / "flower", OMP_NUM_THREADS="1")


def _until_healthy(child: subprocess.Popen[bytes], port: int, ca: Path | None, wishes: Wishes) -> bool:
    """Wait for the SuperLink to answer; False if it ended or was asked to end."""
    context = ssl.create_default_context(cafile=str(ca)) if ca else None
    limit = time.monotonic() + START_LIMIT
    while time.monotonic() < limit and child.poll() is None and not wishes.stop:
        try:
            with urllib.request.urlopen(f"http{'s' if ca else ''}://127.0.0.1:{port}/health", timeout=2, context=context):
                return child.poll() is None
        except (urllib.error.URLError, OSError) as error:
            if isinstance(getattr(error, "reason", None), ssl.SSLCertVerificationError):
                raise ConfigError(f"the server's certificate does not fit: {error.reason}; "  # type: ignore[union-attr]
                                  "renew it with fedhearth certs --rotate-server, or free the port") from None
            time.sleep(0.2)
    if child.poll() is None and not wishes.stop:
        raise ConfigError(f"the SuperLink did not answer within {START_LIMIT:g} s; what it said is above")
    return False


def _loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"
