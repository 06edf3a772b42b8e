"""The donor swap of a run: every client scores its own head with others' encoders, and the server looks at how that goes with heads.

One exchange for the clients' own encoders, which is what a drop is measured from, then one a donor, so that a single donor's encoder
is in memory at a time and travels as one record. Clients send back two accuracies an encoder and nothing else. Which clients are
donors is drawn by the run's seed, so a run's own swap and one made afterwards from its folder try the same ones.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from flwr.app import ArrayRecord
from flwr.serverapp import Grid

from server_app.donor_swap_file import split_of, write_swap
from server_app.rounds import Outcome, Plan, exchange
from server_app.summary import plain
from strategies.adapter import RuleStrategy
from strategies.config import ConfigError
from strategies.donor_swap import ACCURACY, RAW, Donors, drawn_donors
from strategies.registry import SPLIT_MODEL, Settings
from strategies.tally import Tally
from strategies.types import Tensors

log = logging.getLogger(__name__)
OnDonor = Callable[[int, int], None]  # (exchanges done, exchanges in all)


@dataclass(frozen=True)
class Swapped:
    """What came back, R recipients in rows and M donors in columns; NaN where there is no score, and where a client is its own donor.

    Attributes
    ----------
    accuracy, raw (R, M) : of the recipient's head with the donor's encoder, BatchNorm as the run scores, and as it came.
    own, own_raw (R,) : of the same head with the recipient's own encoder.
    """

    recipients: tuple[str, ...]
    donors: tuple[str, ...]
    accuracy: np.ndarray
    raw: np.ndarray
    own: np.ndarray
    own_raw: np.ndarray
    bytes: Counter[str] = field(default_factory=Counter)
    dropped: Counter[str] = field(default_factory=Counter)


def check_can_swap(settings: Settings) -> None:
    """Raise ``ConfigError`` if the run asks for a donor swap that its method has no encoders for on the server."""
    if settings.run.donor_swap and not hasattr(settings.method.rule_class(), "donors"):
        after = (". If its clients have encoders and heads of their own, the command fedhearth donor-swap can do it afterwards, on the "
                 "machine where the run lies" if settings.method.model == SPLIT_MODEL else "")
        raise ConfigError(f"donor-swap needs the clients' own encoders on the server, and {settings.method.name} keeps none there; "
                          f"leave the setting out{after}")


def swap(grid: Grid, strategy: RuleStrategy, plan: Plan, donors: Donors, encoder_of: Callable[[str], Tensors], most: int,
         before: Callable[[], None] | None = None, on_donor: OnDonor | None = None) -> Swapped:
    """Ask every client of ``donors`` about its own encoder, then about those of at most ``most`` others.

    ``encoder_of`` reads a client's encoder; ``before`` is called before every exchange. A client that does not answer has no score.
    """
    drawn = drawn_donors(donors.clients, most, strategy.run.seed)
    recipients = tuple(sorted(donors.clients))
    shape = (len(recipients), len(drawn))
    out = Swapped(recipients, drawn, np.full(shape, np.nan), np.full(shape, np.nan), np.full(shape[0], np.nan), np.full(shape[0], np.nan))

    def ask(names: Iterable[str], encoder: Callable[[str], Tensors]) -> dict[str, np.ndarray]:
        if before:
            before()
        tally = scored(grid, strategy, plan, names, encoder)
        out.bytes.update({"up": sum(tally.up.values()), "down": sum(tally.down.values())})
        out.dropped.update(tally.dropped)
        return {key: np.array([tally.metrics.get(name, {}).get(key, np.nan) for name in recipients]) for key in (ACCURACY, RAW)}

    own = ask(recipients, encoder_of)
    out.own[:], out.own_raw[:] = own[ACCURACY], own[RAW]
    for n, donor in enumerate(drawn):
        if on_donor:
            on_donor(n + 1, len(drawn) + 1)
        shared = dict(encoder_of(donor))  # a plain dict is packed once for all
        found = ask([name for name in recipients if name != donor], lambda _: shared)  # noqa: B023
        out.accuracy[:, n], out.raw[:, n] = found[ACCURACY], found[RAW]
    if on_donor:
        on_donor(len(drawn) + 1, len(drawn) + 1)
    return out


def scored(grid: Grid, strategy: RuleStrategy, plan: Plan, names: Iterable[str], encoder_of: Callable[[str], Tensors]) -> Tally:
    """What the clients ``names`` say of the encoders that ``encoder_of`` gives them, each under its own head."""
    messages = strategy.configure_swap(plan.rounds, names, encoder_of)
    return strategy.aggregate_swap(plan.rounds, exchange(grid, messages, plan, Outcome(plan.rounds, ArrayRecord())))


def closing_swap(grid: Grid, strategy: RuleStrategy, plan: Plan, folder: Path, before: Callable[[], None]) -> None:
    """The donor swap at the end of a run, as its settings ask; leaves ``donor_swap.json``."""
    donors: Donors | None = strategy.rule.donors(strategy.state)  # type: ignore[attr-defined]
    if donors is None:
        log.warning("no donor swap: the run had no refresh, so nothing says how alike heads are")
        return
    log.info("donor swap: %d clients, up to %d donors", len(donors.clients), strategy.run.donor_swap)
    found = swap(grid, strategy, plan, donors, shelved(strategy, donors), strategy.run.donor_swap, before)
    write(folder, strategy, donors, found)


def shelved(strategy: RuleStrategy, donors: Donors) -> Callable[[str], Tensors]:
    """Reads a donor's encoder from the shelf."""
    return lambda name: strategy.rule.shelf.get(name, donors.rounds[name])  # type: ignore[attr-defined]


def write(folder: Path, strategy: RuleStrategy, donors: Donors, found: Swapped) -> dict[str, Any]:
    """Work out what ``found`` says, and leave it in the run's folder; returns it."""
    from server_app.donor_swap_findings import findings_of

    told = plain({"method": strategy.run.method, "bn": strategy.run.bn, "seed": strategy.run.seed, "refresh": donors.refresh,
                  **findings_of(donors, found, split_of(folder), strategy.run.seed),
                  "groups": _groups(strategy, split_of(folder)), "bytes": dict(found.bytes), "dropped": dict(found.dropped)})
    write_swap(folder, told)
    return told


def _groups(strategy: RuleStrategy, split: Mapping[str, Any]) -> dict[str, str]:
    """By which clients are put in order: the split's groups, else the method's clusters."""
    groups = {client: str(group) for client, group in (split.get("groups") or {}).items() if group not in ("", None)}
    clusters = strategy.rule.diagnostics(strategy.state).get("clusters", {}).get("assignment", {})
    return groups or {client: f"cluster {k}" for client, k in clusters.items()}
