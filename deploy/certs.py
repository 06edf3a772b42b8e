"""``fedhearth certs``: a certificate authority, the server's certificate, and one key a site.

A site is known by its key: the public half is registered with the server, the private half never leaves the site.
The authority vouches for the server alone; Flower's SuperNodes present no certificate (FLOWER.md 4.5). Our own choices:
P-256 for TLS, P-384 for the node keys (a NIST curve is what Flower accepts), no private key is ever overwritten.
"""

from __future__ import annotations

import argparse
import ipaddress
import os
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
    PublicFormat,
    load_pem_private_key,
)
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from server_app.durable import replacing
from strategies.config import ConfigError, check_site_name

ALWAYS = ("localhost", "127.0.0.1")
CA_DAYS = 3650
# a clock that is a little behind must not find the certificate "not yet valid"
SLACK = timedelta(hours=1)


@dataclass(frozen=True)
class Certs:
    """Where everything lies."""

    root: Path

    @property
    def ca(self) -> Path:
        return self.root / "ca.crt"

    @property
    def ca_key(self) -> Path:
        return self.root / "ca.key"

    @property
    def server(self) -> Path:
        return self.root / "server.pem"

    @property
    def server_key(self) -> Path:
        return self.root / "server.key"

    def site(self, name: str) -> Path:
        """The private key of a site; its public half has the suffix ``.pub``."""
        return self.root / "sites" / name


def add_parser(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """The command ``certs``."""
    parser = commands.add_parser("certs", help="make the certificates and node keys of a deployment")
    parser.add_argument("--out", type=Path, default=Path("certs"), metavar="DIR", help="default: certs")
    parser.add_argument("--server", action="append", default=[], metavar="NAME_OR_IP",
                        help="how sites address the server; localhost and 127.0.0.1 are always included")
    parser.add_argument("--site", action="append", default=[], metavar="NAME", help="make the node key of a site")
    parser.add_argument("--days", type=int, default=825, metavar="N", help="days the server's certificate is valid; default: 825")
    parser.add_argument("--rotate-server", action="store_true", help="renew the server's key and certificate, with the same authority")
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    """Make what was asked for; says each file."""
    made = make(options.out, options.server, options.site, options.days, options.rotate_server)
    for path in made:
        print(f"wrote {path}" + ("  (secret)" if path.stat().st_mode & 0o077 == 0 else ""))
    print(f"To every site: ca.crt and its own sites/NAME. {options.out / 'ca.key'} stays here; the server needs it only to renew.")
    return 0


def make(out: Path, servers: Iterable[str], sites: Iterable[str], days: int = 825, rotate: bool = False) -> list[Path]:
    """Make the authority if there is none, the server's certificate if there is none (or ``rotate``), the keys of ``sites``.

    Returns the files written.

    Raises
    ------
    ConfigError
        If a name is unusable or a file that would be written exists already; nothing was written then.
    """
    certs, servers, sites = Certs(out), list(servers), list(dict.fromkeys(sites))
    fresh = not certs.ca.exists()
    _check(certs, servers, sites, days, fresh, rotate)
    written: list[Path] = []
    if fresh:
        written += _authority(certs)
    if fresh or rotate:
        written += _server(certs, servers or _present_names(certs), days)
    for name in sites:
        written += _site(certs, name)
    return written


def _check(certs: Certs, servers: list[str], sites: list[str], days: int, fresh: bool, rotate: bool) -> None:
    for name in servers:
        _general(name)
    for name in sites:
        check_site_name(name)
    folded = [name.casefold() for name in sites]
    if len(set(folded)) < len(folded):
        raise ConfigError("two of the site names differ in upper and lower case only; rename one")
    if not 1 <= days <= CA_DAYS:
        raise ConfigError(f"--days must be 1 to {CA_DAYS}, got {days}")
    if fresh and rotate:
        raise ConfigError(f"--rotate-server renews a certificate, but {certs.ca} does not exist; leave it out")
    if not fresh and servers and not rotate:
        raise ConfigError(f"{certs.server} exists; to change its names give --rotate-server as well, and every name that is to stay: "
                          f"{rotation([*_present_names(certs), *servers])}")
    if not fresh and not rotate and not sites:
        raise ConfigError(f"{certs.ca} exists, and nothing else was asked for; give --site NAME or --rotate-server")
    new = [certs.ca, certs.ca_key, certs.server, certs.server_key] if fresh else []
    for path in [*new, *(half for name in sites for half in (certs.site(name), certs.site(name).with_name(f"{name}.pub")))]:
        if path.exists():
            raise ConfigError(f"{path} exists and is never overwritten; give another name, or move it away first")


def _authority(certs: Certs) -> list[Path]:
    key = ec.generate_private_key(ec.SECP256R1())
    name = _name("FedHearth CA")
    usage = _key_usage(key_cert_sign=True, crl_sign=True)
    certificate = (_builder(name, name, key.public_key(), CA_DAYS)
                   .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True).add_extension(usage, critical=True)
                   .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False))
    return [_write(certs.ca_key, _pem(key), secret=True),
            _write(certs.ca, certificate.sign(key, hashes.SHA256()).public_bytes(Encoding.PEM))]


