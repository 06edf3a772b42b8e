"""FedAvg of a text prompt before the class names of a frozen CLIP-like model: the server's half of every method that shares one.

PromptFL's rule (arXiv:2208.11625). The prompt travels as its difference from the embeddings of the starting words, so the server needs
no text tower and no class name. Image features, class prior and whatever a method trains for one client alone stay there. A newcomer
is served the global prompt.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

from strategies.config import RunConfig, require
from strategies.contract import Slot, Wire
from strategies.prompt_average import averages
from strategies.types import Round, Shelf, Slots, Tensors, Update

GLOBAL = "global-prompt"
DOWN = Slot(GLOBAL, "tokens x word width", "the shared prompt, as its difference from the starting words", like=GLOBAL)
UP = Slot(GLOBAL, "tokens x word width", "the same, locally trained", like=GLOBAL)
# what stays at home under every method on cached features of a CLIP-like model
AT_HOME = ("image features", "class prior", "data", "optimiser state")
# text tower -> the learning rate of prompts where a run names none: MiniLM's from the pilot (METHODS 3.7), since its word embeddings are
# large and .002 does not move them; for open_clip's, CoOp's (arXiv:2109.01134)
PROMPT_RATES = {"minilm-bridge": 0.2, "text-tiny-random": 0.2}
OTHER_RATE = 0.002


@dataclass(frozen=True)
class Rate:
    """How one kind of weights is trained.

    Attributes
    ----------
    lr : learning rate.
    adam : AdamW with weight decay ``decay``, fresh every round; else SGD with the run's momentum and weight decay.
    """

    lr: float
    adam: bool = False
    decay: float = 0.0


class PromptConfig(Protocol):
    """Settings whose contract says whether a prompt is shared, and which say how each kind of weights is trained."""

    @property
    def wire(self) -> Wire: ...
    def rates(self, run: RunConfig) -> Mapping[str, Rate]: ...


@dataclass(frozen=True)
class State:
    """The shared prompt, (tokens, W), and what else is averaged with it; empty for a method that shares none."""

    prompts: Tensors = field(default_factory=dict)


@dataclass(frozen=True)
class GlobalPromptRule:
    """Average the prompts that clients send, weighted as the run says; without a shared prompt, nothing."""

    config: PromptConfig
    run: RunConfig
    shelf: Shelf | None = None

    def init(self, start: Slots) -> State:
        return State(start[GLOBAL] if self._shares else {})

    def downlink(self, state: State, client: str, rnd: Round) -> Slots:
        return {GLOBAL: state.prompts} if self._shares else {}

    def merge(self, state: State, updates: Iterable[Update], rnd: Round) -> State:
        found = averages(updates, [GLOBAL] if self._shares else [])
        return State(found[GLOBAL]) if found else state

    def diagnostics(self, state: State) -> Mapping[str, Any]:
        return {}

    @property
    def _shares(self) -> bool:
        return bool(self.config.wire.up)


def prompt_rate(own: float, run: RunConfig) -> Rate:
    """SGD at ``own``, or for 0 at the rate that goes with the run's text tower."""
    return Rate(own or PROMPT_RATES.get(run.text_side, OTHER_RATE))


def shared_prompt_wire(*local: str) -> Wire:
    """The contract of a method that shares one prompt and keeps ``local`` at home."""
    return Wire(down=(DOWN,), up=(UP,), local=(*local, *AT_HOME))


def require_number(method: str, config: object, *fields: str, above: float | None = None) -> None:
    """Raise ``ConfigError`` unless each field is finite and 0 or more, or above ``above``."""
    for name in fields:
        value = getattr(config, name)
        fits = math.isfinite(value) and (value >= 0 if above is None else value > above)
        require(fits, f"{method}.{name.replace('_', '-')}", "a finite number of 0 or more" if above is None else
                f"a finite number above {above:g}", value)
