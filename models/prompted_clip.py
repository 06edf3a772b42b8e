"""FedIA (arXiv:2611.05994) in feature space: global prompt, patch evidence, local text features that depend on the image, fusion.

For every image and class, with g the CLS feature and v the class's patch evidence (``models/patch_evidence.py``):

- T_G, T_L: text features under the global prompt G (shared) and the local prompt L (this client's);
- t_L = normalise(T_L + meta-net(v)): the local text feature, conditioned on what the image shows of the class;
- w = gate([g T_G, g t_L, v T_G, v t_L, entropy of the pooling weights, highest patch similarity]) (``models/fusion_gate.py``);
- t = normalise(w t_L + (1 - w) T_G), logits = scale x g t;
- loss = cross-entropy + lambda_global x that of T_G alone + lambda_local x that of t_L alone.

Evidence is taken with the global prompt *as broadcast*, so it is computed once a round and the text tower runs 2 C texts a step.

The abstract gives the idea. Ours (METHODS 3.2, 3.7): everything in feature space; the meta-net's last layer and the gate's start at zero,
so that step 0 is the fixed 50/50 mix; L starts from G plus small noise, because with L = G and a zero meta-net the gate's first
gradient is exactly zero; lambda_global 1, without which the global branch withers.

Reductions: ``gate = "fixed:W"`` with ``meta = "none"`` is a fixed global-local mix (PromptFolio-like); ``fixed:1`` a local prompt beside
it, ``fixed:0`` PromptFL. ``evidence = None`` with ``meta = "cls"`` feeds the meta-net with g and reads no patch: one residual for all
classes, which still tells them apart through the normalisation.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, normalize

from models.fusion_gate import FusionGate
from models.patch_evidence import Evidence, EvidenceConfig, evidence_of, patch_evidence
from models.prompt_classifier import GLOBAL, LOCAL, PromptClassifier, PromptStart
from models.split import ModelError
from models.towers import ImageFeatures, TextTower

METAS = ("evidence", "cls", "none")
ANCHORS = ("frozen", "trainable")


@dataclass(frozen=True)
class ClipConfig:
    """FedIA's settings; every value is our own choice, the paper's are not known to us.

    Attributes
    ----------
    start : where the global prompt starts.
    evidence : how patch evidence is made; None: no patch is read, by meta-net or gate.
    meta : what the meta-net reads: ``evidence``, ``cls``, or ``none`` for no meta-net.
    meta_width : its hidden width, 32 by CoCoOp's D / 16.
    gate : ``pair`` (image and class), ``image``, or ``fixed:W`` with W in 0..1 for no gate.
    anchors : ``frozen`` for a round, or ``trainable``: from the present global prompt at every step, with gradient.
    lambda_global, lambda_local : weights of the branches' own losses.
    local_noise : deviation of the noise on the local prompt's start, relative to the size of the global prompt's numbers.
    """

    start: PromptStart = field(default_factory=PromptStart)
    evidence: EvidenceConfig | None = field(default_factory=EvidenceConfig)
    meta: str = "evidence"
    meta_width: int = 32
    gate: str = "pair"
    anchors: str = "frozen"
    lambda_global: float = 1.0
    lambda_local: float = 0.0
    local_noise: float = 0.01

    def __post_init__(self) -> None:
        for key, allowed in (("meta", METAS), ("anchors", ANCHORS)):
            if getattr(self, key) not in allowed:
                raise ModelError(f"{key} must be one of {', '.join(allowed)}; got {getattr(self, key)!r}")
        if self.gate not in ("pair", "image") and not 0 <= (self.fixed if self.fixed is not None else -1) <= 1:
            raise ModelError(f"gate must be pair, image or fixed:W with W from 0 to 1, such as fixed:0.5; got {self.gate!r}")
        if self.meta == "evidence" and self.evidence is None:
            raise ModelError('meta = "evidence" needs patch evidence; give its settings, or take meta = "cls" or "none"')
        if self.meta_width < 1 or not all(0 <= x < math.inf for x in (self.lambda_global, self.lambda_local, self.local_noise)):
            raise ModelError("meta_width must be 1 or more, and lambda_global, lambda_local and local_noise 0 or more; got "
                             f"{self.meta_width}, {self.lambda_global}, {self.lambda_local} and {self.local_noise}")

    @property
    def fixed(self) -> float | None:
        """W of ``fixed:W``, or None."""
        kind, _, number = self.gate.partition(":")
        try:
            return float(number) if kind == "fixed" else None
        except ValueError:
            return None


@dataclass(frozen=True)
class Fused:
    """One forward pass; float32.

    Attributes
    ----------
    logits, global_logits, local_logits : (B, C), of the fused, the global and the local text features.
    weights : (B, C), w, the weight of the local feature.
    """

    logits: Tensor
    global_logits: Tensor
    local_logits: Tensor
    weights: Tensor


class MetaNet(nn.Module):
    """Features (..., D) to residuals (..., D): one hidden layer with ReLU, zero at the start."""

    def __init__(self, dim: int, width: int) -> None:
        super().__init__()
        self.hidden, self.out = nn.Linear(dim, width), nn.Linear(width, dim)
        nn.init.zeros_(self.out.weight)
        nn.init.zeros_(self.out.bias)

    def forward(self, features: Tensor) -> Tensor:
        """Residuals (..., D)."""
        return self.out(self.hidden(features).relu())


class PromptedClip(PromptClassifier):
    """FedIA's model. ``global-prompt`` is what travels; ``local`` (local prompt, meta-net, gate) stays at home.

    ``forward`` reads ``images.evidence``; with trainable anchors ``images.patches`` instead.
    """

    held = {GLOBAL: ("global_prompt",), LOCAL: ("local_prompt", "meta", "gate")}

    def __init__(self, tower: TextTower, names: Sequence[str], config: ClipConfig, seed: int = 0) -> None:
        """``seed`` decides all first weights; torch's global random state stays as it was. Raises as ``PromptClassifier``."""
        super().__init__(tower, names, config.start, seed)
        self.config = config
        source = "patches" if config.anchors == "trainable" else "evidence"
        self.needs = frozenset({"cls", source} if config.evidence else {"cls"})
        self.local_prompt = nn.Parameter(torch.zeros_like(self.global_prompt))
        with torch.random.fork_rng(devices=[]):
            torch.default_generator.manual_seed(seed)
            self.meta = None if config.meta == "none" else MetaNet(tower.dim, config.meta_width)
            self.gate = None if config.fixed is not None else FusionGate(6 if config.evidence else 2, per_image=config.gate == "image")
        self.start_local(seed)

    @torch.no_grad()
    def start_local(self, seed: int) -> None:
        """Start the local prompt from the present global one plus noise that follows ``seed``: what a client does that has none yet."""
        size = (self.words + self.global_prompt).square().mean().sqrt().cpu()
        noise = torch.randn(self.global_prompt.shape, generator=torch.Generator().manual_seed(seed)) * size * self.config.local_noise
        self.local_prompt.copy_(self.global_prompt + noise.to(self.global_prompt.device))

    def prompts(self) -> Tensor:
        """Global and local prompt, (2, n_ctx, W)."""
        return torch.stack([self.global_prompt, self.local_prompt])

    @torch.no_grad()
    def anchors(self) -> Tensor:
        """Text features (C, D) under the present global prompt: to be taken right after the broadcast one is loaded."""
        return self.features(self.global_prompt)

    def evidence(self, patches: Tensor | np.ndarray, cls: Tensor | np.ndarray, anchors: Tensor,
                 dtype: torch.dtype = torch.float32) -> Evidence:
        """Evidence of n images for this round's anchors (C, D), as ``models.patch_evidence.evidence_of``."""
        if self.config.evidence is None:
            raise ModelError("this model reads no patches; give its configuration an EvidenceConfig first")
        return evidence_of(patches, anchors, cls, self.config.evidence, dtype=dtype)

    def forward(self, images: ImageFeatures) -> Tensor:
        """Fused logits (B, C)."""
        return self.fuse(images).logits

    def fuse(self, images: ImageFeatures) -> Fused:
        """Logits of all three text features, and the gate's weights; see ``Fused``."""
        scale, cls = self.text.logit_scale, images.cls.float()
        of_global, of_local = self.text_features()  # (C, D) each
        evidence = self._evidence(images, of_global)
        local = normalize(of_local + self._residual(cls, evidence), dim=2)  # (B or 1, C, D)
        near_global, near_local = cls @ of_global.T, _cosines(cls, local)
        weights = self._weights(near_global, near_local, of_global, local, evidence)
        w = weights[:, :, None]
        fused = normalize(w * local + (1 - w) * of_global, dim=2)
        return Fused(scale * _cosines(cls, fused), scale * near_global, scale * near_local, weights)

    def loss(self, images: ImageFeatures, labels: Tensor) -> Tensor:
        """Cross-entropy of the fused logits and, by their lambdas, of both branches' own; labels (B,)."""
        fused, config = self.fuse(images), self.config
        loss = cross_entropy(fused.logits, labels)
        for weight, logits in ((config.lambda_global, fused.global_logits), (config.lambda_local, fused.local_logits)):
            if weight:
                loss = loss + weight * cross_entropy(logits, labels)
        return loss

    def _evidence(self, images: ImageFeatures, of_global: Tensor) -> Evidence | None:
        if self.config.evidence is None:
            return None
        missing = next((need for need in self.needs if getattr(images, need) is None), None)
        if missing:
            raise ModelError(f"this model reads the images' {missing}, and they have none. Compute them once a round")
        if images.patches is not None and "patches" in self.needs:
            return patch_evidence(images.patches, of_global, images.cls, self.config.evidence)
        return images.evidence

    def _residual(self, cls: Tensor, evidence: Evidence | None) -> Tensor:
        """What the meta-net adds, (B, C or 1, D); zeros (1, 1, 1) without one."""
        if self.meta is None:
            return cls.new_zeros(1, 1, 1)
        return self.meta(evidence.features.float() if evidence is not None and self.config.meta == "evidence" else cls[:, None])

    def _weights(self, near_global: Tensor, near_local: Tensor, of_global: Tensor, local: Tensor, evidence: Evidence | None) -> Tensor:
        if self.gate is None:
            return torch.full_like(near_global, self.config.fixed or 0.0)
        inputs = [near_global, near_local]
        if evidence is not None:
            v = evidence.features.float()
            inputs += [torch.einsum("bcd,cd->bc", v, of_global), (v * local).sum(dim=2), evidence.entropy, evidence.peak]
        return self.gate(torch.stack(inputs, dim=2))


def _cosines(cls: Tensor, text: Tensor) -> Tensor:
    """(B, C) of features (B, D) and text features (B or 1, C, D)."""
    return (text @ cls[:, :, None])[:, :, 0]
