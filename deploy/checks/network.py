"""The way to the server: name, port, TLS.

The TLS handshake is our own, over the port that gRPC uses (ALPN ``h2``), since gRPC tells every cause by the same
"failed to connect". Python's *strict* X.509 flag is left off: gRPC does not set it, and the question is what gRPC will
accept.
"""

from __future__ import annotations

import socket
import ssl
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from cryptography import x509

from deploy.checks import Finding, failed, passed, warned

TIMEOUT = 5.0
SOON_DAYS = 30
NOT_YET, EXPIRED, WRONG_NAME, WRONG_IP = 9, 10, 62, 64  # OpenSSL's X509_V_ERR_*
CHAIN = {7, 18, 19, 20, 21}
ALWAYS = ("localhost", "127.0.0.1")  # `fedhearth certs` adds them by itself


@dataclass(frozen=True)
class Address:
    """``HOST:PORT`` or ``[IPv6]:PORT``. Raises ``ValueError`` for anything else."""

    host: str
    port: int

    @classmethod
    def parse(cls, text: str) -> Address:
        host, colon, port = text.rpartition(":")
        if not colon or not host or not port.isdecimal() or not 0 < int(port) < 65536:
            raise ValueError(f"expected HOST:PORT, got {text!r}")
        return cls(host.removeprefix("[").removesuffix("]"), int(port))

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


def reach(address: Address) -> Iterator[Finding]:
    """Does the name resolve, and does anything accept a connection there?"""
    try:
        found = sorted({str(info[4][0]) for info in socket.getaddrinfo(address.host, address.port, type=socket.SOCK_STREAM)})
    except OSError as error:
        yield failed("address", f"{address.host} does not resolve ({error}); check the name, DNS or /etc/hosts")
        return
    yield passed("address", f"{address.host} is {', '.join(found)}")
    try:
        socket.create_connection((address.host, address.port), TIMEOUT).close()
    except ConnectionRefusedError:
        yield failed("port", f"nothing listens at {address}; start the SuperLink there, or correct the port (Fleet API, default 9092)")
    except OSError as error:
        yield failed("port", f"{address} cannot be reached ({error or 'no answer'}); a firewall on the way? TCP to that port must be let "
                             "out here and in there")
    else:
        yield passed("port", f"{address} accepts connections")


def tls(address: Address, ca: Path) -> Iterator[Finding]:
    """Chain, name and expiry of the certificate that ``address`` shows, judged by ``ca`` alone."""
    try:
        context = _context(ca)
    except (OSError, ssl.SSLError) as error:
        yield failed("tls", f"the CA certificate {ca} cannot be used ({error}); copy ca.crt from the server's operator again")
        return
    try:
        certificate, protocol = _handshake(address, context)
    except ssl.SSLCertVerificationError as error:
        yield failed("tls", _refusal(error, address, _unverified(address)))
        return
    except (ssl.SSLError, ConnectionError) as error:
        yield failed("tls", f"{address} does not speak TLS ({getattr(error, 'reason', None) or error}); is it the Fleet port, and was the "
                            "SuperLink started without --insecure?")
        return
    yield passed("tls", f"chain is good and the certificate is for {address.host}")
    if protocol != "h2":
        yield failed("http2", "the server does not speak HTTP/2, which gRPC needs; a proxy on the way must pass TCP through, or speak h2")
    yield expiry("expiry", certificate, "fedhearth certs --rotate-server")


def expiry(check: str, certificate: x509.Certificate, renew: str) -> Finding:
    """Days until ``certificate`` ends."""
    end = certificate.not_valid_after_utc
    days = (end - datetime.now(UTC)).total_seconds() / 86400
    if days < 0:
        return failed(check, f"the certificate ended on {end:%Y-%m-%d}; renew it: {renew}")
    if days < SOON_DAYS:
        return warned(check, f"the certificate ends on {end:%Y-%m-%d}, in {days:.0f} days; renew it: {renew}")
    return passed(check, f"the certificate is good until {end:%Y-%m-%d}")


def names(certificate: x509.Certificate) -> list[str]:
    """Host names and IP addresses that ``certificate`` is for."""
    try:
        found = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    except x509.ExtensionNotFound:
        return []
    return [*found.get_values_for_type(x509.DNSName), *map(str, found.get_values_for_type(x509.IPAddress))]


def _context(ca: Path | None) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.set_alpn_protocols(["h2"])
    if ca is None:
        context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    else:
        context.load_verify_locations(ca)
    return context


def _handshake(address: Address, context: ssl.SSLContext) -> tuple[x509.Certificate, str | None]:
    with (socket.create_connection((address.host, address.port), TIMEOUT) as plain,
          context.wrap_socket(plain, server_hostname=address.host) as secure):
        return x509.load_der_x509_certificate(secure.getpeercert(binary_form=True) or b""), secure.selected_alpn_protocol()


def _unverified(address: Address) -> x509.Certificate | None:
    """The certificate again, only to say what it is; nothing is trusted or sent."""
    try:
        return _handshake(address, _context(None))[0]
    except (OSError, ValueError):
        return None


def _refusal(error: ssl.SSLCertVerificationError, address: Address, shown: x509.Certificate | None) -> str:
    code = error.verify_code
    if code in (WRONG_NAME, WRONG_IP):
        known = names(shown) if shown else []
        # a renewal that names any server forgets the names before it
        more = " ".join(f"--server {name}" for name in [*known, address.host] if name not in ALWAYS)
        return (f"the certificate is for {', '.join(known) or 'no name'}, not for {address.host}; use one of its names, or renew it on the "
                f"server: fedhearth certs --rotate-server {more}")
    if code == EXPIRED:
        return "the server's certificate has ended; renew it there: fedhearth certs --rotate-server"
    if code == NOT_YET:
        return "the server's certificate is not valid yet; the clock of one of the two machines is wrong"
    if code in CHAIN:
        return ("the server's certificate was not signed by this CA; another federation's ca.crt, or the server made a new CA: "
                "fetch ca.crt again")
    return f"the server's certificate is refused ({error.verify_message})"
