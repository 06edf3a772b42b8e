"""The doctor against real things: a TLS server of our own, Flower's own Fleet port, files, data."""

from __future__ import annotations

import argparse
import ssl
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from ipaddress import ip_address
from pathlib import Path
from socket import socket

import numpy as np
import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat, PublicFormat
from filelock import FileLock

from deploy import doctor
from deploy.checks import Finding, files, fleet, guarded, machine, network
from deploy.checks.network import Address

NOW = datetime.now(UTC)
Key = ec.EllipticCurvePrivateKey


def pem(key: Key) -> bytes:
    return key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())


def certificate(subject: str, key: Key, issuer: str, signer: Key, names: Sequence[str] = (), days: float = 90) -> bytes:
    """A certificate that ends in ``days``; without names it is a CA."""
    def name(text: str) -> x509.Name:
        return x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, text)])

    builder = (x509.CertificateBuilder().subject_name(name(subject)).issuer_name(name(issuer)).public_key(key.public_key())
               .serial_number(x509.random_serial_number())
               .not_valid_before(NOW - timedelta(days=400)).not_valid_after(NOW + timedelta(days=days))
               .add_extension(x509.BasicConstraints(ca=not names, path_length=None), critical=True))
    if names:
        general = [x509.IPAddress(ip_address(n)) if n[0].isdigit() else x509.DNSName(n) for n in names]
        builder = builder.add_extension(x509.SubjectAlternativeName(general), critical=False)
    return builder.sign(signer, hashes.SHA256()).public_bytes(Encoding.PEM)


class Certs:
    """A folder as `fedhearth certs` leaves it."""

    def __init__(self, folder: Path, names: Sequence[str] = ("localhost", "127.0.0.1", "server.example"), days: float = 90) -> None:
        self.folder, self.ca_key = folder, ec.generate_private_key(ec.SECP256R1())
        folder.mkdir(exist_ok=True)
        (folder / "ca.crt").write_bytes(certificate("ca", self.ca_key, "ca", self.ca_key, days=3650))
        self.serve_as(names, days)

    def serve_as(self, names: Sequence[str], days: float = 90) -> None:
        key = ec.generate_private_key(ec.SECP256R1())
        (self.folder / "server.key").touch(mode=0o600)
        (self.folder / "server.key").write_bytes(pem(key))
        (self.folder / "server.pem").write_bytes(certificate("server", key, "ca", self.ca_key, names, days))

    def site(self, name: str) -> Path:
        (self.folder / "sites").mkdir(exist_ok=True)
        key, path = ec.generate_private_key(ec.SECP384R1()), self.folder / "sites" / name
        path.touch(mode=0o600)
        path.write_bytes(key.private_bytes(Encoding.PEM, PrivateFormat.OpenSSH, NoEncryption()))
        path.with_suffix(".pub").write_bytes(key.public_key().public_bytes(Encoding.OpenSSH, PublicFormat.OpenSSH))
        return path


@pytest.fixture
def certs(tmp_path: Path) -> Certs:
    return Certs(tmp_path / "certs")


@contextmanager
def listening(folder: Path | None, alpn: str = "h2") -> Iterator[Address]:
    """Takes connections on loopback, with TLS where ``folder`` holds a server's certificate."""
    with socket() as server:
        server.bind(("127.0.0.1", 0))
        server.listen()
        address = Address("127.0.0.1", server.getsockname()[1])
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        if folder:
            context.load_cert_chain(folder / "server.pem", folder / "server.key")
            context.set_alpn_protocols([alpn])

        def serve() -> None:
            while True:
                try:
                    peer, _ = server.accept()
                except OSError:
                    return
                try:
                    if not folder:
                        peer.sendall(b"HTTP/1.0 400 Bad Request\r\n\r\n")
                        continue
                    with context.wrap_socket(peer, server_side=True) as secure:
                        secure.recv(1)
                except OSError:
                    continue
                finally:
                    peer.close()

        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        try:
            yield address
        finally:
            # wakes accept(), which close() alone does not
            server.shutdown(2)
            thread.join(5)


