"""The clients of HDC-FL's rivals: what makes each method itself, against hand-worked numbers and plain loops; and their reductions."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from client_app.data.client_data import ClientData, Split
from client_app.head_phase import encode, fit_head
from client_app.learner import Trainer
from client_app.learners.knn_per import to_remember
from client_app.local.store import LocalStore, read_export
from client_app.loop import LoopSettings, fit, inputs, recompute_batchnorm, score
from client_app.personal import load_personal
from client_app.prototype_answers import NEVER, class_means, nearest_prototype_head
from client_app.pulled_steps import PrototypeSgd, ProximalSgd
from models import SplitModel, build_model
from models.neighbours import NeighbourModel
from server_app.checkpoint import Checkpoints
from strategies import cfl, fedavg, fedbn, ifca, pfedsim
from strategies.config import RunConfig
from strategies.registry import METHODS
from strategies.seeds import derive_seed
from strategies.types import Round, Slots
from tests.naive import head as naive_head
from tests.naive import rivals as naive
from tests.naive.training import batches, plain_fit
from tests.running import Ran, client_of, digits_of, run, slot_of

SETTINGS = LoopSettings(epochs=2, batch=8, lr=0.1, device="cpu")
RATES: dict[str, Any] = {"batch": 8, "lr": 0.1, "momentum": 0.9, "weight_decay": 5e-4}
FIRST, CLOSING = Round(1, 2, seed=0), Round(2, 2, seed=0, acked=1, closing=True, score_served=True)
SEED = derive_seed(0, "site", 1, "fit")


def data_of(index: int = 0) -> ClientData:
    return client_of(*digits_of(index, count=40))


def fresh(seed: int = 0) -> SplitModel:
    return build_model("cnn", 10, (1, 8, 8), width=4, seed=seed)


def start_of(seed: int = 0) -> dict[str, dict[str, np.ndarray]]:
    model = fresh(seed)
    return {part: {name: t.copy() for name, t in model.tensors(part).items()} for part in ("encoder", "head")}


def learner_of(method: str, settings: LoopSettings = SETTINGS, **own: Any) -> Any:
    found = METHODS[method]
    return found.learner_class()(Trainer(fresh(9), settings), found.config_class()(**own))


def down(method: str, rnd: Round = FIRST, **own: Any) -> Slots:
    """What a client gets from the common start."""
    rule = METHODS[method].rule_class()(METHODS[method].config_class()(**own), RunConfig(), None)
    return rule.downlink(rule.init(start_of()), "site", rnd)


def trained(method: str, folder: Path, **own: Any) -> tuple[Slots, Slots]:
    """What one client sends, and keeps, after round 1."""
    with LocalStore(folder, "run", "site") as store:
        slots = learner_of(method, **own).train(down(method, **own), data_of(), store, FIRST).slots
        sent = {slot: {name: t.copy() for name, t in tensors.items()} for slot, tensors in slots.items()}
        return sent, (store.load(1) or {}) if store.versions() else {}


def xy(data: ClientData) -> tuple[torch.Tensor, torch.Tensor]:
    return inputs(data.train.images, SETTINGS), torch.from_numpy(data.train.labels)


def same(a: Any, b: Any, **close: float) -> None:
    assert a.keys() == b.keys()
    for name in a:
        (np.testing.assert_allclose if close else np.testing.assert_array_equal)(a[name], b[name], err_msg=name, **close)  # type: ignore[operator]


def differ(a: Any, b: Any) -> bool:
    return all(not np.array_equal(a[name], b[name]) for name in a)


def state_of(ran: Ran, kind: type) -> Any:
    found = Checkpoints(ran.folder / "checkpoints").latest(kind)
    assert found is not None
    return found[1]


def personal(ran: Ran, index: int = 0) -> Slots:
    return read_export(ran.folder / "clients" / "test" / f"client-00{index}" / "personal.safetensors")[0]


# --- FedRep


def test_fedrep_fits_the_head_first_and_then_the_encoder_under_it(tmp_path: Path) -> None:
    """Head: plain SGD over standing features (a NumPy loop). Encoder: torch's own SGD from the encoder that came, head standing."""
    sent, kept = trained("fedrep", tmp_path, head_epochs=3, body_epochs=2)
    model, data = fresh(0), data_of()
    recompute_batchnorm(model.encoder, data.train.images, SETTINGS)
    features = encode(model, data.train.images, SETTINGS)
    order = torch.Generator().manual_seed(derive_seed(SEED, "head-phase"))
    steps = [batch for _ in range(3) for batch in batches(torch.randperm(24, generator=order).tolist(), 8)]
    first = start_of()["head"]
    weight, bias = naive_head.fit(first["weight"], first["bias"], features, data.train.labels, steps, 0.1, 0.9, 5e-4)
    same(kept["head"], {"weight": weight, "bias": bias}, rtol=1e-4, atol=1e-5)
    assert differ(kept["head"], first)
    model = fresh(0)
    model.load("head", kept["head"])
    model.head.requires_grad_(False)
    plain_fit(model, *xy(data), epochs=2, seed=SEED, **RATES)
    same(sent["encoder"], model.tensors("encoder"), rtol=1e-4, atol=1e-5)
    same(kept["head"], model.tensors("head"))
    assert sent.keys() == {"encoder"} and kept.keys() == {"head"}


