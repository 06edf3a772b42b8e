"""What a report shows of feature caches: routes over rounds, the gate's weight, drift, and what was saved.

Weights of the gate by age and class stay at the clients; only their mean leaves.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from server_app.cache_summary import mean_of
from server_app.figures import CALM, INK, MUTED, RULE, SIZE, TAIL, canvas, inline_svg
from server_app.sections import bytes_text, percent, section, table_of
from server_app.summary import Findings, last_with


def cache_section(found: Findings) -> str:
    """What was reused, as HTML; "" for a run without feature caches."""
    cache = found.summary.get("cache")
    if not cache:
        return ""
    facts: list[tuple[str, str]] = [(name, percent(cache[key])) for key, name in (
        ("avoided_training", "training passes of the encoder skipped"), ("avoided_last_quarter", "the same, last quarter of the rounds"))
        if key in cache]
    if "forwards" in cache:
        done, avoided = cache["forwards"], cache["forwards_avoided"]
        facts.append(("encoder passes, all phases", f"{done:,} done, {avoided:,} avoided ({percent(avoided / max(1, done + avoided))})"))
    if "gate_weight" in cache:
        facts.append(("mean weight of a cached feature in a blend, last", f"{cache['gate_weight']:.2f}"))
    if "version" in cache:
        facts.append(("encoder versions, and the path in lengths of the encoder", f"{cache['version']}, {cache['drift']:.2f}"))
        facts += [(f"encoder bytes {way}", f"{bytes_text(moved['sent'])} of {bytes_text(moved['every'])} with an exchange every round")
                  for way, moved in cache["encoder_bytes"].items()]
    if "disk_bytes" in cache:
        disk = cache["disk_bytes"]
        facts.append(("cache on the clients' disks", f"{bytes_text(disk['total'])} in all, {bytes_text(disk['largest'])} at the largest"))
    note = "" if "forwards" in cache else "<p class=note>Clients keep their sample counts at home, so totals are not known here.</p>"
    words = ("<p>HIT samples used their cached feature and skipped the encoder; FUSE samples were computed although one was there; "
             "MISS samples had none to use.</p>")
    return section("Feature cache", words + table_of(["", ""], facts, "facts-table") + note)


def cache_charts(found: Findings) -> Iterable[tuple[str, str, str]]:
    """Heading, picture and caption of each chart."""
    if any(r.get("hit") for r in found.records):
        gate = " Line: mean weight of cached features in blends." if last_with(found.records, "gate_weight") else ""
        yield ("Routes", routes_picture(found.records),
               "Share of training samples by route, mean over clients. <span class=calm>■</span> HIT, "
               f"<span class=tail>■</span> FUSE, the rest MISS.{gate}")
    states = [(int(r["round"]), (r.get("diagnostics") or {}).get("cache")) for r in found.records]
    if moves := [(number, float(state["moved"])) for number, state in states if state]:
        yield "Drift", drift_picture(moves), "How far the shared encoder moved in a round, relative to its length."


def routes_picture(records: Sequence[Mapping[str, Any]]) -> str:
    """Stacked shares of HIT and FUSE over rounds, and the gate's mean weight."""
    told = [r for r in records if r.get("hit")]
    rounds = [int(r["round"]) for r in told]
    hit, fuse = ([100 * (mean_of(r[route]) or 0.0) for r in told] for route in ("hit", "fuse"))
    figure, axes = canvas(2.6)
    axes.bar(rounds, hit, color=CALM, width=0.85)
    axes.bar(rounds, fuse, bottom=hit, color=TAIL, width=0.85)
    weights = [(int(r["round"]), 100 * w) for r in told if (w := mean_of(r.get("gate_weight"))) is not None]
    if weights:
        axes.plot(*zip(*weights, strict=True), color=INK, linewidth=1.4)
    axes.set(ylim=(0, 100), xlabel="round", ylabel="training samples, %")
    _whole_rounds(axes)
    first, last = (f"{hit[at]:.0f} % in round {rounds[at]}" for at in (0, -1))
    return inline_svg(figure, f"Bars: share of HIT samples from {first} to {last}.")


def drift_picture(moves: Sequence[tuple[int, float]]) -> str:
    """The encoder's move of every round."""
    figure, axes = canvas(2.2)
    axes.plot(*zip(*moves, strict=True), color=CALM, linewidth=1.6, marker="o", markersize=2.6)
    axes.set(ylim=(0, None), xlabel="round", ylabel="move, in lengths")
    axes.grid(axis="y", color=RULE, linewidth=0.5)
    _whole_rounds(axes)
    return inline_svg(figure, f"Line: the encoder's relative move from {moves[0][1]:.3f} to {moves[-1][1]:.3f}.")


def _whole_rounds(axes: Any) -> None:
    from matplotlib.ticker import MaxNLocator

    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    axes.tick_params(labelsize=SIZE, colors=MUTED, labelcolor=INK)
