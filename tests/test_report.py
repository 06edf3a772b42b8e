"""What a run's folder says: figures worked by hand for five clients, escaping, self-containment, resuming."""

from __future__ import annotations

import base64
import csv
import hashlib
import json
import os
import re
import threading
import warnings
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from server_app.heatmaps import aligned
from server_app.html import finding
from server_app.redraw import row_of
from server_app.report import DamagedRecords, RunReport, read_rounds
from server_app.reproduce import command
from server_app.sections import clients
from server_app.summary import ClientRow, bottom_count, findings

CONFIG = {
    "method": "fedper",
    "dataset": "digits",
    "partition": "rotation",
    "clients": 5,
    "rounds": 2,
    "seed": 3,
    "bn": "recompute",
    "lr": 0.03,
    "out": "somewhere",
}
SERVED = {"a": 0.5, "b": 0.2, "c": 0.6, "d": 0.8, "e": 0.9}
N_TEST = {"a": 10, "b": 10, "c": 20, "d": 20, "e": 40}
SAME = {"a": 1, "b": 0, "c": 1, "d": 0, "e": 1}
GROUPS = {"a": "0", "b": "90", "c": "0", "d": "90", "e": "0"}


def record(number: int, **more: Any) -> dict[str, Any]:
    """A round of the five clients, in which all reply."""
    return {
        "round": number,
        "seconds": 2.0 * number,
        "asked": list("abcde"),
        "served": SERVED,
        "loss": dict.fromkeys("abcde", 1.0),
        "n_train": dict.fromkeys("abcde", 30),
        "n_test": N_TEST,
        "dropped": {},
        "void": False,
        "diagnostics": {},
        "bytes": {"up": {"encoder": 500}, "down": {"encoder": 400, "head": 100}},
    } | more


def final(**more: Any) -> dict[str, Any]:
    return {
        "served": SERVED,
        "served_raw": {c: v - 0.1 for c, v in SERVED.items()},
        "n_train": {},
        "n_test": N_TEST,
        "peak_rss_mib": 99.5,
        "split_hash": "cafe",
        "versions": {"flwr": "1.39.0"},
        "personal_models": "models",
        "seconds": 7.0,
    } | more


def clusters(assignment: dict[str, int]) -> dict[str, Any]:
    names = list(assignment)
    return {
        "clusters": {
            "k": 2,
            "silhouette": 0.5,
            "rank": 2,
            "assignment": assignment,
            "weights": {},
            "similarity": {"clients": names, "matrix": np.eye(len(names)) + 1e-7},
        }
    }


def five(out: Path, split: bool = True, **last: Any) -> dict[str, Any]:
    out.mkdir(exist_ok=True)
    if split:
        (out / "split.json").write_text(
            json.dumps(
                {
                    "classes": ["cat", "dog", "emu"],
                    "groups": GROUPS,
                    "hash": "cafe",
                    "train": {c: [15, 15, 0] for c in "abcde"},
                    "test": {c: [5, 0, 5 * (c == "e")] for c in "abcde"},
                }
            )
        )
    report = RunReport(out, CONFIG, "in-process")
    report.round(record(1, dropped={"late": 1, "not finite": 2}))
    report.round(record(2, void=True, dropped={"late": 1}, adapted={"a": 0.7, "b": 0.3}) | last)
    return report.finish(final())


