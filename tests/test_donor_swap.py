"""The donor swap: its statistics by hand, the swap itself against a plain loop, and the same numbers at a run's end and afterwards."""

from __future__ import annotations

import csv
import json
import os
import shutil
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from flwr.app import Error, Message
from scipy.stats import rankdata

from client_app.loop import LoopSettings, recompute_batchnorm, score
from client_app.personal import load_personal
from deploy.cli import main
from deploy.donor_swap import table
from server_app.donor_swap import Swapped
from server_app.donor_swap_findings import cosine, findings_of
from server_app.donor_swap_finished import private_heads
from server_app.donor_swap_section import donor_swap_section, drop_figure, map_figure
from server_app.encoder_shelf import EncoderShelf
from server_app.finished_state import check_data
from server_app.summary import Findings, clustering, plain
from strategies.config import ConfigError
from strategies.contract import WireViolation
from strategies.donor_swap import UNTRAINED_DRAWS, Donors, drawn_donors, redrawn
from strategies.rank_association import associate, kendall, mean_of, partial, partial_spearman, permutation_p, spearman
from strategies.registry import parse_run_config
from strategies.wire import pack
from tests.deployed import deployed
from tests.multihost import SERVER
from tests.running import SMALL, Spy, about, few_digits, layouts, run, tensor_bytes
from tests.thorough import THOROUGH

NAN = np.nan


def row(*values: float) -> np.ndarray:
    return np.array(values, dtype=float)


def test_ranks_by_hand() -> None:
    # ranks 1 2 3 4 against 1 3 2 4: rho = 1 - 6 * 2 / (4 * 15); of 6 pairs 5 agree and 1 does not
    assert spearman(row(1, 2, 3, 4), row(10, 30, 20, 40)) == pytest.approx(0.8)
    assert kendall(row(1, 2, 3, 4), row(10, 30, 20, 40)) == pytest.approx(4 / 6)
    # ties: ranks 1 2 3 against 1.5 1.5 3: covariance 1.5, variances 2 and 1.5; 2 agreeing of 3 pairs, one tied in y
    assert spearman(row(1, 2, 3), row(5, 5, 9)) == pytest.approx(1.5 / np.sqrt(2 * 1.5))
    assert kendall(row(1, 2, 3), row(5, 5, 9)) == pytest.approx(2 / np.sqrt(3 * 2))


@pytest.mark.parametrize(("x", "y"), [(row(1, 1, 1), row(1, 2, 3)), (row(1, 2, 3), row(4, 4, 4)), (row(1), row(2)), (row(), row())])
def test_what_cannot_be_ranked_is_undefined_and_not_0(x: np.ndarray, y: np.ndarray) -> None:
    assert spearman(x, y) is None and kendall(x, y) is None and partial_spearman(x, y, np.zeros((len(x), 1))) is None


def test_undefined_recipients_are_counted_and_in_no_mean() -> None:
    similarity = np.array([[1, 2, 3], [1, 2, 3], [3, 2, 1], [1, 2, NAN]])
    accuracy = np.array([[0.1, 0.2, 0.3], [0.5, 0.5, 0.5], [0.1, 0.2, 0.3], [0.3, NAN, 0.4]])
    found = associate(similarity, accuracy, seed=0, permutations=200)
    assert found.rho.values == (pytest.approx(1), None, pytest.approx(-1), None)
    assert (found.rho.mean, found.rho.positive, found.rho.undefined) == (pytest.approx(0), 0.5, 2)
    assert found.rho.interval == (pytest.approx(-1), pytest.approx(1))
    nobody = associate(similarity[1:2], accuracy[1:2], seed=0)
    assert (nobody.rho.mean, nobody.rho.interval, nobody.tau.mean, nobody.p, nobody.rho.undefined) == (None, None, None, None, 1)


