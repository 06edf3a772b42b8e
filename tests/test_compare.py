"""Tables of finished runs: averages over seeds by hand, served and adapted apart, refusals."""

from __future__ import annotations

import json
from pathlib import Path
from statistics import stdev
from typing import Any

import pytest

from server_app.compare import compare, render_markdown, render_text
from server_app.finished import ComparisonError, read_run

CLIENTS = ("a", "b", "c", "d", "e")


def finished(
    out: Path,
    method: str,
    served: list[float],
    *,
    seed: int = 0,
    split: str = "cafe",
    adapted: list[float] | None = None,
    **config: Any,
) -> Path:
    """The folder of a finished run of up to five clients."""

    def figures(values: list[float]) -> dict[str, float]:
        return {
            "mean": sum(values) / len(values),
            "worst": min(values),
            "bottom20": min(values),
            "n": len(values),
        }

    out.mkdir()
    summary = {
        "method": method,
        "seed": seed,
        "split_hash": split,
        "served": figures(served),
        "served_raw": figures([v - 0.1 for v in served]),
        "adapted": figures(adapted) if adapted else None,
        "run_config": {"method": method, "seed": seed, "bn": "recompute", "out": str(out), **config},
    }
    (out / "summary.json").write_text(json.dumps(summary))
    rows = [
        f"{c},,,,,{v}," + (str(adapted[i]) if adapted else "")
        for i, (c, v) in enumerate(zip(CLIENTS, served, strict=False))
    ]
    (out / "clients.csv").write_text("\n".join(["client,group,n_train,n_test,classes,served,adapted", *rows]))
    return out


def test_one_seed_each(tmp_path: Path) -> None:
    base = finished(tmp_path / "a", "fedper", [0.2, 0.4, 0.6, 0.8, 1.0])
    other = finished(tmp_path / "b", "hdc-fl", [0.3, 0.5, 0.7, 0.9, 1.0])
    found = compare([base, other / "summary.json"])
    first, second = found.served
    assert (first.label, second.label, first.seeds, first.clients) == ("fedper", "hdc-fl", (0,), (5,))
    assert first.difference is None and second.figures["mean"].value == pytest.approx(0.68)
    assert second.figures["worst"].std is None and second.figures["worst"].raw == pytest.approx(0.2)
    gap = second.difference
    # every resample has a difference of its lowest client in {.1, .1, .1, .1, 0}
    assert gap is not None and gap.over == "clients" and gap.value == pytest.approx(0.1)
    assert gap.low == pytest.approx(0.1) and gap.high == pytest.approx(0.1)
    assert found.adapted == () and found.notes == ()


def test_served_and_adapted_are_two_tables(tmp_path: Path) -> None:
    base = finished(tmp_path / "a", "fedper", [0.2, 0.4], adapted=[0.5, 0.7])
    other = finished(tmp_path / "b", "fedavg", [0.3, 0.5])
    text = render_text(compare([base, other]))
    served, adapted = text.split("Adapted accuracy", 1)
    assert served.startswith(
        "Served accuracy in % (before local training) over 2 clients, BatchNorm recomputed "
        "(in brackets: as averaged); 1 seed; difference paired with the first row, 95 % interval "
        "over clients."
    )
    assert "30.0 (20.0)" in served and "60.0" not in served
    assert "60.0" in adapted and "fedavg" not in adapted


def test_several_seeds_are_averaged(tmp_path: Path) -> None:
    runs = [
        finished(tmp_path / f"{m}{s}", m, [low, 0.5], seed=s, split=f"split{s}")
        for m, lows in (("fedper", (0.1, 0.2, 0.3)), ("hdc-fl", (0.2, 0.3, 0.5)))
        for s, low in enumerate(lows)
    ]
    found = compare(runs)
    assert [row.seeds for row in found.served] == [(0, 1, 2), (0, 1, 2)]
    worst = found.served[1].figures["worst"]
    assert worst.value == pytest.approx(1.0 / 3) and worst.std == pytest.approx(stdev((0.2, 0.3, 0.5)))
    gap = found.served[1].difference
    # differences .1 .1 .2; t(.975, 2) = 4.302653; deviation .0577350 / sqrt 3 = 1/30
    assert gap is not None and gap.over == "seeds" and gap.value == pytest.approx(0.4 / 3)
    assert gap.high - gap.value == pytest.approx(4.302653 / 30, rel=1e-6)
    assert "over 2 clients" in found.captions["served"]
    assert "3 seeds, mean ± std over seeds" in found.captions["served"]
    assert "33.3 ± 15.3 (23.3)" in render_text(found)