def free_port() -> int:
    with socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def verdicts(findings: Iterator[Finding]) -> list[tuple[str, str]]:
    return [(found.verdict, found.check) for found in findings]


def test_a_good_server_passes_every_check_of_the_way(certs: Certs) -> None:
    with listening(certs.folder) as address:
        found = [*network.reach(address), *network.tls(address, certs.folder / "ca.crt")]
    assert verdicts(iter(found)) == [("pass", "address"), ("pass", "port"), ("pass", "tls"), ("pass", "expiry")]
    assert f"{NOW + timedelta(days=90):%Y-%m-%d}" in found[-1].text


def test_nothing_listens() -> None:
    *_, last = network.reach(Address("127.0.0.1", free_port()))
    assert (last.verdict, last.check) == ("FAIL", "port") and "nothing listens" in last.text


def test_a_name_that_does_not_resolve() -> None:
    only, = network.reach(Address("no-such-host.invalid", 9092))
    assert (only.verdict, only.check) == ("FAIL", "address")


def test_another_ca_is_told_from_another_name(certs: Certs, tmp_path: Path) -> None:
    other = Certs(tmp_path / "other")
    with listening(certs.folder) as address:
        only, = network.tls(address, other.folder / "ca.crt")
    assert only.verdict == "FAIL" and "not to be trusted with this ca.crt" in only.text


def test_a_wrong_name_tells_the_names_and_the_command_that_keeps_them(certs: Certs) -> None:
    certs.serve_as(("localhost", "server.example"))
    with listening(certs.folder) as address:
        only, = network.tls(address, certs.folder / "ca.crt")
    assert only.verdict == "FAIL" and "is for other names than 127.0.0.1: localhost, server.example;" in only.text
    certs.serve_as(("10.0.0.9", "server.example"))
    with listening(certs.folder) as address:
        only, = network.tls(Address("localhost", address.port), certs.folder / "ca.crt")
    assert only.text.endswith("fedhearth certs --rotate-server --server server.example --server 10.0.0.9")


@pytest.mark.parametrize(("days", "verdict", "check"), [(-1, "FAIL", "tls"), (3, "warn", "expiry"), (31, "pass", "expiry")])
def test_expiry(certs: Certs, days: int, verdict: str, check: str) -> None:
    certs.serve_as(("127.0.0.1",), days)
    with listening(certs.folder) as address:
        *_, last = network.tls(address, certs.folder / "ca.crt")
    assert (last.verdict, last.check) == (verdict, check)
    assert verdict == "pass" or "--rotate-server" in last.text


def test_a_port_without_tls_and_one_without_http2(certs: Certs) -> None:
    with listening(None) as address:
        only, = network.tls(address, certs.folder / "ca.crt")
    assert only.verdict == "FAIL" and "but not in TLS" in only.text
    with listening(certs.folder, alpn="http/1.1") as address:
        found = verdicts(network.tls(address, certs.folder / "ca.crt"))
    assert ("FAIL", "http2") in found


def test_a_ca_file_that_is_none(certs: Certs, tmp_path: Path) -> None:
    (tmp_path / "ca.crt").write_text("not a certificate")
    for ca in (tmp_path / "ca.crt", tmp_path / "missing.crt"):
        only, = network.tls(Address("127.0.0.1", 1), ca)
        assert only.verdict == "FAIL" and "is missing or no certificate" in only.text


@pytest.mark.parametrize(("host", "port", "text"), [("a.b", 1, "a.b:1"), ("::1", 9092, "[::1]:9092"), ("10.0.0.1", 99, "10.0.0.1:99")])
def test_addresses(host: str, port: int, text: str) -> None:
    assert Address.parse(text) == Address(host, port) and str(Address(host, port)) == text


@pytest.mark.parametrize("text", ["host", ":9092", "host:0", "host:65536", "host:x", ""])
def test_addresses_that_are_none(text: str) -> None:
    with pytest.raises(ValueError, match="HOST:PORT"):
        Address.parse(text)