def test_fedrep_trains_the_head_even_with_one_epoch_of_everything(tmp_path: Path) -> None:
    """A public library with one local epoch never moves the head."""
    sent, kept = trained("fedrep", tmp_path, head_epochs=1, body_epochs=1)
    assert differ(kept["head"], start_of()["head"]) and differ(sent["encoder"], start_of()["encoder"])


def test_nothing_stays_frozen_for_the_next_client(tmp_path: Path) -> None:
    for method in ("fedrep", "fedbabu"):
        learner = learner_of(method)
        with LocalStore(tmp_path, "run", method) as store:
            learner.train(down(method), data_of(), store, FIRST)
        assert all(weight.requires_grad for weight in learner.trainer.model.parameters())
    learner = learner_of("fedbn")
    with LocalStore(tmp_path, "run", "norms") as store:
        learner.join(down("fedbn"), data_of(), store, dataclasses.replace(CLOSING, closing=False, joining=True, acked=0))
    assert all(weight.requires_grad for weight in learner.trainer.model.parameters())


# --- FedBABU


def test_fedbabu_trains_the_encoder_alone(tmp_path: Path) -> None:
    sent, kept = trained("fedbabu", tmp_path)
    model = fresh(0)
    model.head.requires_grad_(False)
    plain_fit(model, *xy(data_of()), epochs=2, seed=SEED, **RATES)
    same(sent["encoder"], model.tensors("encoder"), rtol=1e-4, atol=1e-5)
    same(kept["initial-head"], start_of()["head"])


@pytest.mark.parametrize("part", ["head", "full"])
def test_fedbabu_fine_tunes_at_the_end(part: str, tmp_path: Path) -> None:
    """The head on the standing encoder, or everything; what is exported is what was scored, before it is not."""
    own: dict[str, Any] = {"part": part, "tune_epochs": 4}
    data, encoder = data_of(), start_of(3)["encoder"]
    with LocalStore(tmp_path, "run", "site") as store:
        learner = learner_of("fedbabu", **own)
        learner.train(down("fedbabu", **own), data, store, FIRST)
        reply = learner.evaluate({"encoder": encoder}, data, store, CLOSING)
        exported = store.exported("personal")
    model = fresh(3)
    model.load("head", start_of()["head"])
    if part == "head":
        recompute_batchnorm(model.encoder, data.train.images, SETTINGS)
        fit_head(model, encode(model, data.train.images, SETTINGS), data.train.labels, SETTINGS, derive_seed(0, "site", "join", "fit"), 4)
    else:
        seed = derive_seed(derive_seed(0, "site", 2, "fit"), "fine-tuning")
        fit(model, data.train.images, data.train.labels, dataclasses.replace(SETTINGS, epochs=4), seed)
        recompute_batchnorm(model.encoder, data.train.images, SETTINGS)
    assert exported is not None
    for name in ("encoder", "head"):
        same(exported[name], model.tensors(name))
    assert reply.metrics["served"] == score(model, data.test.images, data.test.labels, SETTINGS) and reply.slots == {}
    weights = {name for name in encoder if not name.rpartition(".")[2].startswith("running")}
    assert all(np.array_equal(exported["encoder"][n], encoder[n]) for n in weights) == (part == "head")
    assert differ(exported["head"], start_of()["head"])


