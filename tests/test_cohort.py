"""Cohort training: clients trained at once get what they get one by one, and one that fails harms no other."""

from __future__ import annotations

import copy
import random
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from flwr.app import Context, Message, RecordDict
from torch import Tensor, nn

from client_app.cohort import Cohort, Fit, seated
from client_app.cohort_check import check_cohort, stacks, trains_alike
from client_app.cohort_fit import Stack, fit_together, timetable, train_stacked
from client_app.data.client_data import ClientData
from client_app.loop import FitStats, LoopSettings, TrainingDiverged, batch_sizes, fit, train_mode
from deploy.inprocess import InProcessGrid
from deploy.running import processes
from deploy.virtual_nodes import FIRST_NODE
from models.split import SplitModel, build_model
from server_app.main import serve
from strategies.config import ConfigError, RunConfig
from strategies.registry import METHODS, find_method, parse_run_config
from strategies.wire import pack
from tests.flower_cases import app_of, good, three
from tests.running import Ran, about, client_of, digits_of, run

SETTINGS = LoopSettings(epochs=3, batch=4, lr=0.05, momentum=0.9, weight_decay=0.01, device="cpu")
STACKED = [name for name, method in METHODS.items() if stacks(method, method.config_class()())]


def fit_of(samples: int, seed: int, plain: bool = False, settings: LoopSettings = SETTINGS, scale: float = 1.0) -> Fit:
    """A client of ``samples`` images of noise; all clients begin with the same weights. ``plain`` is a model without BatchNorm."""
    rng = np.random.default_rng(seed)
    layers = nn.Sequential(nn.Conv2d(1, 3, 3), nn.ReLU(), nn.Flatten())
    torch.nn.init.constant_(layers[0].bias, 0.1)  # type: ignore[arg-type]
    model = SplitModel(layers, 108, 5) if plain else build_model("cnn", 5, (1, 8, 8), 4)
    for name, weight in model.named_parameters():
        if plain:
            start = np.random.default_rng(len(name)).normal(0, 0.2, tuple(weight.shape))
            weight.data.copy_(torch.tensor(start, dtype=torch.float32))
    images = (scale * rng.normal(0, 1, (samples, 1, 8, 8))).astype(np.float32)
    return Fit(model, images, rng.integers(0, 5, samples), settings, seed)


def alone(asked: Fit) -> FitStats | Exception:
    try:
        return fit(asked.model, asked.images, asked.labels, asked.settings, asked.seed)
    except TrainingDiverged as fault:
        return fault


def state(model: nn.Module) -> dict[str, Tensor]:
    return {**dict(model.named_parameters()), **dict(model.named_buffers())}


def assert_same_training(fits: Sequence[Fit], answer: Callable[[Sequence[Fit]], Sequence[Any]] = fit_together) -> None:
    """Weights, statistics, counters, losses and steps are those of every client alone, up to rounding."""
    twins = [Fit(copy.deepcopy(each.model), each.images, each.labels, each.settings, each.seed) for each in fits]
    start = state(copy.deepcopy(fits[0].model))
    for one, found, twin in zip(fits, answer(fits), twins, strict=True):
        expected = alone(twin)
        assert isinstance(found, FitStats) and isinstance(expected, FitStats)
        assert (found.steps, found.finite) == (expected.steps, True) and found.loss == pytest.approx(expected.loss, rel=1e-4)
        for name, tensor in state(twin.model).items():
            torch.testing.assert_close(state(one.model)[name], tensor, rtol=1e-3, atol=2e-5, msg=lambda told, name=name: f"{name}: {told}")
        moved = [name for name, tensor in state(twin.model).items() if tensor.is_floating_point() and not torch.equal(tensor, start[name])]
        assert len(moved) > 3


def test_who_steps_when_by_hand() -> None:
    # two usual steps together, then last batches of their own sizes by themselves, and the second epoch likewise
    assert list(timetable([[4, 4, 2, 4, 4, 2], [4, 3, 4, 3]], usual=4)) == [
        (0, 2, 4), (1, 2, 3), (0, 2, 4), (0, 1, 2), (1, 2, 3), (0, 1, 4), (0, 1, 4), (0, 1, 2)]
    # equal clients never part
    assert list(timetable([[4, 2]] * 3, usual=4)) == [(0, 3, 4), (0, 3, 2)]
    # a client whose only batch is an odd one is done before the others begin
    assert list(timetable([[4, 4], [3]], usual=4)) == [(1, 2, 3), (0, 1, 4), (0, 1, 4)]
    assert list(timetable([], usual=4)) == []


