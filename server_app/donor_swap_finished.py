"""The donor swap of a finished run: the run's last state, its clients, and the same exchanges as at the end of a run.

Donors' encoders are those on the run's shelf, where its method keeps clients' encoders. Of any other method with private heads
they are the personal models', and heads are compared by HDC-FL's default descriptor: no run of that method can do this over
the network, but whoever has all its folders can. Nothing of the run changes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np
from flwr.serverapp import Grid

from server_app.donor_swap import OnDonor, shelved, swap, write
from server_app.donor_swap_file import FILE, read_swap
from server_app.finished_state import finished_strategy
from server_app.rounds import Plan, RunFailed
from strategies.adapter import RuleStrategy
from strategies.config import ConfigError
from strategies.donor_swap import Donors, donors_by_heads
from strategies.movement import is_statistic
from strategies.registry import Settings
from strategies.types import Slots, Tensors

# a client's personal model by its slots, or None if it has none
Personal = Callable[[str], Slots | None]


def swap_finished(grid: Grid, folder: Path, settings: Settings, personal: Personal, heads: Mapping[str, Tensors],
                  on_donor: OnDonor | None = None) -> dict[str, Any]:
    """Swap among the clients of ``grid``, which are those of the finished run in ``folder``; leaves and returns ``donor_swap.json``.

    ``heads`` are what `private_heads` gave.

    Raises
    ------
    ConfigError
        If the clients' data are not the run's, its last state is not there, or there is nothing to swap.
    CannotStart, RunFailed
        If a client cannot take part, or none answers.
    """
    run = settings.run
    strategy, start = finished_strategy(grid, folder, settings)
    donors, encoder_of = _sources(strategy, start["head"], personal, heads)
    found = swap(grid, strategy, Plan(run.rounds, run.deadline, run.quorum, done=run.rounds), donors, encoder_of, run.donor_swap,
                 on_donor=on_donor)
    if found.dropped and not np.isfinite(found.own).any():
        raise RunFailed(f"no client answered ({dict(found.dropped)}); the log above says why")
    if found.dropped and (before := read_swap(folder)) and not before["dropped"]:
        raise RunFailed(f"replies were dropped ({dict(found.dropped)}; why: in the log above), and the donor swap of before lacks none, so "
                        f"it stays. For an incomplete one, remove {FILE} first")
    return write(folder, strategy, donors, found)


def _sources(strategy: RuleStrategy, initial_head: Tensors, personal: Personal,
             heads: Mapping[str, Tensors]) -> tuple[Donors, Callable[[str], Tensors]]:
    """Who can swap, and where encoders are read."""
    of_rule = getattr(strategy.rule, "donors", None)
    if of_rule is not None:
        donors = of_rule(strategy.state)
        if donors is None:
            raise ConfigError("the run had no refresh, so nothing says how alike its clients' heads are")
        if len(donors.clients) < 2:
            raise ConfigError("a donor swap needs two clients or more, and one was in the run's last refresh")
        return donors, shelved(strategy, donors)
    donors = donors_by_heads(heads, initial_head, strategy.run.seed, strategy.run.rounds)
    # no plain dict, which would be kept while others wait for theirs
    return donors, lambda name: MappingProxyType(dict((personal(name) or {})["encoder"]))


def private_heads(settings: Settings, names: Iterable[str], personal: Personal) -> dict[str, Tensors]:
    """The heads of these clients' personal models; none for a method that says itself who can swap.

    Raises
    ------
    ConfigError
        If the personal models do not differ in their heads and in their encoders' weights, or are not there.
    """
    if hasattr(settings.method.rule_class(), "donors"):
        return {}
    heads: dict[str, Tensors] = {}
    first: Slots | None = None
    differ = {"encoder": False, "head": False}
    for name in names:
        kept = personal(name)
        if kept is None or not {"encoder", "head"} <= kept.keys():
            continue
        first = first or kept
        differ = {part: differ[part] or not same_weights(first[part], kept[part]) for part in differ}
        heads[name] = kept["head"]
    if len(heads) < 2:
        raise ConfigError(f"a donor swap needs the personal models of two clients or more, and {len(heads)} of them "
                          f"{'lies' if len(heads) == 1 else 'lie'} here")
    for part, differs in differ.items():
        if not differs:
            raise ConfigError(f"all clients of this {settings.method.name} run end with the same {part}, so there is nothing "
                              "to swap; a donor swap needs clients with heads and encoders of their own, such as those of hdc-fl")
    return heads


def same_weights(one: Tensors, other: Tensors) -> bool:
    """Whether two model parts are the same but for BatchNorm statistics, which every client re-estimates."""
    return all(np.array_equal(tensor, other[name]) for name, tensor in one.items() if not is_statistic(name))
