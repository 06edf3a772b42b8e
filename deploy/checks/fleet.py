"""What only the SuperLink itself can tell over its Fleet port: whether it takes our clock, and whether it knows our key.

Read in flwr 1.39 (``node_auth_server_interceptor.py``, ``fleet/message_handler``) and tested against that server:

- A call with a signed timestamp outside (now - 305 s, now + 5 s) is refused as "Invalid timestamp" before anything
  else is looked at. So shifting the timestamp until it is refused *measures* the difference of the clocks; a throwaway
  key will do, and node id 0 makes sure that the call itself is refused as well.
- ``ActivateNode`` looks up the key first and the heartbeat interval second. With an interval that is never valid a
  registered key answers "Invalid heartbeat interval" and an unknown one "Failed to activate", and neither changes
  anything, even while the site's SuperNode is running. Flower logs either as an ERROR of its own, and no call that it
  would not refuse says whether a key is known; so the finding names the line.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

from deploy.checks import Finding, failed, passed, warned
from deploy.checks.network import Address

CALL_TIMEOUT = 5.0
AHEAD, BEHIND = 5.0, 305.0  # s: how far a site's clock may be from the server's
PRECISION = 0.5
SCAN = 7200.0
NOT_VALID = 0.0  # a heartbeat interval that Flower refuses


class Fleet:
    """The Fleet port of ``address``; ``ca`` None means plain text. Use as a context manager."""

    def __init__(self, address: Address, ca: Path | None) -> None:
        import grpc
        from flwr.proto.fleet_pb2_grpc import FleetStub

        certificates = ca.read_bytes() if ca else None
        self._channel = (grpc.secure_channel(str(address), grpc.ssl_channel_credentials(certificates)) if ca
                         else grpc.insecure_channel(str(address)))
        self._stub = FleetStub(self._channel)

    def __enter__(self) -> Fleet:
        return self

    def __exit__(self, *failure: object) -> None:
        self._channel.close()

    def takes_time(self, shift: float) -> bool:
        """Whether the server takes a timestamp of this machine's clock plus ``shift`` seconds. Raises ``FleetError``."""
        from flwr.proto.heartbeat_pb2 import SendNodeHeartbeatRequest
        from flwr.proto.node_pb2 import Node
        from flwr.supercore.primitives.asymmetric import generate_key_pairs

        request = SendNodeHeartbeatRequest(node=Node(node_id=0), heartbeat_interval=30)
        answer = self._call(self._stub.SendNodeHeartbeat, request, generate_key_pairs()[0], shift)
        if answer not in ("Invalid timestamp", "Invalid node ID"):
            raise FleetError(answer)
        return answer == "Invalid node ID"

    def knows(self, key: Any) -> bool:
        """Whether ``key`` (an EC private key) is registered. Raises ``FleetError`` for any other answer."""
        from flwr.proto.fleet_pb2 import ActivateNodeRequest
        from flwr.supercore.error import ApiErrorCode, FlowerError
        from flwr.supercore.primitives.asymmetric import public_key_to_bytes

        request = ActivateNodeRequest(public_key=public_key_to_bytes(key.public_key()), heartbeat_interval=NOT_VALID)
        answer = self._call(self._stub.ActivateNode, request, key, 0.0)
        error = FlowerError.from_json(answer)
        if error is None or error.code not in (ApiErrorCode.FLEET_INVALID_HEARTBEAT_INTERVAL, ApiErrorCode.FLEET_NODE_ACTIVATION_FAILED):
            raise FleetError(answer)
        return error.code == ApiErrorCode.FLEET_INVALID_HEARTBEAT_INTERVAL

    def _call(self, method: Any, request: Any, key: Any, shift: float) -> str:
        """The text with which the server refuses ``request``; our calls are made to be refused."""
        import grpc
        from flwr.common.constant import PUBLIC_KEY_HEADER, SIGNATURE_HEADER, TIMESTAMP_HEADER
        from flwr.supercore.date import now
        from flwr.supercore.primitives.asymmetric import public_key_to_bytes, sign_message

        stamp = (now() + timedelta(seconds=shift)).isoformat()
        headers = ((PUBLIC_KEY_HEADER, public_key_to_bytes(key.public_key())), (TIMESTAMP_HEADER, stamp),
                   (SIGNATURE_HEADER, sign_message(key, stamp.encode("ascii"))))
        try:
            method(request, metadata=headers, timeout=CALL_TIMEOUT)
        except grpc.RpcError as error:
            return str(error.details())  # type: ignore[attr-defined]
        raise FleetError("a call that must be refused was taken; is this Flower 1.39?")


class FleetError(RuntimeError):
    """The port answers otherwise than Flower 1.39's Fleet port does."""


def clock(fleet: Fleet) -> Iterator[Finding]:
    """This machine's clock against the server's, by the server's own verdict."""
    try:
        ahead = skew(fleet.takes_time)
    except FleetError as error:
        yield failed("clock", f"not measured, since the port does not answer as Flower's Fleet port does ({error}); correct the address")
        return
    if ahead is None:
        yield failed("clock", f"more than {SCAN / 3600:g} h from the server's; set both by NTP (timedatectl set-ntp true)")
    elif not -BEHIND < ahead < AHEAD:
        yield failed("clock", f"{told(ahead)} the server's, which it refuses; set both by NTP (timedatectl set-ntp true)")
    elif not -BEHIND / 5 < ahead < AHEAD / 2:
        yield warned("clock", f"{told(ahead)} the server's; it refuses {AHEAD:g} s ahead or {BEHIND:g} s behind: set both by NTP")
    else:
        yield passed("clock", f"{told(ahead)} the server's (it allows {AHEAD:g} s ahead, {BEHIND:g} s behind)")


def told(ahead: float) -> str:
    return f"{abs(ahead):.0f} s {'ahead of' if ahead >= 0 else 'behind'}"


def skew(takes: Callable[[float], bool]) -> float | None:
    """Seconds by which our clock is ahead of the server's (negative: behind), None beyond ``SCAN``.

    ``takes(shift)`` is the server's verdict on our time plus ``shift``: true just for -BEHIND < ahead + shift < AHEAD.
    """
    step = (AHEAD + BEHIND) * 0.9
    tries = [0.0, *(sign * step * n for n in range(1, int(SCAN / step) + 2) for sign in (1, -1))]
    taken = next((shift for shift in tries if takes(shift)), None)
    if taken is None:
        return None
    low, high = taken, taken + AHEAD + BEHIND
    while high - low > PRECISION:
        middle = (low + high) / 2
        low, high = (middle, high) if takes(middle) else (low, middle)
    return AHEAD - (low + high) / 2


def registered(fleet: Fleet, key: Any, site: str) -> Iterator[Finding]:
    """Whether the server knows this site's key."""
    try:
        known = fleet.knows(key)
    except FleetError as error:
        yield warned("registered", f"not known, since the server answered {str(error)!r}; it shows when the SuperNode connects")
        return
    yield (passed if known else failed)("registered", "the server knows this key (that this was asked stands as an ERROR in its log)"
                                        if known else
                                        f"the server does not know this key; send the site's public key ({site}.pub) to its operator, who "
                                        "registers it (RUNBOOK: adding a site)")
