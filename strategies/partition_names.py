"""What a run's ``partition`` may be called, and what a name is made of.

Grammar: ``[GROUPS+]DIVISION``. A division deals samples out to clients. The parts before it set groups of clients
apart: ``rotation`` by the angle their images are turned by, ``domain`` by the domains they draw from. A group name
alone means ``+iid``. ``flwr-datasets:PARTITIONER?argument=value&...`` is a division too; its own text may hold a "+".
No project imports.
"""

from __future__ import annotations

import re
from typing import NamedTuple

GROUPS = ("rotation", "domain")
DIVISIONS = ("iid", "label-subset", "dirichlet", "quantity", "natural")
LIBRARY = "flwr-datasets:"
# every name but those of the library: a natural client has its own samples, whatever their domain
NAMES = (*DIVISIONS, *GROUPS, "rotation+domain",
         *(f"{group}+{division}" for group in (*GROUPS, "rotation+domain") for division in DIVISIONS
           if division != "natural" or group == "rotation"))


class PartitionName(NamedTuple):
    """A partition's parts. ``library`` is what follows ``flwr-datasets:``, else ""; ``division`` is then that word."""

    groups: frozenset[str]
    division: str
    library: str = ""


def parse_partition(text: str) -> PartitionName | None:
    """The parts of ``text``, or None if it is no partition's name."""
    groups: set[str] = set()
    rest, joined = text, True
    while joined and (word := rest.partition("+")[0]) in GROUPS and word not in groups:
        groups.add(word)
        _, joined, rest = rest.partition("+")
    if not joined:
        return PartitionName(frozenset(groups), "iid")
    if rest.startswith(LIBRARY):
        call = rest.removeprefix(LIBRARY)
        known = re.fullmatch(r"[A-Za-z_]\w*(\?.*)?", call, re.DOTALL)
        return PartitionName(frozenset(groups), LIBRARY.rstrip(":"), call) if known else None
    known = rest in DIVISIONS and not (rest == "natural" and "domain" in groups)
    return PartitionName(frozenset(groups), rest) if known else None


def reordered(text: str) -> str:
    """The known name that has the parts of ``text`` in another order, or ""."""
    return next((name for name in NAMES if sorted(name.split("+")) == sorted(text.split("+"))), "")
