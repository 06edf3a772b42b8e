"""The run's figures for Prometheus: an HTTP page that the server process answers with while it runs.

Off by default, and on loopback by default, since the page knows no password. It holds counts and figures over clients, no
client's name and no client's value. Names follow Prometheus' own rules (base units, ``_total`` for what only grows).
"""

from __future__ import annotations

import ipaddress
import logging
import socket
from collections.abc import Mapping
from typing import Any

from server_app.summary import tail
from strategies.config import ConfigError, RunConfig

log = logging.getLogger(__name__)
SECONDS = (1, 2, 5, 10, 30, 60, 120, 300, 600, 1800, 3600)
# a hostile client may word its errors as it likes, and every word would be a series of its own
MOST_REASONS = 40


class Metrics:
    """The page at ``http://HOST:PORT/metrics`` of one run.

    Raises
    ------
    ConfigError
        If prometheus_client is not installed, or the port cannot be had.
    """

    def __init__(self, run: RunConfig) -> None:
        check_metrics(run)
        from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, start_http_server

        # a registry of our own: the library's global one would also name this machine's Python and outlive the run
        own = {"registry": CollectorRegistry(), "namespace": "fedhearth"}
        self._rounds = Counter("rounds", "Rounds that are over", ["outcome"], **own)
        self._seconds = Histogram("round_seconds", "Duration of a round's training", buckets=SECONDS, **own)
        self._dropped = Counter("dropped_replies", "Replies that did not enter the model", ["reason"], **own)
        self._bytes = Counter("payload_bytes", "Payload sent to (down) and got from (up) clients", ["direction"], **own)
        self._round = Gauge("round", "The round that goes on", **own)
        self._planned = Gauge("rounds_planned", "Rounds of the whole run", **own)
        self._began = Gauge("round_start_timestamp_seconds", "When the round began", **own)
        self._deadline = Gauge("round_deadline_seconds", "Seconds a round may take", **own)
        self._asked = Gauge("round_asked", "Messages sent in this round", **own)
        self._replied = Gauge("round_replied", "Replies so far in this round", **own)
        self._online = Gauge("sites_online", "Sites that are connected, as of the last round's end", **own)
        self._served = Gauge("served_accuracy", "Share of test images right before local training, over clients", ["figure"], **own)
        self._reasons: set[str] = set()
        for outcome in ("merged", "void"):
            self._rounds.labels(outcome)
        for direction in ("up", "down"):
            self._bytes.labels(direction)
        self._planned.set(run.rounds)
        self._deadline.set(run.deadline)
        try:
            self._server, _ = start_http_server(run.metrics_port, run.metrics_host, own["registry"])
        except (OSError, UnicodeError) as error:
            raise _unusable(run, error) from None
        if not _loopback(run.metrics_host):
            log.warning("metrics are at %s:%d, without a password: whoever reaches that address reads them", run.metrics_host,
                        run.metrics_port)

    def begins(self, number: int, now: float) -> None:
        """Round ``number`` begins at ``now`` (seconds since 1970)."""
        self._round.set(number)
        self._began.set(now)
        self.reply(0, 0)

    def reply(self, replied: int, asked: int) -> None:
        """So many have answered of those asked so far."""
        self._replied.set(replied)
        self._asked.set(asked)

    def online(self, sites: int) -> None:
        """So many sites are connected."""
        self._online.set(sites)

    def round(self, record: Mapping[str, Any]) -> None:
        """A round is over; ``record`` is its line of rounds.jsonl."""
        self._rounds.labels("void" if record.get("void") else "merged").inc()
        self._seconds.observe(record["seconds"])
        self.exchange(record)
        self.served(tail(record.get("served"), {}))

    def exchange(self, record: Mapping[str, Any]) -> None:
        """The bytes and dropped replies of a round, or of the exchanges after the last one."""
        for direction, slots in (record.get("bytes") or {}).items():
            self._bytes.labels(direction).inc(sum(slots.values()))
        for reason, count in (record.get("dropped") or {}).items():
            self._dropped.labels(self._bounded(reason)).inc(count)

    def served(self, figures: Mapping[str, Any] | None) -> None:
        """The latest mean, worst and bottom-20 % served accuracy; None leaves those before."""
        for name in ("mean", "worst", "bottom20") if figures else ():
            self._served.labels(name).set(figures[name])  # type: ignore[index]

    def close(self) -> None:
        """Free the port."""
        self._server.shutdown()
        self._server.server_close()

    def _bounded(self, reason: str) -> str:
        if reason not in self._reasons and len(self._reasons) >= MOST_REASONS:
            return "other"
        self._reasons.add(reason)
        return reason


def check_metrics(run: RunConfig) -> None:
    """Raise ``ConfigError`` if the page cannot be served from this machine; nothing is left open."""
    from importlib.util import find_spec

    if find_spec("prometheus_client") is None:
        raise ConfigError("metrics-port needs prometheus_client, which is not installed here: pip install 'fedhearth[metrics]', or leave "
                          "metrics-port at 0 (FH-040)")
    try:
        family, _, _, _, address = socket.getaddrinfo(run.metrics_host, run.metrics_port, type=socket.SOCK_STREAM)[0]
        with socket.socket(family, socket.SOCK_STREAM) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind(address)
            probe.listen(1)
    except (OSError, UnicodeError) as error:  # the latter for a name such as a..b
        raise _unusable(run, error) from None


def _unusable(run: RunConfig, error: OSError | UnicodeError) -> ConfigError:
    why = (error.strerror or error) if isinstance(error, OSError) else "not the name of a machine"
    return ConfigError(f"metrics-port {run.metrics_port} at {run.metrics_host} cannot be opened ({why}); another run may hold it: give "
                       "every run a port of its own, an address of this machine, or metrics-port=0 (FH-041)")


def _loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"
