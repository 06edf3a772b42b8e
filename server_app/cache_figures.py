"""What a report shows of feature caches: routes over rounds, the gate's weight, drift, and what was saved.

Of the gate's weights, means over all blends and by age of the cached feature leave; those by class stay with the clients.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from server_app.cache_summary import mean_of
from server_app.charts import Chart, rounded, thinned
from server_app.cost import BARS_AT_MOST
from server_app.sections import bytes_text, percent, section, table_of
from server_app.summary import Findings, last_with

ROUTES = (("hit", "calm"), ("fuse", "tail"), ("miss", "quiet"))
# key of a record, age of the cached feature in rounds, tone
WEIGHTS = (("gate_weight", "all ages", "ink"), ("gate_weight_1", "1 or less", "calm"), ("gate_weight_2", "2", "tail"),
           ("gate_weight_3_5", "3 to 5", "worst"), ("gate_weight_more", "more than 5", "muted"))


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


def cache_figures(found: Findings) -> str:
    """Routes and drift over rounds, as HTML; "" for a run without feature caches."""
    charts = []
    if any(r.get("hit") for r in found.records):
        charts.append(routes_picture(found.records))
    if any(r.get("gate_weight") and r.get("hit") for r in found.records):
        charts.append(weights_picture(found.records))
    states = [(int(r["round"]), (r.get("diagnostics") or {}).get("cache")) for r in found.records]
    if moves := [(number, float(state["moved"])) for number, state in states if state]:
        charts.append(drift_picture(moves))
    return "".join(chart.html() for chart in charts)


def routes_picture(records: Sequence[Mapping[str, Any]]) -> Chart:
    """Stacked shares of HIT, FUSE and MISS over rounds, and the gate's mean weight."""
    told = [r for r in records if r.get("hit")]
    told = [told[place] for place in thinned(len(told), BARS_AT_MOST)]
    rounds = [int(r["round"]) for r in told]
    shares = {route: [mean_of(r.get(route)) or 0.0 for r in told] for route, _ in ROUTES}
    gate = [mean_of(r.get("gate_weight")) for r in told]
    weighed = bool(last_with(records, "gate_weight"))
    first, last = (f"{100 * shares['hit'][at]:.0f} % in round {rounds[at]}" for at in (0, -1))
    body = [[str(number), *(percent(shares[route][at]) for route, _ in ROUTES), *([percent(gate[at])] if weighed else [])]
            for at, number in enumerate(rounds)]
    return Chart(
        "Routes",
        f"Bars: share of HIT samples from {first} to {last}.",
        {"kind": "bars", "labels": [str(number) for number in rounds], "stacked": True, "unit": "%", "top": 100,
         "bars": [{"name": route.upper(), "y": rounded(shares[route], 1, 100), "tone": tone} for route, tone in ROUTES],
         "lines": [{"name": "weight of cached features", "y": rounded(gate, 1, 100), "tone": "ink"}] if weighed else [],
         "x_title": "round", "y_title": "training samples, %"},
        "Share of training samples by route, mean over clients. <span class=calm>■</span> HIT, <span class=tail>■</span> FUSE, "
        "<span class=quiet>■</span> MISS." + (" Line: mean weight of cached features in blends." if weighed else ""),
        table_of(["round", *(route.upper() for route, _ in ROUTES), *(["weight of cached features"] if weighed else [])], body),
    )


def weights_picture(records: Sequence[Mapping[str, Any]]) -> Chart:
    """The gate's mean weight over rounds, of all blends and by age of the cached feature; ages that never occurred are left out."""
    told = [r for r in records if r.get("gate_weight")]
    told = [told[place] for place in thinned(len(told), BARS_AT_MOST)]
    lines = [(words, [mean_of(r.get(key)) for r in told], tone) for key, words, tone in WEIGHTS if last_with(told, key)]
    last = ", ".join(f"{words} {value:.2f}" for words, values, _ in lines if (value := values[-1]) is not None)
    return Chart(
        "Weight of cached features by age",
        f"Lines: mean weight of a cached feature in a blend, by its age in rounds; in the last round: {last}.",
        {"kind": "lines", "x": [int(r["round"]) for r in told], "digits": 2, "x_title": "round", "y_title": "weight",
         "lines": [{"name": words, "y": rounded(values, 3), "tone": tone} for words, values, tone in lines]},
        "What the gate gives to a cached feature beside the fresh one, by rounds since it was made; mean over clients that had any. "
        "Weights by class stay with the clients.",
        table_of(["round", *(words for words, _, _ in lines)],
                 [[str(r["round"]), *("–" if values[at] is None else f"{values[at]:.3f}" for _, values, _ in lines)]
                  for at, r in enumerate(told)]),
    )


def drift_picture(moves: Sequence[tuple[int, float]]) -> Chart:
    """The encoder's move of every round."""
    return Chart(
        "Drift",
        f"Line: the encoder's relative move from {moves[0][1]:.3f} to {moves[-1][1]:.3f}.",
        {"kind": "lines", "x": [number for number, _ in moves], "digits": 4, "x_title": "round", "y_title": "move, in lengths",
         "lines": [{"name": "move", "y": rounded([moved for _, moved in moves], 5), "tone": "calm"}]},
        "How far the shared encoder moved in a round, relative to its length.",
        table_of(["round", "move"], [[str(number), f"{moved:.4f}"] for number, moved in moves]),
    )