@pytest.mark.parametrize("ahead", [0.0, 4.0, -4.0, 60.0, -300.0, 3600.0, -3600.0, 7000.0])
def test_skew_is_measured_from_verdicts_alone(ahead: float) -> None:
    asked: list[float] = []

    def takes(shift: float) -> bool:
        asked.append(shift)
        return -fleet.BEHIND < ahead + shift < fleet.AHEAD

    assert fleet.skew(takes) == pytest.approx(ahead, abs=fleet.PRECISION)
    assert len(asked) < 70


def test_a_clock_beyond_measure() -> None:
    assert fleet.skew(lambda shift: False) is None


@contextmanager
def flowers_fleet_port(certs: Certs, *known: Key) -> Iterator[Address]:
    """Flower's own Fleet server with node authentication, in this process; ``known`` keys are registered."""
    from flwr.common.constant import NOOP_FLWR_AID
    from flwr.server.superlink.fleet.grpc_rere.node_auth_server_interceptor import NodeAuthServerInterceptor
    from flwr.server.superlink.linkstate import LinkStateFactory
    from flwr.supercore.constant import FLWR_IN_MEMORY_DB_NAME
    from flwr.supercore.object_store import ObjectStoreFactory
    from flwr.supercore.primitives.asymmetric import public_key_to_bytes
    from flwr.superlink.cli.flower_superlink import _run_fleet_api_grpc_rere
    from flwr.superlink.config_loader import get_federation_manager

    objects = ObjectStoreFactory()
    states = LinkStateFactory(FLWR_IN_MEMORY_DB_NAME, get_federation_manager(), objects)
    for key in known:
        states.state().create_node(NOOP_FLWR_AID, "none", public_key_to_bytes(key.public_key()), 0)
    address = Address("127.0.0.1", free_port())
    pair = tuple((certs.folder / name).read_bytes() for name in ("ca.crt", "server.pem", "server.key"))
    server = _run_fleet_api_grpc_rere(str(address), states, objects, True, pair, [NodeAuthServerInterceptor(states)])  # type: ignore[arg-type]
    try:
        yield address
    finally:
        server.stop(0).wait(5)


def test_flowers_own_port_tells_clock_and_key_and_nothing_changes(certs: Certs) -> None:
    mine, stranger = (ec.generate_private_key(ec.SECP384R1()) for _ in range(2))
    with flowers_fleet_port(certs, mine) as address, fleet.Fleet(address, certs.folder / "ca.crt") as link:
        ahead = fleet.skew(link.takes_time)
        assert ahead == pytest.approx(0, abs=1.0)
        shifted = fleet.skew(lambda shift: link.takes_time(shift + 100))
        assert shifted == pytest.approx(100, abs=1.0)
        # twice: the first did not bring the node online
        assert [link.knows(mine), link.knows(mine), link.knows(stranger)] == [True, True, False]
        assert verdicts(fleet.clock(link)) == [("pass", "clock")]
        only, = fleet.registered(link, stranger, "north")
        assert only.verdict == "FAIL" and "north.pub" in only.text


def options(*words: str) -> argparse.Namespace:
    top = argparse.ArgumentParser()
    doctor.add_parser(top.add_subparsers())
    return top.parse_args(["doctor", *words])


def site_words(certs: Certs, address: Address, key: Path, state: Path, *more: str) -> argparse.Namespace:
    return options("site", "--superlink", str(address), "--ca", str(certs.folder / "ca.crt"), "--key", str(key), "--site", "north",
                   "--state-dir", str(state), "--device", "cpu", "--need-gib", "0.001", *more)


