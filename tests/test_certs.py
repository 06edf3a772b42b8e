"""``fedhearth certs``: what it writes, who can read it, and that nothing is ever overwritten."""

from __future__ import annotations

import socket
import ssl
import stat
import threading
from datetime import UTC, datetime
from ipaddress import ip_address
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import load_ssh_private_key, load_ssh_public_key
from flwr.supercore.primitives.asymmetric import uses_nist_ec_curve

from deploy.certs import Certs, make
from deploy.cli import main
from deploy.link import read_public_key
from strategies.config import ConfigError


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def server_certificate(root: Path) -> x509.Certificate:
    return x509.load_pem_x509_certificate(Certs(root).server.read_bytes())


def names(root: Path) -> tuple[list[str], list[str]]:
    """DNS names and addresses of the server's certificate."""
    found = server_certificate(root).extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    return found.get_values_for_type(x509.DNSName), [str(a) for a in found.get_values_for_type(x509.IPAddress)]


def test_everything_is_made_with_the_right_modes(tmp_path: Path) -> None:
    made = make(tmp_path, ["fl.example.org", "10.0.0.7"], ["ward-a", "ward-b"])
    found = {str(path.relative_to(tmp_path)): mode(path) for path in tmp_path.rglob("*") if path.is_file()}
    assert found == {"ca.crt": 0o644, "ca.key": 0o600, "server.pem": 0o644, "server.key": 0o600, "sites/ward-a": 0o600,
                     "sites/ward-a.pub": 0o644, "sites/ward-b": 0o600, "sites/ward-b.pub": 0o644}
    assert {str(path.relative_to(tmp_path)) for path in made} == set(found)
    assert names(tmp_path) == (["fl.example.org", "localhost"], ["10.0.0.7", "127.0.0.1"])


def test_the_authority_signs_and_the_server_may_not(tmp_path: Path) -> None:
    make(tmp_path, [], [], days=90)
    authority, server = x509.load_pem_x509_certificate(Certs(tmp_path).ca.read_bytes()), server_certificate(tmp_path)
    server.verify_directly_issued_by(authority)
    assert authority.extensions.get_extension_for_class(x509.BasicConstraints).value.ca
    assert not server.extensions.get_extension_for_class(x509.BasicConstraints).value.ca
    now = datetime.now(UTC)
    assert 89 < (server.not_valid_after_utc - now).total_seconds() / 86400 <= 90 and server.not_valid_before_utc < now


def test_a_client_accepts_the_server_by_name_and_by_address_only(tmp_path: Path) -> None:
    make(tmp_path, [], [])
    certs = Certs(tmp_path)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certs.server, certs.server_key)
    listener = socket.create_server(("127.0.0.1", 0))

    def serve() -> None:
        for _ in range(3):
            try:
                context.wrap_socket(listener.accept()[0], server_side=True).close()
            except OSError:
                continue

    server = threading.Thread(target=serve, daemon=True)
    server.start()
    client = ssl.create_default_context(cafile=str(certs.ca))

    def connect(name: str) -> None:
        with socket.create_connection(listener.getsockname()) as plain, client.wrap_socket(plain, server_hostname=name):
            pass

    with listener:
        connect("127.0.0.1")
        connect("localhost")
        with pytest.raises(ssl.SSLCertVerificationError):
            connect("fl.example.org")
        server.join(5)


def test_a_site_key_is_what_flower_takes(tmp_path: Path) -> None:
    make(tmp_path, [], ["ward-a"])
    private = load_ssh_private_key(Certs(tmp_path).site("ward-a").read_bytes(), password=None)
    public = load_ssh_public_key((tmp_path / "sites" / "ward-a.pub").read_bytes())
    assert isinstance(private, ec.EllipticCurvePrivateKey) and isinstance(public, ec.EllipticCurvePublicKey)
    assert private.public_key() == public and public.curve.name == "secp384r1" and uses_nist_ec_curve(public)
    assert read_public_key(tmp_path / "sites" / "ward-a.pub").startswith(b"-----BEGIN PUBLIC KEY-----")
    with pytest.raises(ConfigError, match="is no OpenSSH public key"):
        read_public_key(Certs(tmp_path).ca)


