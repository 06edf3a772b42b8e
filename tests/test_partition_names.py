"""The grammar of ``partition``: all names it knows, their parts, and the nearest one on a typo."""

from __future__ import annotations

import pytest

from strategies.config import ConfigError, RunConfig
from strategies.partition_names import NAMES, parse_partition


@pytest.mark.parametrize(("text", "groups", "division", "library"), [
    ("iid", set(), "iid", ""),
    ("rotation", {"rotation"}, "iid", ""),
    ("rotation+iid", {"rotation"}, "iid", ""),
    ("domain+label-subset", {"domain"}, "label-subset", ""),
    ("rotation+natural", {"rotation"}, "natural", ""),
    ("domain+rotation+quantity", {"domain", "rotation"}, "quantity", ""),
    ("flwr-datasets:IidPartitioner", set(), "flwr-datasets", "IidPartitioner"),
    ("rotation+flwr-datasets:ShardPartitioner?a=1e+5&x=a+b", {"rotation"}, "flwr-datasets", "ShardPartitioner?a=1e+5&x=a+b"),
    ('domain+flwr-datasets:ShardPartitioner?{"shard_size": 2}', {"domain"}, "flwr-datasets", 'ShardPartitioner?{"shard_size": 2}'),
])
def test_a_name_by_its_parts(text: str, groups: set[str], division: str, library: str) -> None:
    assert parse_partition(text) == (frozenset(groups), division, library)
    assert RunConfig(partition=text).partition == text


def test_all_names_are_known_and_distinct() -> None:
    assert len(set(NAMES)) == len(NAMES) == 5 + 3 + 5 + 4 + 4
    assert None not in [parse_partition(name) for name in NAMES]


@pytest.mark.parametrize("text", [
    "", "+", "rotation+", "+iid", "rotation+rotation", "iid+dirichlet", "domain+natural", "rotation+domain+natural",
    "flwr-datasets:", "flwr-datasets", "flwr-datasets:9", "flwr-datasets:X Y", "rotationflwr-datasets:X", "iid+flwr-datasets:X",
])
def test_other_words_are_refused(text: str) -> None:
    assert parse_partition(text) is None
    with pytest.raises(ConfigError, match="partition must be one of iid, label-subset, dirichlet, quantity, natural, rotation, domain"):
        RunConfig(partition=text)


@pytest.mark.parametrize(("text", "meant"), [
    ("dirichlett", "dirichlet"), ("rotaton+dirichlet", "rotation+dirichlet"), ("dirichlet+rotation", "rotation+dirichlet"),
    ("label-subset+domain", "domain+label-subset"), ("quantitiy", "quantity"), ("domian", "domain"),
])
def test_a_typo_names_the_nearest(text: str, meant: str) -> None:
    with pytest.raises(ConfigError, match=f"did you mean '{meant.replace('+', '[+]')}'"):
        RunConfig(partition=text)


@pytest.mark.parametrize("value", [0, -1])
def test_domains_per_client_is_at_least_one(value: int) -> None:
    with pytest.raises(ConfigError, match="domains-per-client must be 1 or more"):
        RunConfig(domains_per_client=value)
