"""PEP-FedPT's client: train the shared prompt, the class prompts and the head, and measure its own class means.

The class prior steers the mixtures here and never leaves. Where no global prototype of a class is known yet, the client's own
class mean stands in for its training (all of them in the first round: taken with the shared prompt that came, before any
mixture exists).
"""

from __future__ import annotations

from collections.abc import Mapping
from statistics import fmean

import numpy as np

from client_app.data.client_data import ClientData
from client_app.learner import Reply
from client_app.local.store import LocalStore
from client_app.prompt_loop import class_means
from client_app.prompt_trainer import PromptTrainer, personal_module
from strategies.pep_fedpt import COUNTS, Config
from strategies.scalars import LAYER_SHARE
from strategies.types import Layout, Round, Slots, Tensors


class PepLearner:
    """Train everything shared; send class means in the form that ``prototype-weighting`` says."""

    trainer_class = PromptTrainer
    personal_module = staticmethod(personal_module)

    def __init__(self, trainer: PromptTrainer, config: Config) -> None:
        self.trainer, self.config = trainer, config

    @property
    def parts(self) -> Mapping[str, Layout]:
        return self.trainer.parts

    def train(self, inbound: Slots, data: ClientData, store: LocalStore, rnd: Round) -> Reply:
        trainer, received = self.trainer, inbound["prototypes"]
        trainer.fill(inbound, data)
        metrics = trainer.counts(data) | (trainer.scores(data, "served") if rnd.score_served else {})
        known = all(np.any(rows, axis=1)[data.train.labels].all() for rows in received.values())
        if not known or self.config.prototypes_from == "received":
            before = self._means(data, mixed=any(rows.any() for rows in received.values()))
            trainer.model.load("prototypes", filled(received, before[0]))
        metrics |= trainer.fit(data, store, rnd, self.config.rates)
        if rnd.score_adapted:
            metrics |= trainer.scores(data, "adapted")
        means, counts, right = self._means(data) if self.config.prototypes_from == "trained" else before
        sent = self._sent(received, means, counts)
        return Reply(trainer.trained("prompts", "head") | sent, metrics | mixture_accuracy(right))

    def join(self, inbound: Slots, data: ClientData, store: LocalStore, rnd: Round) -> Reply:
        """Nothing to prepare: a newcomer needs the shared model and its own prior."""
        return Reply(metrics=self.trainer.counts(data))

    def evaluate(self, inbound: Slots, data: ClientData, store: LocalStore, rnd: Round) -> Reply:
        return self.trainer.close(inbound, data, store, rnd)

    def _means(self, data: ClientData, mixed: bool = True) -> tuple[dict[str, np.ndarray], np.ndarray, dict[str, float]]:
        if not self.trainer.model.config.class_at:
            return {}, data.class_counts(), {}
        return class_means(self.trainer.model, data.train.images, data.train.labels, self.trainer.settings, mixed)

    def _sent(self, received: Tensors, means: Tensors, counts: np.ndarray) -> dict[str, Tensors]:
        if self.config.prototype_weighting == "count":
            return {"prototypes": sent_means(received, means, counts, 0), COUNTS: {"counts": counts.astype(np.float32)}}
        return {"prototypes": sent_means(received, means, counts, self.config.kappa if self.config.prototype_weighting == "shrunk" else 0)}


def mixture_accuracy(right: Mapping[str, float]) -> dict[str, float]:
    """What is told of the shares ``right``, a layer each: their mean and each of them; nothing without a layer.

    Rounded to a hundredth: a share in full would tell the number of samples.
    """
    mean = {"mixture-accuracy": fmean(right.values())} if right else {}
    shares = mean | {f"{LAYER_SHARE}{layer}": share for layer, share in right.items()}
    return {name: round(share, 2) for name, share in shares.items()}


def filled(received: Tensors, means: Tensors) -> dict[str, np.ndarray]:
    """The prototypes (C, D) a layer, with the client's own class means where none is known."""
    return {layer: np.where(rows.any(axis=1, keepdims=True), rows, means[layer]) for layer, rows in received.items()}


def sent_means(received: Tensors, means: Tensors, counts: np.ndarray, kappa: float) -> dict[str, np.ndarray]:
    """What leaves, (C, D) a layer: (n_c mean_c + kappa mu_c) / (n_c + kappa), and the received row mu_c for a class without sample.

    A class without a prototype has nothing to be drawn to, and ``kappa = 0`` draws nothing.
    """
    n = counts[:, None].astype(np.float64)
    out = {}
    for layer, rows in received.items():
        pull = np.where(rows.any(axis=1, keepdims=True), kappa, 0.0)
        shrunk = (n * means[layer] + pull * rows) / np.maximum(n + pull, 1)
        out[layer] = np.where(n > 0, shrunk, rows).astype(np.float32)
    return out
