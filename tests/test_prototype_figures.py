"""What a report shows of class prototypes, and what it calls the scores of methods with prompts."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from server_app.prototype_figures import accuracies_of, accuracy_curves, drift_curves, drifts_of, mixture_picture, prototype_figures
from server_app.report import RunReport
from server_app.summary import Findings
from tests.test_report import CONFIG, final, record

DRIFT = {"layer5": 0.5, "layer6": 0.25}


def page_of(folder: Path, method: str, diagnostics: dict[str, Any], **config: Any) -> str:
    report = RunReport(folder, {**CONFIG, "method": method, **config}, "in-process")
    for number in (1, 2):
        report.round(record(number, diagnostics=diagnostics if number == 2 else {"prototype_drift": DRIFT} if diagnostics else {}))
    report.finish(final())
    return (folder / "report.html").read_text(encoding="utf-8")


def test_mixtures_and_movement_are_drawn_where_a_method_has_prototypes(tmp_path: Path) -> None:
    map_of_three = [[0.8, 0.1, 0.1], [0.2, 0.7, 0.1], [0.0, 0.1, 0.9]]
    told = page_of(tmp_path / "pep", "pep-fedpt", {"prototype_drift": DRIFT, "mixture_map": map_of_three})
    assert "Mixtures of class prompts" in told and "mixture weights of 3 classes; a sample&#x27;s own class has 0.80 on average" in told
    assert "Movement of class prototypes" in told and "in the last: layer5 0.500, layer6 0.250" in told
    other = page_of(tmp_path / "vpt", "fedvpt", {})
    assert "Mixtures of class prompts" not in other and "Movement of class prototypes" not in other


@pytest.mark.parametrize("classes", [2, 15, 60])
def test_any_number_of_classes_is_drawn(classes: int) -> None:
    names = [f"class {n}" for n in range(classes)]
    assert f"mixture weights of {classes} classes" in mixture_picture(np.eye(classes).tolist(), names).alt
    assert f"mixture weights of {classes} classes" in mixture_picture(np.eye(classes).tolist(), ()).alt


def test_rounds_without_prototypes_are_passed_over() -> None:
    records = [record(1), record(2, diagnostics={"prototype_drift": DRIFT}), record(3, diagnostics={"prototype_drift": {"layer5": 0.1}})]
    assert drifts_of(records) == [(2, DRIFT), (3, {"layer5": 0.1})]
    assert "in the last: layer5 0.100" in drift_curves(records).alt
    assert "prototypes known before it, relative to them; 0 while there are none." in drift_curves(records).html()


@pytest.mark.parametrize(("method", "prior", "there", "absent"), [
    ("pep-fedpt", True, ("served, with the log prior", "served, without the prior"), ("BatchNorm recomputed", "BatchNorm as averaged")),
    ("fedvpt", False, (">served<",), ("BatchNorm recomputed", "BatchNorm as averaged", "without the prior")),
    ("fedper", False, ("served, BatchNorm recomputed", "served, BatchNorm as averaged"), ("with the log prior",)),
])
def test_scores_are_called_what_they_are(method: str, prior: bool, there: tuple[str, ...], absent: tuple[str, ...], tmp_path: Path) -> None:
    told = page_of(tmp_path, method, {}, **{"logit-prior": prior})
    assert all(words in told for words in there) and not any(words in told for words in absent)


def test_mixture_accuracy_is_a_mean_over_clients_by_layer() -> None:
    told = {"mixture_accuracy": {"a": 0.5}, "mixture_accuracy_layer5": {"a": 0.5, "b": 1.0},
            "mixture_accuracy_layer6": {"a": 0.25, "b": 0.25}}
    records = [record(1), {**record(2), **told}]
    assert accuracies_of(records) == [(2, {"layer5": 0.75, "layer6": 0.25})]
    assert "in the last: layer5 0.750, layer6 0.250" in accuracy_curves(records).alt
    assert "Accuracy of the mixtures" in prototype_figures(Findings({}, records, [], None))
    assert prototype_figures(Findings({}, records[:1], [], None)) == ""
