"""FedBABU: the head stands still while the federation trains, and is fine-tuned at the end (Oh et al. 2022, arXiv 2106.06042, algorithm 1).

All clients keep the common first head, train the encoder alone, and the server averages encoders: FedPer's server half and
contract. In the closing evaluation each client fine-tunes, and what it then has is its personal model.

*Served*, in the closing evaluation, is after this fine-tuning: it is the method's own definition of what a client gets. Between
rounds *served* is the shared encoder with the untrained head, so a curve over rounds shows no fine-tuned model. A held-out client
does what all others do at the end: it fine-tunes the shared encoder and the common head, and keeps the result.
"""

from __future__ import annotations

from dataclasses import dataclass

from strategies.config import choice, require
from strategies.contract import Wire
from strategies.fedper import ENCODER_DOWN, ENCODER_UP, INITIAL_HEAD, FedPerRule, State

__all__ = ["FINE_TUNED", "Config", "FedPerRule", "State"]

FINE_TUNED = ("head", "full")
WIRE = Wire(down=(ENCODER_DOWN, INITIAL_HEAD), up=(ENCODER_UP,), local=("head", "fine-tuned model", "data", "optimiser state"))


@dataclass(frozen=True)
class Config:
    """Settings of FedBABU.

    Attributes
    ----------
    part : what is fine-tuned: the ``head`` on the standing encoder (the paper's description), or the ``full`` model.
    tune_epochs : of the fine-tuning; PFLlib's default.
    """

    part: str = "head"
    tune_epochs: int = 10

    def __post_init__(self) -> None:
        choice("fedbabu.part", FINE_TUNED, self.part)
        require(self.tune_epochs >= 1, "fedbabu.tune-epochs", "1 or more (an untrained head serves nobody)", self.tune_epochs)

    @property
    def wire(self) -> Wire:
        return WIRE
