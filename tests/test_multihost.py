"""Server and sites on hosts of their own (Linux network namespaces): a run, and who may speak to whom.

Needs root and iproute2; skipped with the reason elsewhere.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.deployed import Cluster, deployed, host_names, rounds_of, summary_of
from tests.multihost import SERVER_ADDRESS, Network, why_not

pytestmark = [pytest.mark.slow, pytest.mark.skipif(bool(REASON := why_not()), reason=REASON)]

# what a connection to argv[1]:argv[2] comes to
KNOCK = "import socket, sys; socket.create_connection((sys.argv[1], int(sys.argv[2])), timeout=3); print('answers')"
# the Control API asked over the Fleet port, as its own client would ask over gRPC, then a call that the port does know
CONTROL = """
import sys
import grpc
from flwr.proto import control_pb2 as control, fleet_pb2 as fleet
from flwr.proto.control_pb2_grpc import ControlStub
from flwr.proto.fleet_pb2_grpc import FleetStub
channel = grpc.secure_channel(sys.argv[1], grpc.ssl_channel_credentials(open(sys.argv[2], 'rb').read()))
for stub, call, request in ((ControlStub, 'ListNodes', control.ListNodesRequest()), (ControlStub, 'StartRun', control.StartRunRequest()),
                            (FleetStub, 'PullMessages', fleet.PullMessagesRequest())):
    try:
        getattr(stub(channel), call)(request, timeout=5)
        print(call, 'ANSWERED')
    except grpc.RpcError as error:
        print(call, error.code().name)
"""
PLAIN = """
import sys
import grpc
from flwr.proto import fleet_pb2 as fleet
from flwr.proto.fleet_pb2_grpc import FleetStub
try:
    FleetStub(grpc.insecure_channel(sys.argv[1])).PullMessages(fleet.PullMessagesRequest(), timeout=5)
    print('ANSWERED')
except grpc.RpcError as error:
    print(error.code().name)
"""


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """A server at 10.77.0.1, three sites at .11 to .13, and a stranger at .14."""
    network = Network(host_names(3))
    try:
        with deployed(tmp_path_factory.mktemp("multihost"), 3, network) as made:
            yield made
    finally:
        network.close()


def says(cluster: Cluster, host: str, program: str, *words: str) -> str:
    """What a Python program prints on ``host``, or the last line of its error."""
    done = cluster.other(host, sys.executable, "-c", program, *words)
    return done.stdout.strip() or done.stderr.strip().splitlines()[-1]


def copy_of_key(cluster: Cluster, name: str) -> Path:
    """A key that the server does not know, from the deployment's own tool."""
    made = cluster.run("stranger", "certs", "--out", f"certs-of-{name}", "--site", name)
    assert made.returncode == 0, made.stderr
    return cluster.root / f"certs-of-{name}"


def test_three_hosts_finish_a_run(cluster: Cluster) -> None:
    folder = cluster.submit("hosts", rounds=3)
    assert cluster.finished("hosts") == 0, cluster.told("submit-hosts")
    assert [set(record["accepted"]) for record in rounds_of(folder)] == [set(cluster.sites)] * 3
    summary = summary_of(folder)
    assert summary["engine"] == "grpc" and summary["dropped"] == {} and summary["served"]["mean"] > 0.5
    assert all((cluster.state_dir(name) / "hosts" / name / "personal.safetensors").exists() for name in cluster.sites)


def test_the_fleet_port_is_all_that_a_site_reaches(cluster: Cluster) -> None:
    site, fleet = cluster.sites[0], cluster.fleet.rpartition(":")[2]
    assert says(cluster, site, KNOCK, SERVER_ADDRESS, fleet) == "answers"
    assert says(cluster, "server", KNOCK, "127.0.0.1", str(cluster.port)) == "answers"
    assert "ConnectionRefusedError" in says(cluster, site, KNOCK, SERVER_ADDRESS, str(cluster.port))
    asked = cluster.run(site, "status", "--link", f"{SERVER_ADDRESS}:{cluster.port}")
    assert asked.returncode == 2 and "no SuperLink answers at" in asked.stderr
    # nothing of one site is open to another
    listening = cluster.other(cluster.sites[1], "ss", "-Hltn").stdout.split()
    assert all(word.startswith("127.0.0.1:") for word in listening[3::5]), listening


def test_control_is_not_answered_on_the_fleet_port(cluster: Cluster) -> None:
    told = says(cluster, cluster.sites[0], CONTROL, cluster.fleet, "certs/ca.crt")
    assert told.splitlines() == ["ListNodes UNIMPLEMENTED", "StartRun UNIMPLEMENTED", "PullMessages UNAUTHENTICATED"]


def test_plain_text_is_refused(cluster: Cluster) -> None:
    assert says(cluster, "stranger", PLAIN, cluster.fleet) == "UNAVAILABLE"
    done = cluster.run("stranger", *cluster.site_words("stranger", "--insecure"))
    assert done.returncode == 2 and "refuses plain text" in done.stderr


@pytest.mark.drill
def test_a_key_that_is_not_registered_is_refused_and_its_site_says_why(cluster: Cluster) -> None:
    certs = copy_of_key(cluster, "unknown")
    cluster.start("unknown", "stranger", *cluster.site_words("unknown", "--key", str(certs / "sites" / "unknown")))
    cluster.until("unknown", "the server does not let this site in. Either its key is not registered")
    assert cluster.stop("unknown") == 0
    assert "is connected" not in cluster.told("unknown") and cluster.online() == set(cluster.sites)


def test_another_authority_is_refused_by_the_site(cluster: Cluster) -> None:
    certs = copy_of_key(cluster, "other")
    done = cluster.run("stranger", *cluster.site_words("other", "--ca", str(certs / "ca.crt"), "--key", str(certs / "sites" / "other")))
    assert done.returncode == 2 and "is not to be trusted" in done.stderr


@pytest.mark.drill
def test_a_second_site_of_one_name_is_kept_waiting(cluster: Cluster) -> None:
    name = cluster.sites[0]
    cluster.start("twin", "stranger", *cluster.site_words(name, "--state-dir", "state-twin", "--key", f"certs/sites/{name}"))
    cluster.until("twin", "another SuperNode uses this key")
    cluster.until("twin", "it is started again in 5 s")
    assert cluster.stop("twin") == 0
    assert "is connected" not in cluster.told("twin")
    assert cluster.online() == set(cluster.sites)
