"""The look at a server's address, with real sockets and certificates: each obstacle is told from the others."""

from __future__ import annotations

import shlex
import socket
import ssl
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from deploy.certs import Certs, make, rotation
from deploy.checks.network import tls
from deploy.cli import main
from deploy.reach import Address, look


@contextmanager
def serving(answer: Callable[[socket.socket], None], host: str = "127.0.0.1") -> Iterator[str]:
    """The address of a server that does ``answer`` to every connection."""
    with socket.create_server((host, 0)) as listener:
        def serve() -> None:
            with suppress(OSError):
                while True:
                    with suppress(ssl.SSLError, ConnectionError), listener.accept()[0] as plain:
                        answer(plain)

        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        try:
            yield f"{host}:{listener.getsockname()[1]}"
        finally:
            listener.shutdown(socket.SHUT_RDWR)  # wakes accept(), which close() alone does not
            thread.join(5)


def in_tls(certs: Certs) -> Callable[[socket.socket], None]:
    """Answers with the certificate that lies in ``certs`` then."""
    def answer(plain: socket.socket) -> None:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(certs.server, certs.server_key)
        with context.wrap_socket(plain, server_side=True) as secure:
            secure.recv(1)

    return answer


def test_a_wrong_name_is_told_with_the_command_that_keeps_the_others(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    make(tmp_path / "certs", ["fl.example.org", "10.0.0.7"], [])
    certs = Certs(tmp_path / "certs")
    advice = "fedhearth certs --rotate-server --server fl.example.org --server 10.0.0.7 --server 127.0.0.2"
    with serving(in_tls(certs), "127.0.0.2") as address:
        found = look(address, certs.ca)
        assert found.hopeless and found.text.endswith(f"or renew it on the server (FH-004): {advice}")
        assert "is for other names than 127.0.0.2: fl.example.org, localhost, 10.0.0.7, 127.0.0.1;" in found.text
        # the doctor looks with the same eyes
        assert [finding.text for finding in tls(Address.parse(address), certs.ca)] == [found.text]
        assert main(shlex.split(advice)[1:]) == 0
        assert look(address, certs.ca).reached


def test_names_of_a_certificate_by_another_authority_are_not_quoted(tmp_path: Path) -> None:
    make(tmp_path / "ours", [], [])
    make(tmp_path / "theirs", ["planted.example.org"], [])
    with serving(in_tls(Certs(tmp_path / "theirs")), "127.0.0.2") as address:
        found = look(address, Certs(tmp_path / "ours").ca)
    assert found.hopeless and "not to be trusted with this ca.crt" in found.text and "planted" not in found.text


def test_a_connection_that_is_cut_may_be_tried_again(tmp_path: Path) -> None:
    make(tmp_path, [], [])
    with serving(lambda plain: None) as address:
        found = look(address, Certs(tmp_path).ca)
    assert not found.reached and not found.hopeless and "ends the connection during the TLS handshake" in found.text


def test_a_name_that_nobody_knows() -> None:
    found = look("no-such-host.invalid:9092", None)
    assert not found.reached and not found.hopeless and "the name no-such-host.invalid is not known here" in found.text


def test_the_command_names_what_it_does_not_know_by_itself() -> None:
    assert rotation(["localhost", "a.example.org", "127.0.0.1", "a.example.org", "::1"]) == (
        "fedhearth certs --rotate-server --server a.example.org --server ::1")
