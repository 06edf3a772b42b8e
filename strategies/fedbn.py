"""FedBN: BatchNorm stays at home, everything else is averaged (Li et al. 2021, arXiv 2102.07623, algorithm 1).

Weights, biases and running statistics of every BatchNorm layer are a client's own; the rest of the encoder and the head are
shared. All clients start from the same BatchNorm. Which layers these are follows from the names of what they hold
(``running_mean``).

A model without BatchNorm has nothing to personalise here: the method is then FedAvg, and it says so in the log and in every
round's record. A held-out client starts from the common first BatchNorm, trains these layers alone for ``join-epochs`` (our
choice: what is local is what it fits), and sends no tensor.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from strategies.config import RunConfig
from strategies.contract import Slot, Wire
from strategies.reduce import make_mean
from strategies.types import Layout, Round, Shelf, Slots, Tensors, Update

log = logging.getLogger(__name__)
NOTHING = "this model has no BatchNorm, so fedbn has nothing to personalise and is fedavg here"


@dataclass(frozen=True)
class PartOfEncoder(Slot):
    """The encoder without its BatchNorm layers, or (``norm``) these alone."""

    norm: bool = False

    def expected(self, parts: Mapping[str, Layout]) -> Layout:
        encoder = parts["encoder"]
        layers = norm_layers(encoder)
        return {name: told for name, told in encoder.items() if (name.rpartition(".")[0] in layers) == self.norm}


def norm_layers(names: Iterable[str]) -> frozenset[str]:
    """The layers, by name, that keep a running mean."""
    return frozenset(name.rpartition(".")[0] for name in names if name.rpartition(".")[2] == "running_mean")


def parted(encoder: Tensors) -> tuple[dict[str, Any], dict[str, Any]]:
    """The encoder's tensors outside, and inside, its BatchNorm layers."""
    layers = norm_layers(encoder)
    inside = {name: tensor for name, tensor in encoder.items() if name.rpartition(".")[0] in layers}
    return {name: tensor for name, tensor in encoder.items() if name not in inside}, inside


WIRE = Wire(
    down=(PartOfEncoder("encoder", "encoder tensors without BatchNorm", "the shared encoder without its BatchNorm layers"),
          Slot("head", "classes x dim, classes", "the shared head", like="head"),
          PartOfEncoder("initial-norm", "BatchNorm tensors", "the common first BatchNorm, until a client's first update is accepted",
                        optional=True, norm=True)),
    up=(PartOfEncoder("encoder", "encoder tensors without BatchNorm", "the locally trained encoder without its BatchNorm layers"),
        Slot("head", "classes x dim, classes", "the locally trained head", like="head")),
    local=("BatchNorm weights and statistics", "data", "optimiser state"),
)


@dataclass(frozen=True)
class Config:
    """FedBN has no settings of its own."""

    @property
    def wire(self) -> Wire:
        return WIRE


@dataclass(frozen=True)
class State:
    """The shared ``encoder`` (without BatchNorm) and ``head``; the BatchNorm layers every client starts from."""

    encoder: Tensors
    head: Tensors
    initial_norm: Tensors


@dataclass(frozen=True)
class FedBnRule:
    """Average all but BatchNorm, weighted as the run says."""

    config: Config
    run: RunConfig
    shelf: Shelf | None = None

    def init(self, start: Slots) -> State:
        encoder, norm = parted(start["encoder"])
        if not norm:
            log.warning("%s; choose a model with BatchNorm", NOTHING)
        return State(encoder=encoder, head=start["head"], initial_norm=norm)

    def downlink(self, state: State, client: str, rnd: Round) -> Slots:
        shared = {"encoder": state.encoder, "head": state.head}
        return shared if rnd.acked or not state.initial_norm else {**shared, "initial-norm": state.initial_norm}

    def merge(self, state: State, updates: Iterable[Update], rnd: Round) -> State:
        encoder, head = make_mean(self.run.bn), make_mean(self.run.bn)
        for update in updates:
            encoder.add(update.slots["encoder"], update.weight)
            head.add(update.slots["head"], update.weight)
        return State(encoder=encoder.result(), head=head.result(), initial_norm=state.initial_norm)

    def diagnostics(self, state: State) -> Mapping[str, Any]:
        return {} if state.initial_norm else {"note": NOTHING}
