"""pFedMoAP: each client keeps a prompt of its own and mixes it with other clients' prompts (Luo et al. 2024, arXiv:2410.10114).

**Prompts reach other clients.** The server keeps the last accepted prompt of every client and sends each its own again, with the nearest
ones of others as experts; the gate that mixes them by image never leaves. Published: 10 experts by nearness of prompts, own weight .5,
gate width 128, 8 heads, scaling 10, gate rate .01 (METHODS 3.6).

Our own choices: a client that has sent nothing, so also a newcomer, starts from the mean prompt; nearness is Euclidean, ties go by name;
where fewer experts are known the rest of the slot is zeros, which a client leaves out.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from strategies.config import RunConfig, require
from strategies.contract import Slot, Wire
from strategies.global_prompt import AT_HOME, GLOBAL, Rate, prompt_rate, require_number
from strategies.types import Round, Shelf, Slots, Tensors, Update

EXPERTS, PROMPT = "experts", "global_prompt"
WIRE = Wire(down=(Slot(GLOBAL, "tokens x word width", "this client's own prompt as it last sent it, at first the mean of all", like=GLOBAL),
                  Slot(EXPERTS, "experts x tokens x word width", "**other clients' prompts**, the nearest ones", like=EXPERTS)),
            up=(Slot(GLOBAL, "tokens x word width", "its own prompt, locally trained; **other clients get it**", like=GLOBAL),),
            local=("gate", *AT_HOME))


@dataclass(frozen=True)
class Config:
    """Settings of pFedMoAP.

    Attributes
    ----------
    experts : other clients' prompts that a client gets.
    own_weight : weight of its own prompt's logits beside the mixed ones.
    gate_width, heads, scaling : of the attention, see ``models.prompt_rivals.ExpertPrompts``; width 0 is a quarter of the features' (128
        of CLIP ViT-B/16's 512, as published).
    prompt_lr : learning rate of its own prompt; 0: what goes with the text tower (.2 for minilm-bridge, .002 for open_clip's).
    gate_lr : of the gate.
    """

    experts: int = 10
    own_weight: float = 0.5
    gate_width: int = 0
    heads: int = 8
    scaling: float = 10.0
    prompt_lr: float = 0.0
    gate_lr: float = 0.01

    def __post_init__(self) -> None:
        require(self.experts >= 1, "pfedmoap.experts", "1 or more", self.experts)
        require(self.gate_width >= 0, "pfedmoap.gate-width", "0 (a quarter of the features' width) or more", self.gate_width)
        require(self.heads >= 1, "pfedmoap.heads", "1 or more", self.heads)
        require_number("pfedmoap", self, "own_weight", "prompt_lr")
        require_number("pfedmoap", self, "scaling", "gate_lr", above=0)

    @property
    def wire(self) -> Wire:
        return WIRE

    def rates(self, run: RunConfig) -> Mapping[str, Rate]:
        """How each kind of weights is trained."""
        return {PROMPT: prompt_rate(self.prompt_lr, run), **dict.fromkeys(("query", "key", "value", "out"), Rate(self.gate_lr))}


@dataclass(frozen=True)
class State:
    """The first prompt, {name: (tokens, W)}, and every client's last accepted one, (tokens, W) by client."""

    prompts: Tensors
    of_client: Mapping[str, np.ndarray] = field(default_factory=dict)


@dataclass(frozen=True)
class PfedMoapRule:
    """Keep every client's prompt, hand out the nearest ones of others."""

    config: Config
    run: RunConfig
    shelf: Shelf | None = None

    def init(self, start: Slots) -> State:
        return State(start[GLOBAL])

    def downlink(self, state: State, client: str, rnd: Round) -> Slots:
        own = state.of_client.get(client)
        if own is None:
            own = mean_prompt(state)
        experts = np.zeros((self.config.experts, *own.shape), np.float32)
        for place, name in enumerate(nearest_clients(state.of_client, client, own)[: self.config.experts]):
            experts[place] = state.of_client[name]
        return {GLOBAL: {PROMPT: own}, EXPERTS: {EXPERTS: experts}}

    def merge(self, state: State, updates: Iterable[Update], rnd: Round) -> State:
        known = dict(state.of_client)
        for update in updates:
            known[update.client] = np.array(update.slots[GLOBAL][PROMPT])
        return State(state.prompts, dict(sorted(known.items())))

    def diagnostics(self, state: State) -> Mapping[str, Any]:
        return {}


def mean_prompt(state: State) -> np.ndarray:
    """The mean (tokens, W) of the clients' prompts, the first prompt where there is none."""
    known = list(state.of_client.values())
    return np.stack(known).mean(axis=0, dtype=np.float64).astype(np.float32) if known else np.asarray(state.prompts[PROMPT])


def nearest_clients(of_client: Mapping[str, np.ndarray], client: str, own: np.ndarray) -> list[str]:
    """The other clients, those whose prompts are nearest to ``own`` (tokens, W) first."""
    others = [name for name in sorted(of_client) if name != client]
    return sorted(others, key=lambda name: float(np.linalg.norm(of_client[name].astype(np.float64) - own)))