def test_the_null_has_the_chance_of_all_orders() -> None:
    # of 3! orders one reaches rho = 1; of two recipients' 36, one reaches a mean of 1, and (1, .5), (.5, 1) twice each a mean of .75
    best = (row(1, 2, 3), row(1, 2, 3))
    assert permutation_p([best], 20_000, 0) == pytest.approx(1 / 6, abs=0.01)
    assert permutation_p([best, best], 20_000, 0) == pytest.approx(1 / 36, abs=0.005)
    second = (row(1, 2, 3), row(1, 3, 2))
    assert permutation_p([best, second], 20_000, 0) == pytest.approx(5 / 36, abs=0.01)
    worst = (row(1, 2, 3), row(3, 2, 1))
    assert permutation_p([worst], 500, 0) == 1.0
    # ties: of 3 places of the odd one out, one is the best
    assert permutation_p([(row(1, 2, 3), row(0, 0, 1))], 20_000, 0) == pytest.approx(1 / 3, abs=0.01)


def test_the_null_of_noise_is_uniform() -> None:
    rng = np.random.default_rng(0)
    ps = [permutation_p(list(zip(rng.random((4, 6)), rng.random((4, 6)), strict=True)), 199, trial) for trial in range(200)]
    assert 0.4 < float(np.mean(np.array(ps, float))) < 0.6 and 0.02 <= float(np.mean(np.array(ps, float) <= 0.1)) <= 0.18


def test_partial_correlation_is_the_textbooks() -> None:
    rng = np.random.default_rng(1)
    x, y, z = rng.random((3, 9))
    xy, xz, yz = (float(np.corrcoef(rankdata(a), rankdata(b))[0, 1]) for a, b in ((x, y), (x, z), (y, z)))
    assert partial_spearman(x, y, z[:, None]) == pytest.approx((xy - xz * yz) / np.sqrt((1 - xz**2) * (1 - yz**2)))
    # a constant covariate changes nothing, and one that says everything leaves nothing
    assert partial_spearman(x, y, np.ones((9, 1))) == pytest.approx(xy)
    assert partial_spearman(x, y, x[:, None]) is None and partial_spearman(x[:4], y[:4], z[:4, None]) is not None
    # with as many donors as the covariate and the mean need and one more, what is left is +-1 whatever it was
    assert partial_spearman(x[:3], y[:3], z[:3, None]) is None
    found = partial(np.stack([x, x]), np.stack([y, x]), np.stack([z[:, None], x[:, None]]), 0)
    assert found.undefined == 1 and found.mean == pytest.approx(partial_spearman(x, y, z[:, None]))


def test_a_mean_over_one_recipient_has_no_width() -> None:
    found = mean_of([0.25, None], seed=3)
    assert (found.mean, found.interval, found.positive, found.undefined) == (0.25, (0.25, 0.25), 1.0, 1)


def test_rows_must_match() -> None:
    with pytest.raises(ValueError, match=r"of one shape \(R, M\)"):
        associate(np.zeros((2, 3)), np.zeros((3, 2)), 0)


# ---- what a swap says -------------------------------------------------------------------------------------------------------------


def donors_of(similarity: np.ndarray, weights: np.ndarray | None = None) -> Donors:
    n = len(similarity)
    rng = np.random.default_rng(5)

    def untrained(draw: int) -> np.ndarray:
        noise = rng.random((n, n))
        return noise + noise.T

    return Donors(tuple(f"c{k}" for k in range(n)), {}, similarity, untrained, 3, np.ones(n) if weights is None else weights)


def swapped(accuracy: np.ndarray, own: np.ndarray, raw: np.ndarray | None = None) -> Swapped:
    names = tuple(f"c{k}" for k in range(len(accuracy)))
    return Swapped(names, names, accuracy, accuracy if raw is None else raw, own, own)


def two_groups(n: int = 8) -> tuple[np.ndarray, np.ndarray]:
    """Similarity 1 inside and -1 across two groups, a little apart from ties, and accuracy that follows it."""
    rng = np.random.default_rng(2)
    sign = np.where(np.arange(n) % 2, 1.0, -1.0)
    similarity = np.outer(sign, sign) + 0.01 * rng.random((n, n))
    return similarity, np.where(np.eye(n) > 0, NAN, 0.5 + 0.3 * np.sign(similarity) + 0.01 * rng.random((n, n)))


