"""report.html: a run for people, as one file that needs no network; its main numbers need no script either.

Leads with what the tail of the clients gets, since a mean hides it. Served and adapted figures never share a
column. Every string that comes from a run is escaped, and a content security policy allows the page's own scripts and styles by
their hashes and nothing else: no request, and no script that came in with a name.
"""

from __future__ import annotations

import hashlib
import json
from base64 import b64encode
from collections.abc import Callable
from functools import cache
from html import escape
from pathlib import Path

from server_app import cost, donor_swap_section, figures, health, heatmaps, sections
from server_app.cache_figures import cache_figures, cache_section
from server_app.chart_script import CHART_SCRIPT
from server_app.fusion_figures import fusion_section
from server_app.prototype_figures import prototype_figures
from server_app.sections import SPACE, percent, points
from server_app.style import CSS
from server_app.summary import Findings, bottom_count
from server_app.table_script import TABLE_SCRIPT

Piece = Callable[[Findings], str]  # HTML of a finished run, "" if the run has nothing of the kind

# id, heading and pieces; an inner tuple stands side by side where there is room. A part without content is left out.
PARTS: tuple[tuple[str, str, tuple[Piece | tuple[Piece, ...], ...]], ...] = (
    ("result", "Result", ((figures.every_client, figures.learning, sections.scores),)),
    ("clients", "Clients", ((figures.curves_by_client, sections.clients), sections.held_out)),
    ("groups", "Groups", ((heatmaps.cluster_figure, heatmaps.similarity_figure),)),
    ("method", "The method", (cache_section, (cache_figures, prototype_figures), fusion_section)),
    ("donor-swap", "Donor swap", donor_swap_section.PIECES),
    ("cost", "Cost", ((cost.traffic, cost.time_and_memory), (cost.bytes_figure, cost.seconds_figure))),
    ("split", "The split", (heatmaps.split_figure,)),
    ("health", "Health", ((health.dropped, health.sites), health.replies_figure)),
    ("reproduce", "How to reproduce", (sections.reproduce,)),
)
# the table script puts these above the table of clients
# points that no table shows
ALIKE = 0.05
TOOLS = ("<template id=tools><div class=tools><label>Filter clients <input type=search></label>"
         "<button type=button>Clear choice</button></div></template>")


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
    parts = [(name, heading, content) for name, heading, pieces in PARTS if (content := _content(pieces, found))]
    links = "".join(f'<li><a href="#{name}">{heading}</a></li>' for name, heading, _ in parts)
    scripts = (*libraries(), TABLE_SCRIPT, CHART_SCRIPT)
    body = "\n".join(
        (
            f"<nav aria-label=Parts><ul>{links}</ul></nav><main>",
            f"<header><h1>{escape(title)}</h1><p class=facts>{escape(' · '.join(facts))}</p></header>",
            f"<p class=lead>{finding(found)}</p>",
            _cards(found),
            health.warnings(found),
            "<p class=nojs>Charts need JavaScript. All else on this page does without: the tables hold the same numbers.</p>",
            *(f'<section class=part id="{name}"><h2>{heading}</h2>{content}</section>' for name, heading, content in parts),
            f"</main>{TOOLS}<div id=live class=unseen role=status></div>",
            *(f"<script>{script}</script>" for script in scripts),
        )
    )
    return (
        f'<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        f'<meta http-equiv="Content-Security-Policy" content="{_policy(scripts)}"><title>{escape(title)}</title>'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        '<meta name="color-scheme" content="light dark">'
        f"<style>{CSS}</style></head>\n<body>{body}\n</body></html>\n"
    )


@cache
def libraries() -> tuple[str, ...]:
    """The charting library's scripts with their licence notices; without the line that points to a source map, which is not here."""
    entries = json.loads(Path(__file__).with_name("vendored.json").read_text(encoding="utf-8"))
    return tuple(entry["script"].partition("//# sourceMappingURL")[0] for entry in entries)


def _policy(scripts: tuple[str, ...]) -> str:
    """What the page may load: nothing but its own scripts and styles."""
    return f"default-src 'none'; script-src {' '.join(map(_hash, scripts))}; style-src {_hash(CSS)}"


def _hash(text: str) -> str:
    return f"'sha256-{b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"


def _content(pieces: tuple[Piece | tuple[Piece, ...], ...], found: Findings) -> str:
    """The pieces one below the other, those of an inner tuple side by side."""
    told = []
    for piece in pieces:
        if isinstance(piece, tuple):
            side = "".join(each(found) for each in piece)
            told.append(f"<div class=pair>{side}</div>" if side else "")
        else:
            told.append(piece(found))
    return "".join(told)


def finding(found: Findings) -> str:
    """One sentence about the tail of the served scores, as HTML."""
    served = found.summary["served"]
    if not served:
        return "No client was scored in the closing evaluation, so nothing can be said about the tail."
    worst = min((r for r in found.participants if r.served is not None), key=lambda r: (r.served, r.client))
    group = f" ({escape(worst.group)})" if worst.group else ""
    under = 100 * (served["mean"] - served["worst"])
    low = bottom_count(served["n"])
    if under < ALIKE:
        return f"Every client ({served['n']}) is served the same: <b>{percent(served['mean'])}</b>."
    images = f" on its {worst.n_test:,} test images" if worst.n_test is not None else ""
    return (
        f"Worst client <b>{escape(worst.client)}</b>{group} is served <b>{percent(served['worst'])}</b>{images}, "
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
    return f"<dl class=cards>{cells}</dl>"