def test_settings_that_differ_name_the_rows(tmp_path: Path) -> None:
    one = finished(tmp_path / "a", "hdc-fl", [0.1], **{"hdc-fl.temperature": 0.3, "lr": 0.1, "threads": 1})
    two = finished(tmp_path / "b", "hdc-fl", [0.1], **{"hdc-fl.temperature": 0.1, "lr": 0.1, "threads": 2})
    three = finished(tmp_path / "c", "fedper", [0.1], **{"hdc-fl.temperature": 0.3, "lr": 0.1, "threads": 1})
    labels = [row.label for row in compare([one, two, three]).served]
    assert labels == ["hdc-fl hdc-fl.temperature=0.3", "hdc-fl hdc-fl.temperature=0.1", "fedper"]


def test_different_splits_are_refused_unless_asked_for(tmp_path: Path) -> None:
    base = finished(tmp_path / "a", "fedper", [0.2, 0.4])
    other = finished(tmp_path / "b", "hdc-fl", [0.3, 0.5], split="beef")
    with pytest.raises(
        ComparisonError, match="'fedper' has split cafe and 'hdc-fl' has beef.*--different-splits"
    ):
        compare([base, other])
    found = compare([base, other], allow_different_splits=True)
    assert found.served[1].difference is None and "DIFFERENT SPLITS" in render_markdown(found)


def test_a_seed_missing_in_one_row_is_another_split(tmp_path: Path) -> None:
    runs = [
        finished(tmp_path / "a0", "fedper", [0.2], seed=0, split="s0"),
        finished(tmp_path / "a1", "fedper", [0.2], seed=1, split="s1"),
        finished(tmp_path / "b0", "hdc-fl", [0.2], seed=0, split="s0"),
    ]
    with pytest.raises(ComparisonError, match=r"s0 \+ s1"):
        compare(runs)


def test_an_unknown_split_is_not_the_same_split(tmp_path: Path) -> None:
    runs = [finished(tmp_path / name, name, [0.2], split="") for name in ("fedper", "fedavg")]
    with pytest.raises(ComparisonError, match="unknown"):
        compare(runs)


def test_no_difference_where_the_clients_are_not_the_same(tmp_path: Path) -> None:
    base = finished(tmp_path / "a", "fedper", [0.2, 0.4])
    other = finished(tmp_path / "b", "hdc-fl", [0.3, 0.5, 0.6])
    found = compare([base, other])
    assert found.served[1].difference is None and "over 2 or 3 clients" in found.captions["served"]


def test_the_same_run_twice_is_refused(tmp_path: Path) -> None:
    base = finished(tmp_path / "a", "fedper", [0.2])
    with pytest.raises(ComparisonError, match="the same run"):
        compare([base, base])
    with pytest.raises(ComparisonError, match="at least one"):
        compare([])


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (None, "not the folder of a finished run"),
        ("{", "is damaged"),
        ("[]", "expected an object"),
        ("{}", "it lacks method, seed, served, split_hash, run_config"),
        (
            '{"method": "m", "seed": 0, "split_hash": "", "run_config": {}, "served": null}',
            "no served scores",
        ),
        (
            '{"method": "m", "seed": 0, "split_hash": "", "run_config": {}, "served": {"mean": "x"}}',
            "must hold numbers",
        ),
    ],
)
def test_a_missing_or_damaged_summary_says_so(tmp_path: Path, text: str | None, said: str) -> None:
    if text is not None:
        (tmp_path / "summary.json").write_text(text)
    with pytest.raises(ComparisonError, match=said):
        read_run(tmp_path)


def test_markdown_is_a_table(tmp_path: Path) -> None:
    lines = render_markdown(compare([finished(tmp_path / "a", "fed|per", [0.2, 0.4])])).splitlines()
    assert lines[2] == "| method | seeds | clients | mean | worst | bottom 20 % | bottom 20 %, difference |"
    assert lines[3] == "| --- | ---: | ---: | ---: | ---: | ---: | ---: |"
    assert lines[4] == r"| fed\|per | 0 | 2 | 30.0 (20.0) | 20.0 (10.0) | 20.0 (10.0) | – |"