def test_a_swap_that_follows_heads_is_told_from_one_that_does_not() -> None:
    similarity, accuracy = two_groups()
    told = findings_of(donors_of(similarity), swapped(accuracy, np.full(8, 0.9)), {}, seed=0)
    found = told["association"]
    assert found["rho"]["mean"] > 0.6 and found["rho"]["interval"][0] > 0.5 and found["rho"]["positive"] == 1.0 and found["p"] == 1 / 10_001
    assert abs(told["controls"]["untrained"]["mean"]) < 0.12 and told["controls"]["untrained"]["draws"] == UNTRAINED_DRAWS
    # 3 alike and 4 unlike donors: thirds of 3, 2, 2
    best, _, least = told["drop"]
    assert best["accuracy"] == pytest.approx(0.805, abs=0.005) and best["drop"] == pytest.approx(0.9 - best["accuracy"])
    assert least["accuracy"] == pytest.approx(0.205, abs=0.005) and least["recipients"] == 8
    assert told["controls"]["given"] == {"given": [], "rho": None}


def test_donors_statistics_have_a_figure_of_their_own() -> None:
    similarity, accuracy = two_groups()
    told = findings_of(donors_of(similarity), swapped(accuracy, np.full(8, 0.9), raw=1 - accuracy), {}, seed=0)
    assert told["controls"]["donor_statistics"]["rho"]["mean"] == pytest.approx(-told["association"]["rho"]["mean"])


def test_an_effect_of_the_labels_alone_is_gone_given_the_labels() -> None:
    rng = np.random.default_rng(4)
    labels = np.rint(200 * rng.dirichlet([0.3] * 5, 20)).astype(int)
    alike = cosine(labels.astype(float))
    split = {"train": {f"c{k}": labels[k].tolist() for k in range(20)}}
    similarity, accuracy = (alike + 0.2 * rng.standard_normal((20, 20)) for _ in range(2))
    told = findings_of(donors_of(similarity), swapped(accuracy, np.ones(20)), split, seed=0)
    left = told["controls"]["given"]
    assert left["given"] == ["donor's training samples", "label-histogram cosine"]
    assert told["association"]["rho"]["mean"] > 0.5 and abs(left["rho"]["mean"]) < 0.15


def test_cosine_of_histograms_by_hand() -> None:
    assert cosine(np.array([[3.0, 4.0], [4.0, 3.0], [0.0, 0.0]])) == pytest.approx(np.array([[1, 0.96, 0], [0.96, 1, 0], [0, 0, 0]]))


def test_donors_are_drawn_by_the_seed_alone() -> None:
    names = [f"c{k}" for k in range(9)]
    drawn = drawn_donors(names, 4, seed=1)
    assert drawn == drawn_donors(names[::-1], 4, seed=1) == tuple(sorted(drawn)) and len(set(drawn)) == 4
    assert {drawn_donors(names, 4, seed) for seed in range(5)} != {drawn} and drawn_donors(names, 9, 1) == tuple(names)


def test_an_untrained_head_has_the_same_numbers_elsewhere() -> None:
    head = {"weight": np.arange(12.0).reshape(3, 4), "bias": np.arange(3.0)}
    one, other = redrawn(head, 1), redrawn(head, 2)
    assert sorted(one["weight"].ravel()) == sorted(head["weight"].ravel()) and one["weight"].shape == (3, 4)
    assert not np.array_equal(one["weight"], other["weight"])


def section_of(told: dict[str, Any] | None) -> str:
    found = Findings({}, [], [], None, told)
    return donor_swap_section(found) + drop_figure(found) + map_figure(found)


def test_the_section_says_it_all_and_escapes_names() -> None:
    similarity, accuracy = two_groups()
    names = tuple(["<b>x", *(f"c{k}" for k in range(1, 8))])
    found = Swapped(names, names, accuracy, accuracy, np.full(8, 0.9), np.full(8, 0.9))
    told = plain({**findings_of(replace(donors_of(similarity), clients=names), found, {}, 0), "refresh": 3, "bn": "recompute", "groups": {},
                  "dropped": {"StoreError": 2}})
    page = section_of(told)
    assert "&lt;b&gt;x" in page and "<b>x" not in page
    rho = f"{told['association']['rho']['mean']:+.3f}"
    assert rho in page and "Who can use whose encoder" in page and "2 StoreError" in page and "p 0.0001" in page
    assert rho in table(told) and section_of(None) == ""
    # a swap that nobody answered has no picture, and says so
    silent = Swapped(names, names, np.full((8, 8), NAN), np.full((8, 8), NAN), np.full(8, NAN), np.full(8, NAN))
    nothing = plain({**findings_of(replace(donors_of(similarity), clients=names), silent, {}, 0), "refresh": 3, "bn": "recompute",
                     "groups": {}, "dropped": {}})
    assert "undefined for 8 recipients" in section_of(nothing) and "Who can" not in section_of(nothing)


