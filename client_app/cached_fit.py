"""Training with a feature cache: the encoder runs on, and learns from, the samples whose route says so (METHODS 2.2, 2.6).

An epoch draws a route for every sample. In a step, fresh samples (FUSE and MISS) go through the encoder; HIT samples bring
the feature they have in the cache, which trains the head alone. The loss is the mean over both; the encoder's gradient is
stretched to what it would be as the mean over the fresh ones, since BatchNorm and step size are made for full batches. Where
every sample is fresh and there is no gate, all this is `loop.fit`, bit for bit.

Our own choices where METHODS 2.2 is silent: the features that an epoch's steps computed, and the confidence of all samples, are
written back at its end, which changes nothing (a sample is in one step of an epoch) and waits for the device once; a class's
disagreement is updated once a step, by its mean over the step; the gate learns at the run's rate, without weight decay.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import cosine_similarity, cross_entropy

from client_app.cache_clock import Clock
from client_app.cache_policy import FUSE, HIT, MISS, choose_routes, drift_of, priority, steps_of
from client_app.data.client_data import Split
from client_app.gate_weights import GateWeights
from client_app.local.sample_notes import SampleNotes, as_payload
from client_app.loop import (
    FitStats,
    LoopSettings,
    Sgd,
    TrainingDiverged,
    array_on_device,
    batch_sizes,
    check_labels,
    inputs,
    is_finite,
    place,
    precision,
)
from models.gate import CeilingSchedule, Gate, Standing, penalty
from models.split import SplitModel, batchnorms
from strategies.cache_config import Config
from strategies.seeds import derive_seed
from strategies.types import Round

LATEST_CEILING = 0.5


@dataclass
class Cached:
    """What the cache holds for one client's training samples, and what a round makes of it; changed in place.

    Attributes
    ----------
    notes : one row a sample.
    features : (n, D) of the payload's dtype, in the same order.
    disagreement : (C,) running mean of 1 - cosine between cached and fresh features, by class.
    made : (n,) bool: whose feature was made in this round.
    """

    notes: SampleNotes
    features: np.ndarray
    disagreement: np.ndarray
    made: np.ndarray = field(init=False)

    def __post_init__(self) -> None:
        self.made = np.zeros(len(self.features), bool)


@dataclass
class RouteCounts:
    """Samples by route over all epochs, samples through the encoder, and the gate's weights over FUSE samples."""

    by_route: np.ndarray = field(default_factory=lambda: np.zeros(3, np.int64))
    forwards: int = 0
    weights: GateWeights = field(default_factory=GateWeights)

    def shares(self) -> dict[str, float]:
        """To a hundredth, so that they do not tell how many samples there are."""
        parts = self.by_route / max(1, self.by_route.sum())
        told = {name: round(float(part), 2) for name, part in zip(("hit", "fuse", "miss"), parts, strict=True)}
        return told | self.weights.shares()


@dataclass
class Found:
    """What one step leaves to be written back: on ``rows``, of which the first are ``fresh``, when the part ``done`` was over.

    ``computed`` (b, D) are the fresh features, ``sure`` the largest softmax of every row; ``cosine`` and, with a gate, ``weight``
    are those of the ``fused`` rows.
    """

    fresh: np.ndarray
    rows: np.ndarray
    done: float
    computed: Tensor | None = None
    sure: Tensor = field(default_factory=lambda: torch.zeros(0))
    fused: np.ndarray = field(default_factory=lambda: np.zeros(0, np.int64))
    cosine: Tensor | None = None
    weight: Tensor | None = None

    def detached(self) -> Found:
        """The same, without the graph behind it."""
        kept = {name: None if (t := getattr(self, name)) is None else t.detach() for name in ("computed", "sure", "cosine", "weight")}
        return replace(self, **kept)