def _server(certs: Certs, names: list[str], days: int) -> list[Path]:
    authority = x509.load_pem_x509_certificate(certs.ca.read_bytes())
    signer = load_pem_private_key(certs.ca_key.read_bytes(), password=None)
    assert isinstance(signer, ec.EllipticCurvePrivateKey)
    key = ec.generate_private_key(ec.SECP256R1())
    alternatives = x509.SubjectAlternativeName([_general(name) for name in dict.fromkeys([*names, *ALWAYS])])
    certificate = (_builder(authority.subject, _name("FedHearth server"), key.public_key(), days)
                   .add_extension(alternatives, critical=False)
                   .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
                   .add_extension(_key_usage(digital_signature=True), critical=True)
                   .add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), critical=False)
                   .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(signer.public_key()), critical=False))
    return [_write(certs.server_key, _pem(key), secret=True),
            _write(certs.server, certificate.sign(signer, hashes.SHA256()).public_bytes(Encoding.PEM))]


def _site(certs: Certs, name: str) -> list[Path]:
    key = ec.generate_private_key(ec.SECP384R1())
    private = key.private_bytes(Encoding.PEM, PrivateFormat.OpenSSH, NoEncryption())
    public = key.public_key().public_bytes(Encoding.OpenSSH, PublicFormat.OpenSSH) + f" {name}\n".encode()
    path = certs.site(name)
    return [_write(path, private, secret=True), _write(path.with_name(f"{name}.pub"), public)]


def _present_names(certs: Certs) -> list[str]:
    """The names of the present certificate, which a renewal keeps."""
    if not certs.server.exists():
        return []
    try:
        return names_of(x509.load_pem_x509_certificate(certs.server.read_bytes()))
    except ValueError:
        raise ConfigError(f"{certs.server} is damaged, so its names are not known; move it away, and give all with --server") from None


def names_of(certificate: x509.Certificate) -> list[str]:
    """Host names and IP addresses that ``certificate`` is for."""
    try:
        found = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    except x509.ExtensionNotFound:
        return []
    return [*found.get_values_for_type(x509.DNSName), *map(str, found.get_values_for_type(x509.IPAddress))]


def rotation(names: Iterable[str]) -> str:
    """The command that renews the server's certificate for ``names`` and no others, since it forgets those it is not told."""
    return " ".join(["fedhearth certs --rotate-server", *(f"--server {name}" for name in dict.fromkeys(names) if name not in ALWAYS)])


def _general(name: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(name))
    except ValueError:
        pass
    # a bad name would only show at the first handshake, on somebody else's machine
    if not name.isascii() or any(sign in name for sign in "/: ") or not name:
        raise ConfigError(f"--server expects a host name or an IP address without a port, got {name!r}")
    return x509.DNSName(name)


def _builder(issuer: x509.Name, subject: x509.Name, key: ec.EllipticCurvePublicKey, days: int) -> x509.CertificateBuilder:
    now = datetime.now(UTC)
    return (x509.CertificateBuilder().issuer_name(issuer).subject_name(subject).public_key(key)
            .serial_number(x509.random_serial_number()).not_valid_before(now - SLACK).not_valid_after(now + timedelta(days=days)))


def _key_usage(**allowed: bool) -> x509.KeyUsage:
    every = ("digital_signature", "content_commitment", "key_encipherment", "data_encipherment", "key_agreement", "key_cert_sign",
             "crl_sign", "encipher_only", "decipher_only")
    return x509.KeyUsage(**{use: allowed.get(use, False) for use in every})


def _name(common: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, common)])


def _pem(key: ec.EllipticCurvePrivateKey) -> bytes:
    return key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())


def _write(path: Path, content: bytes, secret: bool = False) -> Path:
    """Put the file in place at once; a secret one is never readable by others, not even for a moment."""
    path.parent.mkdir(parents=True, exist_ok=True, mode=0o755)
    with replacing(path) as fresh:
        fresh.unlink(missing_ok=True)
        with open(os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600 if secret else 0o644), "wb") as file:
            file.write(content)
    return path
