"""Sites compare frozen weights before round 1: which ones count, and that no simulation pays for it."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from flwr.app import ConfigRecord, Context, RecordDict
from torch import nn

from client_app.main import app
from client_app.prompt_trainer import PromptTrainer
from client_app.weights_digest import frozen_parts, weights_digest
from strategies.wire import unpack_hello
from tests.damaged_data import npz
from tests.flower_cases import tell
from tests.running import forget, small


class Backbone(nn.Module):
    def __init__(self, weight: float, position: float) -> None:
        super().__init__()
        self.weight, self.pos_embed = nn.Parameter(torch.tensor([weight])), nn.Parameter(torch.tensor([position]))


def test_the_digest_by_hand() -> None:
    expected = hashlib.sha256(b"\0weight (1,)\0" + np.array([0.5], np.float32).tobytes()).hexdigest()[:16]
    assert weights_digest([Backbone(0.5, 1.0)]) == weights_digest([Backbone(0.5, 2.0)]) == expected  # positions are resampled
    assert weights_digest([Backbone(0.25, 1.0)]) != expected and weights_digest([Backbone(0.5, 1.0), Backbone(0.5, 1.0)]) != expected
    assert weights_digest([]) == "" and frozen_parts(object()) == ()


def said_by(site: str, method: str, folder: Path, **settings: Any) -> str:
    """The digest in the hello of a site on a machine of its own."""
    forget()
    config = {**small(method), "method": method, "dataset": "digits", "clients": 2, **settings}
    node: dict[str, Any] = {"site": site, "data": npz()(folder), "state-dir": str(folder / site)}
    reply = app(tell(RecordDict({"hello": ConfigRecord()}), kind="query.hello"), Context(1, 1, node, RecordDict(), config))
    return unpack_hello(reply.content)["weights-digest"]


@pytest.mark.parametrize("method", ["pep-fedpt", "head-only", "fed-ia", "local-logistic"])
def test_sites_with_one_backbone_say_the_same(method: str, tmp_path: Path) -> None:
    one, other = said_by("ward-a", method, tmp_path), said_by("ward-b", method, tmp_path)
    assert len(one) == 16 and one == other


def test_another_backbone_says_otherwise_and_a_method_that_trains_its_own_says_nothing(
        tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    one = said_by("ward-a", "pep-fedpt", tmp_path)
    told = PromptTrainer.frozen.fget
    assert told is not None

    def damaged(trainer: PromptTrainer) -> tuple[nn.Module, ...]:
        vit, = told(trainer)
        with torch.no_grad():
            vit.blocks[3].mlp.fc1.weight[0, 0] += 1e-3
        return (vit,)

    monkeypatch.setattr(PromptTrainer, "frozen", property(damaged))
    assert said_by("ward-b", "pep-fedpt", tmp_path) not in (one, "")
    assert said_by("ward-a", "fedper", tmp_path) == ""


def test_a_simulation_says_nothing() -> None:
    forget()
    config = {**small("pep-fedpt"), "method": "pep-fedpt"}
    reply = app(tell(RecordDict({"hello": ConfigRecord()}), kind="query.hello"),
                Context(1, 1, {"partition-id": 1, "num-partitions": 4}, RecordDict(), config))
    assert unpack_hello(reply.content)["weights-digest"] == ""
