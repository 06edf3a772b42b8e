"""Tables of finished runs: averages over seeds by hand, served and adapted apart, refusals."""

from __future__ import annotations

import csv
import io
import json
from pathlib import Path
from statistics import stdev
from typing import Any

import pytest

from server_app.compare import MIXED, compare
from server_app.compare_tables import render_csv, render_latex, render_markdown, render_text, tex
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
    first, second = found.tables["served"]
    assert (first.label, second.label, first.seeds, first.clients) == ("fedper", "hdc-fl", (0,), (5,))
    assert first.differences == {} and second.figures["mean"].value == pytest.approx(0.68)
    assert second.figures["worst"].std is None and second.figures["worst"].raw == pytest.approx(0.2)
    gap = second.differences["bottom20"]
    # every resample has a difference of its lowest client in {.1, .1, .1, .1, 0}
    assert gap.over == "clients" and gap.value == pytest.approx(0.1)
    assert gap.low == pytest.approx(0.1) and gap.high == pytest.approx(0.1)
    assert found.tables["adapted"] == () and found.notes == ()
    # clients differ by .1 .1 .1 .1 0, whose mean is .08; no resample of five of them has less than 0 or more than .1
    over_clients = second.differences["mean"]
    assert over_clients.value == pytest.approx(0.08) and 0 <= over_clients.low < 0.08 < over_clients.high <= 0.1 + 1e-12


def test_served_and_adapted_are_two_tables(tmp_path: Path) -> None:
    base = finished(tmp_path / "a", "fedper", [0.2, 0.4], adapted=[0.5, 0.7])
    other = finished(tmp_path / "b", "fedavg", [0.3, 0.5])
    text = render_text(compare([base, other]))
    served, adapted = text.split("Adapted accuracy", 1)
    assert served.startswith(
        "Served accuracy in % (before local training) over 2 clients, BatchNorm recomputed "
        "(in brackets: as averaged); 1 seed; differences paired with the first row, 95 % interval "
        "over clients."
    )
    assert "30.0 (20.0)" in served and "60.0" not in served
    assert "60.0" in adapted and "fedavg" not in adapted


def test_where_features_lie_and_how_memory_was_saved_are_no_rows_of_their_own(tmp_path: Path) -> None:
    runs = [finished(tmp_path / str(seed), "fed-ia", [0.2, 0.4], seed=seed, split=f"split{seed}",
                     **{"features-dir": f"made{seed}", "checkpointing": bool(seed), "resident-share": seed / 2}) for seed in (0, 1)]
    row, = compare(runs).tables["served"]
    assert (row.label, row.seeds) == ("fed-ia", (0, 1))


PRIOR, NORM = "without the client's class prior", "with BatchNorm statistics as averaged"


@pytest.mark.parametrize(("runs", "bracketed", "caption"), [
    ((("pep-fedpt", True), ("fedvpt", True)), [True, True], f" (in brackets: {PRIOR})"),
    ((("pep-fedpt", True), ("fedvpt", False)), [True, False], f" (in brackets: {PRIOR})"),
    ((("fed-ia", False), ("zero-shot", False)), [False, False], ""),
    ((("fedper", False), ("zero-shot", True)), [True, True], f", BatchNorm recomputed (in brackets: {NORM} or {PRIOR})"),
])
def test_brackets_hold_what_a_method_has(runs: tuple[tuple[str, bool], ...], bracketed: list[bool], caption: str, tmp_path: Path) -> None:
    folders = [finished(tmp_path / method, method, [0.2, 0.4], **{"logit-prior": prior}) for method, prior in runs]
    found = compare(folders)
    assert found.captions["served"].startswith(f"Served accuracy in % (before local training) over 2 clients{caption}; 1 seed; ")
    assert [row.figures["mean"].raw is not None for row in found.tables["served"]] == bracketed


def test_several_seeds_are_averaged(tmp_path: Path) -> None:
    runs = [
        finished(tmp_path / f"{m}{s}", m, [low, 0.5], seed=s, split=f"split{s}")
        for m, lows in (("fedper", (0.1, 0.2, 0.3)), ("hdc-fl", (0.2, 0.3, 0.5)))
        for s, low in enumerate(lows)
    ]
    found = compare(runs)
    assert [row.seeds for row in found.tables["served"]] == [(0, 1, 2), (0, 1, 2)]
    worst = found.tables["served"][1].figures["worst"]
    assert worst.value == pytest.approx(1.0 / 3) and worst.std == pytest.approx(stdev((0.2, 0.3, 0.5)))
    gap = found.tables["served"][1].differences["bottom20"]
    # differences .1 .1 .2; t(.975, 2) = 4.302653; deviation .0577350 / sqrt 3 = 1/30
    assert gap.over == "seeds" and gap.value == pytest.approx(0.4 / 3)
    assert gap.high - gap.value == pytest.approx(4.302653 / 30, rel=1e-6)
    assert "over 2 clients" in found.captions["served"]
    assert "3 seeds, mean ± std over seeds" in found.captions["served"]
    assert "33.3 ± 15.3 (23.3)" in render_text(found)


