"""``fedhearth superlink``: the server's side, secure unless told otherwise.

Flower's Control and Runtime APIs know no authentication (FLOWER.md 4.5): whoever reaches them can run code on every
site. So they listen on loopback only, and the Fleet port, which sites connect to, is the only one that may be public.
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
from collections.abc import Iterable
from pathlib import Path
from types import FrameType

from deploy.certs import Certs
from deploy.flower_command import FlowerCommand, end, flower_command
from deploy.simulate import START_LIMIT
from strategies.config import ConfigError, check_site_name

FLEET = "0.0.0.0:9092"
PORT = 8000
GIVEN_UP = ("--insecure: nothing is encrypted, and whoever reaches the Fleet port takes part in every run and receives its models; "
            "for tests on one machine only")


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
    """Run a SuperLink in the foreground until SIGTERM or Ctrl-C; returns the exit code."""
    check_exposure(options.fleet, options.insecure, options.i_know_anyone_can_join)
    keys = [] if options.insecure else authorised(options.authorize or [str(options.certs / "sites" / "*.pub")])
    certs, state = Certs(options.certs.absolute()), options.state_dir.absolute()
    command = superlink_command(certs, state, options.fleet, options.port, options.insecure)
    print(command.shown(), flush=True)
    if options.insecure:
        print(f"fedhearth: {GIVEN_UP}", flush=True)
    stopping = _stop_on_signals()
    child = command.start()
    try:
        ca = None if options.insecure else certs.ca
        if _until_healthy(child, options.port, ca, stopping):
            _admit(keys, options.port, ca)
            print(f"fedhearth: ready; sites connect to {options.fleet}, runs are submitted to 127.0.0.1:{options.port}", flush=True)
        while child.poll() is None and not stopping:
            time.sleep(0.2)
    finally:
        code = child.poll()
        end(child)
    if not stopping:
        print(f"fedhearth: the SuperLink ended by itself (exit code {code}); its last words are above", flush=True)
    return 0 if stopping else 1


def check_exposure(fleet: str, insecure: bool, known: bool) -> None:
    """Raise ``ConfigError`` if the Fleet address is none, or is open to others without protection."""
    host, colon, port = fleet.rpartition(":")
    if not colon or not host or not port.isdecimal() or not 0 < int(port) < 65536:
        raise ConfigError(f"--fleet expects ADDRESS:PORT, got {fleet!r}")
    if insecure and not known and not _loopback(host.strip("[]")):
        raise ConfigError(f"{GIVEN_UP}. {fleet} can be reached by others: use --fleet 127.0.0.1:{port}, or certificates "
                          "(fedhearth certs), or say --i-know-anyone-can-join as well")


def authorised(patterns: Iterable[str]) -> list[Path]:
    """The public keys that the patterns match; a file's stem is the site's name. Raises ``ConfigError`` if a name is none."""
    found = sorted({Path(path) for pattern in patterns for path in glob.glob(pattern)})
    for path in found:
        check_site_name(path.stem)
    if len({path.stem for path in found}) < len(found):
        raise ConfigError("--authorize found two keys for one site name; a site has one key")
    return found


def superlink_command(certs: Certs, state: Path, fleet: str, port: int, insecure: bool) -> FlowerCommand:
    """Flower's command. Raises ``ConfigError`` if a certificate is missing."""
    for path in () if insecure else (certs.ca, certs.server, certs.server_key):
        if not path.exists():
            raise ConfigError(f"{path} does not exist; make it with fedhearth certs --server NAME_OR_IP --site NAME, "
                              "or try things out on this machine with --insecure --fleet 127.0.0.1:9092")
    state.mkdir(parents=True, exist_ok=True)
    secure = ["--insecure"] if insecure else ["--ssl-ca-certfile", str(certs.ca), "--ssl-certfile", str(certs.server),
                                              "--ssl-keyfile", str(certs.server_key), "--enable-supernode-auth"]
    return flower_command("flower-superlink", *secure, "--fleet-api-address", fleet, "--host", "127.0.0.1", "--port", str(port),
                          "--database", str(state / "link.db"), "--isolation", "subprocess", "--disable-runtime-dependency-installation",
                          home=state / "flower", OMP_NUM_THREADS="1")


def _admit(keys: list[Path], port: int, ca: Path | None) -> None:
    """Register the keys that are not known yet."""
    from deploy.link import Link

    if not keys:
        if ca is not None:
            print("fedhearth: no public keys found, so no site can connect yet; see --authorize", flush=True)
        return
    with Link(f"127.0.0.1:{port}", ca) as link:
        for key in keys:
            print(f"fedhearth: site {key.stem} {'admitted' if link.register(key, key.stem) else 'was admitted before'}", flush=True)


def _until_healthy(child: subprocess.Popen[bytes], port: int, ca: Path | None, stopping: list[int]) -> bool:
    """Wait for the SuperLink to answer; False if it ended or was asked to end."""
    context = ssl.create_default_context(cafile=str(ca)) if ca else None
    limit = time.monotonic() + START_LIMIT
    while time.monotonic() < limit and child.poll() is None and not stopping:
        try:
            with urllib.request.urlopen(f"http{'s' if ca else ''}://127.0.0.1:{port}/health", timeout=2, context=context):
                return child.poll() is None
        except (urllib.error.URLError, OSError) as error:
            if isinstance(getattr(error, "reason", None), ssl.SSLCertVerificationError):
                raise ConfigError(f"the server's certificate does not fit: {error.reason}; "  # type: ignore[union-attr]
                                  "renew it with fedhearth certs --rotate-server, or free the port") from None
            time.sleep(0.2)
    if child.poll() is None and not stopping:
        raise ConfigError(f"the SuperLink did not answer within {START_LIMIT:g} s; what it said is above")
    return False


def _stop_on_signals() -> list[int]:
    """A list that SIGTERM and SIGINT add themselves to; they do nothing else."""
    seen: list[int] = []

    def note(number: int, frame: FrameType | None) -> None:
        seen.append(number)

    signal.signal(signal.SIGTERM, note)
    signal.signal(signal.SIGINT, note)
    return seen


def _loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"
