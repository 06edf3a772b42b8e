"""FedProto: clients share class prototypes and no weights (Tan et al. 2022, arXiv 2105.00243, algorithm 1, equations 3 to 6).

Every client keeps a whole model of its own and adds to its loss ``pull`` times the mean squared distance of a sample's features
from the global prototype of its class. After training it sends the mean features of each of its classes; the server averages them
a class. A client predicts the class of the nearest global prototype, which is what it serves with: as a linear head
``weight = c, bias = -|c|^2 / 2`` that is the same decision, and the personal model is exported so. Until a prototype exists it
serves with its own head.

With ``weighting = count`` a client's class counts leave it, as equation 6 asks (read as the weighted mean); with ``uniform``, and
in a run with ``weighting = uniform``, only which classes it holds does. Our own choices: class means are of features with
BatchNorm statistics re-estimated on the client's images; a class nobody sent keeps its prototype; a class without one cannot be
predicted. A held-out client trains alone for as many rounds as all others, pulled by the final prototypes, and sends nothing.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from strategies.config import RunConfig, choice, require
from strategies.contract import Slot, Wire
from strategies.local_only import WIRE as LOCAL_ONLY
from strategies.types import Round, Shelf, Slots, Tensors, Update

ROWS = ("prototypes", (1, "C", "D"), "float32")


@dataclass(frozen=True)
class Config:
    """Settings of FedProto.

    Attributes
    ----------
    pull : lambda of the paper, 0 or more.
    weighting : of clients in a prototype: by ``count`` (equation 6), or ``uniform`` (as the public implementations).
    answers : among which classes a client looks for the nearest: all ``known`` ones (as PFLlib), or its ``own``, of which it has
        training samples (as the authors' evaluation).
    """

    pull: float = 1.0
    weighting: str = "count"
    answers: str = "known"

    def __post_init__(self) -> None:
        require(self.pull >= 0 and math.isfinite(self.pull), "fedproto.pull", "a finite number of 0 or more", self.pull)
        choice("fedproto.weighting", ("count", "uniform"), self.weighting)
        choice("fedproto.answers", ("known", "own"), self.answers)

    @property
    def wire(self) -> Wire:
        told = "and how many samples it has of each" if self.weighting == "count" else "and which classes it has"
        down = Slot("prototypes", "1 x classes x dim, 1 x classes", "the global class prototypes, and which there are",
                    layout=(ROWS, ("known", (1, "C"), "float32")))
        up = Slot("prototypes", "1 x classes x dim, 1 x classes", f"mean features of its classes, {told}",
                  layout=(ROWS, ("counts", (1, "C"), "float32")))
        return Wire(down=(*LOCAL_ONLY.down, down), up=(up,), local=LOCAL_ONLY.local)


@dataclass(frozen=True)
class State:
    """The common start, which never changes, and the prototypes: ``prototypes`` (1, C, D) and ``known`` (1, C) of 0 or 1."""

    initial_encoder: Tensors
    initial_head: Tensors
    prototypes: Tensors


@dataclass(frozen=True)
class FedProtoRule:
    """Average class means, a class over the clients that have it."""

    config: Config
    run: RunConfig
    shelf: Shelf | None = None

    def init(self, start: Slots) -> State:
        shape = start["head"]["weight"].shape
        empty = {"prototypes": np.zeros((1, *shape), np.float32), "known": np.zeros((1, shape[0]), np.float32)}
        return State(start["encoder"], start["head"], empty)

    def downlink(self, state: State, client: str, rnd: Round) -> Slots:
        first = {} if rnd.acked else {"initial-encoder": state.initial_encoder, "initial-head": state.initial_head}
        return {**first, "prototypes": state.prototypes}

    def merge(self, state: State, updates: Iterable[Update], rnd: Round) -> State:
        old = state.prototypes
        sums, weights = np.zeros(old["prototypes"].shape), np.zeros(old["known"].shape)
        for update in updates:
            sent = update.slots["prototypes"]
            counts = np.maximum(sent["counts"].astype(np.float64), 0.0)
            sums += counts[..., None] * sent["prototypes"]
            weights += counts
        seen = weights > 0
        rows = np.array(old["prototypes"])
        rows[seen] = (sums[seen] / weights[seen][:, None]).astype(np.float32)
        return replace(state, prototypes={"prototypes": rows, "known": np.maximum(old["known"], seen).astype(np.float32)})

    def diagnostics(self, state: State) -> Mapping[str, Any]:
        return {"classes_known": int(state.prototypes["known"].sum())}