class CachedFit:
    """One client's training in one round.

    Parameters
    ----------
    gate : None takes the fresh feature of a FUSE sample.
    cached : is read and written.
    clock : tells how far the encoder has come.

    The same arguments give the same bits on one machine's CPU; ``seed`` orders the samples as in `loop.fit`, and draws routes
    from numbers of their own.
    """

    def __init__(self, model: SplitModel, split: Split, settings: LoopSettings, config: Config, cached: Cached, clock: Clock,
                 rnd: Round, seed: int, gate: Gate | None = None) -> None:
        check_labels(split.images, split.labels, model.head.out_features)
        place(model, settings)
        self.model, self.settings, self.config, self.gate = model, settings, config, gate
        self.cached, self.clock, self.rnd, self.counts = cached, clock, rnd, RouteCounts(weights=GateWeights(model.head.out_features))
        self.images, self.labels = split.images, split.labels
        self.y = array_on_device(split.labels.astype(np.int64, copy=False), settings)
        self.x = inputs(split.images, settings)
        self.order, self.draws = torch.Generator().manual_seed(seed), np.random.default_rng(derive_seed(seed, "routes"))
        self.encoder_step, self.head_step = Sgd(model.encoder, settings), Sgd(model.head, settings)
        self.gate_step = Sgd(gate.to(settings.torch_device), replace(settings, weight_decay=0.0)) if gate else None
        self.ceiling = CeilingSchedule(begin=config.warm_up, end=max(config.warm_up, LATEST_CEILING))((rnd.number - 1) / rnd.total) \
            if config.warm_up else CeilingSchedule().high
        self.routes = np.full(len(split), MISS, np.int8)
        self._found: list[Found] = []

    def run(self) -> FitStats:
        """Train; raises ``TrainingDiverged`` if the loss of an epoch is not finite, and then ``cached`` is of no use."""
        loss, steps = math.nan, 0
        for epoch in range(self.settings.epochs):
            plan = self._plan()
            # a batch of one cannot be normalised; with the eval ablation, none is
            batchnorm = self.config.bn_below == "train" and min(len(fresh) for fresh, _ in plan if len(fresh)) > 1
            self._mode(batchnorm)
            total = torch.zeros((), device=self.y.device)
            for step, (fresh, cached) in enumerate(plan):
                done = (epoch + step / len(plan)) / self.settings.epochs
                total += self._step(fresh, cached, done) * (len(fresh) + len(cached))
            steps += len(plan)
            self._write_back()
            loss = float(total) / sum(len(fresh) + len(cached) for fresh, cached in plan)
            if not math.isfinite(loss):
                raise TrainingDiverged(f"training loss became non-finite in epoch {epoch + 1}; lower lr")
        return FitStats(loss, steps, is_finite(self.model) and (self.gate is None or is_finite(self.gate)))

    def _plan(self) -> list[tuple[np.ndarray, np.ndarray]]:
        """Draw the epoch's routes and order; the steps, as `steps_of` gives them, without what is dropped."""
        notes, config, n = self.cached.notes, self.config, len(self.labels)
        ranks = priority(notes, self.labels, drift_of(notes, self.clock, config.versioned), self.cached.disagreement, config)
        self.routes = choose_routes(notes, ranks, config, config.warming(self.rnd.number, self.rnd.total), self.draws)
        order = torch.randperm(n, generator=self.order).numpy()
        batch = self.settings.batch
        plan = steps_of(order, self.routes == HIT, batch, batch_sizes(n, batch), config.packing)
        for fresh, _ in plan:
            # a cached one that a lonely fresh one took with it
            self.routes[fresh[self.routes[fresh] == HIT]] = FUSE
        self.counts.by_route += np.bincount(self.routes, minlength=3)
        notes.uses[self.routes == HIT] += 1
        if config.hit == "drop":
            plan = [(fresh, order[:0]) for fresh, _ in plan if len(fresh)]
        return plan

    def _mode(self, batchnorm: bool) -> None:
        self.model.train()
        for layer in batchnorms(self.model):
            layer.train(batchnorm)

    def _step(self, fresh: np.ndarray, cached: np.ndarray, done: float) -> Tensor:
        """Step on ``fresh`` (b,) and ``cached`` (h,) positions; the mean cross-entropy before the step."""
        found = Found(fresh, np.concatenate([fresh, cached]), done)
        rows, parts, extra = torch.from_numpy(found.rows).to(self.y.device), [], None
        with precision(self.settings):
            if len(fresh):
                found.computed = computed = self.model.encoder(self.x[rows[:len(fresh)]])
                blended, extra = self._blend(computed, fresh, found)
                parts.append(blended)
            if len(cached):
                parts.append(self._from_cache(cached))
            logits = self.model.head(parts[0] if len(parts) == 1 else torch.cat([part.float() for part in parts]))
            loss = cross_entropy(logits, self.y[rows])
        self._descend(loss if extra is None else loss + extra, len(fresh), len(cached))
        found.sure = logits.detach().float().softmax(dim=1).amax(dim=1)
        self._found.append(found.detached())
        return loss.detach()

    def _descend(self, loss: Tensor, fresh: int, cached: int) -> None:
        steps = [step for step, here in ((self.encoder_step, fresh), (self.head_step, 1), (self.gate_step, 1)) if step and here]
        weights = [weight for step in steps for weight in step.weights]
        gradients = iter(torch.autograd.grad(loss, weights, allow_unused=self.gate_step is not None))
        for step in steps:
            own = [next(gradients) for _ in step.weights]
            # a gate that blended nothing has no gradient, a fixed one has nothing to learn
            if step is self.gate_step and (not own or any(gradient is None for gradient in own)):
                continue
            if step is self.encoder_step and cached:
                own = [gradient * ((fresh + cached) / fresh) for gradient in own]
            step.apply(own)

    def _blend(self, computed: Tensor, fresh: np.ndarray, found: Found) -> tuple[Tensor, Tensor | None]:
        """The features (b, D) the head sees of ``fresh`` (b,) samples, and what the gate adds to the loss."""
        fuse = np.flatnonzero(self.routes[fresh] == FUSE)
        if not len(fuse):
            return computed, None
        rows, at = fresh[fuse], torch.from_numpy(fuse).to(computed.device)
        if self.gate is None or self.config.hit == "drop":
            if self.config.hit == "cache":
                found.fused, found.cosine = rows, cosine_similarity(computed.detach()[at].float(), self._from_cache(rows))
            return computed, None
        gated = self.gate(computed[at], self._from_cache(rows), self._standing(rows), self.ceiling)
        found.fused, found.cosine, found.weight = rows, gated.cosine, gated.cached_weight
        blended = computed.float().index_copy(0, at, gated.features.float())
        return blended, penalty(gated, self.ceiling) if self.config.gate == "log" else None

    def _standing(self, rows: np.ndarray) -> Standing:
        notes, known = self.cached.notes, self.config.versioned
        age, drift = (self.rnd.number - notes.round[rows]) * known, drift_of(notes, self.clock, known)[rows]
        told = (age, drift, notes.uses[rows], notes.confidence[rows])
        return Standing(*(torch.from_numpy(value.astype(np.float32)).to(self.y.device) for value in told))

    def _from_cache(self, rows: np.ndarray) -> Tensor:
        return torch.from_numpy(self.cached.features[rows].astype(np.float32)).to(self.y.device)

    def _write_back(self) -> None:
        """What the epoch found: fresh features, how sure the head is of every sample, how far cached features disagree."""
        notes, memory = self.cached.notes, np.float32(self.config.confidence_memory)
        for found in self._found:
            before, sure = notes.confidence[found.rows], found.sure.cpu().numpy()
            notes.confidence[found.rows] = np.where(before > 0, memory * before + (1 - memory) * sure, sure)
            self._disagree(found)
            self.counts.forwards += len(found.fresh)
            if found.computed is not None:
                if self.config.hit == "cache":
                    self.cached.features[found.fresh] = as_payload(found.computed.float().cpu().numpy(), self.config.payload)
                notes.made(found.fresh, self.rnd.number, found.done, self.clock.reading)
                self.cached.made[found.fresh] = True
        self._found.clear()

    def _disagree(self, found: Found) -> None:
        if found.cosine is None:
            return
        apart, labels = 1 - found.cosine.cpu().numpy(), self.labels[found.fused]
        for label in np.unique(labels):
            self.cached.disagreement[label] += 0.1 * (apart[labels == label].mean() - self.cached.disagreement[label])
        if found.weight is not None:
            self.counts.weights.add(found.weight.cpu().numpy(), self.rnd.number - self.cached.notes.round[found.fused], labels)


def gate_tensors(gate: Gate) -> dict[str, np.ndarray]:
    """The gate's weights, as the local store keeps them."""
    return {name: tensor.detach().cpu().numpy().copy() for name, tensor in gate.state_dict().items()}


def load_gate(gate: Gate, kept: Mapping[str, np.ndarray]) -> Gate:
    """``gate`` with the weights that `gate_tensors` gave."""
    gate.load_state_dict({name: torch.from_numpy(tensor.copy()) for name, tensor in kept.items()})
    return gate
