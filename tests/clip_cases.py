"""Small learners on the twins of CLIP-like towers: what the tests of FedIA and its rivals share."""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np
import torch
from torch.nn.functional import normalize

from client_app.clip_trainer import ClipTrainer
from client_app.data.client_data import ClientData, Split
from client_app.loop_settings import LoopSettings
from strategies.registry import Settings, parse_run_config
from strategies.types import Round, Slots
from tests.running import SMALL_CLIP

NAMES = ("dog", "fire_truck", "house", "guitar")
TRAIN, TEST = 12, 6
LOOP = LoopSettings(epochs=2, batch=5, lr=0.05, device="cpu", score_batch=5, momentum=0.0, weight_decay=0.0)
SCORED = Round(1, 3, 0, score_served=True, score_adapted=True)


def images_of(count: int, seed: int = 0) -> np.ndarray:
    """(count, 3, 32, 32): four patches of 16 pixels."""
    return np.random.default_rng(seed).integers(0, 256, (count, 3, 32, 32), np.uint8)


def data_of(seed: int = 0, classes: tuple[str, ...] = NAMES) -> ClientData:
    labels, ids = np.arange(TRAIN + TEST) % len(classes), np.arange(100, 100 + TRAIN + TEST)
    images = images_of(TRAIN + TEST, seed)
    return ClientData(*(Split(images[rows], labels[rows], ids[rows]) for rows in (slice(0, TRAIN), slice(TRAIN, None))), classes)


def settings_of(method: str, **given: Any) -> Settings:
    """``lr=1`` for a run's key, ``fed_ia__keep=1`` for a method's."""
    changed = {key.replace("__", ".").replace("_", "-"): value for key, value in given.items()}
    return parse_run_config({"method": method, **SMALL_CLIP, **changed})


def learner_of(method: str, loop: LoopSettings = LOOP, **given: Any) -> Any:
    """A fresh learner; the towers' weights are the same for all."""
    settings = settings_of(method, **given)
    model = settings.build_model(len(NAMES), (3, 32, 32))
    return settings.method.learner_class()(ClipTrainer(model, loop, made_by=settings), settings.own)


@cache
def tower() -> Any:
    """The image twin at 32 pixels."""
    return settings_of("promptfl").build_model(len(NAMES), (3, 32, 32)).image


def down(learner: Any, number: int = 1) -> Slots:
    """What a client gets in a first round."""
    settings = learner.trainer.made_by
    rule = settings.method.rule_class()(settings.own, settings.run)
    model = settings.build_model(len(NAMES), (3, 32, 32), weights=False)
    start = {part: dict(model.tensors(part)) for part in model.parts}
    return rule.downlink(rule.init(start), "site", Round(number, 3, 0))


def stirred(slots: Slots, size: float = 0.05) -> Slots:
    """The same tensors moved at random, as after some rounds."""
    rng = np.random.default_rng(4)
    return {slot: {name: (t + rng.normal(0, size, t.shape)).astype(np.float32) for name, t in tensors.items()}
            for slot, tensors in slots.items()}


def units(*shape: int, seed: int = 0) -> torch.Tensor:
    return normalize(torch.randn(*shape, generator=torch.Generator().manual_seed(seed)), dim=-1)
