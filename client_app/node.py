"""Who this client is: the only place where simulation and deployment differ.

Ray and the in-process engine inject ``partition-id`` and ``num-partitions``; a site of a real deployment
says ``site``, ``data``, ``state-dir`` and ``device`` in its node config. Both become the same ``Node``, and no
other file may read those keys. Node config wins over run config, so a site keeps the last word at home.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from strategies.config import RunConfig, check_site_name


class NodeError(ValueError):
    """This node's own configuration cannot be used."""


@dataclass(frozen=True)
class Node:
    """One client, whatever engine runs it.

    Attributes
    ----------
    name : stable name; seeds, local state and reports go by it, never by Flower's node id.
    index, count : the client's place in a simulated split, (0, 1) for a site with its own data.
    data : the site's own data URI, "" to use the run's ``dataset``.
    state_dir : root of the local state.
    device : the site's own device, "" to use the run's.
    simulated : whether this client is one partition of a split made on this machine.
    """

    name: str
    index: int
    count: int
    data: str
    state_dir: Path
    device: str
    simulated: bool

    def __post_init__(self) -> None:
        check_site_name(self.name)
        if not 0 <= self.index < self.count:
            raise NodeError(f"partition-id must be in 0..{self.count - 1}, got {self.index}")


def client_name(index: int) -> str:
    """Name of the ``index``-th client of a simulated split."""
    return f"client-{index:03d}"


def name_of(node_config: Mapping[str, object]) -> str:
    """The client's name as far as the node config tells, "" if it does not; never raises."""
    site, index = node_config.get("site"), node_config.get("partition-id")
    name = str(site) if site else client_name(index) if isinstance(index, int) else ""
    return name if len(name) <= 64 and name.isprintable() else ""


def open_node(node_config: Mapping[str, object], config: RunConfig) -> Node:
    """The ``Node`` that ``node_config`` (Flower's, of either engine) describes.

    Raises
    ------
    NodeError
        If neither ``site`` nor ``partition-id`` is given, or the run splits its data among another
        number of clients than this node was told.
    """
    has_site = bool(node_config.get("site"))
    if "partition-id" not in node_config and not has_site:
        raise NodeError("expected `site` (a deployment) or `partition-id` (a simulation) in the node config; "
                        "start the SuperNode with --node-config 'site=\"NAME\"'")
    index = _whole(node_config.get("partition-id", 0), "partition-id")
    count = _whole(node_config.get("num-partitions", 1), "num-partitions")
    data = str(node_config.get("data", ""))
    if not data and "partition-id" in node_config and count != config.clients:
        raise NodeError(f"the run splits its data among clients={config.clients}, but this engine has {count} "
                        "nodes; give both the same number")
    state_dir = str(node_config.get("state-dir", "") or config.state_dir)
    return Node(
        name=str(node_config["site"]) if has_site else client_name(index),
        index=index,
        count=count,
        data=data,
        state_dir=Path(state_dir).expanduser() if state_dir else Path.home() / ".fedhearth" / "state",
        device=str(node_config.get("device", "")),
        simulated=not has_site,
    )


def _whole(value: object, key: str) -> int:
    if isinstance(value, bool) or not isinstance(value, int):
        raise NodeError(f"{key} must be a whole number, got a {type(value).__name__}")
    return value
