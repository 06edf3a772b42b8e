"""What a client does in a method, and the pieces every method's client shares.

A ``Learner`` gets slots and returns slots; it never sees a message. Scores carry one of two labels: *served* is the
model a client has before this round's training, *adapted* the one after it. Each exists with BatchNorm statistics as
aggregated ("raw") and, if the run says ``bn = recompute``, re-estimated on the client's own training images.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Protocol

from client_app.data.client_data import ClientData
from client_app.local.store import LocalStore
from client_app.loop import LoopSettings, TrainingDiverged, fit, mean_loss, recompute_batchnorm, score
from models.split import PARTS, SplitModel
from strategies.seeds import derive_seed
from strategies.types import Layout, Round, Slots, Tensors, layout_of

Metrics = Mapping[str, float]


@dataclass(frozen=True)
class Reply:
    """What a client wants to send: slots of its contract's ``up`` side, and scalars."""

    slots: Slots = field(default_factory=dict)
    metrics: Metrics = field(default_factory=dict)


class Learner(Protocol):
    """The client half of a method."""

    @property
    def parts(self) -> Mapping[str, Layout]: ...
    def train(self, inbound: Slots, data: ClientData, store: LocalStore, rnd: Round) -> Reply: ...
    def evaluate(self, inbound: Slots, data: ClientData, store: LocalStore, rnd: Round) -> Reply: ...


@dataclass(frozen=True)
class Trainer:
    """A split model with the loop's settings: what the learners of split models are made of.

    The model is a skeleton that is filled anew for every message; nothing of a client stays in it on purpose.
    """

    model: SplitModel
    settings: LoopSettings
    send_counts: bool = True

    @property
    def parts(self) -> dict[str, Layout]:
        return {part: layout_of(self.model.tensors(part)) for part in PARTS}

    def train(self, encoder: Tensors, head: Tensors, data: ClientData, store: LocalStore, rnd: Round,
              served: Tensors | None = None) -> tuple[Slots, dict[str, float]]:
        """One client's round: score what it serves with, train from ``encoder`` and ``head``, score what came out.

        ``served`` is the encoder the client serves with, if it is another one than it trains from. The order of the
        training samples depends on (seed, client, round) alone. Returns the trained tensors and the metrics; the
        tensors may be the live model's own, so commit and send them before the next message.

        Raises ``TrainingDiverged`` if the loss, a weight or a statistic is no finite number.
        """
        metrics = self._counts(data)
        if rnd.score_served:
            self._load(encoder if served is None else served, head)
            metrics |= self._scores(data, "served")
        self._load(encoder, head)
        seed = derive_seed(rnd.seed, store.site, rnd.number, "fit")
        fitted = fit(self.model, data.train.images, data.train.labels, self.settings, seed)
        if not fitted.finite:
            # the last step can overflow after a finite loss; such a model must not become the client's state
            raise TrainingDiverged("a weight became non-finite in training; lower lr")
        metrics["loss"] = fitted.loss
        trained = {part: self.model.tensors(part) for part in PARTS}
        if rnd.score_adapted:
            # scoring may re-estimate BatchNorm statistics in place, and those are not what was trained
            trained = {part: {name: t.copy() for name, t in tensors.items()} for part, tensors in trained.items()}
            metrics |= self._scores(data, "adapted")
        return trained, metrics

    def close(self, encoder: Tensors, head: Tensors, data: ClientData, store: LocalStore) -> Reply:
        """Score the model the client ends up serving with, and leave it in the client's own hands."""
        self._load(encoder, head)
        metrics = self._counts(data) | self._scores(data, "served")
        store.export("personal", {part: self.model.tensors(part) for part in PARTS})
        return Reply(metrics=metrics)

    def training_loss(self, encoder: Tensors, head: Tensors, data: ClientData) -> float:
        """Mean loss on the client's own training samples, in eval mode, without training."""
        self._load(encoder, head)
        if self.settings.bn == "recompute":
            recompute_batchnorm(self.model.encoder, data.train.images, self.settings)
        return mean_loss(self.model, data.train.images, data.train.labels, self.settings)

    def _load(self, encoder: Tensors, head: Tensors) -> None:
        self.model.load("encoder", encoder)
        self.model.load("head", head)

    def _scores(self, data: ClientData, label: str) -> dict[str, float]:
        """Test accuracy as ``{label}-raw`` and ``{label}``; nothing for an empty test set.

        Either way the model is left with the statistics it serves with.
        """
        final = raw = score(self.model, data.test.images, data.test.labels, self.settings)
        if self.settings.bn == "recompute" and recompute_batchnorm(self.model.encoder, data.train.images, self.settings):
            final = score(self.model, data.test.images, data.test.labels, self.settings)
        return {} if raw is None or final is None else {label: final, f"{label}-raw": raw}

    def _counts(self, data: ClientData) -> dict[str, float]:
        """The sample counts that may leave a client (D9); none with ``weighting = uniform``."""
        return {"num-examples": len(data.train), "num-test": len(data.test)} if self.send_counts else {}
