"""FedAvg with fine-tuning: FedAvg (McMahan et al. 2017, arXiv 1602.05629), and every client fine-tunes its copy at the end.

The simplest personalisation there is; Yu et al. 2020 (arXiv 2002.04758) and many since measure how far it goes. Training, wire
contract and server are FedAvg's.

*Served*, in the closing evaluation, is after the fine-tuning: it is the method's own definition of what a client gets. Between
rounds *served* is the shared model as it is. A held-out client fine-tunes in the closing evaluation like all others.
"""

from __future__ import annotations

from dataclasses import dataclass

from strategies import fedavg
from strategies.config import choice, require
from strategies.contract import Wire
from strategies.fedavg import FedAvgRule, State
from strategies.fedbabu import FINE_TUNED

__all__ = ["Config", "FedAvgRule", "State"]

WIRE = Wire(down=fedavg.WIRE.down, up=fedavg.WIRE.up, local=("fine-tuned model", "data", "optimiser state"))


@dataclass(frozen=True)
class Config:
    """Settings of FedAvg with fine-tuning.

    Attributes
    ----------
    part : what is fine-tuned: the ``full`` model, or the ``head`` on the standing encoder.
    tune_epochs : of the fine-tuning; FedBABU's default here, so that both get the same (our choice). 0 is FedAvg.
    """

    part: str = "full"
    tune_epochs: int = 10

    def __post_init__(self) -> None:
        choice("fedavg-ft.part", FINE_TUNED, self.part)
        require(self.tune_epochs >= 0, "fedavg-ft.tune-epochs", "0 (FedAvg) or more", self.tune_epochs)

    @property
    def wire(self) -> Wire:
        return WIRE