def test_settings_that_differ_name_the_rows(tmp_path: Path) -> None:
    one = finished(tmp_path / "a", "hdc-fl", [0.1], **{"hdc-fl.temperature": 0.3, "lr": 0.1, "threads": 1})
    two = finished(tmp_path / "b", "hdc-fl", [0.1], **{"hdc-fl.temperature": 0.1, "lr": 0.1, "threads": 2})
    three = finished(tmp_path / "c", "fedper", [0.1], **{"hdc-fl.temperature": 0.3, "lr": 0.1, "threads": 1})
    labels = [row.label for row in compare([one, two, three]).tables["served"]]
    assert labels == ["hdc-fl hdc-fl.temperature=0.3", "hdc-fl hdc-fl.temperature=0.1", "fedper"]


def test_different_splits_are_refused_unless_asked_for(tmp_path: Path) -> None:
    base = finished(tmp_path / "a", "fedper", [0.2, 0.4])
    other = finished(tmp_path / "b", "hdc-fl", [0.3, 0.5], split="beef")
    with pytest.raises(
        ComparisonError, match="'fedper' has split cafe and 'hdc-fl' has beef.*--different-splits"
    ):
        compare([base, other])
    found = compare([base, other], allow_different_splits=True)
    assert found.tables["served"][1].differences == {} and "DIFFERENT SPLITS" in render_markdown(found)


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


def test_one_client_is_no_clients(tmp_path: Path) -> None:
    assert compare([finished(tmp_path / "a", "fedper", [0.2])]).captions["served"] == (
        "Served accuracy in % (before local training) over 1 client, BatchNorm recomputed (in brackets: as averaged); 1 seed.")


def test_no_difference_where_the_clients_are_not_the_same(tmp_path: Path) -> None:
    base = finished(tmp_path / "a", "fedper", [0.2, 0.4])
    other = finished(tmp_path / "b", "hdc-fl", [0.3, 0.5, 0.6])
    found = compare([base, other])
    assert found.tables["served"][1].differences == {} and "over 2 or 3 clients" in found.captions["served"]


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
    assert lines[2] == "| method | seeds | clients | mean | worst | bottom 20 % | mean, difference | bottom 20 %, difference |"
    assert lines[3] == "| --- | ---: | ---: | ---: | ---: | ---: | ---: | ---: |"
    assert lines[4] == r"| fed\|per | 0 | 2 | 30.0 (20.0) | 20.0 (10.0) | 20.0 (10.0) | – | – |"


def two_by_two(folder: Path) -> list[Path]:
    """Two seeds of two methods; the second is .1 and .3 better for either client."""
    return [finished(folder / f"{method}{seed}", method, [0.2 + gain, 0.6 + gain], seed=seed, split=f"split{seed}")
            for method, gains in (("fed_per", (0.0, 0.0)), ("hdc-fl", (0.1, 0.3))) for seed, gain in enumerate(gains)]


def test_latex_can_be_pasted(tmp_path: Path) -> None:
    lines = render_latex(compare(two_by_two(tmp_path))).splitlines()
    assert lines[0] == r"% \usepackage{booktabs,graphicx}" and lines[1:3] == [r"\begin{table}", r"\centering"]
    assert lines[5].startswith(r"\caption{Served accuracy in \% (before local training) over 2 clients") and r"mean $\pm$ std" in lines[5]
    assert "over seeds (two seeds make very wide ones; take three or more)." in lines[5]
    # seeds and clients are the same in both rows, and the caption has them
    assert lines[7].startswith(r"\resizebox{") and lines[8] == r"\begin{tabular}{lrrrrr}" and lines[-2] == r"\end{tabular}}"
    # differences .1 and .3: mean .2, deviation .1414 / sqrt 2 = .1; t(.975, 1) = 12.706
    assert lines[-4] == (r"hdc-fl & 60.0 $\pm$ 14.1 (50.0) & 40.0 $\pm$ 14.1 (30.0) & 40.0 $\pm$ 14.1 (30.0) & "
                         r"$+$20.0 [$-$107.1, $+$147.1] & $+$20.0 [$-$107.1, $+$147.1] \\")
    assert lines[-5].startswith(r"fed\_per & 40.0 $\pm$ 0.0 (30.0)") and lines[-5].endswith(r"-- & -- \\")
    assert tex(r"a_b 5% \ x~y^2 {c} & #1 $ -0.5 hdc-fl") == (
        r"a\_b 5\% \textbackslash{} x\textasciitilde{}y\textasciicircum{}2 \{c\} \& \#1 \$ $-$0.5 hdc-fl")