@pytest.fixture(scope="module")
def clustered(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of the five-client run whose clusters are the groups."""
    out = tmp_path_factory.mktemp("run")
    five(out, diagnostics=clusters(SAME))
    return out


def test_the_spread_over_clients_is_in_points(clustered: Path) -> None:
    page = (clustered / "report.html").read_text(encoding="utf-8")
    row = page.partition("standard deviation (points)")[2].partition("</tr>")[0]
    assert ">24.5<" in row and "%" not in row  # 100 * .06 ** .5


def test_the_summary_of_five_clients_by_hand(tmp_path: Path) -> None:
    summary = five(tmp_path)
    assert summary == json.loads((tmp_path / "summary.json").read_text())
    # mean (.5+.2+.6+.8+.9)/5 = .6; variance (.01+.16+0+.04+.09)/5 = .06; one of five is the bottom 20 %
    served = {
        "mean": 0.6,
        "std": 0.06**0.5,
        "worst": 0.2,
        "bottom20": 0.2,
        "n": 5,
        "weighted_mean": (5 + 2 + 12 + 16 + 36) / 100,
    }
    assert summary["served"] == pytest.approx(served)
    assert summary["served_raw"]["mean"] == pytest.approx(0.5)
    assert summary["adapted"] == pytest.approx(
        {"mean": 0.5, "std": 0.2, "worst": 0.3, "bottom20": 0.3, "weighted_mean": 0.5, "n": 2}
    )
    assert summary["adapted_raw"] is None and summary["adapted_round"] == 2
    assert summary["bytes"] == {
        "up": 1000,
        "down": 1000,
        "up_per_client_round": 100.0,
        "closing": {"up": 0, "down": 0},
        "by_slot": {"up": {"encoder": 1000}, "down": {"encoder": 800, "head": 200}},
    }
    assert summary["seconds"] == {"total": 7.0, "round_median": 3.0}
    assert summary["dropped"] == {"late": 2, "not finite": 2} and summary["void_rounds"] == 1
    assert {
        k: summary[k] for k in ("method", "dataset", "partition", "clients", "rounds", "seed", "engine")
    } == {
        "method": "fedper",
        "dataset": "digits",
        "partition": "rotation",
        "clients": 5,
        "rounds": 2,
        "seed": 3,
        "engine": "in-process",
    }
    assert (summary["split_hash"], summary["server_peak_rss_mib"]) == ("cafe", 99.5)
    assert "clusters" not in summary


def test_clients_csv_has_one_row_a_client(clustered: Path) -> None:
    with (clustered / "clients.csv").open(newline="") as lines:
        rows = list(csv.reader(lines))
    assert rows == [
        ["client", "group", "n_train", "n_test", "classes", "served", "adapted", "held_out", "served_raw"],
        ["a", "0", "30", "10", "2", "0.5", "0.7", "no", "0.4"],
        ["b", "90", "30", "10", "2", "0.2", "0.3", "no", "0.1"],
        ["c", "0", "30", "20", "2", "0.6", "", "no", "0.5"],
        ["d", "90", "30", "20", "2", "0.8", "", "no", "0.7000000000000001"],
        ["e", "0", "30", "40", "3", "0.9", "", "no", "0.8"],
    ]


def test_a_line_of_clients_csv_is_read_back_whatever_wrote_it(clustered: Path) -> None:
    with (clustered / "clients.csv").open(newline="") as lines:
        rows = list(csv.DictReader(lines))
    assert row_of(rows[2]) == ClientRow("c", "0", 30, 20, 2, 0.6, None, False, 0.5)
    older = {key: value for key, value in rows[2].items() if key not in ("held_out", "served_raw")}
    assert row_of(older) == row_of(rows[2] | {"served_raw": ""}) == ClientRow("c", "0", 30, 20, 2, 0.6, None)


def test_without_a_split_groups_and_classes_stay_unknown(tmp_path: Path) -> None:
    five(tmp_path, split=False)
    assert (tmp_path / "clients.csv").read_text().splitlines()[1] == "a,,30,10,,0.5,0.7,no,0.4"
    assert "Class counts stay at the clients" in (tmp_path / "report.html").read_text()


def test_clusters_are_compared_with_the_groups(clustered: Path) -> None:
    found = json.loads((clustered / "summary.json").read_text())["clusters"]
    assert found == {
        "k": 2,
        "silhouette": 0.5,
        "rank": 2,
        "round": 2,
        "assignment": SAME,
        "adjusted_rand": 1.0,
    }
    page = (clustered / "report.html").read_text()
    assert "adjusted Rand index against the split's groups 1.00" in page
    headings = re.findall(r"<figure><h3>(.*?)</h3>", page)
    assert headings == ["Every client", "Learning", "Curves by client", "Clusters over time", "Similarity of heads", "Bytes over rounds",
                        "Seconds over rounds", "Training images by client and class", "Replies over rounds"]
    assert len(re.findall(r'<canvas role="img" tabindex="0" aria-label="[\w ]+: [^"]{20,}"></canvas>', page)) == len(headings)


def test_cluster_numbers_carry_over_between_refreshes() -> None:
    first = {"a": 0, "b": 0, "c": 1, "d": 1}
    assert aligned([first, {"a": 1, "b": 1, "c": 0, "d": 0}]) == [first, first]
    # c leaves a cluster of three for one of its own, which gets a number never used before
    three = {"a": 0, "b": 1, "c": 1, "d": 1}
    assert aligned([three, {"a": 2, "b": 1, "c": 0, "d": 1}])[1] == {"a": 0, "b": 1, "c": 2, "d": 1}


def test_the_report_leads_with_the_tail(clustered: Path) -> None:
    text = re.sub(r"<[^>]+>", "", (clustered / "report.html").read_text()).replace("\N{NO-BREAK SPACE}", " ")
    assert (
        "Worst client b (90) is served 20.0 % on its 10 test images, 40.0 points under the mean of 60.0 %; the bottom 20 % "
        "(1 of 5 clients) average 20.0 %."
    ) in text
    assert "1 of 2 rounds was void" in text


def test_the_report_names_the_owners_of_a_natural_split(tmp_path: Path) -> None:
    five(tmp_path)
    split = json.loads((tmp_path / "split.json").read_text()) | {"natural": {"b": "Ward <7>"}}
    owned = findings(CONFIG, "in-process", [record(1)], final(), split, 0.0)
    assert [row.group for row in owned.rows] == ["0", "Ward <7> 90", *(GROUPS[c] for c in "cde")]
    assert "Worst client <b>b</b> (Ward &lt;7&gt; 90) is served" in finding(owned).replace("\N{NO-BREAK SPACE}", " ")
    bare = findings(CONFIG, "in-process", [record(1)], final(), None, 0.0)
    assert ">group<" in clients(owned) and ">group<" not in clients(bare)


def test_clients_that_are_served_alike_have_no_worst_one() -> None:
    same = findings(CONFIG, "in-process", [record(1)], final() | {"served": dict.fromkeys("abcde", 0.5)}, None, 0.0)
    assert finding(same) == "Every client (5) is served the same: <b>50.0\N{NO-BREAK SPACE}%</b>."


def markup(page: str) -> str:
    """The page without the scripts that run: everything in which a name of the run can stand."""
    return re.sub(r"<script>.*?</script>", "", page, flags=re.DOTALL)


def test_the_page_is_one_file_that_may_load_and_run_nothing_but_its_own(clustered: Path) -> None:
    page = (clustered / "report.html").read_text()
    assert "http" not in markup(page).replace("http-equiv", "")
    assert not re.search(r"<link|@import|<iframe|<img|url\(|\bon\w+=|\bstyle=|\bsrc=", markup(page))
    targets = re.findall(r'href="([^"]*)"', page)
    ids = re.findall(r'\bid="?([\w-]+)', markup(page))
    assert len(ids) == len(set(ids)) and {target.removeprefix("#") for target in targets} <= set(ids) and len(targets) == 7
    policy, = re.findall(r'http-equiv="Content-Security-Policy" content="([^"]*)"', page)
    hashes = [base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
              for text in (*re.findall(r"<script>(.*?)</script>", page, re.DOTALL), *re.findall(r"<style>(.*?)</style>", page, re.DOTALL))]
    *scripts, style = (f"'sha256-{each}'" for each in hashes)
    assert len(scripts) == 4 and policy == f"default-src 'none'; script-src {' '.join(scripts)}; style-src {style}"


def test_the_charting_library_is_what_was_published(clustered: Path) -> None:
    entries = json.loads((Path(__file__).parents[1] / "server_app" / "vendored.json").read_text(encoding="utf-8"))
    assert [(e["name"], e["license"]) for e in entries] == [("chart.js", "MIT"), ("chartjs-chart-matrix", "MIT")]
    page = (clustered / "report.html").read_text()
    for entry in entries:
        assert hashlib.sha256(entry["script"].encode()).hexdigest() == entry["sha256"]
        assert "Permission is hereby granted" in entry["license-text"]
        assert "</script" not in entry["script"] and f"v{entry['version']}" in page and "sourceMappingURL" not in page


def test_without_script_the_main_numbers_stand_in_tables(clustered: Path) -> None:
    text = re.sub(r"\s+", " ", re.sub(r"<[^>]+>", " ", markup((clustered / "report.html").read_text()))).replace("\N{NO-BREAK SPACE}", " ")
    assert "worst client 20.0 %" in text and "bottom 20 % 20.0 %" in text and "mean 60.0 %" in text and "Charts need JavaScript" in text
    # client, group, cluster, images, classes, served, adapted; from the worst up
    assert "b 90 0 30 10 2 20.0 % 30.0 % a 0 1 30 10 2 50.0 % 70.0 % c 0 1 30 20 2 60.0 % –" in text


def test_a_hostile_name_stays_text(tmp_path: Path) -> None:
    name = "<script>alert('x')</script>&\" $\\frac{a}$ \x07 样"
    split = {
        "classes": ["<b>c", "$d$"],
        "train": {name: [1, 2]},
        "test": {},
        "groups": {name: "<i>g"},
        "hash": "",
    }
    (tmp_path / "split.json").write_text(json.dumps(split))
    report = RunReport(tmp_path, CONFIG | {"dataset": "<img src=x>"}, "<u>")
    report.round(
        record(
            1,
            served={name: 0.4},
            loss={name: 1.0},
            asked=[name],
            n_train={name: 3},
            n_test={name: 4},
            dropped={"<s>why": 1},
            diagnostics=clusters({name: 0}),
        )
    )
    with warnings.catch_warnings():
        warnings.simplefilter("error", UserWarning)  # a glyph that Matplotlib's font lacks must not warn
        report.finish(final(served={name: 0.4}, versions={"<v>": "</style>"}, personal_models="</p>"))
    page = (tmp_path / "report.html").read_text()
    assert "&lt;script&gt;alert(" in page
    for raw in ("<script>alert", "<img", "<b>c", "<i>g", "<u>", "<s>", "<v>", "<td></style>", "<td></p>"):
        assert raw not in markup(page)
    tags: list[str] = []
    parser = HTMLParser()
    parser.handle_starttag = lambda tag, attrs: tags.append(tag)  # type: ignore[method-assign]
    parser.feed(page)
    drawings = [json.loads(text) for text in re.findall(r'<script type="application/json">(.*?)</script>', page, re.DOTALL)]
    assert tags.count("script") == 4 + len(drawings) and "img" not in tags and "i" not in tags and "u" not in tags
    # what is drawn holds the names as they are, and is set as text
    assert drawings[0]["names"] == [name] and drawings[0]["labels"] == [f"{name} · <i>g"]


def test_resuming_cuts_the_rounds_after_the_checkpoint_and_a_torn_line(tmp_path: Path) -> None:
    report = RunReport(tmp_path, CONFIG, "in-process")
    for number in (1, 2, 3):
        report.round(record(number))
    with (tmp_path / "rounds.jsonl").open("a") as lines:
        lines.write('{"round": 4, "sec')
    assert [r["round"] for r in read_rounds(tmp_path / "rounds.jsonl")] == [1, 2, 3]
    resumed = RunReport(tmp_path, CONFIG, "in-process", resume_from=2)
    assert [r["round"] for r in read_rounds(tmp_path / "rounds.jsonl")] == [1, 2]
    resumed.round(record(3))
    summary = resumed.finish(final())
    assert summary["rounds"] == 3 and summary["bytes"]["up"] == 1500
    assert (
        summary["seconds"]["total"] == 7.0 + 2.0 + 4.0
    )  # this part, and rounds 1 and 2 of the interrupted one
    RunReport(tmp_path, CONFIG, "in-process")
    assert (tmp_path / "rounds.jsonl").read_text() == ""


@pytest.mark.parametrize("line", ['{"round"', "[" * 100_000])
def test_damage_before_the_last_line_is_an_error(line: str, tmp_path: Path) -> None:
    (tmp_path / "rounds.jsonl").write_text(line + '\n{"round": 2, "seconds": 1}\n')
    with pytest.raises(ValueError, match=r"line 1 of rounds\.jsonl is not JSON"):
        RunReport(tmp_path, CONFIG, "in-process", resume_from=2)


@pytest.mark.parametrize(("line", "said"), [
    ('{"round": 2, "seconds": NaN}', "expected a finite number as seconds, got nan"),
    ('{"round": 2, "seconds": "2"}', "expected a finite number as seconds, got '2'"),
    ('{"round": 2, "seconds": 1e999}', "expected a finite number as seconds, got inf"),
    (f'{{"round": 2, "seconds": 1{"0" * 400}}}', f"expected a finite number as seconds, got 1{'0' * 39}\\."),
    ('{"round": 2, "seconds": true}', "expected a finite number as seconds, got True"),
    ('{"round": 2.0, "seconds": 1}', "expected a whole number as round, got 2.0"),
    ('{"round": "2", "seconds": 1}', "expected a whole number as round, got '2'"),
    ('{"round": 2}', "expected one record a line, with its round and seconds"),
])
@pytest.mark.parametrize("last", [True, False])
def test_a_record_that_no_report_can_be_made_of_is_an_error_at_the_start(line: str, said: str, last: bool, tmp_path: Path) -> None:
    whole = '{"round": 1, "seconds": 1}\n'
    (tmp_path / "rounds.jsonl").write_text(f"{whole}{line}\n{'' if last else whole}")
    with pytest.raises(DamagedRecords, match=f"line 2 of rounds.jsonl is not JSON of a round; {said}"):
        RunReport(tmp_path, CONFIG, "in-process", resume_from=2)


def test_scalars_stand_at_the_round_they_describe(clustered: Path) -> None:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    events = EventAccumulator(str(clustered / "tensorboard"))
    events.Reload()
    # served scores precede their round's training; the closing evaluation stands at the last round
    assert [(e.step, round(e.value, 6)) for e in events.Scalars("served/worst")] == [
        (0, 0.2),
        (1, 0.2),
        (2, 0.2),
    ]
    assert [(e.step, e.value) for e in events.Scalars("bytes/up")] == [(1, 500.0), (2, 500.0)]
    assert [e.step for e in events.Scalars("seconds")] == [1, 2]
    assert {"served/mean", "served/bottom20"} <= set(events.Tags()["scalars"])


def test_a_run_that_stops_leaves_its_scalars_whole_and_neither_thread_nor_file_open(tmp_path: Path) -> None:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    threads, files = threading.active_count(), len(os.listdir("/proc/self/fd")) if os.path.isdir("/proc/self/fd") else 0
    reports = [RunReport(tmp_path, CONFIG, "in-process")]
    for number in (1, 2, 3):
        reports[0].round(record(number))
    reports.append(RunReport(tmp_path, CONFIG, "in-process", resume_from=2))
    assert threading.active_count() == threads
    assert not files or len(os.listdir("/proc/self/fd")) == files
    first, second = sorted((tmp_path / "tensorboard").iterdir())
    for file, steps in ((first, [1, 2, 3]), (second, [])):
        events = EventAccumulator(str(file))
        events.Reload()
        assert [e.step for e in events.Scalars("seconds")] == steps if steps else events.Tags()["scalars"] == []
    # the second file's first event says from where on the first one's are void
    both = EventAccumulator(str(tmp_path / "tensorboard"))
    both.Reload()
    assert [e.step for e in both.Scalars("seconds")] == [1, 2]


def test_numbers_that_are_not_finite_and_clients_without_a_score(tmp_path: Path) -> None:
    report = RunReport(tmp_path, CONFIG, "in-process")
    report.round(record(1, loss={"a": float("nan"), "b": np.float32(1.5)}))
    summary = report.finish(
        final(served={"a": 0.5, "b": float("nan")}, served_raw={}, n_test={"a": 4, "b": 0})
    )
    assert read_rounds(tmp_path / "rounds.jsonl")[0]["loss"] == {"a": None, "b": 1.5}
    assert (summary["served"]["n"], summary["served"]["worst"], summary["clients"]) == (1, 0.5, 5)
    assert "4 of 5 clients have no served score" in (tmp_path / "report.html").read_text()


def test_a_run_that_scored_nobody_still_reports(tmp_path: Path) -> None:
    summary = RunReport(tmp_path, CONFIG, "in-process").finish(final(served={}, served_raw={}, n_test={}))
    assert (
        summary["served"] is None
        and summary["rounds"] == 0
        and summary["bytes"]["up_per_client_round"] is None
    )
    assert "No client was scored" in (tmp_path / "report.html").read_text()


def test_test_counts_kept_home_leave_no_weighted_mean(tmp_path: Path) -> None:
    report = RunReport(tmp_path, CONFIG, "in-process")
    report.round(record(1, n_test={}))
    served = report.finish(final(n_test={}))["served"]
    assert served["weighted_mean"] is None and served["mean"] == pytest.approx(0.6)


def test_the_command_holds_what_is_not_a_default() -> None:
    assert command(CONFIG) == ("fedhearth run -c 'method=\"fedper\" clients=5 rounds=2 seed=3 lr=0.03'")
    assert command({"method": "gone", "seed": 0, "gone.x": True, "other.y": 1, "resume": True}) == (
        "fedhearth run -c 'method=\"gone\" seed=0 gone.x=true'"
    )


@pytest.mark.parametrize(("n", "low"), [(1, 1), (5, 1), (6, 2), (20, 4), (35, 7)])
def test_the_bottom_fifth_in_whole_clients(n: int, low: int) -> None:
    assert bottom_count(n) == low


def test_a_hundred_clients_and_two_hundred_rounds_fit_in_one_megabyte_and_a_million_calls() -> None:
    """The bar is 3 MB and 5 s (benchmarks/report/size.py has the time); calls are counted, since a busy machine does not change them."""
    import cProfile
    import pstats

    from benchmarks.report.size import large_run
    from server_app.html import page

    found, counted = large_run(clients=100, rounds=200), cProfile.Profile()
    text = counted.runcall(page, found)
    assert len(text.encode()) < 2**20
    assert pstats.Stats(counted).total_calls < 1_000_000  # type: ignore[attr-defined]
    # four times the clients: similarities are told by cluster, so the page grows by rows and not by pairs
    assert len(page(large_run(clients=400, rounds=20)).encode()) < 3 * 10**6