def test_a_further_site_leaves_all_else_as_it_is(tmp_path: Path) -> None:
    make(tmp_path, [], ["ward-a"])
    before = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
    assert [path.name for path in make(tmp_path, [], ["ward-b"])] == ["ward-b", "ward-b.pub"]
    assert {path: path.read_bytes() for path in before} == before


@pytest.mark.parametrize(("servers", "sites", "said"), [
    ([], ["ward-a"], "exists and is never overwritten"),
    ([], ["ward-b", "ward-a"], "exists and is never overwritten"),
    (["fl.example.org"], [], "give --rotate-server as well.*fedhearth certs --rotate-server --server fl.example.org$"),
    ([], [], "nothing else was asked for"),
    ([], ["ward b"], "a site name must be"),
    ([], ["../ca"], "a site name must be"),
    ([], ["ward-c", "Ward-C"], "upper and lower case"),
])
def test_what_cannot_be_done_changes_nothing(servers: list[str], sites: list[str], said: str, tmp_path: Path) -> None:
    make(tmp_path, [], ["ward-a"])
    before = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
    with pytest.raises(ConfigError, match=said):
        make(tmp_path, servers, sites)
    assert {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()} == before


def test_half_an_authority_is_not_overwritten(tmp_path: Path) -> None:
    make(tmp_path, [], [])
    Certs(tmp_path).ca.unlink()
    with pytest.raises(ConfigError, match="ca.key exists and is never overwritten"):
        make(tmp_path, [], [])


@pytest.mark.parametrize("name", ["https://fl.example.org", "fl.example.org:9092", "", "fl example"])
def test_a_server_name_is_a_host(name: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="without a port"):
        make(tmp_path, [name], [])
    assert not list(tmp_path.rglob("*.*"))


def test_a_renewed_server_certificate_keeps_its_names_and_authority(tmp_path: Path) -> None:
    make(tmp_path, ["fl.example.org", "::1"], ["ward-a"])
    old, key = server_certificate(tmp_path), Certs(tmp_path).server_key.read_bytes()
    make(tmp_path, [], [], rotate=True)
    new = server_certificate(tmp_path)
    assert new.serial_number != old.serial_number and Certs(tmp_path).server_key.read_bytes() != key
    assert set(names(tmp_path)[0]) == {"fl.example.org", "localhost"} and set(names(tmp_path)[1]) == {str(ip_address("::1")), "127.0.0.1"}
    new.verify_directly_issued_by(x509.load_pem_x509_certificate(Certs(tmp_path).ca.read_bytes()))
    make(tmp_path, ["other.example.org"], [], rotate=True)
    assert names(tmp_path)[0] == ["other.example.org", "localhost"] and mode(Certs(tmp_path).server_key) == 0o600


def test_new_names_are_refused_with_the_command_that_keeps_the_old_ones(tmp_path: Path) -> None:
    make(tmp_path, ["fl.example.org", "::1"], [])
    with pytest.raises(ConfigError, match="--rotate-server --server fl.example.org --server ::1 --server 10.0.0.9$"):
        make(tmp_path, ["10.0.0.9"], [])
    Certs(tmp_path).server.write_text("damaged")
    with pytest.raises(ConfigError, match="server.pem is damaged, so its names are not known"):
        make(tmp_path, [], [], rotate=True)
    make(tmp_path, ["fl.example.org"], [], rotate=True)
    assert names(tmp_path)[0] == ["fl.example.org", "localhost"]


def test_the_command_says_what_it_wrote(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["certs", "--out", str(tmp_path / "c"), "--site", "ward-a"]
    assert main(words) == 0
    assert f"wrote {tmp_path / 'c' / 'ca.key'}  (secret)" in capsys.readouterr().out
    assert main(words) == 2 and "never overwritten" in capsys.readouterr().err
