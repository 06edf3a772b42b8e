"""pFedPG: the server generates each client's prompts; heads are private (Yang et al. 2023, arXiv 2308.15367).

A client gets its own prompts, trains them with its own head, and sends back how they changed, which the server takes as a
pseudo-gradient for its generator (``strategies.prompt_generator``). It needs every client in training: somebody it has no learned
descriptor of cannot be served, and held-out clients are not.

Values from the paper as METHODS 4.6 reports it: ten tokens, server rate 1e-3. That heads stay at the clients is our reading of its
count of 7,680 numbers a round, which is the prompts alone; every head starts at zero, so none ever travels. The client's rate for
prompts is this project's choice (the paper: .25).
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from strategies.config import RunConfig, require
from strategies.contract import Slot, Wire
from strategies.prompt_average import AT_HOME
from strategies.prompt_generator import adam, first_descriptor, first_weights, generate, gradients, no_moments
from strategies.types import Round, Shelf, Slots, Tensors, Update

WIRE = Wire(down=(Slot("prompts", "tokens x dim", "this client's own prompts, as the server generates them", like="prompts"),),
            up=(Slot("prompt-change", "tokens x dim", "how local training has changed them", like="prompts"),),
            local=("head", *AT_HOME))


@dataclass(frozen=True)
class Config:
    """Settings of pFedPG.

    Attributes
    ----------
    tokens : prompt tokens at the first layer.
    prompt_lr : a client's learning rate of its prompts; its head has the run's ``lr``.
    server_lr : learning rate of the generator and the descriptors.
    """

    tokens: int = 10
    prompt_lr: float = 1.0
    server_lr: float = 0.001

    def __post_init__(self) -> None:
        require(self.tokens >= 1, "pfedpg.tokens", "1 or more", self.tokens)
        for key in ("prompt_lr", "server_lr"):
            value = getattr(self, key)
            require(value > 0 and math.isfinite(value), f"pfedpg.{key.replace('_', '-')}", "a finite number above 0", value)

    @property
    def wire(self) -> Wire:
        return WIRE

    @property
    def prompts(self) -> Mapping[str, Any]:
        """Settings of ``models.prompt_config.PromptConfig``."""
        return {"use": "shared", "shared_tokens": self.tokens}

    @property
    def rates(self) -> Mapping[str, float]:
        """Learning rates of the prompts by kind."""
        return {"shared": self.prompt_lr}


@dataclass(frozen=True)
class State:
    """The generator's weights, the clients' descriptors (K, D), and the moments of all of them for Adam."""

    weights: Tensors
    descriptors: Mapping[str, np.ndarray] = field(default_factory=dict)
    moments: Mapping[str, np.ndarray] = field(default_factory=dict)
    client_moments: Mapping[str, np.ndarray] = field(default_factory=dict)


@dataclass(frozen=True)
class PfedPgRule:
    """Generate on the way down; descend by what comes up."""

    config: Config
    run: RunConfig
    shelf: Shelf | None = None

    serves_newcomers = False

    def init(self, start: Slots) -> State:
        weights = first_weights(start["prompts"]["shared"][0], self.run.seed)
        return State(weights, moments={name: no_moments(tensor) for name, tensor in weights.items()})

    def downlink(self, state: State, client: str, rnd: Round) -> Slots:
        return {"prompts": {"shared": generate(state.weights, self._descriptor(state, client))[None]}}

    def merge(self, state: State, updates: Iterable[Update], rnd: Round) -> State:
        """The generator's gradient is the clients' weighted mean; each descriptor has its own client's."""
        sums = {name: np.zeros(tensor.shape) for name, tensor in state.weights.items()}
        total, descriptors, client_moments = 0.0, dict(state.descriptors), dict(state.client_moments)
        for update in updates:
            descriptor = self._descriptor(state, update.client)
            by_weight, by_descriptor = gradients(state.weights, descriptor, -update.slots["prompt-change"]["shared"][0])
            for name, gradient in by_weight.items():
                sums[name] += update.weight * gradient
            total += update.weight
            moments = client_moments.get(update.client, no_moments(descriptor))
            descriptors[update.client], client_moments[update.client] = adam(descriptor, by_descriptor, moments, self.config.server_lr)
        stepped = {name: adam(tensor, sums[name] / total, state.moments[name], self.config.server_lr)
                   for name, tensor in state.weights.items()}
        return State({name: tensor for name, (tensor, _) in stepped.items()}, descriptors,
                     {name: moments for name, (_, moments) in stepped.items()}, client_moments)

    def diagnostics(self, state: State) -> Mapping[str, Any]:
        return {}

    def _descriptor(self, state: State, client: str) -> np.ndarray:
        known = state.descriptors.get(client)
        return first_descriptor(client, state.weights["base"].shape, self.run.seed) if known is None else known
