"""Small finished runs whose scored logits are known, for tests of what a client's model gives afterwards."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
import torch

from client_app.data.client_data import ClientData
from client_app.learner import Trainer
from client_app.local.store import LocalStore, read_export
from client_app.loop import inputs
from client_app.prompt_trainer import PromptTrainer, with_prior
from tests.running import TRAIN, Ran, digits_of, run


@dataclass(frozen=True)
class Kept:
    """A run, and what each model gave when it was last scored: test images as bytes -> (images, logits (n, C))."""

    ran: Ran
    scored: dict[bytes, tuple[np.ndarray, np.ndarray]]

    def folder(self, index: int = 0) -> Path:
        """Where the client keeps its model."""
        return self.ran.folder / "clients" / "test" / f"client-{index:03d}"

    def last_scored(self, index: int = 0) -> tuple[np.ndarray, np.ndarray]:
        """Test images (n, channels, height, width) of a client of ``few_digits``, and the logits (n, C) it was scored with."""
        return self.scored[digits_of(index)[0][TRAIN:].tobytes()]


# an exported model has every iteration written out
FEWER_STEPS: dict[str, dict[str, Any]] = {"fedotp": {"fedotp.iterations": 10}}


def kept_run(folder: Path, method: str, **settings: Any) -> Kept:
    """One round of ``method`` by two clients unless ``settings`` say otherwise."""
    scored: dict[bytes, tuple[np.ndarray, np.ndarray]] = {}
    scores, accuracies = Trainer._scores, PromptTrainer.accuracies

    def split(trainer: Trainer, data: ClientData, label: str) -> dict[str, float]:
        found = scores(trainer, data, label)
        model = trainer.model  # left as it was scored
        if len(data.test):
            was_training = model.training
            with torch.inference_mode():
                logits = model.eval()(inputs(data.test.images, trainer.settings)).numpy().copy()
            model.train(was_training)
            scored[data.test.images.tobytes()] = data.test.images.copy(), logits
        return found

    def prompted(trainer: PromptTrainer, logits: np.ndarray, data: ClientData, label: str) -> dict[str, float]:
        scored[data.test.images.tobytes()] = data.test.images.copy(), with_prior(logits, data) if trainer.logit_prior else logits
        return accuracies(trainer, logits, data, label)

    with patch.object(Trainer, "_scores", split), patch.object(PromptTrainer, "accuracies", prompted):
        return Kept(run(folder, method, **{"clients": 2, "rounds": 1, **FEWER_STEPS.get(method, {}), **settings}), scored)


def rewrite(folder: Path, **changed: Any) -> Path:
    """The personal model in ``folder`` with other facts, as a store of the client would write it."""
    slots, facts = read_export(folder / "personal.safetensors")
    with LocalStore(folder.parent.parent, folder.parent.name, folder.name) as store:
        store.export("personal", slots, {**facts, **changed})
    return folder
