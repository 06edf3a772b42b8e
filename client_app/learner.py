"""What a client does in a method, and the pieces every method's client shares.

A ``Learner`` gets slots and returns slots; it never sees a message. Scores carry one of two labels: *served* is the
model a client has before this round's training, *adapted* the one after it. Each exists with BatchNorm statistics as
aggregated ("raw") and, if the run says ``bn = recompute``, re-estimated on the client's own training images.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Protocol

import numpy as np

from client_app.clock import scoring
from client_app.data.client_data import ClientData
from client_app.head_phase import fit_head
from client_app.local.store import LocalStore
from client_app.loop import FitStats, LoopSettings, TrainingDiverged, fit
from client_app.personal_facts import PERSONAL, facts_of
from client_app.reuse import Anew, FeatureSource
from models.split import PARTS, SplitModel
from strategies.registry import Settings
from strategies.seeds import derive_seed
from strategies.types import Layout, Round, Slots, Tensors, layout_of

Metrics = Mapping[str, float]
# how a method trains the model it is given, in place of ``fit``: the model, with the round's weights; data; seed
Training = Callable[[SplitModel, ClientData, int], FitStats]
# a head (C, D) to begin with, from features (n, D) and labels (n,)
FirstHead = Callable[[np.ndarray, np.ndarray], Tensors]


@dataclass(frozen=True)
class Reply:
    """What a client wants to send: slots of its contract's ``up`` side, and scalars."""

    slots: Slots = field(default_factory=dict)
    metrics: Metrics = field(default_factory=dict)


class Learner(Protocol):
    """The client half of a method.

    ``join`` prepares a client that was held out of training for its one ``evaluate`` after it: it fits what is local, commits
    it as the last round's version, and sends what the contract's ``join`` side allows.

    A class whose model is no ``SplitModel`` also names its ``trainer_class``, which takes what ``Trainer`` takes, and offers
    ``personal_module(kept, facts) -> nn.Module``, a static method, which ``client_app.personal`` rebuilds the model with.

    A class whose clients can be trained as a cohort says so with ``stacks(config) -> bool``, a static method: with these settings of
    the method, the local training goes through ``loop.fit`` with plain steps, so that clients meet there (``client_app.cohort``).
    """

    @property
    def parts(self) -> Mapping[str, Layout]: ...
    def train(self, inbound: Slots, data: ClientData, store: LocalStore, rnd: Round) -> Reply: ...
    def join(self, inbound: Slots, data: ClientData, store: LocalStore, rnd: Round) -> Reply: ...
    def evaluate(self, inbound: Slots, data: ClientData, store: LocalStore, rnd: Round) -> Reply: ...


