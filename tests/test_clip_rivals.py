"""FedIA's rivals whole: contracts, what stays at home, experts by nearness, baselines by scikit-learn, and small reductions."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from client_app.clip_features import Source, encode
from client_app.data.class_names import numbered
from client_app.local.store import LocalStore
from client_app.personal import load_personal
from client_app.weights_digest import reads_names
from models.frozen_baselines import fit_logistic
from models.prompt_classifier import GLOBAL, LOCAL
from models.split import ModelError
from strategies.config import ConfigError
from strategies.pfedmoap import EXPERTS, PROMPT, Config, PfedMoapRule, State, mean_prompt, nearest_clients
from strategies.registry import CLIP_MODELS, METHODS, parse_run_config
from strategies.types import Round, Update
from tests.clip_cases import LOOP, NAMES, SCORED, data_of, down, learner_of, settings_of, stirred, tower
from tests.running import run

DATA = data_of()
ON_TOWERS = [name for name, method in METHODS.items() if method.model.startswith(CLIP_MODELS)]
SHARING = [name for name in ON_TOWERS if METHODS[name].config_class()().wire.up]
CLOSING = Round(3, 3, 0, closing=True)


def trained(learner: Any, folder: Path, inbound: Any, rnd: Round = SCORED, data: Any = DATA) -> tuple[Any, dict[str, Any]]:
    with LocalStore(folder, "run", "site") as store:
        reply = learner.train(inbound, data, store, rnd)
        return reply, (store.load(rnd.number) if rnd.number in store.versions() else None) or {}


@pytest.mark.parametrize("method", ON_TOWERS)
def test_what_is_sent_and_what_is_kept(method: str, tmp_path: Path) -> None:
    learner = learner_of(method)
    inbound = stirred(down(learner), 0.01)
    before = {slot: {name: t.tobytes() for name, t in tensors.items()} for slot, tensors in inbound.items()}
    reply, kept = trained(learner, tmp_path, inbound)
    assert set(reply.slots) == ({GLOBAL} if method in SHARING else set())
    home = {"fed-ia": {LOCAL}, "fixed-mix": {LOCAL}, "fedotp": {LOCAL}, "fedpgp": {LOCAL}, "pfedmoap": {LOCAL}, "local-logistic": {LOCAL},
            "local-prompt": {GLOBAL}}
    assert set(kept) == home.get(method, set())
    if method in SHARING:
        assert not np.array_equal(reply.slots[GLOBAL][PROMPT], inbound[GLOBAL][PROMPT])
    # read-only views of the message in a run
    assert {slot: {name: t.tobytes() for name, t in tensors.items()} for slot, tensors in inbound.items()} == before
    assert 0 <= reply.metrics["served"] <= 1 and ("loss" in reply.metrics) == (method not in ("zero-shot", "local-logistic"))


@pytest.mark.parametrize(("method", "numbers"), [
    ("promptfl", 2048), ("fixed-mix", 2048), ("fedotp", 2048), ("fedpgp", 2048), ("pfedmoap", 2048),
    # and a network 512-32-512
    ("cocoop", 2048 + 512 * 32 + 32 + 32 * 512 + 512),
])
def test_numbers_up_at_full_size(method: str, numbers: int) -> None:
    settings = parse_run_config({"method": method, "model": "open_clip:ViT-B-16"})
    model = settings.build_model(100, (3, 224, 224), weights=False)
    up, = settings.wire.up
    assert sum(t.size for t in model.tensors(up.name).values()) == numbers
    extra = {slot.name: sum(t.size for t in model.tensors(slot.name).values()) for slot in settings.wire.down if slot.name != GLOBAL}
    assert extra == ({EXPERTS: 10 * 2048} if method == "pfedmoap" else {})


# --- baselines


def test_zero_shot_is_cosines_with_the_words_and_never_changes(tmp_path: Path) -> None:
    learner = learner_of("zero-shot")
    net = learner.trainer.model.fresh(NAMES)
    cls = torch.from_numpy(encode(Source(tower()), DATA.test.images, LOOP)["cls"])
    text = learner.trainer.model.text
    with torch.no_grad():
        expected = 100 * cls @ text(text.embed("a photo of a"), text.tokens(NAMES, 4)).T
        torch.testing.assert_close(net.features(net.global_prompt), text(text.embed("a photo of a"), text.tokens(NAMES, 4)))
    with LocalStore(tmp_path, "run", "site") as store:
        np.testing.assert_allclose(learner.opened({}, DATA, store, SCORED).logits(DATA.test), expected, atol=0.1)  # float16 x 100
    reply, kept = trained(learner, tmp_path, {})
    right = float((expected.numpy().argmax(1) == DATA.test.labels).mean())
    assert reply.metrics["served"] == reply.metrics["adapted"] == right and not kept


def test_own_classes_leave_the_others_out(tmp_path: Path) -> None:
    few = type(DATA)(type(DATA.train)(DATA.train.images, DATA.train.labels % 2 * 3, DATA.train.ids), DATA.test, NAMES)
    learner = learner_of("zero-shot", zero_shot__own_classes=True)
    with LocalStore(tmp_path, "run", "site") as store:
        logits = learner.opened({}, few, store, SCORED).logits(few.test)
        plain = learner_of("zero-shot").opened({}, few, store, SCORED).logits(few.test)
    assert (logits[:, [1, 2]] == -np.inf).all()
    np.testing.assert_array_equal(logits[:, [0, 3]], plain[:, [0, 3]])


def test_logistic_regression_is_fitted_once_on_the_clients_own_features(tmp_path: Path) -> None:
    learner = learner_of("local-logistic", local_logistic__penalty=2.0)
    cls = encode(Source(tower()), DATA.train.images[:5], LOOP)["cls"]
    reply, kept = trained(learner, tmp_path, {}, Round(1, 3, 0))
    with LocalStore(tmp_path, "run", "site") as store:
        features = learner.opened({}, DATA, store, Round(2, 3, 0, acked=1)).features.cls(DATA.train)
        joined = learner_of("local-logistic", local_logistic__penalty=2.0)
        joined.join({}, DATA, store, Round(3, 3, 0, joining=True))
        again = (store.load(3) or {})[LOCAL]
    np.testing.assert_allclose(features[:5], cls, atol=1e-3)
    expected = fit_logistic(features, DATA.train.labels, 4, 2.0)
    for found in (kept[LOCAL], again):
        np.testing.assert_array_equal(found["weight"], expected.weight)
        np.testing.assert_array_equal(found["bias"], expected.bias)
    assert reply.slots == {}


def test_a_client_of_one_class_keeps_finite_numbers_and_says_that_class(tmp_path: Path) -> None:
    one = type(DATA)(type(DATA.train)(DATA.train.images, np.full(12, 2), DATA.train.ids), DATA.test, NAMES)
    learner = learner_of("local-logistic")
    _, kept = trained(learner, tmp_path, {}, data=one)
    assert np.isfinite(kept[LOCAL]["bias"]).all()
    with LocalStore(tmp_path, "run", "site") as store:
        assert learner.opened({}, one, store, Round(2, 3, 0, acked=1)).logits(one.test).argmax(1).tolist() == [2] * 6


# --- prompts


def test_a_local_prompt_goes_on_alone_and_a_newcomer_catches_up(tmp_path: Path) -> None:
    """Three rounds one after the other, or three at once when it joins: the same prompt."""
    learner = learner_of("local-prompt")
    for number in (1, 2, 3):
        _, kept = trained(learner, tmp_path / "a", {}, Round(number, 3, 0, acked=number - 1))
    with LocalStore(tmp_path / "b", "run", "site") as store:
        learner_of("local-prompt").join({}, DATA, store, Round(3, 3, 0, joining=True))
        np.testing.assert_array_equal((store.load(3) or {})[GLOBAL][PROMPT], kept[GLOBAL][PROMPT])


def test_one_round_of_a_local_prompt_is_promptfls(tmp_path: Path) -> None:
    alone, shared = learner_of("local-prompt"), learner_of("promptfl")
    _, kept = trained(alone, tmp_path / "a", {})
    reply, _ = trained(shared, tmp_path / "b", down(shared))
    np.testing.assert_array_equal(kept[GLOBAL][PROMPT], reply.slots[GLOBAL][PROMPT])


def test_fedotps_local_prompt_starts_from_the_broadcast_one(tmp_path: Path) -> None:
    learner = learner_of("fedotp")
    inbound = stirred(down(learner), 0.2)
    with LocalStore(tmp_path, "run", "new") as store:
        learner.join(inbound, DATA, store, Round(3, 3, 0, joining=True))
        apart = (store.load(3) or {})[LOCAL]["local_prompt"] - inbound[GLOBAL][PROMPT]
    assert 0 < np.abs(apart).max() < 0.02


# --- pFedMoAP's exchange


def prompt(value: float) -> np.ndarray:
    return np.full((2, 3), value, np.float32)


def rule(**settings: Any) -> PfedMoapRule:
    return PfedMoapRule(Config(**settings), settings_of("pfedmoap").run)


def updates(**values: float) -> Any:
    return (Update(name, {GLOBAL: {PROMPT: prompt(value)}}, 1.0) for name, value in values.items())


def test_experts_are_the_nearest_prompts_of_others() -> None:
    made = rule(experts=2)
    state = made.init({GLOBAL: {PROMPT: prompt(0)}})
    first = made.downlink(state, "a", Round(1, 3, 0))
    assert not first[GLOBAL][PROMPT].any() and first[EXPERTS][EXPERTS].shape == (2, 2, 3) and not first[EXPERTS][EXPERTS].any()
    state = made.merge(state, updates(a=1.0, d=4.0, b=2.0, c=-1.0), Round(1, 3, 0))
    assert nearest_clients(state.of_client, "a", prompt(1)) == ["b", "c", "d"]
    down_a, newcomer = made.downlink(state, "a", Round(2, 3, 0)), made.downlink(state, "new", Round(2, 3, 0))
    assert down_a[EXPERTS][EXPERTS][:, 0, 0].tolist() == [2, -1] and down_a[GLOBAL][PROMPT][0, 0] == 1
    # the mean of 1, 2, -1 and 4 is 1.5: a and b are as near, then by name
    assert newcomer[GLOBAL][PROMPT][0, 0] == 1.5 and newcomer[EXPERTS][EXPERTS][:, 0, 0].tolist() == [1, 2]
    assert mean_prompt(State({PROMPT: prompt(7)}))[0, 0] == 7


def test_a_client_that_did_not_answer_keeps_its_last_prompt_and_few_experts_leave_zeros() -> None:
    made = rule(experts=3)
    state = made.merge(made.init({GLOBAL: {PROMPT: prompt(0)}}), updates(a=1.0, b=2.0), Round(1, 3, 0))
    state = made.merge(state, updates(b=5.0), Round(2, 3, 0))
    sent = made.downlink(state, "a", Round(3, 3, 0))
    assert sent[GLOBAL][PROMPT][0, 0] == 1 and sent[EXPERTS][EXPERTS][:, 0, 0].tolist() == [5, 0, 0]


def test_a_client_uses_the_experts_that_came_and_leaves_zeros_out(tmp_path: Path) -> None:
    learner = learner_of("pfedmoap", pfedmoap__experts=3)
    inbound = down(learner)
    experts = np.zeros((3, 4, 32), np.float32)
    experts[0] = np.random.default_rng(0).normal(0, 0.1, (4, 32))
    with LocalStore(tmp_path, "run", "site") as store:
        alone = learner.opened(inbound, DATA, store, SCORED)
        client = learner.opened({**inbound, EXPERTS: {EXPERTS: experts}}, DATA, store, SCORED)
        assert alone.net.experts.shape == (0, 4, 32) and client.net.experts.shape == (1, 4, 32)
        text = learner.trainer.model.text
        own = client.net.features(client.net.global_prompt).detach()
        np.testing.assert_allclose(client.net.experts[0], text(client.net.words + torch.tensor(experts[0]), client.net.names), atol=1e-5)
        np.testing.assert_allclose(alone.logits(DATA.test), 100 * torch.from_numpy(alone.features.cls(DATA.test)) @ own.T, atol=1e-3)
        assert np.abs(client.logits(DATA.test) - alone.logits(DATA.test)).max() > 0.1
    # without experts the gate has nothing to do and stays as it was
    (_, first), (_, moved) = (trained(learner_of("pfedmoap", pfedmoap__experts=3), tmp_path / str(i), {**inbound, EXPERTS: {EXPERTS: x}},
                                      Round(1, 3, 0)) for i, x in enumerate((0 * experts, experts)))
    start = learner.trainer.model.fresh(NAMES).tensors(LOCAL)
    assert all(np.array_equal(first[LOCAL][name], tensor) for name, tensor in start.items())
    assert not np.array_equal(moved[LOCAL]["out.weight"], start["out.weight"])


def test_a_personal_model_keeps_its_experts(tmp_path: Path) -> None:
    run(tmp_path, "pfedmoap", clients=3, pfedmoap__experts=2)
    personal = load_personal(tmp_path / "clients" / "test" / "client-000")
    held = personal.kept[EXPERTS][EXPERTS]
    others = [load_personal(tmp_path / "clients" / "test" / f"client-00{i}").kept[GLOBAL][PROMPT] for i in (1, 2)]
    assert {held[i].tobytes() for i in range(2)} == {other.tobytes() for other in others}


def test_the_privacy_table_says_that_prompts_reach_others() -> None:
    from deploy.privacy import contracts, markdown

    row = markdown(contracts("pfedmoap")).splitlines()[2]
    assert "**other clients' prompts**" in row and "**other clients get it**" in row and "gate" in row
    assert "no tensor" in markdown(contracts("zero-shot")).splitlines()[2]


@pytest.mark.parametrize(("key", "value", "expected"), [
    ("fedotp.eps", 0.001, ".01 or more"), ("fedotp.mass", 0.0, "above 0 and at most 1"), ("fedpgp.rank", 0, "1 or more"),
    ("fedpgp.temperature", 0.0, "above 0"), ("pfedmoap.experts", 0, "1 or more"), ("fixed-mix.weight", 1.5, "0 to 1"),
    ("cocoop.meta-lr", 0.0, "above 0"), ("promptfl.prompt-lr", float("nan"), "0 or more"), ("local-logistic.penalty", 0.0, "above 0"),
    ("patch-source", "values", "did you mean 'value'?"), ("prompt-tokens", 0, "1 or more"), ("tower-size", -1, "0 (the images' own)"),
])
def test_what_cannot_be_run_is_refused(key: str, value: Any, expected: str) -> None:
    with pytest.raises(ConfigError) as refused:
        parse_run_config({key: value})
    assert expected in str(refused.value) and key in str(refused.value)


def test_a_gate_that_does_not_fit_shows_before_round_1() -> None:
    with pytest.raises(ModelError, match="must divide the feature width 32"):
        learner_of("pfedmoap", pfedmoap__gate_width=5)


# names of classes that are no names

@pytest.mark.parametrize(("method", "reads"), [("promptfl", True), ("zero-shot", True), ("local-logistic", False)])
def test_only_prompts_need_names(method: str, reads: bool) -> None:
    assert reads_names(learner_of(method)) is reads


def test_numbers_are_no_names() -> None:
    assert numbered(("0", "1", "10")) and not numbered(("0", "one")) and not numbered(NAMES)
    assert not reads_names(object())
