"""Ditto: a personal model beside the global one, held near it (Li et al. 2021, arXiv 2012.04221, algorithm 1).

The global model w is FedAvg's, trained and averaged as if the personal ones did not exist. Each client also has a model v of its
own, which minimises ``F_k(v) + (pull / 2) ||v - w||^2`` around the w that came, starts as that w, stays at home and is what it
serves with. So twice the local training. The pull acts on weights; v has its own BatchNorm statistics.

Reductions: ``pull = 0`` with ``epochs = 0`` gives the personal models of local-only, bit for bit; the global model is FedAvg's
whatever the settings. A held-out client makes its own v from the final w in ``join-epochs`` epochs (our choice).
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from strategies import fedavg
from strategies.config import require
from strategies.contract import Wire
from strategies.fedavg import FedAvgRule, State

__all__ = ["Config", "FedAvgRule", "State"]

WIRE = Wire(down=fedavg.WIRE.down, up=fedavg.WIRE.up, local=("personal model", "data", "optimiser state"))


@dataclass(frozen=True)
class Config:
    """Settings of Ditto.

    Attributes
    ----------
    pull : lambda of the paper, 0 or more; 1 as in FL-bench. (PFLlib's default is 0, which is local-only.)
    epochs : of the personal model a round; 0 is the run's ``epochs``. FL-bench has 1.
    """

    pull: float = 1.0
    epochs: int = 0

    def __post_init__(self) -> None:
        require(self.pull >= 0 and math.isfinite(self.pull), "ditto.pull", "a finite number of 0 or more", self.pull)
        require(self.epochs >= 0, "ditto.epochs", "0 (the run's epochs) or more", self.epochs)

    @property
    def wire(self) -> Wire:
        return WIRE
