"""What a donor swap found, as rows of words and numbers: the same for a terminal and for the report."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

# name, mean, 95 % interval, recipients above 0, note
Row = tuple[str, str, str, str, str]
NONE = "–"


def facts(told: Mapping[str, Any]) -> list[str]:
    """Who tried whose encoders, and what did not come back, a line each."""
    recipients, donors, clients = len(told["recipients"]), len(told["donors"]), told["clients"]
    drawn = f"{donors} donors" if donors == clients else f"{donors} donors, drawn from {clients} by the run's seed"
    rule = {"recompute": "re-estimated by each recipient", "average": "the donors' own"}.get(str(told["bn"]), "the donors' own")
    lines = [f"donor swap: {recipients} recipients with their own heads, {drawn}; heads as of the refresh after round {told['refresh']}; "
             f"BatchNorm statistics {rule}"]
    if told["dropped"]:
        lines.append("replies dropped: " + ", ".join(f"{count} {reason}" for reason, count in sorted(told["dropped"].items())))
    return lines


def association_rows(told: Mapping[str, Any]) -> list[Row]:
    """The association, then its three controls."""
    main, controls = told["association"], told["controls"]
    p = f"p {main['p']:.4f} by {told['permutations']} permutations" if main["p"] is not None else ""
    rows = [_row("Spearman's rho", main["rho"], p), _row("Kendall's tau-b", main["tau"], "")]
    left = controls["given"]
    known = " and ".join(left["given"])
    note = f"given {known}" if known else "nothing to take into account: no other difference of donors is known here"
    rows.append(_row("control: partial rho", left["rho"] or {}, note))
    fresh = controls["untrained"]
    rows.append(("control: untrained heads, rho", signed(fresh["mean"]), between(fresh["range"]), NONE,
                 f"mean and 95 % range of {fresh['draws']} draws; about 0 if all is well"))
    rows.append(_row("control: donors' BatchNorm statistics, rho", controls["donor_statistics"]["rho"], ""))
    return rows


def drop_rows(told: Mapping[str, Any]) -> list[tuple[str, str, str]]:
    """Accuracy, and drop from the own encoder in points, by how alike the donors' heads are."""
    return [(third["donors"], percent(third["accuracy"]), NONE if third["drop"] is None else f"{100 * third['drop']:.1f}")
            for third in told["drop"]]


def recipient_rows(told: Mapping[str, Any]) -> list[list[str]]:
    """A line a recipient: its rho and tau-b, and its accuracy with its own encoder and the mean over donors."""
    lines = []
    for client, own, row in zip(told["recipients"], told["own"], told["accuracy"], strict=True):
        found = told["association"]["by_recipient"][client]
        known = [value for value in row if value is not None]
        mean = sum(known) / len(known) if known else None
        lines.append([client, str((told.get("groups") or {}).get(client, "")), signed(found["rho"]), signed(found["tau"]), percent(own),
                      percent(mean), percent(max(known, default=None))])
    return lines


def _row(name: str, found: Mapping[str, Any], note: str) -> Row:
    if found.get("undefined"):
        note = "; ".join(filter(None, [note, f"undefined for {found['undefined']} recipients, who are in no mean"]))
    positive = found.get("positive")
    return name, signed(found.get("mean")), between(found.get("interval")), NONE if positive is None else f"{100 * positive:.0f} %", note


def signed(value: float | None) -> str:
    return NONE if value is None else f"{value:+.3f}"


def between(interval: list[float] | tuple[float, float] | None) -> str:
    return NONE if interval is None else f"{interval[0]:+.3f}, {interval[1]:+.3f}"


def percent(share: float | None) -> str:
    return NONE if share is None else f"{100 * share:.1f} %"
