"""FedRep: the head first, then the encoder (Collins et al. 2021, arXiv 2102.07078, algorithm 1).

In every round a client fits its own head on the standing shared encoder for many epochs, then trains the encoder with that head
standing; the server averages encoders. The server's half and the contract are FedPer's: no head leaves its client.

Our own choices: the head phase sees features of the standing encoder in eval mode with BatchNorm statistics of the client's own
images, whatever the ``bn`` rule (the nearest to training mode that leaves the encoder standing), and the encoder phase goes on
from the encoder as it came. The momentum of SGD starts anew in each phase. A held-out client fits a head on the frozen shared
encoder, which is the paper's rule for a new client, and sends no tensor.
"""

from __future__ import annotations

from dataclasses import dataclass

from strategies.config import require
from strategies.contract import Wire
from strategies.fedper import WIRE, FedPerRule, State

__all__ = ["Config", "FedPerRule", "State"]


@dataclass(frozen=True)
class Config:
    """Settings of FedRep.

    Attributes
    ----------
    head_epochs : of the head phase; the paper's point is many to one of the encoder. 10 is usual (its authors' code); PFLlib has 1.
    body_epochs : of the encoder phase; 0 is the run's ``epochs``, so that an encoder gets as much training as under every other
        method (our choice; PFLlib's and FL-bench's defaults come to 1).
    """

    head_epochs: int = 10
    body_epochs: int = 0

    def __post_init__(self) -> None:
        # a head that is never trained is the fault of a public library, not a setting
        require(self.head_epochs >= 1, "fedrep.head-epochs", "1 or more", self.head_epochs)
        require(self.body_epochs >= 0, "fedrep.body-epochs", "0 (the run's epochs) or more", self.body_epochs)

    @property
    def wire(self) -> Wire:
        return WIRE
