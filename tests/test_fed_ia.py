"""FedIA whole: what it reduces to, what travels, what stays, evidence once a round, validation, newcomers, local pictures."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

import client_app.clip_trainer as clip_trainer
import client_app.learners.fed_ia as fed_ia_learner
from client_app.clip_features import Source, encode
from client_app.clip_fit import Kind
from client_app.learners.fed_ia import set_aside, validation_loss
from client_app.local.store import LocalStore
from client_app.loop import TrainingDiverged
from client_app.patch_pictures import panel
from client_app.personal import load_personal
from models.patch_evidence import EvidenceConfig, kept_patches, overlap, patch_evidence, similarities
from models.prompt_classifier import GLOBAL, LOCAL
from models.split import ModelError
from server_app.fusion_figures import fusion_section
from server_app.summary import Findings
from strategies.config import ConfigError
from strategies.fed_ia import Config
from strategies.global_prompt import Rate
from strategies.registry import parse_run_config
from strategies.types import Round
from tests.clip_cases import LOOP, NAMES, SCORED, data_of, down, learner_of, settings_of, stirred, tower
from tests.running import Spy, digits_of, run, tensor_bytes

DATA = data_of()


def trained(learner: Any, folder: Path, inbound: Any, rnd: Round = SCORED, data: Any = DATA) -> tuple[Any, dict[str, Any]]:
    """A reply, and what was committed."""
    with LocalStore(folder, "run", "site") as store:
        reply = learner.train(inbound, data, store, rnd)
        return reply, (store.load(rnd.number) if store.versions() else None) or {}


# --- what travels


def test_the_global_prompt_alone_travels_2048_numbers_at_4_tokens_of_512() -> None:
    settings = parse_run_config({"method": "fed-ia", "model": "open_clip:ViT-B-16"})
    model = settings.build_model(7, (3, 224, 224), weights=False)
    wire = settings.wire
    sizes = {slot.name: sum(t.size for t in model.tensors(slot.name).values()) for slot in (*wire.down, *wire.up)}
    assert sizes == {GLOBAL: 2048}
    assert [len(wire.down), len(wire.up), wire.join] == [1, 1, ()]
    assert {"local prompt", "meta-net", "fusion gate", "image features"} <= set(wire.local)
    # meta-net 512-32-512 and gate 6-16-1, with their biases, beside the local prompt
    assert sum(t.size for t in model.tensors(LOCAL).values()) == 2048 + (512 * 32 + 32 + 32 * 512 + 512) + 129


def test_no_number_of_what_is_local_leaves_a_client(tmp_path: Path) -> None:
    spy = Spy(tmp_path)
    ran = run(tmp_path, "fed-ia", spy)
    names = {(slot, name) for pair in spy.seen for part in pair for slot, name in tensor_bytes(part)}
    assert names == {(GLOBAL, "global_prompt")}
    needles = [data[:32] for stored in ran.stores.values() for name, (_, _, data) in stored["tensors"].items()
               if name.startswith("local/") and any(data[:32])]
    assert len(needles) > 20
    sent = [data for pair in spy.seen for part in pair for _, data in tensor_bytes(part).values()]
    assert not any(needle in data for needle in needles for data in sent)
    told = {key for _, reply in spy.seen for key in reply.content.get("metrics", {})}
    assert ran.summary["fusion"].keys() == {"gate_weight", "gate_spread", "patch_overlap"}
    assert {"gate-weight", "gate-spread"} <= told and all(record["gate_spread"].keys() == record["served"].keys() for record in ran.records)


# --- what it reduces to


def test_without_meta_net_and_gate_it_is_the_fixed_mix(tmp_path: Path) -> None:
    """Bit for bit: what is sent, what is kept, what is scored."""
    options = {"fed_ia__meta": "none", "fed_ia__gate": "fixed:0.5", "fed_ia__patches": False, "fed_ia__lambda_global": 0.5}
    learner, mix = learner_of("fed-ia", **options), learner_of("fixed-mix", fixed_mix__lambda_global=0.5)
    (one, kept), (other, same) = (trained(x, tmp_path / str(i), stirred(down(x))) for i, x in enumerate((learner, mix)))
    np.testing.assert_array_equal(one.slots[GLOBAL]["global_prompt"], other.slots[GLOBAL]["global_prompt"])
    np.testing.assert_array_equal(kept[LOCAL]["local_prompt"], same[LOCAL]["local_prompt"])
    assert one.metrics["served"] == other.metrics["served"] and one.metrics["loss"] == other.metrics["loss"]
    assert one.metrics["gate-weight"] == 0.5 and one.metrics["gate-spread"] == 0


def test_a_fixed_weight_of_0_trains_promptfls_prompt(tmp_path: Path) -> None:
    learner = learner_of("fed-ia", fed_ia__meta="none", fed_ia__gate="fixed:0", fed_ia__patches=False, fed_ia__lambda_global=0.0)
    rival = learner_of("promptfl")
    one, _ = trained(learner, tmp_path / "a", stirred(down(learner)))
    other, kept = trained(rival, tmp_path / "b", stirred(down(rival)))
    np.testing.assert_allclose(one.slots[GLOBAL]["global_prompt"], other.slots[GLOBAL]["global_prompt"], atol=1e-5)
    assert kept == {} and one.metrics["served"] == other.metrics["served"]


def test_before_any_training_it_serves_the_half_and_half_mix_with_patches_and_all(tmp_path: Path) -> None:
    learner, mix = learner_of("fed-ia"), learner_of("fixed-mix")
    inbound = stirred(down(learner))
    logits = []
    for name, one in (("a", learner), ("b", mix)):
        with LocalStore(tmp_path / name, "run", "site") as store:
            logits.append(one.opened(inbound, DATA, store, SCORED).logits(DATA.test))
    np.testing.assert_allclose(*logits, atol=1e-3)  # of a scale of 100
    assert np.abs(logits[0]).max() > 5


# --- evidence


def test_evidence_is_taken_once_a_round_with_the_prompt_as_broadcast(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    learner = learner_of("fed-ia", fed_ia__keep=0.5)
    inbound, calls = stirred(down(learner)), []

    def counting(patches: torch.Tensor, anchors: torch.Tensor, *more: Any) -> Any:
        calls.append((len(patches), anchors.clone()))
        return patch_evidence(patches, anchors, *more)

    monkeypatch.setattr(clip_trainer, "patch_evidence", counting)
    trained(learner, tmp_path, inbound)
    # served scores, training (two epochs of it), adapted scores
    assert [n for n, _ in calls] == [5, 1, 5, 5, 2, 5, 1]
    net = learner.trainer.model.fresh(NAMES)
    net.load(GLOBAL, inbound[GLOBAL])
    assert all(torch.equal(anchors, net.anchors()) for _, anchors in calls)


def test_a_clients_logits_follow_from_towers_and_formulas(tmp_path: Path) -> None:
    """Image tower, rounding, evidence and fusion, put together by hand after a round of training."""
    learner = learner_of("fed-ia", fed_ia__keep=0.5, fed_ia__meta_lr=0.05, fed_ia__gate_lr=0.05)
    inbound = stirred(down(learner))
    reply, kept = trained(learner, tmp_path, inbound)
    closing = Round(1, 1, 0, acked=1, closing=True)
    with LocalStore(tmp_path, "run", "site") as store:
        client = learner.opened(reply.slots, DATA, store, closing)
        found = client.logits(DATA.test)
    net = learner.trainer.model.fresh(NAMES)
    net.load(GLOBAL, reply.slots[GLOBAL])
    net.load(LOCAL, kept[LOCAL])
    seen = encode(Source(tower()), DATA.test.images, LOOP)
    cls, patches = (torch.from_numpy(seen[kind]).half().float() for kind in ("cls", "patches"))
    images = clip_trainer.ImageFeatures(cls, None, net.evidence(patches, cls, net.anchors(), torch.float16))
    with torch.inference_mode():
        expected = net.fuse(images)
    np.testing.assert_allclose(found, expected.logits, atol=2e-2)
    assert (expected.weights - 0.5).abs().max() > 1e-3 and np.abs(found - expected.global_logits.numpy()).max() > 0.1


def test_patch_overlap_is_that_of_the_test_images(tmp_path: Path) -> None:
    learner = learner_of("fed-ia", fed_ia__keep=0.5)
    inbound = stirred(down(learner))
    with LocalStore(tmp_path, "run", "site") as store:
        reply = learner.evaluate(inbound, DATA, store, Round(1, 1, 0, closing=True))
    net = learner.trainer.model.fresh(NAMES)
    net.load(GLOBAL, inbound[GLOBAL])
    patches = torch.from_numpy(encode(Source(tower()), DATA.test.images, LOOP)["patches"]).half().float()
    shares = overlap(kept_patches(similarities(patches, net.anchors()), EvidenceConfig(keep=0.5)))
    assert reply.metrics["patch-overlap"] == pytest.approx(float(shares.mean()), abs=0.02)
    assert 0 < reply.metrics["patch-overlap"] <= 1


# --- steps


def test_steps_are_torchs_own() -> None:
    generator = torch.Generator().manual_seed(0)
    start = torch.randn(3, 4, generator=generator)
    gradients = [torch.randn(3, 4, generator=generator) for _ in range(4)]
    loop = LOOP.__class__(**{**LOOP.__dict__, "momentum": 0.9, "weight_decay": 0.1})
    for rate, make in ((Rate(0.2), lambda w: torch.optim.SGD([w], 0.2, 0.9, weight_decay=0.1)),
                       (Rate(0.01, True, 0.3), lambda w: torch.optim.AdamW([w], 0.01, weight_decay=0.3))):
        mine, theirs = start.clone(), torch.nn.Parameter(start.clone())
        kind, optimiser = Kind([mine], rate, loop), make(theirs)
        for gradient in gradients:
            kind.step([gradient.clone()])
            theirs.grad = gradient.clone()
            optimiser.step()
        torch.testing.assert_close(mine, theirs.detach(), rtol=0, atol=1e-7)
    still = start.clone()
    Kind([still], Rate(0.2), loop).step([None])
    assert torch.equal(still, start)


def test_each_kind_has_its_own_rate(tmp_path: Path) -> None:
    none = {"fed_ia__local_lr": 1e-30, "fed_ia__meta_lr": 1e-30, "fed_ia__gate_lr": 1e-30}
    learner, other = learner_of("fed-ia", **none), learner_of("fed-ia")
    reply, kept = trained(learner, tmp_path / "a", down(learner))
    with LocalStore(tmp_path / "c", "run", "site") as store:
        start = learner.opened(down(learner), DATA, store, SCORED).tensors(LOCAL)[LOCAL]
    for name, tensor in start.items():
        np.testing.assert_allclose(kept[LOCAL][name], tensor, atol=1e-20)
    assert np.abs(reply.slots[GLOBAL]["global_prompt"]).max() > 1e-4
    _, moved = trained(other, tmp_path / "b", down(other))
    assert all(not np.array_equal(moved[LOCAL][name], start[name]) for name in ("local_prompt", "meta.out.weight", "gate.out.weight"))
    # Adam moves a number by its rate, at most, a step: 3 steps an epoch, 2 epochs
    assert 1e-4 < np.abs(moved[LOCAL]["meta.out.weight"]).max() <= 6 * 0.001 * 1.2


def test_prompt_rates_go_by_the_text_tower() -> None:
    rates = {name: settings_of("fed-ia", text_tower=name).own.rates(settings_of("fed-ia", text_tower=name).run)["global_prompt"].lr
             for name in ("minilm-bridge", "open_clip:ViT-B-16")}
    assert rates == {"minilm-bridge": 0.2, "open_clip:ViT-B-16": 0.002}
    own = settings_of("fed-ia", fed_ia__prompt_lr=0.7, fed_ia__local_lr=0.1)
    assert {kind: rate.lr for kind, rate in own.own.rates(own.run).items()} == {
        "global_prompt": 0.7, "local_prompt": 0.1, "meta": 0.001, "gate": 0.003}


def test_a_rate_that_explodes_is_an_error(tmp_path: Path) -> None:
    learner = learner_of("fed-ia", fed_ia__prompt_lr=1e38)
    with pytest.raises(TrainingDiverged):
        trained(learner, tmp_path, down(learner), Round(1, 3, 0))


@pytest.mark.parametrize(("after", "stays"), [(0.9, True), (1.0, False), (1.1, False)])
def test_validation_takes_back_what_does_not_help(after: float, stays: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The loss before is 1; the shared prompt is sent either way."""
    learner = learner_of("fed-ia", fed_ia__validation=0.25)
    losses, seen = [1.0, after], []

    def told(client: Any, split: Any) -> float:
        seen.append((split.ids.tolist(), validation_loss(client, split)))
        return losses[len(seen) - 1]

    monkeypatch.setattr(fed_ia_learner, "validation_loss", told)
    reply, kept = trained(learner, tmp_path, down(learner), Round(1, 3, 0))
    assert kept[LOCAL]["meta.out.weight"].any() == kept[LOCAL]["gate.out.weight"].any() == stays
    assert np.abs(reply.slots[GLOBAL]["global_prompt"]).max() > 1e-4
    # three images, the same before and after, whose cross-entropy before is that of the served model
    assert seen[0][0] == seen[1][0] and len(seen[0][0]) == 3
    with LocalStore(tmp_path / "b", "run", "site") as store:
        client = learner.opened(down(learner), DATA, store, SCORED)
        rows = np.isin(DATA.train.ids, seen[0][0])
        logits = torch.from_numpy(client.logits(DATA.train)[rows])
    expected = torch.nn.functional.cross_entropy(logits, torch.from_numpy(DATA.train.labels[rows]))
    assert seen[0][1] == pytest.approx(float(expected), rel=1e-3)


