"""The tables of report.html, each a section: accuracy, clients, held-out clients, how to reproduce.

Served and adapted figures never share a column. Every string that comes from a run is escaped by ``table_of``.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from html import escape
from typing import Any

from server_app.cluster_numbers import aligned, cluster_history
from server_app.reproduce import command, shown
from server_app.summary import Findings, bottom_count
from strategies.registry import METHODS, SPLIT_MODEL

WORDS = {
    "served": "served",
    "served_raw": "served, BatchNorm as averaged",
    "adapted": "adapted",
    "adapted_raw": "adapted, BatchNorm as averaged",
}
AVERAGED = "with BatchNorm statistics as averaged"
SPACE = "\N{NO-BREAK SPACE}"


# methods around a frozen Vision Transformer, which has no BatchNorm, serve with or without the client's class prior
PRIOR_WORDS = {
    "served": "served, with the log prior",
    "served_raw": "served, without the prior",
    "adapted": "adapted, with the log prior",
    "adapted_raw": "adapted, without the prior",
}


def words_of(found: Findings) -> dict[str, str]:
    """What the columns of scores are called in this run; raw columns that can only repeat the others are left out."""
    config = found.summary["run_config"]
    if _without_batchnorm(str(found.summary["method"])):
        return PRIOR_WORDS if config.get("logit-prior") else {"served": "served", "adapted": "adapted"}
    if config.get("bn") == "recompute":
        return WORDS | {key: f"{WORDS[key]}, BatchNorm recomputed" for key in ("served", "adapted")}
    return WORDS


def _without_batchnorm(method: str) -> bool:
    """Whether it is known to have frozen towers, whose scores differ by the class prior or not at all."""
    known = METHODS.get(method)
    return known is not None and known.model != SPLIT_MODEL


def raw_words(method: str, config: Mapping[str, Any]) -> str:
    """How a run's raw scores, the figures in brackets, differ from the others; "" where they can only repeat them."""
    if _without_batchnorm(method):
        return "without the client's class prior" if config.get("logit-prior") else ""
    return AVERAGED


def percent(share: float | None) -> str:
    """``0.38`` -> ``38.0 %``, with a space that does not break."""
    return "–" if share is None else f"{100 * share:.1f}{SPACE}%"


def points(share: float | None) -> str:
    """``0.102`` -> ``10.2``: a difference of percentages is in points, not in per cent."""
    return "–" if share is None else f"{100 * share:.1f}"


def scores(found: Findings) -> str:
    """What the model scores, served and adapted in columns of their own."""
    s = found.summary
    words = words_of(found)
    columns = [key for key in words if s[key]]
    rows = (
        ("mean", "mean"),
        ("standard deviation (points)", "std"),
        ("worst client", "worst"),
        (f"bottom 20{SPACE}%", "bottom20"),
        ("mean weighted by test images", "weighted_mean"),
    )
    body = [[name, *((points if row == "std" else percent)(s[key][row]) for key in columns)] for name, row in rows]
    body.append(["clients", *(str(s[key]["n"]) for key in columns)])
    since = f" in round {s['adapted_round']}" if s.get("adapted_round") else ""
    return section(
        "Accuracy over clients",
        "<p>Served: the model a client has <em>before</em> local training, after the "
        f"last round. Adapted: the same client <em>after</em> its local training{since}. They answer "
        "different questions; compare only within a column.</p>"
        + table_of(["", *(words[key] for key in columns)], body),
    )


def held_out(found: Findings) -> str:
    """What clients kept out of training are served, beside the others' figures and never among them; "" if none are."""
    out = found.summary.get("held_out")
    if not out:
        return ""
    words = words_of(found)
    kinds = [(words[key], figures) for key, figures in (("served", out["tails"]), ("served_raw", out["tails_raw"]))
             if key in words and figures]
    rows = (("mean", "mean"), ("worst client", "worst"), (f"bottom 20{SPACE}%", "bottom20"))
    body = [[name, *(percent(figures[row]) for _, figures in kinds)] for name, row in rows]
    body.append(["clients", *(str(figures["n"]) for _, figures in kinds)])
    each = [[r.client, r.group, *("–" if n is None else str(n) for n in (r.n_train, r.n_test)), percent(r.served)] for r in found.held_out]
    missing = f"<p class=note>{len(out['unscored'])} of them have no score.</p>" if out["unscored"] else ""
    count = len(out["clients"])
    who = f"{count} client{'s' if count > 1 else ''} took no part in training"
    if out.get("cannot_serve"):
        return section("Held-out clients", f"<p>{who}. This method cannot serve a client "
                        "that it has not trained with, so they have no model and no score.</p>")
    return section(
        "Held-out clients",
        f"<p>{who}; after the last round the method's own rule for newcomers "
        "served them. They are in none of the other figures.</p>"
        + (table_of(["", *(name for name, _ in kinds)], body) if kinds else "")
        + missing
        + table_of(["client", "group", "training images", "test images", "served"], each),
    )


