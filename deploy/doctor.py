"""``fedhearth doctor server`` and ``fedhearth doctor site``: look before you start, and when something is wrong.

One line a check: pass, warn, or FAIL with what to do. Exit code 0 unless a line says FAIL. Nothing is changed on either
machine, and a running node is not disturbed (``checks/fleet.py`` says why).
"""

from __future__ import annotations

import argparse
from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path

from deploy.checks import Finding, failed, guarded, passed, warned

SERVER_GIB = 5.0
SITE_GIB = 1.0
CONTROL_PORT = 8000


def add_parser(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """The command and its options; ``run`` is what it does."""
    doctor = commands.add_parser("doctor", help="check a machine before it joins, or when something is wrong")
    sides = doctor.add_subparsers(metavar="SIDE", required=True)
    server = sides.add_parser("server", help="the machine of the SuperLink")
    server.add_argument("--certs", type=Path, default=Path("certs"), metavar="DIR", help="what `fedhearth certs` made; default: certs")
    server.add_argument("--state-dir", type=Path, default=Path("server"), metavar="DIR", help="the server's state; default: server")
    server.add_argument("--fleet", default="0.0.0.0:9092", metavar="ADDR", help="where sites connect; default: 0.0.0.0:9092")
    server.add_argument("--port", type=int, default=CONTROL_PORT, help="the Control API's port, loopback only; default: 8000")
    _common(server, SERVER_GIB)
    server.set_defaults(run=run_server)
    site = sides.add_parser("site", help="the machine of a SuperNode")
    site.add_argument("--superlink", required=True, metavar="HOST:PORT")
    site.add_argument("--ca", type=Path, default=Path("certs/ca.crt"), metavar="FILE", help="default: certs/ca.crt")
    site.add_argument("--key", type=Path, metavar="FILE", help="this site's private key; default: certs/sites/NAME")
    site.add_argument("--insecure", action="store_true", help="no TLS and no key, as the server was started")
    site.add_argument("--site", required=True, metavar="NAME")
    site.add_argument("--state-dir", type=Path, required=True, metavar="DIR")
    site.add_argument("--data", default="", metavar="URI",
                      help="folder:PATH, table:FILE, npz:FILE, cifar10:FOLDER, torchvision:NAME@ROOT, hub:NAME or module:function")
    site.add_argument("--device", default="auto", help="auto, cpu, cuda or cuda:NUMBER; default: auto")
    site.add_argument("--threads", type=int, default=1, metavar="N", help="CPU threads; default: 1")
    site.add_argument("--module-path", type=Path, default=Path(), metavar="DIR", help="where module:function is found; default: here")
    site.add_argument("--classes", type=int, default=0, metavar="N", help="how many classes all sites agreed on")
    site.add_argument("--shape", default="", metavar="CxHxW", help="the image shape all sites agreed on, e.g. 3x32x32")
    site.add_argument("-c", dest="settings", metavar="KEY=VALUE", action="append", default=[],
                      help="settings of the run to come, e.g. model=resnet18")
    _common(site, SITE_GIB)
    site.set_defaults(run=run_site)


def _common(parser: argparse.ArgumentParser, gib: float) -> None:
    parser.add_argument("--need-gib", type=float, metavar="GIB",
                        help=f"free disk space to insist on; default: {gib:g}, a site more for a big model")
    parser.add_argument("--expect", default="", metavar="FINGERPRINT", help="the other side's fingerprint line, to compare versions")


def run_server(options: argparse.Namespace) -> int:
    """Check the server's machine; 1 if a check fails."""
    return report(server_findings(options))


def run_site(options: argparse.Namespace) -> int:
    """Check a site's machine; 1 if a check fails."""
    return report(site_findings(options))


def report(findings: Iterable[Finding]) -> int:
    """Print each finding as it comes, and a last line that counts."""
    count: Counter[str] = Counter()
    for finding in findings:
        count[finding.verdict] += 1
        print(finding, flush=True)
    print(f"{count['FAIL']} failed, {count['warn']} to look at, {count['pass']} passed")
    return 1 if count["FAIL"] else 0


def server_findings(options: argparse.Namespace) -> Iterator[Finding]:
    """All checks of the server's side, in the order in which one would mend things."""
    from deploy.checks import files, machine

    yield from guarded("versions", machine.versions(options.expect))
    yield from guarded("certificate", files.server_certificate(options.certs))
    yield from guarded("site keys", files.site_keys(options.certs / "sites"))
    yield from guarded("state dir", files.folder(options.state_dir, options.need_gib or SERVER_GIB))
    yield from guarded("fleet", fleet_port(options.fleet, options.certs / "ca.crt"))
    yield from guarded("control", control_port(options.port))


def fleet_port(text: str, ca: Path) -> Iterator[Finding]:
    """The Fleet address is free, or our SuperLink is what serves there."""
    import socket

    from deploy.checks.network import Address, tls

    try:
        address = Address.parse(text)
    except ValueError as error:
        yield failed("fleet", f"--fleet: {error}")
        return
    host = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(address.host, address.host)
    local = Address(host, address.port)
    try:
        socket.create_connection((local.host, local.port), 2).close()
    except ConnectionRefusedError:
        yield passed("fleet", f"{address} is free")
    except OSError as error:
        yield failed("fleet", f"{address} is not an address of this machine ({error}); use 0.0.0.0:{address.port}")
    else:
        yield passed("fleet", f"something serves at {address}; its certificate:")
        yield from tls(local, ca)


def control_port(port: int) -> Iterator[Finding]:
    """Nothing but loopback may reach the Control API: whoever does runs code at every site."""
    import psutil

    try:
        listening = [found.laddr for found in psutil.net_connections("tcp") if found.status == psutil.CONN_LISTEN and found.laddr]
    except psutil.AccessDenied:
        yield warned("control", f"this user may not list sockets; make sure that port {port} listens on 127.0.0.1 only")
        return
    public = sorted({spot.ip for spot in listening if spot.port == port and spot.ip not in ("127.0.0.1", "::1")})
    if public:
        yield failed("control", f"port {port} listens on {', '.join(public)}: whoever reaches it runs code at every site; "
                                "bind it to 127.0.0.1")
    else:
        yield passed("control", f"port {port} is {'on loopback only' if any(spot.port == port for spot in listening) else 'not in use'}")


def site_findings(options: argparse.Namespace) -> Iterator[Finding]:
    """All checks of a site's side; what needs the network comes before what takes seconds."""
    from deploy.checks import files, machine
    from deploy.checks.site_data import Declared, data
    from deploy.overrides import parse_overrides
    from strategies.config import check_site_name
    from strategies.registry import parse_run_config

    check_site_name(options.site)
    settings = parse_run_config(parse_overrides(options.settings))
    yield from guarded("versions", machine.versions(options.expect))
    yield from guarded("network", site_network(options))
    node = {"site": options.site, "data": options.data, "state-dir": str(options.state_dir), "device": options.device}
    sizes: list[int] = []
    declared = Declared(options.classes, options.shape.lower())
    yield from guarded("data", data(settings, node, declared, options.module_path, sizes))
    need = options.need_gib or max(SITE_GIB, files.needed(sizes[0] if sizes else 0))
    yield from guarded("state dir", files.folder(options.state_dir, need))
    yield files.unlocked(options.state_dir / f"{options.site}.supernode" / ".lock", "SuperNode of this site")
    yield from guarded("gpu", machine.gpu(options.device))
    yield from guarded("threads", machine.threads(options.threads))


def site_network(options: argparse.Namespace) -> Iterator[Finding]:
    """From the address to the server's own word on clock and key; stops where going on makes no sense."""
    from deploy.checks import files, fleet, network

    try:
        address = network.Address.parse(options.superlink)
    except ValueError as error:
        yield failed("address", f"--superlink: {error}")
        return
    findings, key = ([], None) if options.insecure else files.site_key(options.key or Path("certs", "sites", options.site))
    yield from findings
    for chain in (network.reach(address), *([] if options.insecure else [network.tls(address, options.ca)])):
        bad = False
        for finding in chain:
            bad = bad or finding.verdict == "FAIL"
            yield finding
        if bad:
            yield warned("clock", "clock and registration are known only when the above is mended")
            return
    with fleet.Fleet(address, None if options.insecure else options.ca) as link:
        yield from fleet.clock(link)
        if key is not None:
            yield from fleet.registered(link, key, options.site)