def test_everybody_makes_its_own_steps_in_their_order() -> None:
    rng = random.Random(0)
    for _ in range(50):
        batch = rng.randint(1, 5)
        steps = [batch_sizes(rng.randint(1, 20), batch) * rng.randint(1, 3) for _ in range(rng.randint(1, 6))]
        made: list[list[int]] = [[] for _ in steps]
        for first, end, size in timetable(steps, batch):
            for i in range(first, end):
                made[i].append(size)
        assert made == steps


@pytest.mark.parametrize("plain", [False, True], ids=["batchnorm", "without"])
def test_unequal_clients_are_trained_as_each_alone(plain: bool) -> None:
    # whole batches; a last batch of 3, of 2, of 5 (a rest of one joins the batch before); fewer than a batch; one sample, whose BatchNorm
    # layers stay in eval mode; and the same number twice
    assert_same_training([fit_of(n, seed, plain) for seed, n in enumerate((8, 11, 6, 9, 3, 1, 11, 1))])


def test_without_momentum_and_weight_decay_and_in_bfloat16() -> None:
    bare = LoopSettings(epochs=2, batch=4, lr=0.05, momentum=0.0, weight_decay=0.0, device="cpu")
    assert_same_training([fit_of(n, seed, settings=bare) for seed, n in enumerate((8, 5))], train_stacked)
    rough = LoopSettings(epochs=1, batch=4, lr=0.05, device="cpu", precision="bf16")
    fits = [fit_of(8, seed, settings=rough) for seed in range(2)]
    twin = Fit(copy.deepcopy(fits[0].model), fits[0].images, fits[0].labels, rough, 0)
    train_stacked(fits)
    alone(twin)
    for name, tensor in state(twin.model).items():
        torch.testing.assert_close(state(fits[0].model)[name], tensor, rtol=0.05, atol=5e-3)


def test_frozen_weights_stay_and_the_rest_is_trained() -> None:
    fits = [fit_of(n, seed) for seed, n in enumerate((8, 5))]
    before = fits[0].model.head.weight.clone()
    for each in fits:
        each.model.head.requires_grad_(False)
    assert_same_training(fits, train_stacked)
    assert all(torch.equal(each.model.head.weight, before) for each in fits)


def test_who_has_no_step_does_not_change_by_a_bit() -> None:
    fits = [fit_of(8, seed) for seed in range(3)]
    for each in fits:
        train_mode(each.model, batchnorm=True)
    stack = Stack(fits)
    rows = {name: tensor.clone() for name, tensor in (*stack.trained.items(), *stack.others.items())}
    momenta = [tensor.clone() for tensor in stack.momentum if tensor is not None]
    images = torch.from_numpy(np.stack([each.images[:4] for each in fits[:2]]))
    stack.step(0, 2, images, torch.tensor([[0, 1, 2, 3]] * 2))
    now = {**stack.trained, **stack.others}
    assert all(torch.equal(now[name][2], rows[name][2]) for name in rows)
    assert all(torch.equal(m[2], before[2]) for m, before in zip(stack.momentum, momenta, strict=True) if m is not None)
    # and the others' weights, statistics, counters and momenta all moved
    assert [name for name in rows if torch.equal(now[name][0], rows[name][0])] == []
    assert all(not torch.equal(m[1], before[1]) for m, before in zip(stack.momentum, momenta, strict=True) if m is not None)


def test_one_that_diverges_says_so_as_alone_and_harms_no_other() -> None:
    sound, wild = [fit_of(n, seed, plain=True) for seed, n in enumerate((9, 8))], fit_of(8, 7, plain=True, scale=1e30)
    expected = alone(Fit(copy.deepcopy(wild.model), wild.images, wild.labels, wild.settings, wild.seed))
    twins = [Fit(copy.deepcopy(each.model), each.images, each.labels, each.settings, each.seed) for each in sound]
    first, answer, second = fit_together([sound[0], wild, sound[1]])
    assert isinstance(answer, TrainingDiverged) and str(answer) == str(expected) and "in epoch 1;" in str(answer)
    for one, found, twin in zip(sound, (first, second), twins, strict=True):
        assert isinstance(found, FitStats) and found.finite and isinstance(alone(twin), FitStats)
        for name, tensor in state(twin.model).items():
            torch.testing.assert_close(state(one.model)[name], tensor, rtol=1e-3, atol=2e-5)


