"""A frozen Vision Transformer steered by prompts: PEP-FedPT (arXiv:2510.25372), and VPT (arXiv:2203.12119) shallow and deep.

Two kinds of prompt tokens, both trained and shared by all clients:

- *shared prompts* P_S, the same for every sample, at the layers ``shared_layers``. A layer's shared prompt takes the place of the
  one before it, so ``(1,)`` is VPT-shallow (FedVPT) and ``(1, ..., L)`` is VPT-deep (FedVPT-D);
- *class prompts* P_C (C, D), of which a sample gets its own mixture m = s @ P_C at each of ``class_layers``
  (``models/class_mixture.py`` makes s). ``replace`` drops the mixture's output after its layer, ``append`` lets it stay.

Layers count from 1. Tokens before a block: [CLS, mixtures, P_S, the rest]; attention does not look at their order. The head reads
the normalised CLS token. Gradient reaches prompts and head alone: the backbone is frozen and always in eval mode, prototypes are
constants, and the score's CLS token is cut off unless ``stop_cls`` is false.

The paper leaves open, and we chose (METHODS 4.2, 4.7): prompts enter behind the backbone's first norm (``norm_pre`` of CLIP); both
kinds start as VPT's do, uniform within sqrt(6 / (values of a patch + D)); the head starts at zero; ``replace``; centred cosines.

Degenerate cases: no prompts is the plain backbone; a flat prior with equal prototypes mixes uniformly; one class at one layer with
``append`` is a shared prompt inserted there.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from models.class_mixture import mixture_weights
from models.prompt_config import PromptConfig
from models.split import ModelError, _as_numpy, _check_tensors

if TYPE_CHECKING:
    from timm.models.vision_transformer import VisionTransformer

PARTS = ("prompts", "head", "prototypes")


@dataclass(frozen=True)
class Trace:
    """One forward pass with what happened inside.

    Attributes
    ----------
    logits : (B, C), with gradient.
    cls : CLS tokens entering the P layers of ``class_at``, (P, B, D), float32, no gradient; a prototype is their mean.
    mixtures : s at those layers, (P, B, C), no gradient.
    """

    logits: Tensor
    cls: Tensor
    mixtures: Tensor


class PromptedViT(nn.Module):
    """``head(CLS of the backbone with prompts)``, around any timm ``VisionTransformer`` that has and uses a class token.

    Attributes
    ----------
    bound : prompts start uniform within it.
    vit : the backbone, frozen here; it may be shared between models. bfloat16 weights run under autocast, whoever calls.
    shared, classes : the prompts P_S (layers, n_S, D) and P_C (C, D), or None where the configuration uses none.
    head : ``nn.Linear``, (B, D) to logits (B, C), started at zero.
    prototypes : (P, C, D), a row of zeros for a class that has none; never trained.
    log_prior : (C,), of this client; in no part and no state dict, so it cannot travel. Added to the logits it gives the
        prior-only control (``logit-prior``).
    """

    parts = PARTS
    head: nn.Linear
    shared: nn.Parameter | None
    classes: nn.Parameter | None
    prototypes: Tensor
    log_prior: Tensor

    def __init__(self, backbone: VisionTransformer, num_classes: int, config: PromptConfig, seed: int = 0) -> None:
        """The prompts' first values follow ``seed``; torch's global random state is not touched.

        Raises ``ModelError`` for fewer than 1 class, a backbone without CLS features, or a layer it does not have.
        """
        super().__init__()
        _check(backbone, num_classes, config)
        dim = backbone.embed_dim
        self.vit, self.config = backbone.requires_grad_(False).eval(), config
        bound = self.bound = math.sqrt(6 / (backbone.patch_embed.proj.weight[0].numel() + dim))
        generator = torch.Generator().manual_seed(seed)

        def prompt(*shape: int) -> nn.Parameter | None:
            return nn.Parameter(torch.empty(*shape, dim).uniform_(-bound, bound, generator=generator)) if shape[0] else None

        self.shared = prompt(len(config.shared_at), config.shared_tokens)
        self.classes = prompt(num_classes if config.class_at else 0)
        self.head = nn.Linear(dim, num_classes, device="meta").to_empty(device="cpu")  # no random number is drawn
        nn.init.zeros_(self.head.weight)
        nn.init.zeros_(self.head.bias)
        self.register_buffer("prototypes", torch.zeros(len(config.class_at), num_classes, dim))
        self.register_buffer("log_prior", torch.full((num_classes,), -math.log(num_classes)), persistent=False)

    def forward(self, images: Tensor) -> Tensor:
        """Logits (B, C), float32, of images (B, 3, S, S) as ``models.backbones.prepare`` makes them."""
        return self.trace(images).logits

    def trace(self, images: Tensor) -> Trace:
        """The forward pass of images (B, 3, S, S) with CLS tokens and mixture weights; see ``Trace``."""
        features, cls, mixtures = self._walk(images, mixed=True)
        with exact(features):
            logits = self.head(features)
        return Trace(logits, _stack(cls, features), _stack(mixtures, logits))

    def features(self, images: Tensor) -> Tensor:
        """What the head reads, (B, D), float32, of images (B, 3, S, S)."""
        return self._walk(images, mixed=True)[0]

    @torch.no_grad()
    def class_tokens(self, images: Tensor, mixed: bool = True) -> Tensor:
        """CLS tokens entering the layers of ``class_at``, (P, B, D), float32; the layers behind the last are not computed.

        Without ``mixed`` no class prompt enters: what the first prototypes are made of, when no mixture exists yet.
        """
        features, cls, _ = self._walk(images, mixed, until=max(self.config.class_at, default=0))
        return _stack(cls, features)

    def weights_of(self, tokens: Tensor, place: int) -> Tensor:
        """s (B, C) for CLS tokens (B, D), float32, entering the ``place``-th layer of ``class_at``."""
        config = self.config
        return mixture_weights(tokens, self.prototypes[place], self.log_prior, config.tau, config.cosine, config.score)

    def set_prior(self, prior: np.ndarray | None) -> None:
        """Use this client's class prior (C,), smoothed and so above 0 everywhere; None is a flat one.

        Raises ``ModelError``, without a number of the prior, if it is none.
        """
        classes = len(self.log_prior)
        values = np.full(classes, 1 / classes) if prior is None else np.asarray(prior, np.float64)
        if values.shape != (classes,) or not (values > 0).all() or not math.isclose(values.sum(), 1, abs_tol=1e-5):
            raise ModelError("a class prior must hold one number above 0 for each class of the model, with sum 1. Smooth the "
                             "counts, and check that data and model have the same classes")
        self.log_prior.copy_(torch.from_numpy(np.log(values)))

    def trainable(self) -> dict[str, list[nn.Parameter]]:
        """The parameters that ask for a gradient, by the learning rate they want: ``shared``, ``class``, ``head``."""
        kinds = {"shared": [self.shared], "class": [self.classes], "head": [self.head.weight, self.head.bias]}
        return {kind: held for kind, all_of in kinds.items() if (held := [p for p in all_of if p is not None])}

    def tensors(self, part: str) -> dict[str, np.ndarray]:
        """The tensors of ``part``, float32, on the CPU; empty where the configuration uses none.

        ``prompts``: "shared" (layers, n_S, D) and "class" (C, D); ``head``: "weight" (C, D) and "bias" (C,);
        ``prototypes``: "layer5" (C, D) and so on. Views of the live weights where those lie on the CPU.
        """
        return {name: _as_numpy(tensor) for name, tensor in self._part(part).items()}

    def load(self, part: str, tensors: Mapping[str, np.ndarray]) -> None:
        """Copy ``tensors`` into ``part``, all or nothing; the arrays may be read-only.

        Raises ``ModelError`` if names, shapes or a kind of number differ from those of ``tensors(part)``.
        """
        own = self._part(part)
        _check_tensors(part, own, tensors)
        for name, target in own.items():
            target.copy_(torch.tensor(tensors[name]))

    def train(self, mode: bool = True) -> PromptedViT:
        """Training mode for all but the backbone, whose dropout must stay off."""
        self.training = mode
        # the backbone is in eval mode since it was taken in; walking through its layers at every batch costs more than a tiny one's step
        for child in self.children():
            if child is not self.vit:
                child.train(mode)
        return self

    def _part(self, part: str) -> dict[str, Tensor]:
        if part not in PARTS:
            raise ModelError(f"a model's part must be one of {', '.join(PARTS)}; got {part!r}")
        prompts = {"shared": self.shared, "class": self.classes}
        parts: dict[str, dict[str, Tensor]] = {
            "prompts": {name: tensor.detach() for name, tensor in prompts.items() if tensor is not None},
            "head": {name: tensor.detach() for name, tensor in self.head.named_parameters()},
            "prototypes": {f"layer{layer}": rows for layer, rows in zip(self.config.class_at, self.prototypes, strict=True)},
        }
        return parts[part]

    def _walk(self, images: Tensor, mixed: bool, until: int | None = None) -> tuple[Tensor, list[Tensor], list[Tensor]]:
        """Features (B, D) and, for each of ``class_at``, the CLS tokens (B, D) and s (B, C).

        ``until`` is the last layer of interest: its CLS token is taken, and it and what follows are not computed.
        """
        config = self.config
        cls: list[Tensor] = []
        mixtures: list[Tensor] = []
        with self._autocast():
            x, held, appended = self._embed(images), 0, 0  # x is (B, T, D)
            for layer, block in enumerate(self.vit.blocks, start=1):
                if self.shared is not None and layer in config.shared_at:
                    # not len(images), which would fix the batch of an exported model
                    prompt = self.shared[config.shared_at.index(layer)].to(x.dtype).expand(images.shape[0], -1, -1)
                    x = torch.cat([x[:, : 1 + appended], prompt, x[:, 1 + appended + held :]], dim=1)
                    held = config.shared_tokens
                chosen = layer in config.class_at
                if chosen:
                    cls.append(x[:, 0].detach().float())
                if layer == until:
                    break
                if chosen and mixed:
                    s, mixture = self._mixture(x[:, 0], len(mixtures))
                    mixtures.append(s.detach())
                    x = torch.cat([x[:, :1], mixture.to(x.dtype)[:, None], x[:, 1:]], dim=1)
                x = self._run(block, x)
                if chosen and mixed and config.handling == "replace":
                    x = torch.cat([x[:, :1], x[:, 2:]], dim=1)
                elif chosen and mixed:
                    appended += 1
            features = self.vit.fc_norm(self.vit.norm(x[:, 0])).float()
        return features, cls, mixtures

    def _embed(self, images: Tensor) -> Tensor:
        """Tokens (B, T, D) as the first block of the plain backbone gets them."""
        expected = (self.vit.patch_embed.proj.in_channels, *self.vit.patch_embed.img_size)
        if tuple(images.shape[1:]) != expected:
            raise ModelError(f"this backbone takes batches of images of shape {expected}, got {tuple(images.shape[1:])}. Resize them, "
                             "or build the backbone with another image-size")
        # timm offers no public step between patches and blocks; its _pos_embed knows every variant of class and register tokens
        return self.vit.norm_pre(self.vit.patch_drop(self.vit._pos_embed(self.vit.patch_embed(images))))

    def _mixture(self, cls: Tensor, place: int) -> tuple[Tensor, Tensor]:
        """s (B, C) and m (B, D) for CLS tokens (B, D) at the ``place``-th chosen layer, in float32."""
        assert self.classes is not None
        with exact(cls):
            s = self.weights_of((cls.detach() if self.config.stop_cls else cls).float(), place)
            return s, s @ self.classes

    def _run(self, block: nn.Module, x: Tensor) -> Tensor:
        if self.config.checkpointing and torch.is_grad_enabled():
            # nothing in a frozen block is random
            return checkpoint(block, x, use_reentrant=False, preserve_rng_state=False)  # type: ignore[return-value]
        return block(x)

    def _autocast(self) -> AbstractContextManager[object]:
        weight = self.vit.patch_embed.proj.weight
        return torch.autocast(weight.device.type, torch.bfloat16) if weight.dtype == torch.bfloat16 else nullcontext()


def exact(tensor: Tensor) -> AbstractContextManager[object]:
    """Scores and logits stay in float32 whatever the caller's autocast says: they are small, and centred cosines need it."""
    return torch.autocast(tensor.device.type, enabled=False)


def _stack(tensors: list[Tensor], like: Tensor) -> Tensor:
    return torch.stack(tensors) if tensors else like.new_zeros((0, *like.shape))


def _check(backbone: nn.Module, num_classes: int, config: PromptConfig) -> None:
    from timm.models.vision_transformer import VisionTransformer

    if not isinstance(backbone, VisionTransformer):
        raise ModelError(f"a prompted backbone must be a timm VisionTransformer; got {type(backbone).__name__}")
    if not backbone.has_class_token or backbone.global_pool != "token":
        raise ModelError("a prompted backbone must have a class token and read its features from it (global_pool 'token'); this one "
                         f"pools by {backbone.global_pool!r}. Use another backbone")
    if num_classes < 1:
        raise ModelError(f"a model needs 1 class or more, got {num_classes}")
    deepest = max((*config.shared_at, *config.class_at), default=0)
    if deepest > len(backbone.blocks):
        raise ModelError(f"prompts can enter layers 1 to {len(backbone.blocks)} of this backbone, and layer {deepest} was asked for. "
                         "Choose other layers or a deeper backbone")
