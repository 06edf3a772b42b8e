"""The server's command with Flower's SuperLink under it: who is let in, what a signal does, and what is left after a kill."""

from __future__ import annotations

import os
import signal
import stat
import sys
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest
from flwr.proto.control_pb2 import UnregisterNodeRequest  # type: ignore[attr-defined]

from deploy.admission import authorised, doubled
from deploy.certs import make
from deploy.link import Link, Node
from strategies.config import ConfigError
from tests.deployed import SPARE, Cluster, deployed
from tests.multihost import SERVER


def test_keys_are_found_by_pattern(tmp_path: Path) -> None:
    make(tmp_path, [], ["ward-a", "ward-b"])
    assert [path.stem for path in authorised([str(tmp_path / "sites" / "*.pub")])] == ["ward-a", "ward-b"]
    (tmp_path / "more").mkdir()
    (tmp_path / "more" / "ward-a.pub").write_text("")
    with pytest.raises(ConfigError, match="two keys for one site name"):
        authorised([str(tmp_path / "sites" / "*.pub"), str(tmp_path / "more" / "*.pub")])
    (tmp_path / "more" / "ward c.pub").write_text("")
    with pytest.raises(ConfigError, match=r"more/ward c\.pub: a site name must be"):
        authorised([str(tmp_path / "more" / "*.pub")])


def test_a_site_with_two_keys_is_told_with_its_nodes() -> None:
    nodes = [Node("north", 7, "online", None, b"a"), Node("north", 9, "registered", None, b"b"), Node("south", 8, "online", None, b"c"),
             Node("west", 1, "online", None, b"d"), Node("west", 2, "online", None, b"e")]
    told, = doubled(nodes, [Path("sites/south.pub"), Path("sites/north.pub")])
    assert told.startswith("site north has 2 keys, nodes 7, 9;")


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """A SuperLink that knows the key ``spare``, and no site."""
    with deployed(tmp_path_factory.mktemp("server"), 0) as made:
        yield made


def reread(server: Cluster) -> str:
    """What the server says to a SIGHUP."""
    heard = server.heard(SERVER)
    server.running[SERVER].send_signal(signal.SIGHUP)
    server.until(SERVER, "may take part", heard)
    return server.told(SERVER)[heard:]


def nodes(server: Cluster) -> dict[str, int]:
    """The numbers of the registered sites."""
    with Link(f"127.0.0.1:{server.port}", server.root / "certs" / "ca.crt") as link:
        return {node.name: node.id for node in link.nodes()}


@pytest.mark.slow
@pytest.mark.skipif(os.name == "nt", reason="POSIX signals and modes are needed")
class TestWithFlower:
    """In this order: each goes on where the one before left the server."""

    def test_its_state_is_for_its_user_alone(self, server: Cluster) -> None:
        assert stat.S_IMODE((server.root / "server").stat().st_mode) == 0o700

    def test_a_second_one_on_the_same_state_is_refused(self, server: Cluster) -> None:
        program = ("import sys; import deploy.superlink; from deploy.cli import main\n"
                   "deploy.superlink.HANDOVER = 0\nsys.exit(main(['superlink', '--fleet', '127.0.0.1:1', '--port', '1']))")
        second = server.other(SERVER, sys.executable, "-c", program)
        assert second.returncode == 2 and "a SuperLink uses this state directory already" in second.stderr

    def test_a_key_is_registered_by_a_signal_and_a_bad_one_keeps_nobody_out(self, server: Cluster) -> None:
        make(server.root / "certs", [], ["north"])
        (server.root / "certs" / "sites" / "broken.pub").write_text("ecdsa-sha2-nistp384 AAAA")
        told = reread(server)
        assert "warning: site broken is not admitted" in told and "sites/broken.pub is no OpenSSH public key" in told
        assert "site north admitted\n" in told and f"site {SPARE} was admitted before\n" in told and "; 2 may take part" in told
        assert set(nodes(server)) == {"north", SPARE}
        (server.root / "certs" / "sites" / "broken.pub").unlink()

    def test_what_is_wrong_with_all_the_keys_ends_nothing(self, server: Cluster) -> None:
        wrong = server.root / "certs" / "sites" / "no name.pub"
        wrong.write_text("")
        heard = server.heard(SERVER)
        server.running[SERVER].send_signal(signal.SIGHUP)
        server.until(SERVER, "warning: the sites' keys were not all read: ", heard)
        wrong.unlink()
        assert "; 2 may take part" in reread(server)

    def test_the_key_of_a_removed_site_is_named_and_the_others_go_on(self, server: Cluster) -> None:
        with Link(f"127.0.0.1:{server.port}", server.root / "certs" / "ca.crt") as link:
            link._client.UnregisterNode(UnregisterNodeRequest(node_id=nodes(server)["north"]))  # as `flwr supernode unregister` does
        told = reread(server)
        assert "warning: site north is not admitted: " in told and "sites/north.pub is the key of a site that was removed" in told
        assert "; 1 may take part" in told and set(nodes(server)) == {SPARE}

    def test_nothing_outlives_a_kill_and_the_next_one_starts_at_once(self, server: Cluster) -> None:
        top = psutil.Process(server.running[SERVER].pid)
        family = top.children(recursive=True)
        assert any("flower-superlink" in " ".join(member.cmdline()) for member in family)
        heard = server.heard(SERVER)
        top.kill()
        server.running.pop(SERVER).wait()
        server.start_server()
        assert not psutil.wait_procs(family, timeout=1)[1]
        told = server.told(SERVER)[heard:]
        # with the removed site's key still there
        assert "warning: site north is not admitted" in told and f"site {SPARE} was admitted before" in told
        assert set(nodes(server)) == {SPARE}