def test_images_set_aside_are_the_same_every_round_and_leave_one() -> None:
    kept, aside = set_aside(DATA.train, 0.25, 5)
    assert (len(kept), len(aside)) == (9, 3) and not set(kept.ids) & set(aside.ids)
    np.testing.assert_array_equal(set_aside(DATA.train, 0.25, 5)[1].ids, aside.ids)
    assert [len(part) for part in set_aside(DATA.train, 0.999, 5)] == [1, 11]
    assert [len(part) for part in set_aside(DATA.train, 0.0, 5)] == [12, 0]


# --- rounds and newcomers


def test_what_is_local_goes_on_from_the_last_acknowledged_round(tmp_path: Path) -> None:
    learner = learner_of("fed-ia")
    _, first = trained(learner, tmp_path, down(learner), Round(1, 3, 0))
    with LocalStore(tmp_path, "run", "site") as store:
        again = learner.opened(down(learner), DATA, store, Round(2, 3, 0, acked=1)).tensors(LOCAL)[LOCAL]
        for name, tensor in first[LOCAL].items():
            np.testing.assert_array_equal(again[name], tensor)
        # the reply was lost: from the start again
        fresh = learner.opened(down(learner), DATA, store, Round(2, 3, 0)).tensors(LOCAL)[LOCAL]
    assert not fresh["meta.out.weight"].any() and first[LOCAL]["meta.out.weight"].any()


