"""A frozen Vision Transformer with shared prompts and one of several groups of prompts, picked by sample: SGPT (arXiv 2310.18285).

Shared prompts enter at the first layers, each in the place of the one before. At later layers, tokens of the sample's *group* are
appended and stay. The group is the one whose key is nearest (cosine) to the query, the CLS feature of the plain frozen backbone.
The head reads the mean of the normalised CLS and group tokens.

From the paper's code as METHODS 4.6 reports it: shared at layers 1-4, groups at 5-7, 20 groups, one token each (141,412 numbers at
100 classes and width 768). Our reading: shared prompts replace each other as in VPT-deep. Keys start orthonormal.

Degenerate case: with one group every sample has the same prompts.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

import torch
from torch import Tensor, nn
from torch.nn.functional import normalize

from models.prompt_config import PromptConfig
from models.prompted_model import BackboneSettings, backbone_of
from models.prompted_vit import PromptedViT, exact
from models.split import ModelError

if TYPE_CHECKING:
    from timm.models.vision_transformer import VisionTransformer


@dataclass(frozen=True)
class GroupConfig:
    """How many groups of prompts there are, and where they enter.

    Attributes
    ----------
    groups : G. group_tokens : tokens a group has at each of its layers.
    group_layers : ascending, counted from 1, behind the layers of the shared prompts.
    shared_tokens, shared_layers, checkpointing : as in ``PromptConfig``.
    """

    groups: int = 20
    group_tokens: int = 1
    group_layers: tuple[int, ...] = (5, 6, 7)
    shared_tokens: int = 1
    shared_layers: tuple[int, ...] = (1, 2, 3, 4)
    checkpointing: bool = False

    def __post_init__(self) -> None:
        if self.groups < 1 or self.group_tokens < 1 or not self.group_layers:
            raise ModelError("groups of prompts need 1 group or more, with 1 token or more, at 1 layer or more")
        if self.group_layers[0] <= self.shared_layers[-1]:
            raise ModelError("groups of prompts must enter behind the shared prompts' last layer")


class GroupedSettings(Protocol):
    """What a method says of its groups: settings of ``GroupConfig``."""

    @property
    def prompts(self) -> Mapping[str, Any]: ...


class GroupedViT(PromptedViT):
    """``head(mean of CLS and group tokens)``.

    Attributes
    ----------
    groups : prompts (G, layers, tokens, D). keys : (G, D).
    plain : the same backbone without any prompt, whose features are the queries.
    """

    parts = ("prompts", "head")

    def __init__(self, backbone: VisionTransformer, num_classes: int, config: GroupConfig, seed: int = 0) -> None:
        """Raises ``ModelError`` as ``PromptedViT`` does, and for more groups than the width has orthogonal keys."""
        shared = PromptConfig(config.shared_tokens, config.shared_layers, use="shared", checkpointing=config.checkpointing)
        super().__init__(backbone, num_classes, shared, seed)
        dim = backbone.embed_dim
        if config.groups > dim or config.group_layers[-1] > len(backbone.blocks):
            raise ModelError(f"this backbone can have up to {dim} groups of prompts, at layers up to {len(backbone.blocks)}")
        self.grouping = config
        bound = self.bound
        random = torch.Generator().manual_seed(seed + 1)
        shape = (config.groups, len(config.group_layers), config.group_tokens, dim)
        self.groups = nn.Parameter(torch.empty(shape).uniform_(-bound, bound, generator=random))
        self.keys = nn.Parameter(torch.linalg.qr(torch.randn(dim, config.groups, generator=random)).Q.T.contiguous())
        self.plain = PromptedViT(backbone, 1, PromptConfig(0, use="shared"))

    def forward(self, images: Tensor, chosen: Tensor | None = None) -> Tensor:
        """Logits (B, C), float32, of images (B, 3, S, S) with the groups ``chosen`` (B,); by nearest key if None."""
        if chosen is None:
            with torch.no_grad():
                chosen = self.nearest(self.plain.features(images))
        features = self._grouped(images, chosen)
        with exact(features):
            return self.head(features)

    def similarity(self, queries: Tensor) -> Tensor:
        """Cosines (B, G) of queries (B, D) with the keys."""
        return normalize(queries, dim=1) @ normalize(self.keys, dim=1).T

    def nearest(self, queries: Tensor) -> Tensor:
        """The group (B,) of each of the queries (B, D)."""
        return self.similarity(queries).argmax(dim=1)

    def trainable(self) -> dict[str, list[nn.Parameter]]:
        """The parameters by the learning rate they want: ``shared``, ``groups``, ``keys``, ``head``."""
        return super().trainable() | {"groups": [self.groups], "keys": [self.keys]}

    def _part(self, part: str) -> dict[str, Tensor]:
        own = super()._part(part)
        return own | {"groups": self.groups.detach(), "keys": self.keys.detach()} if part == "prompts" else own

    def _grouped(self, images: Tensor, chosen: Tensor) -> Tensor:
        """What the head reads, (B, D), float32."""
        config, grouping, held, appended = self.config, self.grouping, 0, 0
        with self._autocast():
            x = self._embed(images)  # (B, T, D)
            for layer, block in enumerate(self.vit.blocks, start=1):
                more = []
                if layer in grouping.group_layers:
                    more = [self.groups[chosen, grouping.group_layers.index(layer)].to(x.dtype)]  # (B, tokens, D)
                shared = x[:, 1 + appended : 1 + appended + held]
                if self.shared is not None and layer in config.shared_at:
                    shared = self.shared[config.shared_at.index(layer)].to(x.dtype).expand(x.shape[0], -1, -1)
                x = torch.cat([x[:, :1], *more, x[:, 1 : 1 + appended], shared, x[:, 1 + appended + held :]], dim=1)
                appended, held = appended + len(more) * grouping.group_tokens, shared.shape[1]
                x = self._run(block, x)
            return self.vit.fc_norm(self.vit.norm(x[:, : 1 + appended]).mean(dim=1)).float()


def grouped_model(run: BackboneSettings, own: GroupedSettings, classes: int, in_shape: tuple[int, int, int],
                  weights: bool = True) -> GroupedViT:
    """The model of a run with groups of prompts, as the registry asks for it."""
    config = GroupConfig(checkpointing=run.checkpointing, **own.prompts)
    return GroupedViT(backbone_of(run, in_shape, weights), classes, config, run.seed)