# ---- the swap itself --------------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def spy(tmp_path_factory: pytest.TempPathFactory) -> Spy:
    """A run with a donor swap at its end, and all its messages."""
    spy = Spy(tmp_path_factory.mktemp("swap") / "run")
    run(spy.folder, "hdc-fl", hook=spy, donor_swap=9)
    return spy


@pytest.fixture(scope="module")
def folder(spy: Spy) -> Path:
    return spy.folder


@pytest.fixture(scope="module")
def told(folder: Path) -> dict[str, Any]:
    return json.loads((folder / "donor_swap.json").read_text())


def test_every_pair_is_scored_as_a_plain_loop_scores_it(folder: Path, told: dict[str, Any]) -> None:
    settings = parse_run_config({**json.loads((folder / "run.json").read_text()), "resume": False})
    model = settings.build_model(10, (1, 8, 8))
    loop = LoopSettings.from_config(settings.run)
    shelf = EncoderShelf(folder / "shelf")
    assert told["recipients"] == told["donors"] == [f"client-{k:03d}" for k in range(4)]
    for i, recipient in enumerate(told["recipients"]):
        data = few_digits(SimpleNamespace(index=i), 0)  # type: ignore[arg-type]
        head = load_personal(folder / "clients" / "test" / recipient).kept["head"]
        for j, donor in enumerate(told["donors"]):
            model.load("encoder", dict(shelf.get(donor, 2)))
            model.load("head", head)
            raw = score(model, data.test.images, data.test.labels, loop)
            recompute_batchnorm(model.encoder, data.train.images, loop)
            final = score(model, data.test.images, data.test.labels, loop)
            if i == j:
                assert (told["own"][i], told["own_raw"][i]) == (final, raw) and told["accuracy"][i][j] is None
            else:
                assert (told["accuracy"][i][j], told["accuracy_raw"][i][j]) == (final, raw)