def test_a_newcomer_starts_from_the_global_prompt_with_an_empty_local_branch(tmp_path: Path) -> None:
    learner = learner_of("fed-ia")
    inbound = stirred(down(learner))
    with LocalStore(tmp_path, "run", "new") as store:
        reply = learner.join(inbound, DATA, store, Round(3, 3, 0, joining=True))
        kept = (store.load(3) or {})[LOCAL]
        served = learner.evaluate(inbound, DATA, store, Round(3, 3, 0, acked=3, closing=True)).metrics
    assert reply.slots == {}
    noise = kept["local_prompt"] - inbound[GLOBAL]["global_prompt"]
    size = np.sqrt(np.square(learner.trainer.model.fresh(NAMES).words.numpy() + inbound[GLOBAL]["global_prompt"]).mean())
    assert noise.std() / size == pytest.approx(0.01, rel=0.3)
    assert not any(kept[name].any() for name in ("meta.out.weight", "gate.out.weight"))
    assert served["gate-weight"] == pytest.approx(0.5, abs=1e-6)


def test_nothing_of_one_client_stays_for_the_next(tmp_path: Path) -> None:
    used, unused = learner_of("fed-ia"), learner_of("fed-ia")
    trained(used, tmp_path / "other", stirred(down(used)), data=data_of(5))
    (one, kept), (other, same) = (trained(x, tmp_path / str(i), down(x)) for i, x in enumerate((used, unused)))
    np.testing.assert_array_equal(one.slots[GLOBAL]["global_prompt"], other.slots[GLOBAL]["global_prompt"])
    assert all(np.array_equal(kept[LOCAL][name], same[LOCAL][name]) for name in kept[LOCAL])


