"""What a run cost: payload by slot and direction, seconds and what they went to, the server's memory.

Clients may say how long they trained and scored (``train-seconds``, ``score-seconds``). They may work at once, so a round is told by
the one that worked longest; what is left of the round's seconds is transfer, waiting for others, and the server's own work.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import mean
from typing import Any

from server_app.charts import ROWS_AT_MOST, Chart, rounded, thinned
from server_app.sections import bytes_text, number, section, table_of
from server_app.summary import Findings

SHARES = (("train", "train", "calm"), ("score", "score", "tail"), ("rest", "transfer, wait and server", "quiet"))
BARS_AT_MOST = 400  # rounds; beyond them bars are thinner than a pixel of a phone


def traffic(found: Findings) -> str:
    """Payload by slot and direction."""
    moved = found.summary["bytes"]
    slots = sorted({*moved["by_slot"]["up"], *moved["by_slot"]["down"]})
    body = [
        [slot, *(bytes_text(moved["by_slot"][way].get(slot, 0)) for way in ("up", "down"))] for slot in slots
    ]
    body.append(["total", bytes_text(moved["up"]), bytes_text(moved["down"])])
    body += [[f"{name}, beside the rounds", bytes_text(moved[key]["up"]), bytes_text(moved[key]["down"])]
             for key, name in (("closing", "closing evaluation"), ("joining", "joining")) if key in moved]
    each = moved["up_per_client_round"]
    return section(
        "Bytes",
        table_of(["slot", "up", "down"], body)
        + (
            f"<p>{bytes_text(each)} up per client and round. Payload only, no transport overhead.</p>"
            if each is not None
            else ""
        ),
    )


def bytes_figure(found: Findings) -> str:
    """Payload a round, both directions; "" without rounds."""
    if not found.records:
        return ""
    kept = [found.records[place] for place in thinned(len(found.records), BARS_AT_MOST)]
    moved = {way: [sum(((r.get("bytes") or {}).get(way) or {}).values()) / 2**20 for r in kept] for way in ("up", "down")}
    return Chart(
        "Bytes over rounds",
        f"Lines: payload of each round, up {mean(moved['up']):.2f} MiB and down {mean(moved['down']):.2f} MiB on average.",
        {"kind": "lines", "x": [int(r["round"]) for r in kept], "unit": "MiB", "digits": 3, "x_title": "round", "y_title": "MiB of payload",
         "lines": [{"name": way, "y": rounded(moved[way], 4), "tone": tone} for way, tone in (("up", "tail"), ("down", "calm"))]},
        "Payload of all clients, without the closing evaluation.",
        table_of(["round", *(f"{way}, MiB" for way in moved)],
                 [[str(kept[at]["round"]), *(f"{values[at]:.3f}" for values in moved.values())]
                  for at in thinned(len(kept), ROWS_AT_MOST)]),
    ).html()


def seconds_of(record: Mapping[str, Any]) -> dict[str, float] | None:
    """``train``, ``score`` and ``rest`` of a round's seconds, by the client that worked longest; None where no client said."""
    train, score = (record.get(key) or {} for key in ("train_seconds", "score_seconds"))
    if not train and not score:
        return None
    longest = max(sorted({*train, *score}), key=lambda c: (train.get(c) or 0.0) + (score.get(c) or 0.0))
    worked = {"train": float(train.get(longest) or 0.0), "score": float(score.get(longest) or 0.0)}
    return {**worked, "rest": max(0.0, float(record["seconds"]) - sum(worked.values()))}


def seconds_figure(found: Findings) -> str:
    """Seconds of every round, split where clients said what they did with them; "" without rounds."""
    if not found.records:
        return ""
    kept = [found.records[place] for place in thinned(len(found.records), BARS_AT_MOST)]
    told = [seconds_of(record) for record in kept]
    whole = [float(record["seconds"]) for record in kept]
    split = any(told)
    bars = ([{"name": name, "y": rounded([parts[key] if parts else None for parts in told], 3), "tone": tone} for key, name, tone in SHARES]
            if split else [{"name": "round", "y": rounded(whole, 3), "tone": "calm"}])
    caption = ("Of the client that worked longest in the round; the rest is transfer, waiting for others, and the server's work. "
               "<span class=calm>■</span> train, <span class=tail>■</span> score, <span class=quiet>■</span> the rest."
               if split else "The clients did not say how long they trained and scored, so a round's seconds are not divided.")
    return Chart(
        "Seconds over rounds",
        f"Bars: seconds of each round, {mean(whole):.2f} on average{shares_of(told)}.",
        {"kind": "bars", "labels": [str(r["round"]) for r in kept], "bars": bars, "stacked": True, "unit": "s", "digits": 2,
         "x_title": "round", "y_title": "seconds"},
        caption,
        table_of(["round", "seconds", *(name for _, name, _ in SHARES if split)],
                 [[str(kept[at]["round"]), number(whole[at]), *(number((told[at] or {}).get(key)) for key, _, _ in SHARES if split)]
                  for at in thinned(len(kept), ROWS_AT_MOST)]),
    ).html()


def shares_of(told: Sequence[Mapping[str, float] | None]) -> str:
    """``: train 60 %, score 10 %, ...`` over all rounds that say it; "" if none does."""
    sums = {key: sum(parts[key] for parts in told if parts) for key, _, _ in SHARES}
    whole = sum(sums.values())
    return ": " + ", ".join(f"{name} {100 * sums[key] / whole:.0f} %" for key, name, _ in SHARES) if whole else ""


def time_and_memory(found: Findings) -> str:
    """The run's seconds, what they went to, and the server's peak memory."""
    s = found.summary
    told = [parts for record in found.records if (parts := seconds_of(record))]
    rss = s["server_peak_rss_mib"]
    facts = [
        ["seconds, whole run", f"{s['seconds']['total']:.1f}"],
        ["seconds a round, median", number(s["seconds"]["round_median"])],
        *([f"{name}, seconds a round", number(mean(parts[key] for parts in told))] for key, name, _ in SHARES if told),
        ["server memory, peak", f"{rss:.0f} MiB" if rss is not None else "–"],
    ]
    return section("Time and memory", table_of(["", ""], facts, "facts-table"))
