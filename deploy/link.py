"""A running SuperLink as its operator sees it: nodes, runs, keys.

Flower's command line tells neither the names nor the keys of nodes, and costs seconds a call; so this speaks to the
Control API itself, which listens on loopback only. Nothing but this file touches Flower's client for it.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import httpx
from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat, load_ssh_public_key
from flwr.proto import control_pb2 as api  # type: ignore[attr-defined]
from flwr.supercore.control import ControlHttpClient
from flwr.supercore.error import ApiErrorCode, FlowerError
from flwr.supercore.interceptors import RuntimeVersionHttpInterceptor

from strategies.config import ConfigError

COMPLETED = "finished:completed"


class LinkError(ConfigError):
    """The SuperLink cannot be reached, or refuses; ``code`` is Flower's then, else None."""

    def __init__(self, text: str, code: int | None = None) -> None:
        super().__init__(text)
        self.code = code


class KeyRefused(LinkError):
    """A file is no public key, or one that Flower does not take; the message names it and says what to do."""


@dataclass(frozen=True)
class Node:
    """A registered site. ``seen``: when it last came online or will have been heard of, in UTC; None if never."""

    name: str
    id: int
    status: str
    seen: datetime | None
    public_key: bytes

    @property
    def online(self) -> bool:
        return self.status == "online"


@dataclass(frozen=True)
class FlowerRun:
    """A run as Flower knows it. ``out``: the folder of its results, "" if it was not started by us."""

    id: int
    status: str
    details: str
    out: str
    rounds: int

    @property
    def over(self) -> bool:
        return self.status.startswith("finished")


class Link:
    """One SuperLink. All methods raise ``LinkError``."""

    def __init__(self, address: str, ca: Path | None) -> None:
        self.address = address
        self._client = ControlHttpClient.from_server_address(address, ca is None, ca.read_bytes() if ca else None,
                                                             [RuntimeVersionHttpInterceptor("fedhearth")])

    def nodes(self) -> list[Node]:
        """All nodes that are registered, by name."""
        with _explained(self.address):
            found = self._client.ListNodes(api.ListNodesRequest()).nodes_info
        return sorted((Node(n.name, n.node_id, n.status, _seen(n), n.public_key) for n in found if n.status != "unregistered"),
                      key=lambda node: (node.name, node.id))

    def runs(self) -> list[FlowerRun]:
        """All runs, the latest first."""
        with _explained(self.address):
            found = self._client.ListRuns(api.ListRunsRequest()).run_dict.values()
        return [_run(run) for run in sorted(found, key=lambda run: run.pending_at, reverse=True)]

    def run(self, number: int) -> FlowerRun:
        """One run."""
        with _explained(self.address):
            return _run(self._client.ListRuns(api.ListRunsRequest(run_id=number)).run_dict[number])

    def register(self, public_key: Path, name: str) -> bool:
        """Let the holder of this key in, as ``name``. False if it was in already; raises ``KeyRefused`` if it may not be."""
        key = read_public_key(public_key)
        if any(node.public_key == key for node in self.nodes()):
            return False
        try:
            with _explained(self.address):
                self._client.RegisterNode(api.RegisterNodeRequest(public_key=key, name=name))
        except LinkError as error:
            if error.code == ApiErrorCode.PUBLIC_KEY_ALREADY_IN_USE:
                raise KeyRefused(f"{public_key} is the key of a site that was removed, and Flower takes none a second time; move the file "
                                 "away (to come back, the site needs a new key) (FH-011)") from None
            if error.code == ApiErrorCode.PUBLIC_KEY_NOT_VALID:
                raise KeyRefused(f"{public_key} is no key of a NIST curve, and Flower takes no other; "
                                 "ssh-keygen -t ecdsa -b 384 makes one (FH-012)") from None
            raise
        return True

    def log(self, number: int) -> str:
        """All that a run which is over has logged on the server."""
        with _explained(self.address):
            return "".join(part.log_output for part in self._client.StreamLogs(api.StreamLogsRequest(run_id=number)))

    def stop(self, number: int) -> None:
        """End a run."""
        with _explained(self.address):
            self._client.StopRun(api.StopRunRequest(run_id=number))

    def close(self) -> None:
        self._client.close()

    def __enter__(self) -> Link:
        return self

    def __exit__(self, *fault: object) -> None:
        self.close()


def read_public_key(path: Path) -> bytes:
    """The key in an OpenSSH ``.pub`` file, as Flower's API takes it. Raises ``KeyRefused``."""
    try:
        key = load_ssh_public_key(path.read_bytes())
    except (OSError, ValueError, UnsupportedAlgorithm) as error:
        raise KeyRefused(f"{path} is no OpenSSH public key ({error}); fedhearth certs --site NAME makes one (FH-012)") from None
    return key.public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)  # type: ignore[union-attr]


def _run(run: Any) -> FlowerRun:
    status = ":".join(filter(None, (run.status.status, run.status.sub_status)))
    config = run.override_config
    return FlowerRun(run.run_id, status, run.status.details, config["out"].string if "out" in config else "",
                     config["rounds"].sint64 if "rounds" in config else 0)


def _seen(node: Any) -> datetime | None:
    """Heartbeats come every ``heartbeat_interval`` seconds and are good for two of them."""
    if node.status == "online" and node.online_until:
        return datetime.fromtimestamp(node.online_until - 2 * node.heartbeat_interval, UTC)
    last = node.last_deactivated_at or node.last_activated_at
    return datetime.fromisoformat(last).astimezone(UTC) if last else None


@contextmanager
def _explained(address: str) -> Iterator[None]:
    try:
        yield
    except httpx.HTTPStatusError as error:
        told = FlowerError.from_json(error.response.text)
        raise LinkError(f"the SuperLink at {address} refuses: {told.message if told else error}", told.code if told else None) from None
    except httpx.HTTPError as error:
        if "CERTIFICATE_VERIFY_FAILED" in str(error):
            raise LinkError(f"the SuperLink at {address} has a certificate of another authority; "
                            "say with --certs where its ca.crt is") from None
        raise LinkError(f"no SuperLink answers at {address} ({error}); start one with fedhearth superlink, "
                        "or say with --link where it is (FH-015)") from None
