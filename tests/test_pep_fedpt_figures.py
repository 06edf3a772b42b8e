"""The figures of the PEP-FedPT benchmark, worked by hand."""

from __future__ import annotations

import math
from typing import Any

import pytest

from benchmarks.pep_fedpt.figures import (
    Gain,
    Mixture,
    Point,
    curve,
    differences,
    gains,
    grouped,
    interval,
    label_entropy,
    mean_curve,
    mixtures,
    reached,
    table,
    target,
)

TASKS = ("cifar10", "cifar10 at 25 %")
OUTSIDE = {"clients": ["x"], "tails_raw": {"mean": 0.45}, "tails": {"mean": 0.7}}


def result(name: str, raw: float, prior: float, **more: Any) -> dict[str, Any]:
    """Three rounds of ten replies of 4,100 bytes, 100 of them metrics; scored before rounds 1 and 3, and at the end."""
    def tail(mean: float) -> dict[str, float]:
        return {"mean": mean, "bottom20": mean - 0.1, "n": 10}

    rounds = [{"round": n, "up": 41_000, **({"served_raw": raw * n / 4, "served": prior * n / 4} if n != 2 else {})} for n in (1, 2, 3)]
    return {"name": name, "served": tail(prior), "served_raw": tail(raw), "held_out": OUTSIDE, "wall_seconds": 60.0, "split_hash": "cafe",
            "rounds": rounds, "bytes": {"up": 123_000, "up_per_client_round": 4100,
                                        "by_slot": {"up": {"head": 120_000, "metrics": 3000}}}, **more}


def test_label_entropy_is_in_nats() -> None:
    assert label_entropy([4, 4, 0]) == pytest.approx(math.log(2)) and label_entropy([0, 7]) == 0 == label_entropy([0, 0])
    assert label_entropy([1, 3]) == pytest.approx(0.25 * math.log(4) + 0.75 * math.log(4 / 3))


def test_a_score_belongs_to_the_state_before_its_round() -> None:
    told = curve(result("cifar10 fedvpt seed 0", 0.4, 0.8), "served_raw")
    assert [(p.round, p.accuracy) for p in told] == [(0, 0.1), (2, pytest.approx(0.3)), (3, 0.4)]
    # 1,000 numbers a reply, ten replies a round; metrics do not count
    assert [p.numbers for p in told] == pytest.approx([0, 20_000, 30_000])


def test_seeds_are_averaged_where_all_were_scored() -> None:
    one, other = (result(f"cifar10 fedvpt seed {seed}", raw, 0.8) for seed, raw in ((0, 0.4), (1, 0.8)))
    del other["rounds"][2]["served_raw"]
    assert [(p.round, p.accuracy) for p in mean_curve([one, other], "served_raw")] == [(0, pytest.approx(0.15)), (3, pytest.approx(0.6))]


def test_the_target_is_nine_tenths_of_the_best_method() -> None:
    rows = {"pep-fedpt": {0: result("", 0.5, 0.6), 1: result("", 0.7, 0.8)}, "fedvpt": {0: result("", 0.55, 0.9)},
            "ablation tau .1": {0: result("", 0.99, 0.99)}}
    assert target(rows, "served_raw") == pytest.approx(0.54) and target(rows, "served") == pytest.approx(0.81)
    assert target({"ablation tau .1": rows["ablation tau .1"]}, "served") == 0
    points = [Point(0, 0.1, 0), Point(8, 0.54, 50), Point(16, 0.5, 90)]
    assert reached(points, 0.54) == points[1] and reached(points, 0.55) is None


def test_differences_are_paired_by_seed_on_one_split() -> None:
    ours = {seed: result(f"cifar10 pep-fedpt seed {seed}", raw, 0.8) for seed, raw in ((0, 0.5), (1, 0.6), (3, 0.1))}
    others = {seed: result(f"cifar10 sgpt seed {seed}", raw, 0.7) for seed, raw in ((0, 0.4), (1, 0.4), (2, 0.9))}
    assert differences(ours, others, "served_raw") == pytest.approx([0.1, 0.2])
    # sd .0707 of two, t(1) = 12.706: 12.706 * .0707 / sqrt(2) = .635
    assert interval([0.1, 0.2], "+") == "+15.0 ± 63.5" and interval([0.1], "+") == "+10.0" and interval([]) == "-"
    others[1]["split_hash"] = "beef"
    with pytest.raises(ValueError, match="'cifar10 pep-fedpt seed 1' and 'cifar10 sgpt seed 1' on the same split, got cafe and beef"):
        differences(ours, others, "served")


