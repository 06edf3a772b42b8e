"""What a report shows of global class prototypes: which class prompts a typical sample gets, how fast prototypes move, and how
often a sample's own class gets the most of its mixture.

All are means over clients or follow from what the server holds anyway; nothing here is about a single client.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import mean
from typing import Any

from server_app.charts import CELLS_AT_MOST, Chart, rounded
from server_app.sections import percent, table_of
from server_app.summary import Findings
from strategies.scalars import LAYER_SHARE

TOLD = LAYER_SHARE.replace("-", "_")  # as records have it
TONES = ("calm", "tail", "worst", "ink")


def prototype_figures(found: Findings) -> str:
    """Of methods with class prototypes, as HTML: typical mixtures after the last round, the prototypes' movement and the
    mixtures' accuracy; "" for others."""
    last = found.records[-1].get("diagnostics") or {} if found.records else {}
    charts = []
    if last.get("mixture_map"):
        charts.append(mixture_picture(last["mixture_map"], (found.split or {}).get("classes") or ()))
    if drifts_of(found.records):
        charts.append(drift_curves(found.records))
    if accuracies_of(found.records):
        charts.append(accuracy_curves(found.records))
    return "".join(chart.html() for chart in charts)


def mixture_picture(matrix: Sequence[Sequence[float]], classes: Sequence[str]) -> Chart:
    """Mixture weights (C, C): rows are the classes of samples, columns class prompts."""
    count = len(matrix)
    names = [str(name) for name in classes] if len(classes) == count else [str(n) for n in range(count)]
    own = sum(row[place] for place, row in enumerate(matrix)) / count
    return Chart(
        "Mixtures of class prompts",
        f"Heat map: mixture weights of {count} classes; a sample's own class has {own:.2f} on average.",
        {"kind": "cells", "rows": names, "columns": names, "values": [rounded(row, 1, 100) for row in matrix], "tone": "counts",
         "most": 100, "unit": "%", "x_title": "class prompt", "y_title": "class of the sample"},
        "What a sample that lies at its class's global prototype gets of each class prompt, in %, with a flat prior; mean over "
        "the layers. It follows from the global prototypes alone; a class that no client has sent has 0 everywhere.",
        table_of(["class of the sample", *names], [[name, *map(percent, row)] for name, row in zip(names, matrix, strict=True)])
        if count * count <= CELLS_AT_MOST else "",
    )


def drift_curves(records: Sequence[Mapping[str, Any]]) -> Chart:
    """Relative step of the prototypes over rounds, a line a layer."""
    drifts = drifts_of(records)
    return _by_layer("Movement of class prototypes", "how far the class prototypes moved in each round", drifts, "relative step",
                     "Length of each round's step of the prototypes known before it, relative to them; 0 while there are none.")


def accuracy_curves(records: Sequence[Mapping[str, Any]]) -> Chart:
    """Mixture accuracy over rounds, a line a layer."""
    return _by_layer("Accuracy of the mixtures", "share of training images whose own class has the largest mixture weight",
                     accuracies_of(records), "share of images",
                     "Mean over the round's clients, each with its own prior, after its training. The global prototypes follow the prompts "
                     "by momentum only, so the share falls while prompts move fast.")


def drifts_of(records: Sequence[Mapping[str, Any]]) -> list[tuple[int, Mapping[str, float]]]:
    """(round, step by layer) of every round whose record says it."""
    found = ((int(record["round"]), (record.get("diagnostics") or {}).get("prototype_drift")) for record in records)
    return [(number, steps) for number, steps in found if steps]


def accuracies_of(records: Sequence[Mapping[str, Any]]) -> list[tuple[int, Mapping[str, float]]]:
    """(round, mean mixture accuracy by layer) of every round whose clients told it."""
    found = []
    for record in records:
        told = {key.removeprefix(TOLD): record[key] for key in sorted(record) if key.startswith(TOLD) and record[key]}
        if told:
            found.append((int(record["round"]), {layer: mean(shares.values()) for layer, shares in told.items()}))
    return found


def _by_layer(title: str, what: str, rows: Sequence[tuple[int, Mapping[str, float]]], unit: str, caption: str) -> Chart:
    layers = list(rows[-1][1])
    last = ", ".join(f"{layer} {value:.3f}" for layer, value in rows[-1][1].items())
    lines = [{"name": layer, "y": rounded([values.get(layer, 0.0) for _, values in rows], 4), "tone": TONES[place % len(TONES)],
              "dash": place // len(TONES)} for place, layer in enumerate(layers)]
    return Chart(
        title,
        f"Lines: {what}; in the last: {last}.",
        {"kind": "lines", "x": [number for number, _ in rows], "lines": lines, "digits": 3, "x_title": "round", "y_title": unit},
        caption,
        table_of(["round", *layers], [[str(number), *(f"{values.get(layer, 0.0):.3f}" for layer in layers)] for number, values in rows]),
    )
