"""Local logistic regression on the CLS features of a frozen image tower: no prompt, no text, no federation.

The strongest simple rival where a client's images are alike (METHODS 3.7: .965 on PACS by domain, and .77 where classes are skewed).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from strategies.config import RunConfig
from strategies.contract import Wire
from strategies.global_prompt import AT_HOME, GlobalPromptRule, Rate, State, require_number

__all__ = ["Config", "GlobalPromptRule", "State"]


@dataclass(frozen=True)
class Config:
    """Settings of local logistic regression.

    Attributes
    ----------
    penalty : scikit-learn's inverse C, on features scaled to length sqrt(D).
    """

    penalty: float = 1.0

    def __post_init__(self) -> None:
        require_number("local-logistic", self, "penalty", above=0)

    @property
    def wire(self) -> Wire:
        return Wire(down=(), up=(), local=("classifier", *AT_HOME))

    def rates(self, run: RunConfig) -> Mapping[str, Rate]:
        """Nothing is trained by steps."""
        return {}