# --- FedAvg with fine-tuning


def test_fedavg_ft_without_fine_tuning_is_fedavg_and_with_it_trains_like_it(tmp_path: Path) -> None:
    plain = run(tmp_path / "a", "fedavg")
    none = run(tmp_path / "b", "fedavg-ft", fedavg_ft__tune_epochs=0)
    tuned = run(tmp_path / "c", "fedavg-ft")
    assert none.served == plain.served and state_of(tuned, fedavg.State).head.keys() == {"weight", "bias"}
    for part in ("encoder", "head"):
        same(getattr(state_of(tuned, fedavg.State), part), getattr(state_of(plain, fedavg.State), part))
        same(personal(none)[part], personal(plain)[part])
        assert differ(personal(tuned)["head"], personal(plain)["head"])


# --- Ditto


def test_dittos_personal_step_is_the_loss_with_the_distance_written_into_it(tmp_path: Path) -> None:
    anchor, data, model, plain = start_of(5), data_of(), fresh(0), fresh(0)
    fit(model, data.train.images, data.train.labels, SETTINGS, 3, lambda m, s: ProximalSgd(m, s, anchor, 0.7))
    named = {f"{part}.{name}": torch.from_numpy(t) for part, tensors in anchor.items() for name, t in tensors.items()}
    naive.pulled_fit(plain, *xy(data), epochs=2, seed=3, anchor=named, pull=0.7, **RATES)
    for part in ("encoder", "head"):
        same(model.tensors(part), plain.tensors(part), rtol=1e-3, atol=1e-4)


def test_a_pull_of_zero_is_plain_sgd_and_a_stronger_one_keeps_nearer() -> None:
    anchor, data = start_of(0), data_of()

    def away(pull: float | None) -> tuple[float, dict[str, np.ndarray]]:
        model = fresh(0)
        settings = dataclasses.replace(SETTINGS, lr=0.02)
        step = None if pull is None else lambda m, s: ProximalSgd(m, s, anchor, pull)
        fit(model, data.train.images, data.train.labels, settings, 3, step)
        moved = model.tensors("head")
        return float(np.square(moved["weight"] - anchor["head"]["weight"]).sum()), {n: t.copy() for n, t in moved.items()}

    same(away(0.0)[1], away(None)[1])
    distances = [away(pull)[0] for pull in (0.0, 1.0, 10.0)]
    assert distances[0] > 1.1 * distances[1] and distances[1] > 1.5 * distances[2] > 0


def test_ditto_without_pull_is_local_only_beside_fedavg(tmp_path: Path) -> None:
    """Bit for bit: the personal models of the one, the shared model of the other; and the pull changes the first alone."""
    alone, shared = run(tmp_path / "alone", "local-only"), run(tmp_path / "shared", "fedavg")
    free, held = run(tmp_path / "free", "ditto", ditto__pull=0.0), run(tmp_path / "held", "ditto", ditto__pull=1.0)
    assert free.served == alone.served
    for part in ("encoder", "head"):
        same(personal(free)[part], personal(alone)[part])
        for ran in (free, held):
            same(getattr(state_of(ran, fedavg.State), part), getattr(state_of(shared, fedavg.State), part))
    assert differ(personal(held)["head"], personal(free)["head"])


# --- IFCA