def test_gains_are_of_the_clients_that_both_scored() -> None:
    def client(raw: float | None, prior: float | None, held_out: bool = False) -> dict[str, Any]:
        return {"served_raw": raw, "served": prior, "held_out": held_out, "entropy": 0.5}

    mine = {"a": client(0.5, 0.75), "b": client(1.0, 0.25, True), "c": client(None, 1.0)}
    theirs = {"a": client(0.25, 1.0), "b": client(0.5, 0.25, True), "c": client(0.5, 1.0)}
    ours, others = (result(f"cifar10 {row} seed 0", 0.5, 0.8, clients=told) for row, told in (("pep-fedpt", mine), ("fedvpt", theirs)))
    older = [result(f"cifar10 {row} seed 1", 0.5, 0.8) for row in ("pep-fedpt", "fedvpt")]
    found = gains(grouped([ours, others, *older], TASKS))
    assert found == [Gain("cifar10", 0.5, 25.0, -25.0, False), Gain("cifar10", 0.5, 50.0, 0.0, True)]


def test_mixture_accuracy_by_round_and_layer() -> None:
    def told(seed: int, shares: list[float]) -> dict[str, Any]:
        rounds = [{"round": n, "up": 1, "mixture_accuracy": share, "mixture_accuracy_layer10": share / 2, "mixture_accuracy_layer9": share}
                  for n, share in enumerate(shares, start=1)]
        return result(f"cifar10 ablation rho 0 seed {seed}", 0.5, 0.8, rounds=rounds)

    found = mixtures(grouped([told(0, [0.25, 0.5]), told(1, [0.75, 0.5, 0.5]), result("cifar10 fedvpt seed 0", 0.5, 0.8)], TASKS))
    assert found == [Mixture("cifar10", "ablation rho 0", "", (1, 2), (0.5, 0.5)),
                     Mixture("cifar10", "ablation rho 0", "layer9", (1, 2), (0.5, 0.5)),
                     Mixture("cifar10", "ablation rho 0", "layer10", (1, 2), (0.25, 0.25))]


def test_the_tables_by_hand() -> None:
    told = table(grouped([result("cifar10 pep-fedpt seed 0", 0.5, 0.8), result("cifar10 pep-fedpt seed 1", 0.6, 0.8),
                          result("cifar10 at 25 % fedvpt seed 0", 0.3, 0.7),
                          result("cifar10 sgpt seed 0", 0.52, 0.7),
                          result("cifar10 pfedpg seed 0", 0.3, 0.7, held_out={"clients": ["x"], "cannot_serve": True})], TASKS))
    assert told.index("### cifar10\n") < told.index("### cifar10 at 25 %") < told.index("| fedvpt | 0 |")
    assert "\nClients: 10 in training, 1 held out; rounds: 3; seeds: 0, 1.\n" in told
    assert "| pep-fedpt | 0, 1 | 55.0 ± 63.5 | 45.0 ± 63.5 | 80.0 ± 0.0 | 70.0 ± 0.0 | 10.0 ± 63.5 | 10.0 ± 0.0 | 1,000 |" in told
    assert "| pfedpg | 0 | 30.0 | 20.0 | 70.0 | 60.0 | cannot serve | cannot serve | 1,000 |" in told
    # targets: .9 * .55 and .9 * .8
    assert "| numbers up until 49.5 % | numbers up until 72.0 %, prior | pep-fedpt less this | pep-fedpt less this, prior |" in told
    assert "| pep-fedpt | 30,000 (round 3) | 30,000 (round 3) |  |  |" in told
    assert "| sgpt | 30,000 (round 3) | not reached | -2.0 | +10.0 |" in told
    assert "| pfedpg | not reached | not reached | +20.0 | +10.0 |" in told
    # of a task without PEP-FedPT there is no difference
    assert "| fedvpt | 30,000 (round 3) | 30,000 (round 3) | - | - |" in told
