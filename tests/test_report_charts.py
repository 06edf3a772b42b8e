"""What the charts of a report draw, worked by hand on a few clients and rounds: the numbers, the words, and what is left out."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest

from server_app.cache_figures import routes_picture
from server_app.charts import Chart, inline_json, rounded, thinned
from server_app.cluster_numbers import cluster_history
from server_app.cost import seconds_of, shares_of, time_and_memory
from server_app.figures import client_bars, client_curves, learning_curves
from server_app.health import dropped_by_site, sites
from server_app.heatmaps import PAIRS_AT_MOST, cluster_picture, similarity_picture, split_picture
from server_app.reproduce import code_hash
from server_app.sections import clients
from server_app.summary import ClientRow, Findings, findings


def row(client: str, served: float | None, group: str = "") -> ClientRow:
    return ClientRow(client, group, 10, 5, 3, served, None)


def cells_of(html: str) -> list[list[str]]:
    lines = re.findall(r"<tr>(.*?)</tr>", html, re.S)
    return [re.findall(r"<t[hd][^>]*>(.*?)</t[hd]>", line, re.S) for line in lines]


def test_bars_are_sorted_and_the_bottom_fifth_is_marked() -> None:
    made = client_bars([row("a", 0.5), row("b", 0.25, "90"), row("c", 1.0), row("d", None), row("e", 0.4), row("f", 0.85), row("g", 0.9)])
    drawn = made.drawing
    assert drawn["names"] == ["b", "e", "a", "f", "g", "c"] and drawn["labels"][0] == "b · 90" and drawn["flat"]
    # six scored clients: ceil(6 / 5) = 2 of them are the bottom 20 %; their mean is (.25 + .4 + .5 + .85 + .9 + 1) / 6 = .65
    assert drawn["bars"][0]["y"] == [25, 40, 50, 85, 90, 100] and drawn["bars"][0]["tones"] == ["tail"] * 2 + ["calm"] * 4
    assert drawn["lines"][0]["y"] == [65] * 6 and drawn["top"] == 100 and "from 25.0 % (b) to 100.0 % (c)" in made.alt
    assert client_bars([row("a", 0.3)]).drawing["top"] == 40 and not client_bars([row(str(n), 0.5) for n in range(41)]).drawing["flat"]


def test_a_rounds_scores_stand_at_the_round_before_it() -> None:
    records = [{"round": 1, "served": {"a": 0.2, "b": 0.4}}, {"round": 2, "served": {}}, {"round": 3, "served": {"a": 0.6},
               "diagnostics": {"clusters": {"assignment": {}}}}]
    closing = {"mean": 0.9, "bottom20": 0.8, "worst": 0.8}
    made = learning_curves(records, closing)
    assert made.drawing["x"] == [0, 2, 3] and made.drawing["marks"] == [3]
    assert {line["name"]: line["y"] for line in made.drawing["lines"]} == {"mean": [30, 60, 90], "bottom 20 %": [20, 60, 80],
                                                                          "worst": [20, 60, 80]}
    assert "mean 30.0 to 90.0 %" in made.alt
    assert [[c.replace("\N{NO-BREAK SPACE}", " ") for c in line] for line in cells_of(made.table)][2] == ["2", "60.0 %", "60.0 %", "60.0 %"]


def test_curves_have_gaps_where_a_client_was_not_asked() -> None:
    records = [{"round": 1, "served": {"a": 0.2, "b": 0.41}}, {"round": 2, "served": {"b": 0.6, "a": None}}]
    drawn = client_curves(records, {"a": 0.5, "c": 1.0}).drawing
    assert drawn["x"] == [0, 1, 2] and [line["name"] for line in drawn["lines"]] == ["mean", "a", "b", "c"]
    assert [line["y"] for line in drawn["lines"]] == [[30.5, 60, 75], [20, None, 50], [41, 60, None], [None, None, 100]]


def test_long_runs_of_many_clients_are_thinned() -> None:
    names = [str(n) for n in range(1000)]
    drawn = client_curves([{"round": n, "served": dict.fromkeys(names, 0.5)} for n in range(1, 101)], dict.fromkeys(names, 0.5))
    assert len(drawn.drawing["x"]) <= 41 and drawn.drawing["x"][-1] == 100 and "Of 101 rounds" in drawn.caption
    assert thinned(10, 3) == [0, 4, 8, 9] and thinned(3, 10) == [0, 1, 2] and thinned(0, 5) == [] and thinned(2, 0) == [0, 1]


def test_similarities_are_ordered_by_cluster_with_a_gap_between_and_their_means() -> None:
    names = ["a", "b", "c", "d"]
    matrix = [[1, -0.5, 0.8, -0.1], [-0.5, 1, -0.3, 0.6], [0.8, -0.3, 1, None], [-0.1, 0.6, None, 1]]
    clusters = {"assignment": {"a": 0, "b": 1, "c": 0, "d": 1}, "similarity": {"clients": names, "matrix": matrix}}
    made = similarity_picture(clusters, 7)
    assert made.drawing["rows"] == ["a · cluster 0", "c · cluster 0", "b · cluster 1", "d · cluster 1"] and made.drawing["gaps"] == [2]
    assert made.drawing["values"] == [[1, 0.8, -0.5, -0.1], [0.8, 1, -0.3, None], [-0.5, -0.3, 1, 0.6], [-0.1, None, 0.6, 1]]
    # within cluster 0 only a with c; between: -0.5, -0.1, -0.3, and c with d unknown
    assert cells_of(made.table)[1:] == [["cluster 0", "0.80", "-0.30"], ["cluster 1", "-0.30", "0.60"]]
    many = [str(n) for n in range(PAIRS_AT_MOST + 1)]
    parity = [n % 2 for n in range(len(many))]
    told = {"assignment": dict(zip(many, parity, strict=True)),
            "similarity": {"clients": many, "matrix": [[1.0 if i == j else -1.0 for j in parity] for i in parity]}}
    assert similarity_picture(told, 1).drawing["values"] == [[1, -1], [-1, 1]]


def test_clusters_over_time_count_who_changed() -> None:
    first, second = {"a": 0, "b": 0, "c": 1}, {"a": 1, "b": 0, "c": 0}  # renumbered; b joins c
    made = cluster_picture([(2, {"assignment": first}), (5, {"assignment": second})], {"a": "x"}, "Last.")
    table = {line[0]: line[1:] for line in cells_of(made.table)[1:]}
    assert table == {"a": ["x", "0", "0"], "b": ["", "1", "1"], "c": ["", "1", "0"]}
    assert made.drawing["columns"] == ["2", "5"] and made.drawing["names"] == ["a", "b", "c"] and "1 clients changed theirs" in made.alt
    assert made.drawing["values"] == [[0, 0], [0, 1], [1, 1]]


def test_methods_that_group_in_every_round_have_a_history_too() -> None:
    groups = {"assignment": {"a": 0}, "k": 1}
    records = [{"round": 1, "diagnostics": {"groups": groups}}, {"round": 2, "diagnostics": None}]
    assert cluster_history(records) == [(1, groups)]


def test_the_split_is_drawn_in_the_order_asked_for_and_lacking_clients_have_nothing() -> None:
    made = split_picture({"classes": ["x", "y"], "train": {"a": [1, 2], "b": [3, 0]}, "groups": {"b": "g"}}, ["b", "a", "c"])
    assert made.drawing["values"] == [[3, 0], [1, 2], [0, 0]] and made.drawing["rows"] == ["b · g", "a", "c"] and made.drawing["most"] == 3
    assert cells_of(made.table)[1] == ["b", "3", "0"]


def test_a_rounds_seconds_are_divided_by_the_client_that_worked_longest() -> None:
    record = {"seconds": 10.0, "train_seconds": {"a": 3.0, "b": 5.0}, "score_seconds": {"a": 4.0, "b": 1.0}}
    assert seconds_of(record) == {"train": 3.0, "score": 4.0, "rest": 3.0}
    assert seconds_of({"seconds": 10.0}) is None and seconds_of({"seconds": 1.0, "train_seconds": {"a": 3.0}}) == {
        "train": 3.0, "score": 0.0, "rest": 0.0}
    assert shares_of([seconds_of(record), None]) == ": train 30 %, score 40 %, transfer, wait and server 30 %" and shares_of([None]) == ""
    summary = {"server_peak_rss_mib": 99.5, "seconds": {"total": 10.0, "round_median": 10.0}}
    facts = {line[0]: line[1] for line in cells_of(time_and_memory(Findings(summary, [record], [], None)))}
    assert facts["train, seconds a round"] == "3.00" and facts["transfer, wait and server, seconds a round"] == "3.00"


def test_dropped_replies_are_counted_by_site_and_reason() -> None:
    records: list[dict[str, Any]] = [
        {"asked": ["a", "b"], "accepted": ["a"], "lost": {"b": "deadline"}},
        {"asked": ["a", "b"], "accepted": ["a"], "lost": {"b": "offline"}},
        {"asked": ["a", "b"], "accepted": ["b"], "lost": {"a": "deadline", "?": "unasked"}},
        {"asked": ["a", "b"], "accepted": ["a"]}, {"asked": ["a"]}]  # written before reasons were kept by site, and before that
    assert dropped_by_site(records) == {"?": {"unasked": 1}, "a": {"deadline": 1}, "b": {"deadline": 1, "no reason kept": 1, "offline": 1}}
    told = cells_of(sites(Findings({}, records, [], None)))
    assert told == [["site", "deadline", "no reason kept", "offline", "unasked", "times asked"], ["b", "1", "1", "1", "0", "4"],
                    ["nobody who was asked", "0", "0", "0", "1", "0"], ["a", "1", "0", "0", "0", "5"]]
    assert sites(Findings({}, [{"asked": ["a"], "accepted": ["a"], "lost": {}}], [], None)) == ""


def test_clients_stand_from_the_worst_up_and_those_without_a_score_last() -> None:
    records = [{"round": 1, "seconds": 1.0, "adapted": {"a": 0.7}}]
    made = findings({}, "x", records, {"served": {"b": 0.2, "a": 0.5}, "n_test": {"c": 3}}, None)
    told = [[cell.replace("\N{NO-BREAK SPACE}", " ") for cell in line] for line in cells_of(clients(made))]
    assert [line[0] for line in told] == ["client", "b", "a", "c"] and [line[-2:] for line in told[1:]] == [
        ["20.0 %", "–"], ["50.0 %", "70.0 %"], ["–", "–"]]


def test_routes_add_up_and_the_gate_is_drawn_where_there_is_one() -> None:
    records = [{"round": 3, "hit": {"a": 0.5, "b": 0.7}, "fuse": {"a": 0.1, "b": 0.1}, "miss": {"a": 0.4, "b": 0.2}}]
    drawn = routes_picture(records).drawing
    assert [bar["y"] for bar in drawn["bars"]] == [[60], [10], [30]] and drawn["lines"] == [] and drawn["labels"] == ["3"]
    gated = routes_picture([{**records[0], "gate_weight": {"a": 0.25, "b": 0.75}}]).drawing
    assert gated["lines"][0]["y"] == [50]


def test_a_drawing_cannot_end_the_element_that_holds_it() -> None:
    hostile = "</script><!--<script>&amp;\u2028\x07"
    html = Chart("h", 'quote " & <b>', {"kind": "bars", "labels": [hostile]}).html()
    inside, = re.findall(r'<script type="application/json">(.*)</script>', html, re.S)
    assert "<" not in inside and json.loads(inside)["labels"] == [hostile] and 'aria-label="quote &quot; &amp; &lt;b&gt;"' in html
    with pytest.raises(ValueError):
        inline_json([float("nan")])
    assert rounded([0.12345, None, 1.0, 0.5], 1, 100) == [12.3, None, 100, 50] and "." not in json.dumps(rounded([2.0], 3))


def test_the_hash_of_the_code_is_of_its_text_alone() -> None:
    assert code_hash() == code_hash() and re.fullmatch("[0-9a-f]{16}", code_hash())