class Choosing(nn.Module):
    """Looks at values, which ``vmap`` refuses."""

    def forward(self, x: Tensor) -> Tensor:
        return x if x.sum() > 0 else -x


def with_layer(layer: nn.Module) -> SplitModel:
    return SplitModel(nn.Sequential(nn.Flatten(), layer), 64, 5)


def test_those_that_cannot_be_stacked_are_trained_one_by_one(caplog: pytest.LogCaptureFixture) -> None:
    fits = [Fit(with_layer(Choosing()), *(lambda f: (f.images, f.labels, f.settings, f.seed))(fit_of(8, seed))) for seed in range(2)]
    assert_same_training_of_heads(fits)
    assert "2 clients cannot be trained at once and are trained one by one (RuntimeError)" in caplog.text


def assert_same_training_of_heads(fits: Sequence[Fit]) -> None:
    twins = [Fit(copy.deepcopy(each.model), each.images, each.labels, each.settings, each.seed) for each in fits]
    for one, found, twin in zip(fits, fit_together(fits), twins, strict=True):
        assert found == alone(twin) and torch.equal(one.model.head.weight, twin.model.head.weight)


class Remembering(nn.Module):
    """Normalises by a mean that it keeps outside of buffers, where clients would share it."""

    def __init__(self, in_place: bool) -> None:
        super().__init__()
        self.in_place, self.mean = in_place, torch.zeros(())

    def forward(self, x: Tensor) -> Tensor:
        if self.in_place:
            self.mean.add_(x.detach().mean())
        else:
            self.mean = self.mean + x.detach().mean()
        return x - self.mean


def test_a_model_is_tried_before_it_is_stacked() -> None:
    assert all(trains_alike(build_model(name, 5, (3, 8, 8), 8), (3, 8, 8)) for name in ("cnn", "resnet18", "mobilenetv2"))
    layers = (nn.Dropout(0.5), Choosing(), Remembering(in_place=True), Remembering(in_place=False))
    sound, unfit, before = with_layer(nn.Identity()), [with_layer(layer) for layer in layers], torch.get_rng_state()
    assert trains_alike(sound, (1, 8, 8)) and not any(trains_alike(model, (1, 8, 8)) for model in unfit)
    assert torch.equal(torch.get_rng_state(), before)


def meeting(log: list[str], name: str, times: int = 1) -> Callable[[], str]:
    """A client's call that asks for ``times`` fits and tells what it got."""

    def call() -> str:
        told = []
        for number in range(times):
            log.append(f"{name} asks")
            seat = seated()
            assert seat is not None
            told.append(seat.meet(Fit(None, np.zeros(0), np.zeros(0), SETTINGS, number)))  # type: ignore[arg-type]
            log.append(f"{name} goes on")
        return f"{name}: {told}"

    return call


def test_clients_meet_where_they_train_and_only_one_runs_at_a_time() -> None:
    log: list[str] = []

    def train(fits: Sequence[Fit]) -> list[str]:
        log.append(f"train {len(fits)}")
        return [f"{i} of {len(fits)}" for i in range(len(fits))]

    cohort = Cohort(3, train)
    assert cohort.run([meeting(log, "a"), lambda: "b never trains", meeting(log, "c", times=2)]) == [
        "a: ['0 of 2']", "b never trains", "c: ['1 of 2', '0 of 1']"]
    assert log == ["a asks", "c asks", "train 2", "a goes on", "c goes on", "c asks", "train 1", "c goes on"]
    assert seated() is None and cohort.run([lambda: seated()]) == [None] and cohort.run([]) == []
    with pytest.raises(ValueError, match="a cohort of 3 cannot answer 4"):
        cohort.run([lambda: 0] * 4)


def test_a_client_gets_its_own_failure() -> None:
    told: list[str] = []

    def call() -> None:
        try:
            meeting([], "a")()
        except TrainingDiverged as fault:
            told.append(str(fault))

    Cohort(2, lambda fits: [TrainingDiverged("mine"), "fine"]).run([call, meeting([], "b")])
    assert told == ["mine"]


def test_a_cohort_that_is_given_up_lets_go_of_every_clients_locks() -> None:
    freed: list[str] = []

    def holding(name: str) -> Callable[[], None]:
        def call() -> None:
            try:
                meeting([], name)()
            finally:
                freed.append(name)

        return call

    def interrupted(fits: Sequence[Fit]) -> list[Any]:
        raise KeyboardInterrupt

    cohort = Cohort(2, interrupted)
    with pytest.raises(KeyboardInterrupt):
        cohort.run([holding("a"), holding("b")])
    assert freed == ["a", "b"]


