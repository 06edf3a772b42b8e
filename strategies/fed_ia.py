"""FedIA: image-aware personal prompts: patch evidence, a local text feature that depends on the image, adaptive fusion (arXiv:2611.05994).

The global prompt is averaged (FedAvg), and nothing else travels: 2,048 numbers at 4 tokens of width 512. As broadcast, it makes the anchors
that choose patches on every client alike. Local prompt, meta-net and fusion gate belong to one client and never leave it; so do image
features, which are computed once. ``models/prompted_clip.py`` has the formulas.

The paper is known to us from its abstract only. Every default is our own choice (METHODS 3.2, 3.3; 3.7 from a pilot on real features).
Degenerate cases: ``gate = fixed:W`` with ``meta = none`` is a fixed mix; ``patches = false`` with ``meta = cls`` feeds the meta-net with
the CLS feature alone and reads no patch.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from strategies.config import ConfigError, RunConfig, choice, require
from strategies.contract import Wire
from strategies.global_prompt import GlobalPromptRule, Rate, State, prompt_rate, require_number, shared_prompt_wire
from strategies.scalars import COMMON_METRICS

__all__ = ["Config", "GlobalPromptRule", "State"]

# of a client's test images: mean weight of the local branch; how much it differs by image (standard deviation, mean over classes);
# share of kept patches that two classes have in common
FIGURES = ("gate-weight", "gate-spread", "patch-overlap")


@dataclass(frozen=True)
class Config:
    """Settings of FedIA; all are this project's choice.

    Attributes
    ----------
    patches : whether patches are read at all.
    keep, tau, select, pool, add_cls : how patch evidence is made, see ``models.patch_evidence.EvidenceConfig``.
    meta, meta_width : what the meta-net reads (``evidence``, ``cls``, or ``none`` for no meta-net), and its hidden width.
    gate : ``pair`` (image and class), ``image``, or ``fixed:W`` with W from 0 to 1.
    anchors : ``frozen`` for a round, or ``trainable``.
    lambda_global, lambda_local : weights of the branches' own losses; with lambda_global 0 the global branch withers.
    local_noise : deviation of the noise with which a local prompt starts from the global one, relative to its size.
    prompt_lr, local_lr : learning rates of the global and the local prompt (SGD); 0: what goes with the text tower (.2 for
        minilm-bridge, .002 for open_clip's).
    meta_lr, gate_lr : of meta-net and gate (Adam, fresh every round).
    net_decay : weight decay of meta-net and gate.
    validation : share of the training images that are not trained on but decide, after every round, whether what was learnt locally is
        kept: local prompt, meta-net and gate go back to what they were unless the loss on these images fell; 0 for none.
    pictures : so many test images are drawn with the patches kept for their likeliest classes, beside the gate's weights by class, in
        the client's own folder at the end of the run; never sent.
    """

    patches: bool = True
    keep: float = 0.15
    tau: float = 0.015
    select: str = "plain"
    pool: str = "plain"
    add_cls: bool = False
    meta: str = "evidence"
    meta_width: int = 32
    gate: str = "pair"
    anchors: str = "frozen"
    lambda_global: float = 1.0
    lambda_local: float = 0.0
    local_noise: float = 0.01
    prompt_lr: float = 0.0
    local_lr: float = 0.0
    meta_lr: float = 0.001
    gate_lr: float = 0.003
    net_decay: float = 0.0
    validation: float = 0.0
    pictures: int = 0

    def __post_init__(self) -> None:
        require(0 < self.keep <= 1, "fed-ia.keep", "above 0 and at most 1", self.keep)
        choice("fed-ia.select", ("plain", "class-centred", "none"), self.select)
        choice("fed-ia.pool", ("plain", "class-centred"), self.pool)
        choice("fed-ia.meta", ("evidence", "cls", "none"), self.meta)
        choice("fed-ia.anchors", ("frozen", "trainable"), self.anchors)
        if not _is_gate(self.gate):
            raise ConfigError(f"fed-ia.gate must be pair, image or fixed:W with W from 0 to 1, such as fixed:0.5; got {self.gate!r}")
        if self.meta == "evidence" and not self.patches:
            raise ConfigError('fed-ia.meta = "evidence" reads patches; set fed-ia.patches = true, or take meta = "cls" or "none"')
        require(self.meta_width >= 1, "fed-ia.meta-width", "1 or more", self.meta_width)
        require(self.pictures >= 0, "fed-ia.pictures", "0 or more", self.pictures)
        require(0 <= self.validation < 1, "fed-ia.validation", "at least 0 and below 1", self.validation)
        require_number("fed-ia", self, "lambda_global", "lambda_local", "local_noise", "prompt_lr", "local_lr", "net_decay")
        require_number("fed-ia", self, "tau", "meta_lr", "gate_lr", above=0)

    @property
    def wire(self) -> Wire:
        return replace(shared_prompt_wire("local prompt", "meta-net", "fusion gate"), metrics=COMMON_METRICS | set(FIGURES))

    def rates(self, run: RunConfig) -> Mapping[str, Rate]:
        """How each kind of weights is trained."""
        return {"global_prompt": prompt_rate(self.prompt_lr, run), "local_prompt": prompt_rate(self.local_lr, run),
                "meta": Rate(self.meta_lr, True, self.net_decay), "gate": Rate(self.gate_lr, True, self.net_decay)}


def _is_gate(gate: str) -> bool:
    kind, _, number = gate.partition(":")
    try:
        return gate in ("pair", "image") or (kind == "fixed" and 0 <= float(number) <= 1)
    except ValueError:
        return False
