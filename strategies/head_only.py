"""Head-only: a federated linear probe. A frozen Vision Transformer, no prompt; the head alone is trained and averaged.

FedAvg (arXiv 1602.05629) of one linear layer. Features never change, so a client computes them once and keeps them at home. The
control for "do prompts help at all?".
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from strategies.contract import Wire
from strategies.prompt_average import HEAD_ALONE, PromptAverageRule, State

__all__ = ["Config", "PromptAverageRule", "State"]


@dataclass(frozen=True)
class Config:
    """Settings of head-only.

    Attributes
    ----------
    reuse : features are computed once and kept on the client's disk; false computes them anew, with the same results.
    """

    reuse: bool = True

    @property
    def wire(self) -> Wire:
        return HEAD_ALONE

    @property
    def prompts(self) -> Mapping[str, Any]:
        """Settings of ``models.prompt_config.PromptConfig``."""
        return {"use": "shared", "shared_tokens": 0}