def test_notes_go_with_what_is_pasted(tmp_path: Path) -> None:
    runs = [finished(tmp_path / "a", "fedper", [0.2]), finished(tmp_path / "b", "hdc-fl", [0.3], split="beef")]
    found = compare(runs, allow_different_splits=True)
    caption, = (line for line in render_latex(found).splitlines() if line.startswith(r"\caption"))
    assert "DIFFERENT SPLITS" in caption
    assert [line["same_splits"] for line in csv.DictReader(io.StringIO(render_csv(found)))] == ["no", "no"]


def told_of(folder: Path, **more: Any) -> Path:
    """``folder``, whose summary says ``more``."""
    (folder / "summary.json").write_text(json.dumps(json.loads((folder / "summary.json").read_text()) | more))
    return folder


def test_void_rounds_and_missing_clients_are_said_of_each_row(tmp_path: Path) -> None:
    one, two = ([told_of(finished(tmp_path / f"{method}{seed}", method, [0.2, 0.4, 0.6], seed=seed, adapted=[0.3, 0.5, 0.7]), **more)
                 for seed in (0, 1)] for method, more in (
        ("fed_per", {"rounds": 5, "void_rounds": 1, "clients": 4}), ("fedavg", {"rounds": 5, "void_rounds": 0, "clients": 3})))
    both = ("fed_per (2 seeds together): 2 of 10 rounds were void; 2 of 8 clients have no served score; "
            "2 of 8 clients have no adapted score.")
    found = compare([*one, *two])
    assert found.remarks == (both,) and found.notes == () and found.same_splits
    assert render_text(found).endswith(f"\n\n{both}\n")
    assert render_markdown(found).endswith("\n\n- " + both.replace("_", r"\_") + "\n") and "**" not in render_markdown(found)
    assert all(tex(both) in line for line in render_latex(found).splitlines() if line.startswith(r"\caption"))
    assert {line["same_splits"] for line in csv.DictReader(io.StringIO(render_csv(found)))} == {"yes"}
    assert compare(two).remarks == ()
    # one of each, and of the kind asked for alone
    assert compare([one[0].with_name("fed_per0@adapted")]).remarks == (
        "fed_per: 1 of 5 rounds was void; 1 of 4 clients has no adapted score.",)


def test_what_an_older_run_did_not_write_down_had_its_default(tmp_path: Path) -> None:
    old = finished(tmp_path / "old0", "hdc-fl", [0.2, 0.4])
    same, new = (finished(tmp_path / dtype, "hdc-fl", [0.3, 0.5], seed=1, **{"wire-dtype": dtype}) for dtype in ("float32", "bfloat16"))
    assert [row.seeds for row in compare([old, same]).tables["served"]] == [(0, 1)]
    rows = compare([old, new]).tables["served"]
    assert [(row.label, row.seeds) for row in rows] == [("hdc-fl wire-dtype=float32", (0,)), ("hdc-fl wire-dtype=bfloat16", (1,))]
    # the same of a method's own settings, and of those it borrows; a setting without a known default is another one
    own = finished(tmp_path / "own", "hdc-fl", [0.3], **{"hdc-fl.temperature": 0.5})
    cached = [finished(tmp_path / f"cache{n}", "hdc-fl", [0.3], **{"hdc-fl.feature-cache": True}, **more)
              for n, more in enumerate(({}, {"fed-cache.reuse": False}))]
    later = finished(tmp_path / "later", "hdc-fl", [0.3], **{"not-yet": 1})
    assert [row.label for row in compare([old, own]).tables["served"]] == ["hdc-fl hdc-fl.temperature=0.3", "hdc-fl hdc-fl.temperature=0.5"]
    assert [row.label for row in compare(cached).tables["served"]] == ["hdc-fl fed-cache.reuse=True", "hdc-fl fed-cache.reuse=False"]
    assert [row.label for row in compare([old, later]).tables["served"]] == ["hdc-fl", "hdc-fl not-yet=1"]


HOSTILE = "a\n|b<i>_c_*d*`e`[f](g)\x1b[31m&amp;\u202e\\"