def test_a_seat_keeps_what_two_clients_must_not_share() -> None:
    kept = Cohort(2, lambda fits: [None] * len(fits))

    def thing() -> Any:
        seat = seated()
        assert seat is not None
        return seat.keep("model", object)

    first, second = kept.run([thing, thing])
    assert first is not second and kept.run([thing, thing]) == [first, second]


def test_the_grid_answers_training_in_groups_and_hands_out_in_portions() -> None:
    together: list[list[int]] = []

    class Grid(InProcessGrid):
        def _answer_next(self) -> list[Message]:
            replies = super()._answer_next()
            together.append([reply.metadata.src_node_id - FIRST_NODE for reply in replies])
            return replies

    grid = Grid({"cohort": 3}, 5, app=app_of(train=good, evaluate=good))
    sent = [Message(pack(three(1, 2, 3)), FIRST_NODE + i, kind) for i, kind in ((0, "train"), (1, "train"), (2, "train"), (3, "train"),
                                                                              (3, "train"), (4, "evaluate"), (0, "train"), (1, "train"))]
    stale = Message(pack(three(1, 2, 3)), FIRST_NODE + 2, "train", ttl=5.0)
    stale.metadata.__dict__["_created_at"] = time.time() - 6
    ids = list(grid.push_messages([*sent, stale]))
    # two of one client, an evaluation and an expired message are answered by themselves
    assert grid.window == 3
    replies: list[Message] = []
    while len(replies) < 9:
        portion = list(grid.pull_messages(ids[:2]))
        assert 1 <= len(portion) <= 2
        replies += portion
    assert together == [[0, 1, 2], [3], [3], [4], [0, 1]]
    assert [reply.metadata.reply_to_message_id for reply in replies] == ids
    assert [reply.has_error() for reply in replies] == [False] * 8 + [True]


SIZES = (24, 13, 7, 18, 10)


def uneven(node: Any, seed: int) -> ClientData:
    """Five clients with 7 to 24 digits to train with."""
    images, labels = digits_of(node.index)
    return client_of(images[:SIZES[node.index] + 8], labels[:SIZES[node.index] + 8], SIZES[node.index])


def uneven_with_a_wild_one(node: Any, seed: int) -> ClientData:
    """The same as float32, the third client's too large to train on."""
    data = uneven(node, seed)
    scale = 1e30 if node.index == 2 else 0.01
    return client_of(np.concatenate([data.train.images, data.test.images]).astype(np.float32) * np.float32(scale),
                     np.concatenate([data.train.labels, data.test.labels]), SIZES[node.index])


def tensors(ran: Ran) -> dict[str, np.ndarray]:
    """The server's state and what every client keeps."""
    found = {"server": ran.state, **ran.stores}
    return {f"{file}:{name}": np.frombuffer(raw, np.float32) for file, said in found.items()
            for name, (_, kind, raw) in said["tensors"].items() if kind == "float32"}


def assert_same_run(cohort: Ran, one_by_one: Ran) -> None:
    ours, theirs = tensors(cohort), tensors(one_by_one)
    assert ours.keys() == theirs.keys() and len(ours) > 3
    for name, tensor in theirs.items():
        np.testing.assert_allclose(ours[name], tensor, rtol=1e-3, atol=5e-5, err_msg=name)
    assert cohort.summary["dropped"] == one_by_one.summary["dropped"] and cohort.summary["bytes"] == one_by_one.summary["bytes"]
    assert [r["bytes"] for r in cohort.records] == [r["bytes"] for r in one_by_one.records]


def test_a_run_of_hdc_fl_is_the_same_as_one_by_one(tmp_path: Path) -> None:
    seen: list[int] = []
    settings: dict[str, Any] = {"dataset": "tests.test_cohort:uneven", "clients": 5, "rounds": 3, "held_out": 0.2,
                                "hdc_fl__refresh_every": 2}

    def counting(message: Message, reply: Callable[[], Message]) -> Message:
        if about(message)[0] == "train":
            seen.append(int(seated() is not None))
        return reply()

    together = run(tmp_path / "cohort", "hdc-fl", hook=counting, cohort=3, **settings)
    # four clients take part: three at once, and one that is left
    assert seen == [1, 1, 1, 0] * 3
    assert_same_run(together, run(tmp_path / "alone", "hdc-fl", **settings))


