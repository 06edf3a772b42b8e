"""Who a client is, from the node config of a simulation or of a real site."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from client_app.node import NodeError, client_name, open_node
from strategies.config import ConfigError, RunConfig

RUN = RunConfig(clients=4, state_dir="runs/state")


def test_a_simulated_client() -> None:
    node = open_node({"partition-id": 2, "num-partitions": 4}, RUN)
    assert (node.name, node.index, node.count, node.data, node.device, node.simulated) == ("client-002", 2, 4, "", "", True)
    assert node.state_dir == Path("runs/state")


def test_names_sort_like_their_numbers() -> None:
    names = [client_name(index) for index in range(1000)]
    assert names == sorted(names) and names[7] == "client-007"


def test_a_site_has_the_last_word_at_home() -> None:
    node = open_node({"site": "Ward-7.b", "data": "npz:own.npz", "state-dir": "~/own", "device": "cpu"}, RUN)
    assert (node.name, node.index, node.count, node.data, node.device, node.simulated) == ("Ward-7.b", 0, 1, "npz:own.npz", "cpu", False)
    assert node.state_dir == Path.home() / "own"


def test_without_any_state_dir_it_lies_at_home() -> None:
    assert open_node({"site": "a"}, RunConfig()).state_dir == Path.home() / ".fedhearth" / "state"


@pytest.mark.parametrize(("node_config", "said"), [
    ({}, "expected `site`"),
    ({"site": ""}, "expected `site`"),
    ({"partition-id": 0, "num-partitions": 3}, "clients=4, but this engine has 3"),
    ({"partition-id": 4, "num-partitions": 4}, "must be in 0..3, got 4"),
    ({"partition-id": -1, "num-partitions": 4}, "must be in 0..3, got -1"),
    ({"partition-id": "0", "num-partitions": 4}, "whole number, got a str"),
    ({"partition-id": True, "num-partitions": 4}, "whole number, got a bool"),
])
def test_what_cannot_be_a_node(node_config: dict[str, Any], said: str) -> None:
    with pytest.raises(NodeError, match=said):
        open_node(node_config, RUN)


@pytest.mark.parametrize("site", ["_prototype-0", "../x", "a/b", "-a", ".hidden", "a b", "a" * 65, "naïve", "a\n"])
def test_names_that_no_site_may_have(site: str) -> None:
    with pytest.raises(ConfigError, match="a site name must be") as refused:
        open_node({"site": site}, RUN)
    assert site not in str(refused.value)