# --- settings


@pytest.mark.parametrize("given", [
    {"select": "class-centred"}, {"select": "none"}, {"pool": "class-centred"}, {"add_cls": True}, {"meta": "cls"}, {"meta": "none"},
    {"meta": "cls", "patches": False}, {"gate": "image"}, {"gate": "fixed:0.5"}, {"gate": "fixed:1"}, {"anchors": "trainable"},
    {"lambda_local": 1.0},
])
def test_ablations_train_and_differ_from_the_default(given: dict[str, Any], tmp_path: Path) -> None:
    keep = {"fed_ia__keep": 0.5}
    one, other = learner_of("fed-ia", **keep), learner_of("fed-ia", **keep, **{f"fed_ia__{k}": v for k, v in given.items()})
    sent = [trained(x, tmp_path / str(i), stirred(down(x), 0.01), Round(1, 3, 0))[0].slots[GLOBAL]["global_prompt"]
            for i, x in enumerate((one, other))]
    assert np.isfinite(sent[1]).all() and not np.array_equal(*sent)


@pytest.mark.parametrize(("given", "expected"), [
    ({"keep": 0.0}, "fed-ia.keep must be above 0"), ({"tau": 0.0}, "fed-ia.tau must be a finite number above 0"),
    ({"select": "centred"}, "did you mean 'class-centred'?"), ({"gate": "fixed:2"}, "fixed:W with W from 0 to 1"),
    ({"gate": "fixed:x"}, "fixed:W"), ({"patches": False}, "reads patches; set fed-ia.patches = true"), ({"meta-lr": 0.0}, "above 0"),
    ({"validation": 1.0}, "below 1"), ({"lambda-global": -1.0}, "0 or more"), ({"pictures": -1}, "0 or more"),
])
def test_what_cannot_be_run_is_refused(given: dict[str, Any], expected: str) -> None:
    with pytest.raises(ConfigError) as refused:
        parse_run_config({"method": "fed-ia", **{f"fed-ia.{key}": value for key, value in given.items()}})
    assert expected in str(refused.value)
    assert Config().rates(settings_of("fed-ia").run)["meta"] == Rate(0.001, True, 0.0)