def test_a_client_that_diverges_is_dropped_and_counted_as_alone(tmp_path: Path) -> None:
    settings: dict[str, Any] = {"dataset": "tests.test_cohort:uneven_with_a_wild_one", "clients": 5, "rounds": 2}
    together, single = run(tmp_path / "cohort", "fedper", cohort=5, **settings), run(tmp_path / "alone", "fedper", **settings)
    assert together.summary["dropped"] and sum(together.summary["dropped"].values()) == 2  # one client, two rounds
    assert_same_run(together, single)


# those whose round is more than FedAvg's plain fit always, the others too where there is time
OWN_WAY = ("fedbabu", "fedrep", "local-only")


@pytest.mark.parametrize("method", [pytest.param(name, marks=() if name in OWN_WAY else pytest.mark.slow)
                                    for name in STACKED if name not in ("hdc-fl", "fedper")])
def test_every_method_that_says_so_can(tmp_path: Path, method: str, monkeypatch: pytest.MonkeyPatch) -> None:
    groups: list[int] = []

    def noting(fits: Sequence[Fit]) -> list[Any]:
        groups.append(len(fits))
        return list(train_stacked(fits))

    monkeypatch.setattr("client_app.cohort_fit.train_stacked", noting)
    settings: dict[str, Any] = {"dataset": "tests.test_cohort:uneven", "clients": 3, "rounds": 2, "score_every": 9}
    together = run(tmp_path / "cohort", method, cohort=3, **settings)
    assert groups and set(groups) == {3}
    assert_same_run(together, run(tmp_path / "alone", method, **settings))


def test_those_asked_for_first_can() -> None:
    assert set(STACKED) >= {"fedavg", "fedper", "hdc-fl"} and not set(STACKED) & {"fed-cache", "zero-shot", "pep-fedpt", "ditto", "knn-per"}


def settings_of(method: str, **more: Any) -> Any:
    return parse_run_config({"method": method, "cohort": 4, **more})


def test_what_cannot_be_a_cohort_is_refused_in_words() -> None:
    shape = (1, 8, 8)
    check_cohort(settings_of("hdc-fl", width=4), 5, shape)
    check_cohort(settings_of("fed-cache", cohort=1), 5, shape)
    for method, more in (("fed-cache", {}), ("zero-shot", {"model": "clip-tiny-random"}), ("hdc-fl", {"hdc-fl.feature-cache": True})):
        with pytest.raises(ConfigError, match=rf"cohort = 4 .*which {method} cannot with these settings; .*hdc-fl, fedper, fedavg"):
            check_cohort(settings_of(method, **more), 5, shape)
    with pytest.raises(ConfigError, match=r"this model cannot: .*Dropout.* models that can: cnn, resnet18, mobilenetv2"):
        check_cohort(settings_of("fedavg", model="tests.test_cohort:dropping"), 5, shape)
    with pytest.raises(ConfigError, match="cohort must be 1 or more, got 0"):
        RunConfig(cohort=0)


def dropping(in_shape: tuple[int, int, int], width: int) -> tuple[nn.Module, int]:
    return nn.Sequential(nn.Flatten(), nn.Dropout(0.5)), int(np.prod(in_shape))


def test_it_is_refused_before_round_one_by_every_engine(tmp_path: Path) -> None:
    from server_app.roster import CannotStart

    with pytest.raises(CannotStart, match="which fed-cache cannot with these settings"):
        run(tmp_path, "fed-cache", cohort=4)
    for engine in ("ray", "grpc"):
        config = {"method": "fedavg", "cohort": 4}
        with pytest.raises(ConfigError, match="only the in-process engine"):
            serve(InProcessGrid(config, 4), Context(1, 1, {}, RecordDict(), config), engine=engine)


def test_a_cohort_is_trained_in_one_process() -> None:
    run_config = RunConfig(cohort=4, clients=6)
    assert processes(run_config, "inprocess", None) == processes(run_config, "inprocess", 1) == 1
    assert processes(RunConfig(clients=6), "ray", 9) == 6
    for engine, workers in (("ray", None), ("inprocess", 2)):
        with pytest.raises(ConfigError, match="cohort = 4 trains clients at once in one process of the in-process engine"):
            processes(run_config, engine, workers)
    with pytest.raises(ValueError, match="a cohort is trained in one process"):
        InProcessGrid({"cohort": 4}, 6, workers=2)


def test_a_learner_that_says_nothing_is_not_stacked() -> None:
    assert not stacks(find_method("ditto"), None)
