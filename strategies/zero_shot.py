"""Zero-shot: the frozen towers with the starting words before the class names; nothing is trained, nothing travels.

What every prompt method has to beat, above all with what a client knows of its own classes (METHODS 3.7): ``own-classes`` leaves out
those it has no training image of, and the run's ``logit-prior`` adds its smoothed log class prior.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from strategies.config import RunConfig
from strategies.contract import Wire
from strategies.global_prompt import AT_HOME, GlobalPromptRule, Rate, State

__all__ = ["Config", "GlobalPromptRule", "State"]


@dataclass(frozen=True)
class Config:
    """Settings of zero-shot.

    Attributes
    ----------
    own_classes : a client answers with none but the classes of its own training images.
    """

    own_classes: bool = False

    @property
    def wire(self) -> Wire:
        return Wire(down=(), up=(), local=("own classes", *AT_HOME[:-1]))

    def rates(self, run: RunConfig) -> Mapping[str, Rate]:
        """Nothing is trained."""
        return {}