@pytest.mark.parametrize(("given", "expected"), [
    ({"text_tower": ""}, "or text-tiny-random for clip-tiny-random; it is empty beside model = clip-tiny-random. It may be left out where"),
    ({"text_tower": "", "model": "cnn"}, "text-tower must name the text tower that goes with the run's model: open_clip:NAME"),
    ({"text_tower": "minilm"}, "or text-tiny-random for clip-tiny-random; got 'minilm'. It may be left out where model is open_clip:NAME"),
    ({"prompt_words": "a photo"}, "prompt-words must be prompt-tokens = 4 tokens of this text tower, got 2. Set prompt-tokens = 2, or"),
    ({"model": "vit-tiny-random"}, "must be a CLIP Vision Transformer"),
])
def test_towers_that_do_not_fit_show_before_round_1(given: dict[str, Any], expected: str) -> None:
    with pytest.raises(ModelError) as refused:
        learner_of("fed-ia", **given)
    assert expected in str(refused.value)


# --- what is reported, and what a client gets to see


def test_the_report_states_gate_and_patches_by_client() -> None:
    told = {"gate_weight": {"a": 0.5, "b": 0.7}, "gate_spread": {"a": 0.1, "b": 0.2}, "patch_overlap": {"a": 0.25}}
    found = Findings({"fusion": told}, [], [], None)
    text = fusion_section(found)
    rows = [re.sub("<[^>]+>", "|", row) for row in re.findall("<tr>.*?</tr>", text, re.S)]
    assert [re.findall(r"[^|\s]+", row) for row in rows[1:]] == [
        ["mean", "0.600", "0.150", "25.0", "%"], ["a", "0.500", "0.100", "25.0", "%"], ["b", "0.700", "0.200", "–"]]
    assert "<code>fed-ia.pictures</code> draws some beside its personal model" in text
    assert fusion_section(Findings({}, [], [], None)) == ""