def test_ifca_picks_the_model_with_the_lowest_loss_on_its_own_images(tmp_path: Path) -> None:
    """Of three, the second was trained on this client's digits; it is trained on, and comes back in its own slots."""
    data, model = data_of(), fresh(1)
    fit(model, data.train.images, data.train.labels, SETTINGS, 0)
    models = [start_of(0), {part: model.tensors(part) for part in ("encoder", "head")}, start_of(2)]
    inbound = {ifca.slot_of(part, k): tensors for k, found in enumerate(models) for part, tensors in found.items()}
    learner = learner_of("ifca", num_clusters=3)
    assert learner.picked(inbound, data) == 1
    expected = fresh(9)
    for part in ("encoder", "head"):
        expected.load(part, models[1][part])
    fit(expected, data.train.images, data.train.labels, SETTINGS, SEED)
    with LocalStore(tmp_path, "run", "site") as store:
        slots = learner.train(inbound, data, store, FIRST).slots
        assert slots.keys() == {"encoder-1", "head-1"} and store.versions() == ()
        same(slots["encoder-1"], expected.tensors("encoder"))
    twins = {slot: models[0][slot.partition("-")[0]] for slot in inbound}
    assert learner.picked(twins, data) == 0, "of equal ones the first"


def test_one_cluster_is_fedavg(tmp_path: Path) -> None:
    """IFCA with K = 1, CFL without a split, pFedSim that only warms up: FedAvg's model and scores, bit for bit."""
    plain = run(tmp_path / "fedavg", "fedavg", held_out=0.25)
    ran = {"ifca": run(tmp_path / "ifca", "ifca", held_out=0.25, ifca__num_clusters=1),
           "cfl": run(tmp_path / "cfl", "cfl", held_out=0.25, cfl__eps1=0.0),
           "pfedsim": run(tmp_path / "pfedsim", "pfedsim", held_out=0.25, pfedsim__warm_up=1.0)}
    expected = state_of(plain, fedavg.State)
    for part in ("encoder", "head"):
        same(state_of(ran["ifca"], ifca.State).models[0][part], getattr(expected, part))
        same(state_of(ran["cfl"], cfl.State).models[0][part], getattr(expected, part))
        same(getattr(state_of(ran["pfedsim"], pfedsim.State), part), getattr(expected, part))
    assert all(found.served == plain.served for found in ran.values())


# --- CFL and pFedSim as whole runs past their turning points


def test_cfl_splits_in_a_run_and_goes_on_in_two_halves(tmp_path: Path) -> None:
    ran = run(tmp_path, "cfl", rounds=3, held_out=0.25, cfl__eps1=1e9, cfl__eps2=0.0, cfl__split_after=1)
    state = state_of(ran, cfl.State)
    assert len(state.models) == 2 and set(state.members.values()) == {0, 1} and state.root.round == 2
    assert ran.summary["dropped"] == {} and all(ran.served.values())
    assert ran.records[-1]["diagnostics"]["groups"] == {"k": 2, "assignment": dict(state.members)}
    assert differ(state.models[0]["head"], state.models[1]["head"])


def test_pfedsim_keeps_heads_apart_after_its_warm_up(tmp_path: Path) -> None:
    ran = run(tmp_path, "pfedsim", rounds=3, pfedsim__warm_up=0.34)
    heads = [personal(ran, index)["head"]["weight"] for index in range(4)]
    assert len({head.tobytes() for head in heads}) == 4
    encoders = [personal(ran, index)["encoder"]["stage1.conv.weight"] for index in range(4)]
    assert len({encoder.tobytes() for encoder in encoders}) == 4
    state = state_of(ran, pfedsim.State)
    assert all(np.array_equal(state.heads[f"client-00{i}"], heads[i]) for i in range(4))
    assert ran.summary["bytes"]["by_slot"]["down"].keys() >= {"encoder", "head", "own-encoder"}


# --- FedAMP


def test_fedamp_goes_on_from_its_own_model_and_is_pulled_to_its_mix(tmp_path: Path) -> None:
    data, mix = data_of(), start_of(4)
    own: dict[str, Any] = {"pull": 0.6, "alpha": 0.5}
    with LocalStore(tmp_path, "run", "site") as store:
        learner = learner_of("fedamp", **own)
        learner.train(down("fedamp"), data, store, FIRST)
        first = store.load(1)
        assert first is not None
        second = learner.train({f"cloud-{part}": mix[part] for part in mix}, data, store, Round(2, 2, seed=0, acked=1)).slots
        kept = store.load(2)
    model = fresh(9)
    for part in ("encoder", "head"):
        model.load(part, first[part])
    seed = derive_seed(0, "site", 2, "fit")
    fit(model, data.train.images, data.train.labels, SETTINGS, seed, lambda m, s: ProximalSgd(m, s, mix, 1.2))
    assert kept is not None
    for part in ("encoder", "head"):
        same(second[part], model.tensors(part))
        same(kept[part], model.tensors(part))
    # before there is a mix it trains alone
    plain = fresh(0)
    fit(plain, data.train.images, data.train.labels, SETTINGS, SEED)
    same(first["encoder"], plain.tensors("encoder"))


