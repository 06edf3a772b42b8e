"""Whether a run went well: void rounds, clients without a score, warnings about data, replies dropped by reason and by site."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from html import escape
from typing import Any

from server_app.charts import ROWS_AT_MOST, Chart, thinned
from server_app.cost import BARS_AT_MOST
from server_app.sections import section, table_of
from server_app.summary import Findings
from strategies.data_warnings import MEANING, few

UNKNOWN = "no reason kept"  # rounds of a version that noted reasons, but not whose replies they were
NOBODY = "?"                # the sender of a reply that nobody owed


def warnings(found: Findings) -> str:
    """What a reader must know before the figures, a note each."""
    s = found.summary
    missing = s["clients"] - (s["served"] or {"n": 0})["n"]
    void = f"{s['void_rounds']} of {s['rounds']} rounds {'was' if s['void_rounds'] == 1 else 'were'} void"
    lines = [
        f"{void}: too few valid replies, state unchanged."
        if s["void_rounds"]
        else "",
        f"{missing} of {s['clients']} clients have no served score (no test images, or no reply to "
        "the closing evaluation) and are not in these figures."
        if missing
        else "",
        *(f"Data check: {MEANING[kind]} at {len(clients)} of {s['clients']} clients ({escape(few(clients))})."
          for kind, clients in s["data_warnings"].items()),
    ]
    return "".join(f"<p class=note>{line}</p>" for line in lines if line)


def dropped(found: Findings) -> str:
    """Replies the server refused or waited for in vain, by reason."""
    reasons = found.summary["dropped"]
    content = (
        table_of(["reason", "replies"], [[reason, str(n)] for reason, n in reasons.items()])
        if reasons
        else "<p>None: every reply was accepted.</p>"
    )
    return section("Dropped replies", content)


def dropped_by_site(records: Sequence[Mapping[str, Any]]) -> dict[str, dict[str, int]]:
    """Client -> reason -> rounds whose reply the server did not get or not take, sorted by client."""
    found: dict[str, Counter[str]] = {}
    for record in records:
        lost = record.get("lost")
        if lost is None:
            told = set(record.get("accepted") or ())
            lost = {client: UNKNOWN for client in record.get("asked") or () if client not in told} if "accepted" in record else {}
        for client, reason in lost.items():
            found.setdefault(client, Counter())[reason] += 1
    return {client: dict(sorted(found[client].items())) for client in sorted(found)}


def sites(found: Findings) -> str:
    """Dropped replies of the rounds by site and reason; "" if there were none."""
    lost = dropped_by_site(found.records)
    if not lost:
        return ""
    asked = Counter(client for record in found.records for client in record.get("asked") or ())
    reasons = sorted({reason for told in lost.values() for reason in told})
    ranked = sorted(lost, key=lambda client: (-sum(lost[client].values()), client))
    body = [[client if client != NOBODY else "nobody who was asked", *(str(lost[client].get(reason, 0)) for reason in reasons),
             str(asked[client])] for client in ranked]
    return section("Dropped replies by site", "<p>In the rounds; those of the closing evaluation are above only.</p>"
                   + table_of(["site", *reasons, "times asked"], body, "sortable"))


def replies_figure(found: Findings) -> str:
    """Replies that came and that did not, by round; "" if none was ever dropped."""
    if not any(record.get("dropped") for record in found.records):
        return ""
    kept = [found.records[place] for place in thinned(len(found.records), BARS_AT_MOST)]
    gone = [sum((r.get("dropped") or {}).values()) for r in kept]
    came = [max(0, len(r.get("asked") or ()) - n) for r, n in zip(kept, gone, strict=True)]
    return Chart(
        "Replies over rounds",
        f"Bars: replies of each round; dropped in {sum(map(bool, gone))} of {len(kept)} rounds, {max(gone)} at the most in one.",
        {"kind": "bars", "labels": [str(r["round"]) for r in kept], "stacked": True, "digits": 0, "x_title": "round", "y_title": "replies",
         "bars": [{"name": "accepted", "y": came, "tone": "calm"}, {"name": "dropped", "y": gone, "tone": "worst"}]},
        "<span class=calm>■</span> accepted, <span class=worst>■</span> dropped.",
        table_of(["round", "accepted", "dropped"],
                 [[str(kept[at]["round"]), str(came[at]), str(gone[at])] for at in thinned(len(kept), ROWS_AT_MOST)]),
    ).html()
