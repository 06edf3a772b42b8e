"""Why a SuperNode gets no answer: Flower says "Connection attempt failed" whatever the reason (FLOWER.md 00).

A look of our own at the address, as the SuperNode would connect: can it be reached, does it speak TLS, does the
certificate fit. What is left is the key.
"""

from __future__ import annotations

import socket
import ssl
from dataclasses import dataclass
from pathlib import Path

TIMEOUT = 5.0


@dataclass(frozen=True)
class Finding:
    """What was found. ``hopeless``: waiting does not help, somebody must change something on this machine."""

    text: str
    reached: bool = False
    hopeless: bool = False


def split_address(address: str) -> tuple[str, int]:
    """``HOST:PORT`` or ``[V6]:PORT``. Raises ``ValueError``."""
    host, colon, port = address.rpartition(":")
    if not colon or not host or not port.isdecimal() or not 0 < int(port) < 65536:
        raise ValueError(f"expected HOST:PORT, got {address!r}")
    return host.strip("[]"), int(port)


def look(address: str, ca: Path | None) -> Finding:
    """What stands between this machine and the SuperLink at ``address``; ``ca`` is None for a connection without TLS."""
    host, port = split_address(address)
    try:
        plain = socket.create_connection((host, port), timeout=TIMEOUT)
    except socket.gaierror:
        return Finding(f"the name {host} is not known here; check the spelling and the name server")
    except ConnectionRefusedError:
        return Finding(f"nothing listens at {address}; is fedhearth superlink running there, and on that port?")
    except OSError as error:
        return Finding(f"{address} cannot be reached ({error.strerror or error}); a firewall may be in between")
    with plain:
        return _in_plain_text(plain, address) if ca is None else _handshake(plain, host, address, ca)


def _in_plain_text(plain: socket.socket, address: str) -> Finding:
    """Whether the other side can be meant by ``--insecure``: one that answers in TLS cannot. Nothing is sent to it."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    plain.settimeout(1.0)  # a server without TLS may wait for the rest of what is no request to it
    try:
        with context.wrap_socket(plain):
            return Finding(f"{address} speaks TLS and refuses plain text; leave --insecure out, and give --ca and --key", hopeless=True)
    except OSError:
        return Finding(f"{address} is reached", reached=True)


def _handshake(plain: socket.socket, host: str, address: str, ca: Path) -> Finding:
    try:
        context = ssl.create_default_context(cafile=str(ca))
    except (OSError, ssl.SSLError):
        return Finding(f"{ca} is missing or no certificate; copy ca.crt from the server again", hopeless=True)
    context.set_alpn_protocols(["h2"])
    try:
        with context.wrap_socket(plain, server_hostname=host):
            return Finding(f"{address} is reached, and its certificate fits", reached=True)
    except ssl.SSLCertVerificationError as error:
        if error.verify_code in (62, 64):  # X509_V_ERR_HOSTNAME_MISMATCH, X509_V_ERR_IP_ADDRESS_MISMATCH
            return Finding(f"the server's certificate is for other names than {host}; on the server: "
                           f"fedhearth certs --rotate-server --server {host}", hopeless=True)
        return Finding(f"the server's certificate is not to be trusted with this {ca.name} ({error.verify_message}); "
                       "copy ca.crt from the server again, and check both clocks", hopeless=True)
    except ssl.SSLError:
        return Finding(f"{address} answers, but not in TLS; is it the Fleet port, and was the SuperLink started without --insecure?",
                       hopeless=True)
    except OSError as error:
        return Finding(f"{address} ends the connection during the TLS handshake ({error.strerror or error})")