# --- FedProto


def test_class_means_by_hand() -> None:
    means, counts = class_means(np.array([[1, 0], [3, 2], [5, 5]], np.float32), np.array([2, 2, 0]), 4)
    assert means.tolist() == [[5, 5], [0, 0], [2, 1], [0, 0]] and counts.tolist() == [1, 0, 2, 0]


def test_the_nearest_prototype_as_a_head() -> None:
    rng = np.random.default_rng(0)
    rows, known = rng.normal(size=(5, 3)).astype(np.float32), np.array([1, 0, 1, 1, 0], np.float32)
    assert nearest_prototype_head({"prototypes": rows[None], "known": np.zeros((1, 5), np.float32)}) is None
    head = nearest_prototype_head({"prototypes": rows[None], "known": known[None]})
    assert head is not None
    for feature in rng.normal(size=(50, 3)).astype(np.float32) * 2:
        nearest = min((c for c in range(5) if known[c]), key=lambda c: float(((feature - rows[c]) ** 2).sum()))
        assert (head["weight"] @ feature + head["bias"]).argmax() == nearest


@pytest.mark.parametrize("pull", [0.0, 1.0, 3.0])
def test_fedproto_pulls_features_to_their_classes_prototype(pull: float) -> None:
    data, model, plain = data_of(), fresh(0), fresh(0)
    rows = torch.from_numpy(np.random.default_rng(0).normal(size=(10, 32)).astype(np.float32))
    known = torch.tensor([1, 0] * 5)
    fit(model, data.train.images, data.train.labels, SETTINGS, 3, lambda m, s: PrototypeSgd(m, s, rows, known, pull))
    naive.prototype_fit(plain, *xy(data), epochs=2, seed=3, prototypes={c: rows[c] for c in range(0, 10, 2)}, pull=pull, **RATES)
    for part in ("encoder", "head"):
        same(model.tensors(part), plain.tensors(part), rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize(("weighting", "counts_may_leave"), [("count", True), ("count", False), ("uniform", True)])
def test_what_a_client_of_fedproto_sends(weighting: str, counts_may_leave: bool, tmp_path: Path) -> None:
    """The mean features of its classes, and their counts only where the run lets counts leave; its model stays."""
    data = data_of()
    learner = learner_of("fedproto", weighting=weighting)
    learner.trainer = dataclasses.replace(learner.trainer, send_counts=counts_may_leave)
    with LocalStore(tmp_path, "run", "site") as store:
        sent = learner.train(down("fedproto"), data, store, FIRST).slots
        kept = store.load(1)
    assert kept is not None and sent.keys() == {"prototypes"}
    model = fresh(9)
    model.load("encoder", kept["encoder"])
    recompute_batchnorm(model.encoder, data.train.images, SETTINGS)
    features, labels = encode(model, data.train.images, SETTINGS), data.train.labels
    for label in range(10):
        found = features[labels == label]
        np.testing.assert_allclose(sent["prototypes"]["prototypes"][0, label], found.mean(0) if len(found) else 0 * features[0], rtol=1e-5)
    counts = np.bincount(labels, minlength=10)
    plain = weighting == "count" and counts_may_leave
    assert sent["prototypes"]["counts"][0].tolist() == (counts if plain else np.minimum(counts, 1)).tolist()
    # before there is a prototype there is nothing to be pulled to
    alone = fresh(0)
    fit(alone, data.train.images, data.train.labels, SETTINGS, SEED)
    same(kept["encoder"], alone.tensors("encoder"))


def test_fedproto_serves_by_the_nearest_prototype(tmp_path: Path) -> None:
    ran = run(tmp_path, "fedproto")
    head, own = personal(ran)["head"], slot_of(tmp_path / "clients" / "test" / "client-000" / "v2.safetensors", "head")
    np.testing.assert_allclose(head["bias"], -np.square(head["weight"]).sum(1) / 2, rtol=1e-5)
    assert differ(head, own) and ran.summary["bytes"]["by_slot"]["up"].keys() == {"prototypes", "metrics"}


def test_fedproto_can_answer_with_a_clients_own_classes_alone() -> None:
    """Of prototypes 0, 1 and 3 a client with images of 1, 2 and 3 may answer 1 and 3, or with ``known`` all three."""
    data, rows = data_of(), np.arange(40, dtype=np.float32).reshape(1, 10, 4)
    some = np.isin(data.train.labels, (1, 2, 3))
    part = Split(data.train.images[some], data.train.labels[some], data.train.ids[some])
    known = np.isin(np.arange(10), (0, 1, 3)).astype(np.float32)[None]
    for answers, expected in (("known", [0, 1, 3]), ("own", [1, 3])):
        head = learner_of("fedproto", answers=answers)._head({"prototypes": rows, "known": known}, dataclasses.replace(data, train=part))
        assert np.flatnonzero(head["bias"] > NEVER).tolist() == expected and known.sum() == 3


# --- FedBN


def test_batchnorm_stays_at_home(tmp_path: Path) -> None:
    sent, kept = trained("fedbn", tmp_path)
    model = fresh(0)
    fit(model, data_of().train.images, data_of().train.labels, SETTINGS, SEED)
    outside, inside = fedbn.parted(model.tensors("encoder"))
    assert len(inside) == 16 and not any("norm" in name for name in sent["encoder"])
    same(sent["encoder"], outside)
    same(kept["norm"], inside)
    same(sent["head"], model.tensors("head"))


def test_a_newcomer_of_fedbn_trains_batchnorm_and_nothing_else(tmp_path: Path) -> None:
    joining = Round(2, 2, seed=0, joining=True)
    with LocalStore(tmp_path, "run", "site") as store:
        learner = learner_of("fedbn", dataclasses.replace(SETTINGS, join_epochs=3))
        assert learner.join(down("fedbn"), data_of(), store, joining).slots == {}
        kept = store.load(2)
    assert kept is not None and kept.keys() == {"norm"}
    outside, first = fedbn.parted(start_of()["encoder"])
    assert differ(kept["norm"], first)
    same({name: t for name, t in learner.trainer.model.tensors("encoder").items() if name in outside}, outside)
    same(learner.trainer.model.tensors("head"), start_of()["head"])


def plain_encoder(in_shape: tuple[int, int, int], width: int) -> tuple[nn.Module, int]:
    """An encoder without BatchNorm."""
    channels, height, side = in_shape
    return nn.Sequential(nn.Flatten(), nn.Linear(channels * height * side, 6), nn.ReLU()), 6


def test_without_batchnorm_fedbn_is_fedavg_and_says_so(tmp_path: Path) -> None:
    model = "tests.test_rivals:plain_encoder"
    bn, avg = (run(tmp_path / method, method, model=model, held_out=0.25) for method in ("fedbn", "fedavg"))
    for part in ("encoder", "head"):
        same(getattr(state_of(bn, fedbn.State), part), getattr(state_of(avg, fedavg.State), part))
    assert bn.served == avg.served and bn.summary["dropped"] == {}
    assert "nothing to personalise" in bn.records[0]["diagnostics"]["note"]


# --- kNN-Per


def neighbours(k: int, weight: float, scale: float, seed: int = 0) -> tuple[NeighbourModel, np.ndarray, np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    model = NeighbourModel(fresh(seed), k, weight, scale).eval()
    features, labels = rng.normal(size=(12, 32)).astype(np.float32), rng.integers(0, 10, 12)
    model.remember(features, labels)
    return model, features, labels, rng.normal(size=(6, 32)).astype(np.float32)


@pytest.mark.parametrize(("k", "weight", "scale"), [(1, 0.5, 1.0), (5, 0.5, 1.0), (5, 0.25, 0.05), (40, 1.0, 1.0), (3, 0.0, 1.0)])
def test_the_mixed_answer_equals_a_loop_over_neighbours(k: int, weight: float, scale: float) -> None:
    model, features, labels, queries = neighbours(k, weight, scale)
    with torch.inference_mode():
        found = model.answer(torch.from_numpy(queries)).exp().numpy()
        plain = torch.softmax(model.head(torch.from_numpy(queries)), 1).numpy()
    for row, query in enumerate(queries):
        votes = naive.neighbour_votes(features, labels, query, 10, k, scale)
        np.testing.assert_allclose(found[row], weight * votes + (1 - weight) * plain[row], rtol=1e-4, atol=1e-6)
    np.testing.assert_allclose(found.sum(1), 1, rtol=1e-5)


def test_one_neighbour_with_all_the_weight_is_its_class() -> None:
    model, features, labels, _ = neighbours(1, 1.0, 1.0)
    with torch.inference_mode():
        assert model.answer(torch.from_numpy(features + 1e-3)).argmax(1).tolist() == labels.tolist()
    model.remember(features[:0], labels[:0])
    with torch.inference_mode():
        torch.testing.assert_close(model.answer(torch.from_numpy(features)), model.head(torch.from_numpy(features)))


def test_no_weight_of_neighbours_is_fedavg(tmp_path: Path) -> None:
    plain = run(tmp_path / "plain", "fedavg")
    none, mixed = (run(tmp_path / str(weight), "knn-per", knn_per__weight=weight) for weight in (0.0, 1.0))
    assert none.served == plain.served and mixed.served != plain.served
    assert state_of(mixed, fedavg.State).head["weight"].tobytes() == state_of(plain, fedavg.State).head["weight"].tobytes()
    images = digits_of(0)[0][24:]
    folders = [ran.folder / "clients" / "test" / "client-000" for ran in (plain, none)]
    one, two = (load_personal(folder).predict(images) for folder in folders)
    np.testing.assert_allclose(one, two, rtol=1e-4, atol=1e-6)


def test_a_client_remembers_its_own_images_and_no_other_clients(tmp_path: Path) -> None:
    """Two clients after one another in one skeleton; the second has a single image."""
    learner, one = learner_of("knn-per"), client_of(*digits_of(1, count=9), train=1)
    for site, data in (("many", data_of()), ("one", one)):
        with LocalStore(tmp_path, "run", site) as store:
            learner.evaluate(down("knn-per"), data, store, CLOSING)
            memory = (store.exported("personal") or {})["memory"]
        assert memory["labels"].tolist() == data.train.labels.tolist()
        model = fresh(0)
        recompute_batchnorm(model.encoder, data.train.images, SETTINGS)
        np.testing.assert_array_equal(memory["features"], encode(model, data.train.images, SETTINGS))


def test_so_many_images_are_remembered_and_the_same_ones_every_time() -> None:
    split = data_of().train
    assert to_remember(split, 0, 1) is split and to_remember(split, 24, 1) is split
    one, two, other = (to_remember(split, 10, seed) for seed in (1, 1, 2))
    assert isinstance(one, Split) and len(one) == 10 and one.ids.tolist() == two.ids.tolist() != other.ids.tolist()
    assert sorted(one.ids.tolist()) == one.ids.tolist()


# --- reuse while an encoder stands


@pytest.mark.parametrize("method", ["fedrep", "fedbabu", "fedavg-ft", "fedproto", "knn-per"])
def test_taking_features_from_the_cache_changes_no_bit(method: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    own: dict[str, Any] = {"fedavg_ft__part": "head"} if method == "fedavg-ft" else {}
    cached = run(tmp_path / "cached", method, **own)
    module = METHODS[method].learner_class().__module__
    monkeypatch.setattr(f"{module}.reusing", lambda trainer, store, rnd: trainer)
    assert run(tmp_path / "anew", method, **own).everything() == cached.everything()
    assert (tmp_path / "cached" / "clients" / "test" / "client-000" / "features").is_dir()
    assert not (tmp_path / "anew" / "clients" / "test" / "client-000" / "features").exists()
