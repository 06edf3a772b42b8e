"""The way to a SuperLink's Fleet port: name, port, TLS. ``fedhearth supernode`` and the doctor both look through this.

Flower says "Connection attempt failed" and gRPC "failed to connect" whatever the reason (FLOWER.md 00), so this looks as
a SuperNode would connect, over the same port (ALPN ``h2``). What is left then is the key. Python's *strict* X.509 flag
is left off: gRPC does not set it, and the question is what gRPC will accept.
"""

from __future__ import annotations

import socket
import ssl
from dataclasses import dataclass
from pathlib import Path

TIMEOUT = 5.0
NOT_YET, EXPIRED, WRONG_NAME, WRONG_IP = 9, 10, 62, 64  # OpenSSL's X509_V_ERR_*
CUT = (ssl.SSLEOFError, ssl.SSLZeroReturnError, ssl.SSLSyscallError)
RENEW = "fedhearth certs --rotate-server"


class Obstacle(Exception):
    """What stands in the way, and what to do. ``hopeless``: waiting does not help, somebody must change something."""

    def __init__(self, text: str, hopeless: bool = False) -> None:
        super().__init__(text)
        self.hopeless = hopeless


@dataclass(frozen=True)
class Finding:
    """How far a look came; ``hopeless`` as an `Obstacle` says."""

    text: str
    reached: bool = False
    hopeless: bool = False


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


@dataclass(frozen=True)
class Shown:
    """The certificate (DER) that a server showed and that fits, and the protocol it chose (``h2``, or None)."""

    certificate: bytes
    protocol: str | None


def look(address: str, ca: Path | None) -> Finding:
    """What stands between this machine and the SuperLink at ``address``; ``ca`` is None for a connection without TLS."""
    where = Address.parse(address)
    try:
        if ca is None:
            expect_plain_text(where)
            return Finding(f"{where} is reached", reached=True)
        handshake(where, ca)
        return Finding(f"{where} is reached, and its certificate fits", reached=True)
    except Obstacle as error:
        return Finding(str(error), hopeless=error.hopeless)


def resolve(address: Address) -> list[str]:
    """The IP addresses of its host. Raises ``Obstacle``, as all functions here do."""
    try:
        return sorted({str(info[4][0]) for info in socket.getaddrinfo(address.host, address.port, type=socket.SOCK_STREAM)})
    except OSError as error:
        raise Obstacle(f"the name {address.host} is not known here ({error.strerror or error}); check the spelling, DNS or "
                       "/etc/hosts") from None


def connect(address: Address) -> socket.socket:
    """A TCP connection."""
    resolve(address)
    try:
        return socket.create_connection((address.host, address.port), timeout=TIMEOUT)
    except ConnectionRefusedError:
        raise Obstacle(f"nothing listens at {address}; is fedhearth superlink running there, and on that port (Fleet, default "
                       "9092)? (FH-002)") from None
    except OSError as error:
        raise Obstacle(f"{address} cannot be reached ({error.strerror or error}); a firewall may be in between: TCP to that port "
                       "must be let out here and in there (FH-003)") from None


def expect_plain_text(address: Address) -> None:
    """Whether the other side can be meant by ``--insecure``: one that answers in TLS cannot. Nothing is sent to it."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    with connect(address) as plain:
        plain.settimeout(1.0)  # a server without TLS may wait for the rest of what is no request to it
        try:
            context.wrap_socket(plain).close()
        except OSError:
            return
    raise Obstacle(f"{address} speaks TLS and refuses plain text; leave --insecure out, and give --ca and --key (FH-006)",
                   hopeless=True)


def handshake(address: Address, ca: Path) -> Shown:
    """What the server shows in TLS, judged by ``ca`` alone: chain, name, dates."""
    try:
        return _handshake(address, _context(ca))
    except ssl.SSLCertVerificationError as error:
        raise Obstacle(_refusal(error, address, ca), hopeless=True) from None
    except OSError as error:
        if isinstance(error, ssl.SSLError) and not isinstance(error, CUT):
            raise Obstacle(f"{address} answers, but not in TLS ({error.reason}); is it the Fleet port, and was the SuperLink started "
                           "without --insecure? (FH-008)", hopeless=True) from None
        raise Obstacle(f"{address} ends the connection during the TLS handshake ({error.strerror or error}); it may be starting or ending, "
                       "or something in between does not pass TLS (FH-007)") from None


def _context(ca: Path) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.set_alpn_protocols(["h2"])
    try:
        context.load_verify_locations(ca)
    except (OSError, ssl.SSLError):
        raise Obstacle(f"{ca} is missing or no certificate; copy ca.crt from the server again", hopeless=True) from None
    return context


def _handshake(address: Address, context: ssl.SSLContext) -> Shown:
    with connect(address) as plain, context.wrap_socket(plain, server_hostname=address.host) as secure:
        return Shown(secure.getpeercert(binary_form=True) or b"", secure.selected_alpn_protocol())


def _refusal(error: ssl.SSLCertVerificationError, address: Address, ca: Path) -> str:
    if error.verify_code in (WRONG_NAME, WRONG_IP):
        return _wrong_name(address, _names_shown(address, ca))
    if error.verify_code == EXPIRED:
        return f"the server's certificate is not to be trusted any more: it has ended. Renew it on the server (FH-005): {RENEW}"
    if error.verify_code == NOT_YET:
        return ("the server's certificate is not to be trusted yet: its time has not begun; the clock of one of the two machines is wrong "
                "(FH-005)")
    return (f"the server's certificate is not to be trusted with this {ca.name} ({error.verify_message}); another federation's, or the "
            "server has a new authority: copy ca.crt from the server again (FH-005)")


def _wrong_name(address: Address, known: list[str]) -> str:
    from deploy.certs import rotation

    if not known:
        return (f"the server's certificate is for other names than {address.host}; renew it on the server, with a --server for every name "
                f"that is to stay (FH-004): {rotation([address.host])}")
    return (f"the server's certificate is for other names than {address.host}: {', '.join(known)}; use one of these, or renew it on the "
            f"server (FH-004): {rotation([*known, address.host])}")


def _names_shown(address: Address, ca: Path) -> list[str]:
    """The names of the server's certificate: signed by an authority of ``ca``, only the name is not compared."""
    from cryptography import x509

    from deploy.certs import names_of

    context = _context(ca)
    context.check_hostname = False
    try:
        return names_of(x509.load_der_x509_certificate(_handshake(address, context).certificate))
    except (Obstacle, OSError, ValueError):
        return []
