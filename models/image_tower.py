"""CLS and patch features of a timm CLIP Vision Transformer, in the space of CLIP's text features.

``projected`` patches are the last block's tokens through CLIP's own last norm and projection, as the CLS token goes.

``value`` patches come from the last block's value path alone: norm, value and output projections of each token by itself, then the last
norm and the projection. So no patch looks at another in the last block, which is MaskCLIP's (arXiv:2112.01071) idea for aligning patches
with text; that the block's residual and MLP are left out is our own choice. On 200 PACS images at 224 px, with CLIP ViT-B/16 and the
sentence tower, evidence of value patches alone named the class of 86 %, with residual and MLP 69 %, of projected patches 79 %. The CLS
feature is the same either way.
"""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.nn.functional import normalize

from models.backbones import prepare
from models.split import ModelError
from models.towers import PATCHES, ImageFeatures

if TYPE_CHECKING:
    from timm.models.vision_transformer import VisionTransformer


class TimmImage(nn.Module):
    """``ImageTower`` around a timm ViT whose head is CLIP's projection.

    Raises ``ModelError`` for a backbone without a class token or without such a head.
    """

    def __init__(self, vit: VisionTransformer) -> None:
        super().__init__()
        if not vit.has_class_token or vit.global_pool != "token" or not isinstance(vit.head, nn.Linear):
            raise ModelError("an image tower must be a CLIP Vision Transformer with a class token and its projection as its head. Use "
                             "vit_base_patch16_clip_quickgelu_224 or the like, with weights that hold head.weight")
        self.vit = vit.requires_grad_(False).eval()
        self.dim, self.patches = vit.head.out_features, vit.patch_embed.num_patches

    @torch.no_grad()
    def forward(self, images: Tensor, patches: str = "projected") -> ImageFeatures:
        """As ``ImageTower``; float32."""
        check_patches(patches)
        attention: Any = self.vit.blocks[-1].attn
        values: list[Tensor] = []

        def take(_: nn.Module, inputs: tuple[Tensor, ...]) -> None:
            value = attention.qkv(inputs[0])[:, :, -attention.attn_dim :]
            values.append(attention.proj(value))

        hook = attention.register_forward_pre_hook(take) if patches == "value" else None
        try:
            with self._autocast():
                tokens = self.vit.forward_features(prepare(images, self.vit))
                cls, rest = tokens[:, 0], (self.vit.norm(values[0]) if values else tokens)
                projected = [self.vit.head(self.vit.fc_norm(part)).float() for part in (cls, rest[:, self.vit.num_prefix_tokens :])]
        finally:
            if hook is not None:
                hook.remove()
        return ImageFeatures(normalize(projected[0], dim=1), normalize(projected[1], dim=2))

    def train(self, mode: bool = True) -> TimmImage:
        """Eval mode, whatever is asked: a frozen tower stays in it."""
        return super().train(False)

    def _autocast(self) -> AbstractContextManager[object]:
        weight = self.vit.patch_embed.proj.weight
        return torch.autocast(weight.device.type, torch.bfloat16) if weight.dtype == torch.bfloat16 else nullcontext()


def check_patches(patches: str) -> None:
    """Raise ``ModelError`` unless ``patches`` is one of ``PATCHES``."""
    if patches not in PATCHES:
        raise ModelError(f"patch features must be one of {', '.join(PATCHES)}; got {patches!r}")