def test_foreign_text_is_shown_as_what_it_is(tmp_path: Path) -> None:
    runs = [finished(tmp_path / "a", "fedper", [0.2, 0.4], dataset="digits"),
            told_of(finished(tmp_path / "b", "fedper", [0.2, 0.4], dataset=HOSTILE), rounds=2, void_rounds=1)]
    found = compare(runs)
    shown = "fedper dataset=a |b<i>_c_*d*`e`[f](g) [31m&amp; \\"
    marked = r"fedper dataset=a \|b\<i\>\_c\_\*d\*\`e\`\[f\](g) \[31m\&amp; \\"
    assert f"\n{shown}  " in render_text(found) and f"\n{shown}: 1 of 2 rounds was void.\n" in render_text(found)
    markdown = render_markdown(found)
    assert f"\n| {marked} | 0 | 2 | " in markdown and f"\n- {marked}: 1 of 2 rounds was void.\n" in markdown
    assert f"\n{tex(shown)} & " in render_latex(found) and tex(f"{shown}: 1 of 2 rounds was void.") in render_latex(found)
    for text in (render_text(found), markdown, render_latex(found)):
        assert all(letter.isprintable() or letter == "\n" for letter in text)
    # programs get what there is
    assert list(csv.DictReader(io.StringIO(render_csv(found), newline="")))[1]["method"] == f"fedper dataset={HOSTILE}"


def test_csv_holds_unrounded_shares(tmp_path: Path) -> None:
    lines = list(csv.DictReader(io.StringIO(render_csv(compare(two_by_two(tmp_path))))))
    assert [(line["scores"], line["method"], line["seeds"], line["same_splits"]) for line in lines] == [
        ("served", "fed_per", "0 1", "yes"), ("served", "hdc-fl", "0 1", "yes")]
    assert lines[0]["mean_difference"] == lines[0]["held_out_mean"] == "" and lines[1]["bottom20_difference_over"] == "seeds"
    assert [float(lines[1][key]) for key in ("mean", "mean_std", "worst", "mean_difference", "bottom20_difference_high")] == pytest.approx(
        [0.6, 0.02**0.5, 0.4, 0.2, 0.2 + 12.7062047 * 0.1])


def test_served_and_adapted_are_mixed_only_when_told(tmp_path: Path) -> None:
    base = finished(tmp_path / "a", "fedper", [0.2, 0.4], adapted=[0.5, 0.7])
    other = finished(tmp_path / "b", "fedavg", [0.3, 0.5], adapted=[0.6, 0.9])
    mix = [base.with_name("a@adapted"), other]
    with pytest.raises(ComparisonError, match="b is to be served and .*a adapted.*--mix-served-adapted"):
        compare(mix)
    found = compare(mix, allow_mixed=True)
    assert list(found.tables) == ["mixed"] and found.notes == (MIXED,)
    # the note is not on splits
    assert {line["same_splits"] for line in csv.DictReader(io.StringIO(render_csv(found)))} == {"yes"}
    first, second = found.tables["mixed"]
    assert (first.label, second.label) == ("fedper (adapted)", "fedavg (served)")
    assert first.figures["mean"].value == pytest.approx(0.6) and second.figures["mean"].value == pytest.approx(0.4)
    # .3 - .5 and .5 - .7
    assert second.differences["mean"].value == pytest.approx(-0.2) and "MIXED" in render_markdown(found)
    # the same run twice, as what it was before and after local training
    gained = compare([base, base.with_name("a@adapted")], allow_mixed=True).tables["mixed"][1].differences["mean"]
    assert gained.value == pytest.approx(0.3)


def test_one_kind_can_be_asked_for(tmp_path: Path) -> None:
    base = finished(tmp_path / "a", "fedper", [0.2, 0.4], adapted=[0.5, 0.7])
    finished(tmp_path / "b", "fedavg", [0.1, 0.3], adapted=[0.4, 0.8])
    found = compare([base.with_name("a@adapted"), tmp_path / "b@adapted"])
    assert list(found.tables) == ["adapted"] and found.notes == ()
    assert found.tables["adapted"][1].differences["mean"].value == pytest.approx(0.0)
    with pytest.raises(ComparisonError, match=r"a@adaptd: expected RUN, RUN@served or RUN@adapted, .*; did you mean 'adapted'\?"):
        compare([tmp_path / "a@adaptd"])
    finished(tmp_path / "c", "ditto", [0.1, 0.3])
    with pytest.raises(ComparisonError, match="holds no adapted figures.*score-adapted=last"):
        compare([tmp_path / "c@adapted"])