def reproduce(found: Findings) -> str:
    """The command and what it rests on."""
    s = found.summary
    facts = [
        ["split hash", s["split_hash"] or "–"],
        ["hash of the class names", str(s["model"].get("class-digest") or "–")],
        *([name, str(v)] for name, v in sorted(s["versions"].items())),
        ["engine", str(s["engine"])],
        ["personal models", s["personal_models"] or "–"],
    ]
    settings = [[key, shown(value)] for key, value in s["run_config"].items()]
    return (
        f'<div class=card><pre tabindex="0">{escape(command(s["run_config"]))}</pre>'
        "<p>The same command, versions and data give the same split hash, and on the same kind of processor the same figures.</p>"
        + table_of(["", ""], facts, "facts-table")
        + "<details><summary>All settings</summary>"
        + table_of(["key", "value"], settings, "facts-table")
        + "</details></div>"
    )


def clients(found: Findings) -> str:
    """One row a client that trained, from the worst up; a browser with script sorts and filters them, and links them to their curves."""
    homes = aligned_last(found)
    grouped = any(r.group for r in found.participants)
    head = ["client", *(["group"] if grouped else []), *(["cluster"] if homes else []), "training images", "test images", "classes",
            "served", "adapted"]
    ranked = sorted(found.participants, key=lambda r: (r.served is None, r.served, r.client))
    body = [
        [
            r.client,
            *([r.group] if grouped else []),
            *([str(homes.get(r.client, "–"))] if homes else []),
            *("–" if n is None else str(n) for n in (r.n_train, r.n_test, r.classes)),
            percent(r.served),
            percent(r.adapted),
        ]
        for r in ranked
    ]
    low = bottom_count(sum(r.served is not None for r in ranked))
    lowest = "the first is the bottom" if low == 1 else f"the first {low} are the bottom"
    order = f"<p>From the worst served up; in that order {lowest} 20{SPACE}%.</p>" if low else ""
    return section(f"All {len(body)} clients", order + table_of(head, body, "sortable clients") if body else "<p>None took part.</p>")


def aligned_last(found: Findings) -> dict[str, int]:
    """The last clusters, numbered as the picture of clusters over time numbers them."""
    steps = aligned([clusters["assignment"] for _, clusters in cluster_history(found.records)])
    return steps[-1] if steps else {}


def section(heading: str, content: str) -> str:
    """A card of a part of the page; ``content`` is HTML."""
    return f"<section class=card><h3>{escape(heading)}</h3>{content}</section>"


def table_of(head: Sequence[str], body: Iterable[Sequence[str]], look: str = "") -> str:
    top = "".join(f"<th scope=col>{escape(cell)}</th>" for cell in head)
    lines = (
        f"<tr><th scope=row>{escape(name)}</th>{''.join(f'<td>{escape(cell)}</td>' for cell in cells)}</tr>"
        for name, *cells in body
    )
    header = f"<thead><tr>{top}</tr></thead>" if any(head) else ""
    return f'<div class=scroll><table class="{look}">{header}<tbody>{"".join(lines)}</tbody></table></div>'


def bytes_text(n: float) -> str:
    for unit in ("B", "KiB", "MiB"):
        if n < 1024:
            return f"{n:.0f}{SPACE}{unit}" if unit == "B" else f"{n:.1f}{SPACE}{unit}"
        n /= 1024
    return f"{n:,.1f}{SPACE}GiB"


def number(value: float | None) -> str:
    """Two decimals, or a dash for what is not known."""
    return "–" if value is None else f"{value:.2f}"
