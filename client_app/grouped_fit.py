"""Training of a Vision Transformer with groups of prompts: which group a sample gets, and one stage's steps (SGPT).

While training, a group is picked by distance times relative usage, as in L2P (arXiv 2112.08654), so that none falls asleep; when
scoring, by distance alone.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

from client_app.data.client_data import Split
from client_app.loop import TrainingDiverged, array_on_device, batch_sizes, check_labels, descend
from client_app.loop_settings import LoopSettings
from client_app.prompt_loop import RatedSgd, chunks, trained_is_finite
from models.backbones import prepare
from models.grouped_vit import GroupedViT
from strategies.seeds import derive_seed
from strategies.types import Round


@dataclass(frozen=True)
class Stage:
    """What is trained, at which rates, for how many epochs. Keys are trained where they have a rate."""

    name: str
    rates: Mapping[str, float]
    epochs: int


class GroupedStep:
    """One step of SGD on the samples at given positions; counts how often each group was picked."""

    def __init__(self, model: GroupedViT, images: Tensor, queries: Tensor, settings: LoopSettings, stage: Stage) -> None:
        self.model, self.images, self.queries = model, images, queries
        self.sgd = RatedSgd(model, settings, stage.rates)
        self.pull_keys = "keys" in stage.rates
        self.used = torch.ones(model.grouping.groups, device=images.device)

    def __call__(self, positions: Tensor, labels: Tensor) -> Tensor:
        """Step on the samples at ``positions`` (B,) with labels (B,); the mean cross-entropy before the step."""
        similarity = self.model.similarity(self.queries[positions])  # (B, G)
        chosen = balanced(similarity.detach(), self.used)
        self.used += torch.bincount(chosen, minlength=len(self.used))
        loss = cross_entropy(self.model(prepare(self.images[positions], self.model.vit), chosen), labels)
        pull = similarity.gather(1, chosen[:, None]).mean() if self.pull_keys else 0.0
        self.sgd.step(loss - pull)
        return loss.detach()


def balanced(similarity: Tensor, used: Tensor) -> Tensor:
    """The group (B,) with the least (1 - cosine) x relative usage, of cosines (B, G) and uses (G,) of 1 or more."""
    return ((1 - similarity) * (used / used.mean())).argmin(dim=1)


def fit_stage(model: GroupedViT, split: Split, queries: np.ndarray, settings: LoopSettings, stage: Stage, site: str, rnd: Round) -> float:
    """Train one stage in place on a split and its queries (n, D); the last epoch's mean loss. Raises ``TrainingDiverged``."""
    check_labels(split.images, split.labels, model.head.out_features)
    images, found = array_on_device(split.images, settings), array_on_device(queries, settings)
    labels = array_on_device(split.labels.astype(np.int64, copy=False), settings)
    model.train()
    step = GroupedStep(model, images, found, settings, stage)
    positions = torch.arange(len(labels), device=labels.device)
    seed = derive_seed(rnd.seed, site, rnd.number, "fit", stage.name)
    loss = descend(step, positions, labels, batch_sizes(len(labels), settings.batch), stage.epochs, seed)
    if not trained_is_finite(model):
        raise TrainingDiverged("a weight became non-finite in training; lower lr or the method's learning rates")
    return loss


def grouped_logits(model: GroupedViT, split: Split, queries: np.ndarray, settings: LoopSettings) -> np.ndarray:
    """Logits (n, C) float32 of a split whose queries (n, D) are known."""
    model.eval()
    found = []
    with torch.inference_mode():
        for part, query in zip(chunks(split.images, settings), chunks(queries, settings), strict=True):
            chosen = model.nearest(array_on_device(query, settings))
            found.append(model(prepare(array_on_device(part, settings), model.vit), chosen).float().cpu().numpy())
    return np.concatenate(found) if found else np.zeros((0, model.head.out_features), np.float32)
