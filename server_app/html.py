"""report.html: a run for people, as one file that needs no network and no script.

Leads with what the tail of the clients gets, since a mean hides it. Served and adapted figures never share a
column. Every string that comes from a run is escaped.
"""

from __future__ import annotations

from collections.abc import Iterable
from html import escape

from server_app import figures, heatmaps, prototype_figures, sections
from server_app.cache_figures import cache_charts, cache_section
from server_app.fusion_figures import fusion_section
from server_app.sections import SPACE, number, percent, points
from server_app.style import CSS
from server_app.summary import Findings, refreshes
from strategies.data_warnings import MEANING, few


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
            f"<div class=grid>{''.join((*_charts(found), *_prototype_charts(found), *_cache_charts(found)))}</div>",
            sections.scores(found),
            sections.held_out(found),
            sections.traffic(found),
            cache_section(found),
            fusion_section(found),
            sections.dropped(found),
            sections.reproduce(found),
            sections.clients(found),
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
    worst = min((r for r in found.participants if r.served is not None), key=lambda r: (r.served, r.client))
    group = f" ({escape(worst.group)})" if worst.group else ""
    under = 100 * (served["mean"] - served["worst"])
    low = -(-served["n"] // 5)
    return (
        f"Worst client <b>{escape(worst.client)}</b>{group} is served <b>{percent(served['worst'])}</b>, "
        f"{under:.1f} points under the mean of {percent(served['mean'])}; the bottom 20{SPACE}% "
        f"({low} of {served['n']} clients) average <b>{percent(served['bottom20'])}</b>."
    )


def _cards(found: Findings) -> str:
    served = found.summary["served"]
    if not served:
        return ""
    shown = (
        ("worst client", "worst"),
        (f"bottom 20{SPACE}%", "bottom20"),
        ("mean", "mean"),
        ("std over clients, points", "std"),
    )
    cells = "".join(
        f"<div class={key}><dt>{name}</dt><dd>{(points if key == 'std' else percent)(served[key])}</dd></div>" for name, key in shown
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
        *(f"Data check: {MEANING[kind]} at {len(clients)} of {s['clients']} clients ({escape(few(clients))})."
          for kind, clients in s["data_warnings"].items()),
    ]
    return "".join(f"<p class=note>{line}</p>" for line in lines if line)


def _charts(found: Findings) -> Iterable[str]:
    s, refreshed = found.summary, refreshes(found.records)
    groups = {row.client: row.group for row in found.rows}
    if s["served"]:
        yield _figure(
            "Every client",
            figures.client_bars(found.participants),
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
        refresh, last = refreshed[-1]
        if last.get("similarity"):
            yield _figure(
                "Similarity of heads",
                heatmaps.similarity_picture(last),
                f"At the refresh after round {refresh}, clients ordered by cluster. "
                "<span class=many>■</span> alike (1), <span class=less>■</span> opposed (−1), "
                "empty: unrelated (0).",
            )
        rand = s["clusters"].get("adjusted_rand")
        yield _figure(
            "Clusters over time",
            heatmaps.cluster_picture(refreshed, groups),
            f"One colour a cluster, carried over between refreshes. Last: k = {s['clusters']['k']}, "
            f"silhouette {number(s['clusters']['silhouette'])}"
            + (f", adjusted Rand index against the split's groups {rand:.2f}." if rand is not None else "."),
        )


def _prototype_charts(found: Findings) -> Iterable[str]:
    """Of methods with class prototypes: typical mixtures after the last round, and the prototypes' movement."""
    last = found.records[-1].get("diagnostics") or {} if found.records else {}
    if last.get("mixture_map"):
        yield _figure(
            "Mixtures of class prompts",
            prototype_figures.mixture_picture(last["mixture_map"], (found.split or {}).get("classes") or ()),
            "What a sample that lies at its class's global prototype gets of each class prompt, in %, with a flat prior; mean over "
            "the layers. It follows from the global prototypes alone.",
        )
    if prototype_figures.drifts_of(found.records):
        yield _figure(
            "Movement of class prototypes",
            prototype_figures.drift_curves(found.records),
            "Length of each round's step, relative to the prototypes before it.",
        )


def _cache_charts(found: Findings) -> Iterable[str]:
    return (_figure(*chart) for chart in cache_charts(found))


def _figure(heading: str, svg: str, caption: str) -> str:
    """``caption`` is HTML; ``svg`` is trusted too."""
    return f"<figure><h2>{escape(heading)}</h2>{svg}<figcaption>{caption}</figcaption></figure>"