@dataclass(frozen=True)
class Trainer:
    """A split model with the loop's settings: what the learners of split models are made of.

    The model is a skeleton that is filled anew for every message; nothing of a client stays in it on purpose. ``made_by``
    is the run's config, which a personal model says of itself. ``source`` answers what is asked of an encoder that stands
    still: for scores, head phases and BatchNorm statistics.
    """

    model: SplitModel
    settings: LoopSettings
    send_counts: bool = True
    made_by: Settings | None = None
    source: FeatureSource = Anew()

    @cached_property
    def parts(self) -> dict[str, Layout]:
        """The layout of each part; asked for several times a message, and never another."""
        return {part: layout_of(self.model.tensors(part)) for part in PARTS}

    def train(self, encoder: Tensors, head: Tensors, data: ClientData, store: LocalStore, rnd: Round,
              served: Tensors | None = None, training: Training | None = None) -> tuple[Slots, dict[str, float]]:
        """One client's round: score what it serves with, train from ``encoder`` and ``head``, score what came out.

        ``served`` is the encoder the client serves with, if it is another one than it trains from; ``training`` stands in for
        plain `fit`. The order of the training samples depends on (seed, client, round) alone. Returns the trained tensors and
        the metrics; the tensors may be the live model's own, so commit and send them before the next message.

        Raises ``TrainingDiverged`` if the loss, a weight or a statistic is no finite number.
        """
        metrics = self.counts(data)
        if rnd.score_served:
            self._load(encoder if served is None else served, head)
            metrics |= self._scores(data, "served")
        self._load(encoder, head)
        seed = derive_seed(rnd.seed, store.site, rnd.number, "fit")
        fitted = (training or self._plain)(self.model, data, seed)
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

    def _plain(self, model: SplitModel, data: ClientData, seed: int) -> FitStats:
        return fit(model, data.train.images, data.train.labels, self.settings, seed)

    def fit_head(self, encoder: Tensors, head: Tensors, data: ClientData, store: LocalStore, rnd: Round,
                 first: FirstHead | None = None) -> tuple[Tensors, dict[str, float]]:
        """A newcomer's own head: ``head``, or the ``first`` one its features suggest, trained for ``join_epochs`` on the frozen
        ``encoder``. Returns it with the metrics.

        The encoder has the BatchNorm statistics it will serve with (the ``bn`` rule). As with ``train``, the head returned may
        be the live model's own. Raises ``TrainingDiverged`` as ``train``.
        """
        self._load(encoder, head)
        if self.settings.bn == "recompute":
            self.source.recompute(self.model, data.train, self.settings)
        if first:
            self.model.load("head", first(self.source.features(self.model, data.train, self.settings), data.train.labels))
        features = self.source.every_epoch(self.model, data.train, self.settings)
        seed = derive_seed(rnd.seed, store.site, "join", "fit")
        fitted = fit_head(self.model, features, data.train.labels, self.settings, seed, self.settings.join_epochs)
        if not fitted.finite:
            raise TrainingDiverged("a weight became non-finite in training; lower lr")
        return self.model.tensors("head"), self.counts(data) | {"loss": fitted.loss}

    def close(self, encoder: Tensors, head: Tensors, data: ClientData, store: LocalStore, rnd: Round,
              beside: Callable[[], Slots] | None = None) -> Reply:
        """Score the model the client ends up serving with, and leave it in the client's own hands.

        ``beside`` gives, after scoring, what the personal model consists of beside encoder and head.
        """
        self._load(encoder, head)
        metrics = self.counts(data) | self._scores(data, "served")
        # after scoring, which leaves the model with the statistics it serves with
        facts = facts_of(self.made_by, data, store.site, rnd, metrics.get("served")).to_json() if self.made_by else None
        store.export(PERSONAL, {**{part: self.model.tensors(part) for part in PARTS}, **(beside() if beside else {})}, facts)
        return Reply(metrics=metrics)

    def score_with(self, encoder: Tensors, head: Tensors, data: ClientData, label: str) -> dict[str, float]:
        """Test accuracy of ``encoder`` with ``head``, as ``_scores`` gives it."""
        self._load(encoder, head)
        return self._scores(data, label)

    def training_loss(self, encoder: Tensors, head: Tensors, data: ClientData) -> float:
        """Mean loss on the client's own training samples, in eval mode, without training."""
        self._load(encoder, head)
        if self.settings.bn == "recompute":
            self.source.recompute(self.model, data.train, self.settings)
        return self.source.mean_loss(self.model, data.train, self.settings)

    def _load(self, encoder: Tensors, head: Tensors) -> None:
        self.model.load("encoder", encoder)
        self.model.load("head", head)

    @scoring
    def _scores(self, data: ClientData, label: str) -> dict[str, float]:
        """Test accuracy as ``{label}-raw`` and ``{label}``; nothing for an empty test set.

        Either way the model is left with the statistics it serves with.
        """
        final = raw = self.source.score(self.model, data.test, self.settings)
        if self.settings.bn == "recompute" and self.source.recompute(self.model, data.train, self.settings):
            final = self.source.score(self.model, data.test, self.settings)
        return {} if raw is None or final is None else {label: final, f"{label}-raw": raw}

    def counts(self, data: ClientData) -> dict[str, float]:
        """The sample counts that may leave a client (D9); none with ``weighting = uniform``."""
        return {"num-examples": len(data.train), "num-test": len(data.test)} if self.send_counts else {}
