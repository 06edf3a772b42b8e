"""report.html: a run for people, as one file that needs no network and no script.

Leads with what the tail of the clients gets, since a mean hides it. Served and adapted figures never share a
column. Every string that comes from a run is escaped.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from html import escape
from typing import Any

from server_app import figures, heatmaps
from server_app.reproduce import command
from server_app.style import CSS
from server_app.summary import Findings, refreshes

WORDS = {
    "served": "served",
    "served_raw": "served, BatchNorm as averaged",
    "adapted": "adapted",
    "adapted_raw": "adapted, BatchNorm as averaged",
}
SPACE = "\N{NO-BREAK SPACE}"


def page(found: Findings) -> str:
    """The whole report of a finished run."""
    s = found.summary
    title = f"{s['method']} on {s['dataset']}"
    facts = [
        f"{s['clients']} clients",
        f"{s['rounds']} rounds",
        f"partition {s['partition']}",
        f"seed {s['seed']}",
        f"engine {s['engine']}",
    ]
    body = "\n".join(
        part
        for part in (
            f"<header><h1>{escape(title)}</h1><p class=facts>{escape(' · '.join(facts))}</p></header>",
            f"<p class=lead>{finding(found)}</p>",
            _cards(found),
            _warnings(found),
            f"<div class=grid>{''.join(_charts(found))}</div>",
            _scores(found),
            _bytes(found),
            _dropped(found),
            _reproduce(found),
            _clients(found),
        )
        if part
    )
    return (
        f'<!doctype html>\n<html lang="en"><head><meta charset="utf-8"><title>{escape(title)}</title>'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        '<meta name="color-scheme" content="light dark">'
        f"<style>{CSS}</style></head>\n<body><main>\n{body}\n</main></body></html>\n"
    )


def finding(found: Findings) -> str:
    """One sentence about the tail of the served scores, as HTML."""
    served = found.summary["served"]
    if not served:
        return "No client was scored in the closing evaluation, so nothing can be said about the tail."
    worst = min((r for r in found.rows if r.served is not None), key=lambda r: (r.served, r.client))
    group = f" ({escape(worst.group)})" if worst.group else ""
    under = 100 * (served["mean"] - served["worst"])
    low = -(-served["n"] // 5)
    return (
        f"Worst client <b>{escape(worst.client)}</b>{group} is served <b>{percent(served['worst'])}</b>, "
        f"{under:.1f} points under the mean of {percent(served['mean'])}; the bottom 20{SPACE}% "
        f"({low} of {served['n']} clients) average <b>{percent(served['bottom20'])}</b>."
    )


def percent(share: float | None) -> str:
    """``0.38`` -> ``38.0 %``, with a space that does not break."""
    return "–" if share is None else f"{100 * share:.1f}{SPACE}%"


def _cards(found: Findings) -> str:
    served = found.summary["served"]
    if not served:
        return ""
    shown = (
        ("worst client", "worst"),
        ("bottom 20 %", "bottom20"),
        ("mean", "mean"),
        ("std over clients", "std"),
    )
    cells = "".join(
        f"<div class={key}><dt>{name}</dt><dd>{percent(served[key])}</dd></div>" for name, key in shown
    )
    return f'<dl class=cards aria-label="served accuracy">{cells}</dl>'


def _warnings(found: Findings) -> str:
    s = found.summary
    missing = s["clients"] - (s["served"] or {"n": 0})["n"]
    lines = [
        f"{s['void_rounds']} of {s['rounds']} rounds were void: too few valid replies, state unchanged."
        if s["void_rounds"]
        else "",
        f"{missing} of {s['clients']} clients have no served score (no test images, or no reply to "
        "the closing evaluation) and are not in these figures."
        if missing
        else "",
    ]
    return "".join(f"<p class=note>{line}</p>" for line in lines if line)


def _charts(found: Findings) -> Iterable[str]:
    s, refreshed = found.summary, refreshes(found.records)
    groups = {row.client: row.group for row in found.rows}
    if s["served"]:
        yield _figure(
            "Every client",
            figures.client_bars(found.rows),
            "Served accuracy after the last round, sorted. "
            "<span class=tail>■</span> bottom 20 %, <span class=calm>■</span> the others.",
        )
    if s["served"] and found.records:
        yield _figure(
            "Learning",
            figures.learning_curves(found.records, s["served"]),
            "Served accuracy over the clients asked in each round; the last point is the closing "
            "evaluation of all clients." + (" Dotted lines: refresh rounds." if refreshed else ""),
        )
    if found.split:
        order = [r.client for r in sorted(found.rows, key=lambda r: (r.group, r.client))]
        yield _figure(
            "The split",
            heatmaps.split_picture(found.split, order),
            "Training images by client and class; the stronger the colour, the more.",
        )
    else:
        note = "<p class=note>Class counts stay at the clients, so there is no picture.</p>"
        yield f"<figure><h2>The split</h2>{note}</figure>"
    if refreshed:
        number, last = refreshed[-1]
        if last.get("similarity"):
            yield _figure(
                "Similarity of heads",
                heatmaps.similarity_picture(last),
                f"At the refresh after round {number}, clients ordered by cluster. "
                "<span class=many>■</span> alike (1), <span class=less>■</span> opposed (−1), "
                "empty: unrelated (0).",
            )
        rand = s["clusters"].get("adjusted_rand")
        yield _figure(
            "Clusters over time",
            heatmaps.cluster_picture(refreshed, groups),
            f"One colour a cluster, carried over between refreshes. Last: k = {s['clusters']['k']}, "
            f"silhouette {_number(s['clusters']['silhouette'])}"
            + (f", adjusted Rand index against the split's groups {rand:.2f}." if rand is not None else "."),
        )


def _scores(found: Findings) -> str:
    s = found.summary
    columns = [key for key in WORDS if s[key]]
    rows = (
        ("mean", "mean"),
        ("standard deviation", "std"),
        ("worst client", "worst"),
        ("bottom 20 %", "bottom20"),
        ("mean weighted by test images", "weighted_mean"),
    )
    bn = s["run_config"].get("bn")
    words = dict(WORDS)
    if bn == "recompute":
        words |= {key: f"{WORDS[key]}, BatchNorm recomputed" for key in ("served", "adapted")}
    body = [[name, *(percent(s[key][row]) for key in columns)] for name, row in rows]
    body.append(["clients", *(str(s[key]["n"]) for key in columns)])
    since = f" in round {s['adapted_round']}" if s.get("adapted_round") else ""
    return _section(
        "Accuracy over clients",
        "<p>Served: the model a client has <em>before</em> local training, after the "
        f"last round. Adapted: the same client <em>after</em> its local training{since}. They answer "
        "different questions; compare only within a column.</p>"
        + _table(["", *(words[key] for key in columns)], body),
    )


def _bytes(found: Findings) -> str:
    traffic = found.summary["bytes"]
    slots = sorted({*traffic["by_slot"]["up"], *traffic["by_slot"]["down"]})
    body = [
        [slot, *(_bytes_text(traffic["by_slot"][way].get(slot, 0)) for way in ("up", "down"))]
        for slot in slots
    ]
    body.append(["total", _bytes_text(traffic["up"]), _bytes_text(traffic["down"])])
    each = traffic["up_per_client_round"]
    return _section(
        "Bytes",
        _table(["slot", "up", "down"], body)
        + (
            f"<p>{_bytes_text(each)} up per client and round. Payload only, no transport overhead.</p>"
            if each is not None
            else ""
        ),
    )


def _dropped(found: Findings) -> str:
    reasons = found.summary["dropped"]
    content = (
        _table(["reason", "replies"], [[reason, str(n)] for reason, n in reasons.items()])
        if reasons
        else "<p>None: every reply was accepted.</p>"
    )
    return _section("Dropped replies", content)


def _reproduce(found: Findings) -> str:
    s = found.summary
    rss = s["server_peak_rss_mib"]
    facts = [
        ["split hash", s["split_hash"] or "–"],
        *([name, str(v)] for name, v in sorted(s["versions"].items())),
        ["seconds, whole run", f"{s['seconds']['total']:.1f}"],
        ["seconds a round, median", _number(s["seconds"]["round_median"])],
        ["server memory, peak", f"{rss:.0f} MiB" if rss is not None else "–"],
        ["personal models", s["personal_models"] or "–"],
    ]
    settings = [[key, str(value)] for key, value in s["run_config"].items()]
    return _section(
        "How to reproduce",
        f"<pre>{escape(command(s['run_config']))}</pre>"
        + _table(["", ""], facts, "facts-table")
        + "<details><summary>All settings</summary>"
        + _table(["key", "value"], settings, "facts-table")
        + "</details>",
    )


def _clients(found: Findings) -> str:
    head = ["client", "group", "training images", "test images", "classes", "served", "adapted"]
    body = [
        [
            r.client,
            r.group,
            *("–" if n is None else str(n) for n in (r.n_train, r.n_test, r.classes)),
            percent(r.served),
            percent(r.adapted),
        ]
        for r in found.rows
    ]
    table = _table(head, body)
    return f"<section><details><summary>All {len(body)} clients</summary>{table}</details></section>"


def _figure(heading: str, svg: str, caption: str) -> str:
    """``caption`` is HTML; ``svg`` is trusted too."""
    return f"<figure><h2>{escape(heading)}</h2>{svg}<figcaption>{caption}</figcaption></figure>"


def _section(heading: str, content: str) -> str:
    return f"<section><h2>{escape(heading)}</h2>{content}</section>"


def _table(head: Sequence[str], body: Iterable[Sequence[str]], look: str = "") -> str:
    top = "".join(f"<th scope=col>{escape(cell)}</th>" for cell in head)
    lines = (
        f"<tr><th scope=row>{escape(name)}</th>{''.join(f'<td>{escape(cell)}</td>' for cell in cells)}</tr>"
        for name, *cells in body
    )
    header = f"<thead><tr>{top}</tr></thead>" if any(head) else ""
    return f'<div class=scroll><table class="{look}">{header}<tbody>{"".join(lines)}</tbody></table></div>'


def _bytes_text(n: float) -> str:
    for unit in ("B", "KiB", "MiB"):
        if n < 1024:
            return f"{n:.0f}{SPACE}{unit}" if unit == "B" else f"{n:.1f}{SPACE}{unit}"
        n /= 1024
    return f"{n:,.1f}{SPACE}GiB"


def _number(value: Any) -> str:
    return "–" if value is None else f"{value:.2f}"