def test_a_whole_site(certs: Certs, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = certs.site("north")
    rng = np.random.default_rng(0)
    np.savez(tmp_path / "north.npz", x_train=rng.integers(0, 256, (40, 8, 8, 3), np.uint8), y_train=np.arange(40) % 4)
    _, key = files.site_key(path)
    assert key is not None
    with flowers_fleet_port(certs, key) as address:
        asked = site_words(certs, address, path, tmp_path / "state", "--data", f"npz:{tmp_path / 'north.npz'}", "--classes", "4",
                           "--shape", "3x8x8", "--expect", machine.fingerprint(), "-c", "width=4")
        code = asked.run(asked)
    lines = capsys.readouterr().out.splitlines()
    assert code == 0 and lines[-1].startswith("0 failed, 0 to look at"), lines
    told = {line.split()[1] for line in lines[:-1]}
    assert told >= {"python", "flwr", "torch", "fingerprint", "expect", "key", "address", "port", "tls", "expiry", "clock", "registered",
                    "data", "classes", "model", "state", "space", "lock", "gpu", "threads"}
    assert not (tmp_path / "state").exists(), "looking must not make anything"


def test_a_site_where_all_is_wrong_still_tells_all(certs: Certs, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    asked = site_words(certs, Address("127.0.0.1", free_port()), tmp_path / "nokey", tmp_path, "--data", "npz:/nowhere/data.npz",
                       "--expect", "fedhearth=9,flwr=1.39.0", "--need-gib", "1e9")
    assert asked.run(asked) == 1
    text = capsys.readouterr().out
    wrong = [line.split()[1] for line in text.splitlines() if line.startswith("FAIL")]
    assert wrong == ["expect", "key", "port", "data", "space"]
    assert "/nowhere/data.npz" in text, "the site's own terminal may see its paths"


def test_what_was_declared_and_came_otherwise() -> None:
    from deploy.checks.site_data import Declared, declared_as

    assert verdicts(declared_as(4, "1x8x8", Declared(4, "1x8x8"))) == [("pass", "classes")]
    assert verdicts(declared_as(4, "1x8x8", Declared(5, "3x8x8"))) == [("FAIL", "classes"), ("FAIL", "shape")]
    assert verdicts(declared_as(4, "1x8x8", Declared())) == [("warn", "classes")]


def server_words(certs: Certs, tmp_path: Path, *more: str) -> argparse.Namespace:
    return options("server", "--certs", str(certs.folder), "--state-dir", str(tmp_path / "server"), "--fleet", f"127.0.0.1:{free_port()}",
                   "--port", str(free_port()), "--need-gib", "0.001", *more)


def test_a_whole_server(certs: Certs, tmp_path: Path) -> None:
    certs.site("north").unlink()  # handed to the site
    found = list(doctor.server_findings(server_words(certs, tmp_path)))
    assert {line.verdict for line in found} == {"pass"}, found
    certs.site("south")
    warned = [line for line in doctor.server_findings(server_words(certs, tmp_path)) if line.verdict == "warn"]
    assert len(warned) == 1 and "private keys of south" in warned[0].text


def test_a_running_server_is_recognised_and_an_open_control_port_is_not_let_pass(certs: Certs) -> None:
    with listening(certs.folder) as address:
        found = verdicts(doctor.fleet_port(f"0.0.0.0:{address.port}", certs.folder / "ca.crt"))
        assert found == [("pass", "fleet"), ("pass", "tls"), ("pass", "expiry")]
        assert verdicts(doctor.control_port(address.port)) == [("pass", "control")]


def test_a_control_port_that_others_can_reach(monkeypatch: pytest.MonkeyPatch) -> None:
    import psutil
    from psutil._ntuples import addr, sconn

    one = sconn(3, 2, 1, addr("0.0.0.0", 8000), (), psutil.CONN_LISTEN, 1)
    monkeypatch.setattr(psutil, "net_connections", lambda kind: [one])
    only, = doctor.control_port(8000)
    assert only.verdict == "FAIL" and "bind it to 127.0.0.1" in only.text


def test_certificates_that_do_not_belong_together(certs: Certs, tmp_path: Path) -> None:
    other = Certs(tmp_path / "other")
    (certs.folder / "server.key").write_bytes((other.folder / "server.key").read_bytes())
    *_, last = files.server_certificate(certs.folder)
    assert (last.verdict, last.check) == ("FAIL", "certificate") and "not the key of" in last.text
    (certs.folder / "server.pem").write_bytes((other.folder / "server.pem").read_bytes())
    *_, last = files.server_certificate(certs.folder)
    assert last.verdict == "FAIL" and "not signed by ca.crt" in last.text
    (certs.folder / "ca.crt").unlink()
    *_, last = files.server_certificate(certs.folder)
    assert last.verdict == "FAIL" and "fedhearth certs" in last.text


def test_names_of_the_certificate() -> None:
    known = (["localhost"], ["localhost", "127.0.0.1"], ["x", "localhost", "127.0.0.1"])
    assert [verdicts(files.server_names(names))[0][0] for names in known] == ["FAIL", "warn", "pass"]


def test_keys_that_others_can_read_or_that_are_none(certs: Certs, tmp_path: Path) -> None:
    path = certs.site("north")
    path.chmod(0o644)
    found, key = files.site_key(path)
    assert [line.verdict for line in found] == ["FAIL"] and f"chmod 600 {path}" in found[0].text and key is not None
    (tmp_path / "key").touch(0o600)
    (tmp_path / "key").write_bytes(pem(certs.ca_key))
    found, key = files.site_key(tmp_path / "key")
    assert [line.verdict for line in found] == ["pass", "FAIL"] and key is None
    (certs.folder / "sites" / "bad.pub").write_text("ssh-rsa AAAA")
    assert verdicts(files.site_keys(certs.folder / "sites"))[0] == ("FAIL", "site keys")


def test_folder_space_and_lock(tmp_path: Path) -> None:
    tmp_path.chmod(0o700)
    assert verdicts(files.folder(tmp_path / "a" / "b", 0.0)) == [("pass", "state dir"), ("pass", "space")]
    tmp_path.chmod(0o755)
    assert verdicts(files.folder(tmp_path, 1e9)) == [("warn", "state dir"), ("FAIL", "space")]
    (tmp_path / "lock").touch()
    assert files.unlocked(tmp_path / "lock", "SuperNode").verdict == "pass"
    with FileLock(tmp_path / "lock"):
        assert files.unlocked(tmp_path / "lock", "SuperNode").verdict == "warn"
    assert files.needed(2**30) == 6.0


def test_fingerprints() -> None:
    mine = "fedhearth=0.1.0,flwr=1.39.0,torch=2.14.1,numpy=2.3.4,python=3.11"
    assert machine.compared(mine, mine).verdict == "pass"
    assert machine.compared(mine, mine.replace("2.14.1", "2.14.0")).verdict == "warn"
    for there in (mine.replace("2.14.1", "2.13.1"), mine.replace("3.11", "3.12"), mine.replace("1.39.0", "1.39.1"), "flwr=1.39.0"):
        assert machine.compared(mine, there).verdict == "FAIL"
    assert set(machine.split_fingerprint(machine.fingerprint())) == {"fedhearth", "flwr", "torch", "numpy", "python"}
    assert "+" not in machine.fingerprint()


def test_a_gpu_that_is_not_there_and_too_many_threads() -> None:
    import torch

    assert verdicts(machine.gpu("cpu")) == [("pass", "gpu")]
    assert verdicts(machine.gpu(f"cuda:{torch.cuda.device_count()}")) == [("FAIL", "gpu")]
    assert verdicts(machine.threads(1)) == [("pass", "threads")]
    assert verdicts(machine.threads(10_000)) == [("warn", "threads")]


def test_a_check_that_breaks_down_is_a_failure_and_the_rest_runs(capsys: pytest.CaptureFixture[str]) -> None:
    def broken() -> Iterator[Finding]:
        yield Finding("pass", "one", "fine")
        raise KeyError("two")

    assert doctor.report(guarded("two", broken())) == 1
    assert capsys.readouterr().out.splitlines()[-1] == "1 failed, 0 to look at, 1 passed"