def test_afterwards_the_same_numbers(told: dict[str, Any], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    later = run(tmp_path / "run", "hdc-fl")
    before = later.everything()
    assert not (later.folder / "donor_swap.json").exists()
    assert main(["donor-swap", str(later.folder), "--donors", "9", "--workers", "1"]) == 0
    assert json.loads((later.folder / "donor_swap.json").read_text()) == told
    assert later.everything() == before
    shown = capsys.readouterr().out
    assert f"{told['association']['rho']['mean']:+.3f}" in shown if told["association"]["rho"]["mean"] is not None else "–" in shown
    assert "Donor swap" in (later.folder / "report.html").read_text() and (later.folder / "donor_swap.png").stat().st_size > 100
    # fewer donors are the same columns
    assert main(["donor-swap", str(later.folder), "--donors", "2", "--workers", "1"]) == 0
    few = json.loads((later.folder / "donor_swap.json").read_text())
    columns = [told["donors"].index(donor) for donor in few["donors"]]
    assert len(columns) == 2 and few["own"] == told["own"] and few["clients"] == 4
    assert few["accuracy"] == [[line[c] for c in columns] for line in told["accuracy"]]


def test_two_accuracies_leave_and_nothing_else(spy: Spy) -> None:
    swaps = [(message, reply) for message, reply in spy.seen if message.metadata.message_type == "evaluate.donor"]
    assert len(swaps) == 4 + 4 * 3
    for message, reply in swaps:
        assert set(message.content) == {"donor-encoder", "round"}
        assert set(reply.content) == {"metrics"} and reply.content["metrics"].keys() == {"donor", "donor-raw"}  # type: ignore[union-attr]
    heads = {head["weight"].tobytes() for (_, number), head in spy.heads.items() if number == 2}
    sent = [data for pair in spy.seen for message in pair for _, data in tensor_bytes(message).values()]
    assert heads and not any(head in data for data in sent for head in heads)


def test_the_contract_says_what_a_swap_may_carry() -> None:
    parts = layouts("hdc-fl")
    wire = parse_run_config({**SMALL, "donor-swap": 2}).wire
    wire.check("swap-up", pack({}, {"donor": 0.5, "donor-raw": 0.25}), parts)
    for scalars in ({"donor": 1.5}, {"donor": 0.5, "num-test": 8}, {"served": 0.5}):
        with pytest.raises(WireViolation):
            wire.check("swap-up", pack({}, scalars), parts)
    with pytest.raises(WireViolation):
        parse_run_config(SMALL).wire.check("swap-up", pack({}, {"donor": 0.5}), parts)  # nobody asked for a swap
    with pytest.raises(WireViolation):
        wire.check("closing", pack({}, {"donor": 0.5}), parts)


def test_who_does_not_answer_has_no_row(tmp_path: Path) -> None:
    def hook(message: Message, reply: Any) -> Message:
        _, client, _ = about(message)
        lost = message.metadata.message_type == "evaluate.donor" and client == "client-001"
        return Message(Error(4, "lost"), reply_to=message) if lost else reply()

    found = run(tmp_path / "run", "hdc-fl", hook=hook, donor_swap=9)
    told = json.loads((found.folder / "donor_swap.json").read_text())
    assert told["accuracy"][1] == [None] * 4 and told["own"][1] is None and told["dropped"] == {"reply-lost": 4}
    assert told["association"]["by_recipient"]["client-001"] == {"rho": None, "tau": None}
    assert all(told["accuracy"][0][j] is not None for j in (1, 2, 3))


def test_what_is_shared_cannot_be_swapped(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(ConfigError, match="donor-swap needs the clients' own encoders on the server, and fedper keeps none there"):
        run(tmp_path / "asked", "fedper", donor_swap=2)
    assert not (tmp_path / "asked").exists()
    shared = run(tmp_path / "run", "fedper").folder
    assert main(["donor-swap", str(shared)]) == 2 and "fedper run end with the same encoder" in capsys.readouterr().err


def test_one_client_has_nobody_to_swap_with(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    alone = run(tmp_path / "run", "hdc-fl", clients=1).folder
    assert main(["donor-swap", str(alone)]) == 2 and "needs two clients or more" in capsys.readouterr().err
    assert not (alone / "donor_swap.json").exists()


def test_clients_that_train_alone_swap_their_personal_models(tmp_path: Path) -> None:
    folder = run(tmp_path / "run", "local-only").folder
    assert main(["donor-swap", str(folder), "--workers", "1"]) == 0
    told = json.loads((folder / "donor_swap.json").read_text())
    own = dict(zip(told["recipients"], told["own"], strict=True))
    with (folder / "clients.csv").open(newline="") as file:
        assert {line["client"]: float(line["served"]) for line in csv.DictReader(file)} == own
    assert np.isfinite(np.array(told["similarity"], float)).sum() == 12


def test_what_cannot_be_swapped_afterwards_says_why(folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["donor-swap", str(tmp_path)]) == 2 and "holds no run" in capsys.readouterr().err
    apart = tmp_path / "apart"
    shutil.copytree(folder, apart, ignore=shutil.ignore_patterns("clients"))
    assert main(["donor-swap", str(apart)]) == 2 and "stays at the sites" in capsys.readouterr().err


@pytest.mark.parametrize(("lost", "said"), [(None, "no client answered"), (1, "the donor swap of before lacks none")])
def test_without_every_answer_an_earlier_whole_swap_stays(lost: int | None, said: str, folder: Path, tmp_path: Path,
                                                          capsys: pytest.CaptureFixture[str]) -> None:
    apart = tmp_path / "apart"
    shutil.copytree(folder, apart)
    for model in sorted(apart.glob("clients/*/*/personal.safetensors"))[:lost]:
        model.unlink()
    before = {name: (apart / name).read_bytes() for name in ("donor_swap.json", "report.html")}
    assert main(["donor-swap", str(apart), "--workers", "1"]) == 1 and said in capsys.readouterr().err
    assert {name: (apart / name).read_bytes() for name in before} == before
    (apart / "donor_swap.json").unlink()
    assert main(["donor-swap", str(apart), "--workers", "1"]) == (0 if lost else 1)
    assert (apart / "donor_swap.json").exists() == bool(lost)


@pytest.mark.parametrize(("count", "said"), [(0, "0 of them lie here"), (1, "1 of them lies here")])
def test_a_swap_needs_two_personal_models(count: int, said: str) -> None:
    kept = {part: {"weight": np.zeros(2)} for part in ("encoder", "head")}
    with pytest.raises(ConfigError, match=f"needs the personal models of two clients or more, and {said}"):
        private_heads(parse_run_config({"method": "local-only"}), "ab"[:count], lambda name: kept)


@pytest.mark.parametrize("text", ["[1]", "[" * 100_000, "{"])
def test_a_damaged_summary_is_no_traceback(text: str, tmp_path: Path) -> None:
    (tmp_path / "summary.json").write_text(text)
    with pytest.raises(ConfigError, match="cannot read .*summary.json: .*; restore it from a copy"):
        check_data(tmp_path, SimpleNamespace(hellos={}))  # type: ignore[arg-type]


# ---- groups of other methods in the summary ---------------------------------------------------------------------------------------


def test_groups_that_rounds_make_are_compared_with_the_splits() -> None:
    records = [{"round": n, "seconds": 1.0, "diagnostics": {"groups": {"k": 2, "assignment": assignment}}}
               for n, assignment in ((1, {"a": 0, "b": 1, "c": 0, "d": 1}), (2, {"a": 1, "b": 1, "c": 0, "d": 0}))]
    found = clustering(records, {"a": "0", "b": "0", "c": "90", "d": "90"})
    last = {"a": 1, "b": 1, "c": 0, "d": 0}
    assert found == {"k": 2, "silhouette": None, "rank": None, "round": 2, "assignment": last, "adjusted_rand": 1.0}
    assert clustering([{"round": 1, "seconds": 1.0, "diagnostics": {}}], {}) is None


def test_their_runs_have_an_adjusted_rand_index(tmp_path: Path) -> None:
    summary = run(tmp_path / "run", "ifca").summary
    assert summary["clusters"]["round"] == 2 and len(summary["clusters"]["assignment"]) == 4
    assert -1 <= summary["clusters"].get("adjusted_rand", 0) <= 1


@pytest.mark.slow
@pytest.mark.skipif(not THOROUGH, reason="over half a minute; tests/test_same_everywhere.py covers the engines")
def test_ray_and_two_processes_give_the_same_numbers(tmp_path: Path) -> None:
    words = ["-c", "method=hdc-fl", "-c", "clients=3", "-c", "rounds=2", "-c", "epochs=1", "-c", "width=4", "-c", "device=cpu"]
    assert main(["run", *words, "--workers", "1", "--quiet", "--out", str(tmp_path / "later")]) == 0
    assert main(["donor-swap", str(tmp_path / "later"), "--workers", "2"]) == 0
    assert main(["run", *words, "-c", "donor-swap=50", "--engine", "ray", "--workers", "2", "--quiet", "--out", str(tmp_path / "ray")]) == 0
    later, ray = (json.loads((tmp_path / name / "donor_swap.json").read_text()) for name in ("later", "ray"))
    assert later == ray and np.isfinite(np.array(later["accuracy"], float)).sum() == 6


@pytest.mark.slow
@pytest.mark.skipif(not THOROUGH, reason="over a minute; FEDHEARTH_THOROUGH=1 runs it")
@pytest.mark.skipif(os.name == "nt", reason="Flower's SuperNode needs POSIX signals")
def test_sites_score_each_others_encoders_over_the_network(tmp_path: Path) -> None:
    words = ["-c", "method=hdc-fl", "-c", "clients=2", "-c", "rounds=2", "-c", "partition=iid", "-c", "width=4", "-c", "epochs=1",
             "-c", "device=cpu", "-c", "run-id=swap", "-c", "donor-swap=9"]
    with deployed(tmp_path, 2) as cluster:
        done = cluster.asked("submit", *words)
        assert done.returncode == 0, done.stdout + done.stderr + cluster.told("server")
        assert cluster.run(SERVER, "run", *words, "--workers", "1", "--out", "alone").returncode == 0
    there, alone = (json.loads((folder / "donor_swap.json").read_text()) for folder in (tmp_path / "server/runs/swap", tmp_path / "alone"))
    assert np.isfinite(np.array(there["accuracy"], float)).sum() == 2
    assert all(there[key] == alone[key] for key in ("recipients", "donors", "accuracy", "accuracy_raw", "own", "own_raw", "similarity"))
    assert there["dropped"] == {}