def test_pictures_show_kept_patches_and_stay_with_the_client(tmp_path: Path) -> None:
    learner = learner_of("fed-ia", fed_ia__pictures=3, fed_ia__keep=0.5)
    with LocalStore(tmp_path, "run", "site") as store:
        reply = learner.evaluate(stirred(down(learner)), DATA, store, Round(1, 1, 0, closing=True))
        folder = store.location / "patches"
    told = json.loads((folder / "patches.json").read_text())
    assert [row["file"] for row in told] == ["patches-00.png", "patches-01.png", "patches-02.png"] and reply.slots == {}
    assert [row["id"] for row in told] == [112, 114, 117] and all(len(set(row["panels"])) == 3 for row in told)
    shown = np.asarray(Image.open(folder / "patches-00.png"), float)
    assert shown.shape == (168, 4 * 168, 3)
    plain, first = shown[:, :168], shown[:, 168:336]
    corners = [(slice(y, y + 84), slice(x, x + 84)) for y in (0, 84) for x in (0, 84)]
    shares = sorted(round(first[at].sum() / plain[at].sum(), 1) for at in corners)
    # two of four patches are kept, the others are darkened to a quarter
    assert shares == pytest.approx([0.2, 0.2, 1.0, 1.0], abs=0.06)
    gate = json.loads((folder / "gate.json").read_text())
    assert set(gate) == set(NAMES) and gate["dog"]["mean"] == pytest.approx(0.5, abs=1e-6)


def test_a_panel_darkens_what_is_not_kept_and_takes_any_image() -> None:
    image = np.full((1, 8, 8), 200, np.uint8)
    lit = panel(image, np.array([True, False, False, True]))
    assert lit.shape == (168, 168, 3) and lit[0, 0].tolist() == [200] * 3 and lit[0, 167].tolist() == [50] * 3 and lit[167, 167, 0] == 200
    floats = panel(np.linspace(-3, 5, 64, dtype=np.float32).reshape(1, 8, 8))
    assert floats.min() == 0 and floats.max() >= 250


def test_a_personal_model_has_the_prior_and_the_towers_around_it(tmp_path: Path) -> None:
    run(tmp_path, "fed-ia", logit_prior=True, rounds=1, clients=2)
    personal = load_personal(tmp_path / "clients" / "test" / "client-001")
    assert personal.facts.settings["text-tower"] == "text-tiny-random" and not personal.normalises
    assert set(personal.kept) == {GLOBAL, LOCAL, "prior"}
    images, labels = digits_of(1)
    assert float((personal.logits(images[24:]).argmax(1) == labels[24:]).mean()) == personal.facts.served
