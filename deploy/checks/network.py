"""The way to the server as the doctor tells it: name, port, TLS, and how long its certificate is good. `deploy.reach` looks."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

from cryptography import x509

from deploy.checks import Finding, failed, passed, warned
from deploy.reach import RENEW, Address, Obstacle, connect, handshake, resolve

__all__ = ["Address", "expiry", "reach", "tls"]

SOON_DAYS = 30


def reach(address: Address) -> Iterator[Finding]:
    """Does the name resolve, and does anything accept a connection there?"""
    try:
        yield passed("address", f"{address.host} is {', '.join(resolve(address))}")
    except Obstacle as error:
        yield failed("address", str(error))
        return
    try:
        connect(address).close()
    except Obstacle as error:
        yield failed("port", str(error))
    else:
        yield passed("port", f"{address} accepts connections")


def tls(address: Address, ca: Path) -> Iterator[Finding]:
    """Chain, name and expiry of the certificate that ``address`` shows, judged by ``ca`` alone."""
    try:
        shown = handshake(address, ca)
    except Obstacle as error:
        yield failed("tls", str(error))
        return
    yield passed("tls", f"chain is good and the certificate is for {address.host}")
    if shown.protocol != "h2":
        yield failed("http2", "the server does not speak HTTP/2, which gRPC needs; a proxy on the way must pass TCP through, or speak h2")
    yield expiry("expiry", x509.load_der_x509_certificate(shown.certificate), RENEW)


def expiry(check: str, certificate: x509.Certificate, renew: str) -> Finding:
    """Days until ``certificate`` ends."""
    end = certificate.not_valid_after_utc
    days = (end - datetime.now(UTC)).total_seconds() / 86400
    if days < 0:
        return failed(check, f"the certificate ended on {end:%Y-%m-%d}; renew it: {renew}")
    if days < SOON_DAYS:
        return warned(check, f"the certificate ends on {end:%Y-%m-%d}, in {days:.0f} days; renew it: {renew}")
    return passed(check, f"the certificate is good until {end:%Y-%m-%d}")
