"""kNN-Per: the shared model's answer mixed with that of a client's nearest neighbours (Marfoq et al. 2022, arXiv 2111.09360).

FedAvg trains the model. To serve, a client keeps the features of its own training images with their labels and predicts
``weight * p_knn + (1 - weight) * softmax``, where p_knn is the vote of the k nearest features with
``exp(-distance^2 / (D * scale))`` (the paper's kernel as its authors' code has it). Probabilities are mixed with probabilities.

Wire contract and server are FedAvg's: features never leave. ``weight = 0`` is FedAvg. A held-out client needs the shared model
and its own images, no training: the paper's own rule. With ``bn = recompute`` features are those of the re-estimated statistics.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from strategies import fedavg
from strategies.config import require
from strategies.contract import Wire
from strategies.fedavg import FedAvgRule, State

__all__ = ["Config", "FedAvgRule", "State"]

WIRE = Wire(down=fedavg.WIRE.down, up=fedavg.WIRE.up, local=("features", "labels", "data", "optimiser state"))


@dataclass(frozen=True)
class Config:
    """Settings of kNN-Per; all defaults are FL-bench's. The paper's scripts try k in 1..10 and weights in steps of .01.

    Attributes
    ----------
    neighbours : k, at most as many as there are features.
    weight : share of the neighbours in the answer, 0 to 1 (lambda of the paper).
    scale : width of the kernel.
    capacity : features kept; of more images, so many are drawn by the run's seed. 0 keeps all.
    """

    neighbours: int = 5
    weight: float = 0.5
    scale: float = 1.0
    capacity: int = 500

    def __post_init__(self) -> None:
        require(self.neighbours >= 1, "knn-per.neighbours", "1 or more", self.neighbours)
        require(0 <= self.weight <= 1, "knn-per.weight", "0 to 1", self.weight)
        require(self.scale > 0 and math.isfinite(self.scale), "knn-per.scale", "a finite number above 0", self.scale)
        require(self.capacity >= 0, "knn-per.capacity", "0 (all images) or more", self.capacity)

    @property
    def wire(self) -> Wire:
        return WIRE
