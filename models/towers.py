"""The two frozen towers of a CLIP-like model, by name, and what a prompt method asks of them.

Text towers:

- ``minilm-bridge``: MiniLM with a linear map into CLIP ViT-B/16's text space. "CLIP-style", never "CLIP". ``models/sentence_tower.py``
  says which files it reads;
- ``open_clip:NAME`` or ``open_clip:NAME@TAG``: the text side of any open_clip model; ``models/open_clip_towers.py``;
- ``text-tiny-random``: a random twin for tests, whose features fit those of ``clip-tiny-random``.

Image towers: any timm CLIP Vision Transformer that ``models/backbones.py`` loads with its projection, or ``open_clip:NAME[@TAG]``.

Both halves must speak of one feature space: features of one open_clip model, or ``minilm-bridge`` beside CLIP ViT-B/16.
"""

from __future__ import annotations

import difflib
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Protocol

import torch
from torch import Tensor, nn

from models.patch_evidence import Evidence
from models.split import ModelError

OPEN_CLIP = "open_clip:"
# name -> W, D, deviation of a random prompt
TEXT_TOWERS = {"minilm-bridge": (384, 512, 0.05), "text-tiny-random": (32, 32, 0.05)}
PATCHES = ("projected", "value")


@dataclass(frozen=True)
class ImageFeatures:
    """What the image tower sees in B images; all of length 1.

    Attributes
    ----------
    cls : (B, D).
    patches : (B, M, D) in rows from the top left; None where a method needs none.
    evidence : of the patches, for the anchors of this round; None where a method needs none.
    """

    cls: Tensor
    patches: Tensor | None = None
    evidence: Evidence | None = None

    def __len__(self) -> int:
        return len(self.cls)

    def __getitem__(self, rows: Tensor | slice) -> ImageFeatures:
        return replace(self, cls=self.cls[rows], patches=None if self.patches is None else self.patches[rows],
                       evidence=None if self.evidence is None else self.evidence[rows])


class TextTower(Protocol):
    """A frozen text encoder with room for a soft prompt before the class name.

    Attributes
    ----------
    width : W, of a token's embedding and so of a prompt's.
    dim : D, of a feature.
    logit_scale : what cosines are multiplied with to make logits.
    prompt_std : standard deviation of a random prompt: about that of the tower's own word embeddings.
    """

    width: int
    dim: int
    logit_scale: float
    prompt_std: float

    def embed(self, words: str) -> Tensor:
        """Input embeddings (tokens, W) of ``words``, without start and end tokens."""
        ...

    def tokens(self, names: Sequence[str], context: int) -> Tensor:
        """Token ids (C, length) of "x x ... NAME.", ``context`` placeholders before each name; "_" in a name reads as a space."""
        ...

    def __call__(self, context: Tensor, tokens: Tensor) -> Tensor:
        """Features (..., C, D) of length 1 of prompts (..., context, W) before the names of ``tokens``; differentiable in the prompts."""
        ...


class ImageTower(Protocol):
    """A frozen image encoder whose patches live in the space of its features; ``dim`` is D, ``patches`` M."""

    dim: int
    patches: int

    def __call__(self, images: Tensor, patches: str = "projected") -> ImageFeatures:
        """CLS and patch features of images (B, channels, height, width), uint8 or normalised float32.

        ``patches`` is ``projected`` (last tokens through the projection) or ``value`` (last block's value path alone).
        """
        ...


class EmptyText(nn.Module):
    """``TextTower`` of the right sizes without a number in it: enough to start a global prompt, as a server does. Features are zeros."""

    logit_scale = 100.0

    def __init__(self, width: int, dim: int, prompt_std: float) -> None:
        super().__init__()
        self.width, self.dim, self.prompt_std = width, dim, prompt_std

    def embed(self, words: str) -> Tensor:
        """No embedding, (0, W)."""
        return torch.zeros(0, self.width)

    def tokens(self, names: Sequence[str], context: int) -> Tensor:
        """As ``TextTower``, all 0."""
        return torch.zeros(len(names), 1, dtype=torch.long)

    def forward(self, context: Tensor, tokens: Tensor) -> Tensor:
        """As ``TextTower``, all 0."""
        return context.new_zeros(*context.shape[:-2], len(tokens), self.dim)


def empty_text_tower(name: str) -> EmptyText:
    """The sizes of the text tower ``name``, at no cost and without its weights. Raises ``ModelError`` as ``load_text_tower``."""
    if name.startswith(OPEN_CLIP):
        from models.open_clip_towers import PROMPT_STD, text_sizes

        return EmptyText(*text_sizes(name.removeprefix(OPEN_CLIP)), PROMPT_STD)
    _known(name)
    return EmptyText(*TEXT_TOWERS[name])


def load_text_tower(name: str, weights_dir: str = "", seed: int = 0) -> TextTower:
    """A frozen text tower on the CPU, in eval mode; ``seed`` decides a twin's weights.

    Raises ``ModelError`` for an unknown name and for weights that are absent or do not fit.
    """
    if name.startswith(OPEN_CLIP):
        from models.open_clip_towers import OpenClipText, load_open_clip

        return OpenClipText(load_open_clip(name.removeprefix(OPEN_CLIP), weights_dir, seed), name.removeprefix(OPEN_CLIP))
    from models import sentence_tower

    _known(name)
    return sentence_tower.minilm_bridge(weights_dir) if name == "minilm-bridge" else sentence_tower.tiny_text(seed)


def load_image_tower(name: str, weights_dir: str = "", image_size: int = 224, seed: int = 0, precision: str = "float32") -> ImageTower:
    """A frozen image tower on the CPU, in eval mode; arguments as ``models.backbones.load_backbone``.

    An open_clip model keeps its own image size, at float32. Raises ``ModelError`` as ``load_backbone``, and for a model without
    projected patches.
    """
    if name.startswith(OPEN_CLIP):
        from models.open_clip_towers import OpenClipImage, load_open_clip

        return OpenClipImage(load_open_clip(name.removeprefix(OPEN_CLIP), weights_dir, seed))
    from models.backbones import load_backbone
    from models.image_tower import TimmImage

    return TimmImage(load_backbone(name, weights_dir, image_size, seed, precision, keep_head=True))


def _known(name: str) -> None:
    if name not in TEXT_TOWERS:
        close = difflib.get_close_matches(name, TEXT_TOWERS, n=1)
        raise ModelError(f"a text tower must be one of {', '.join(TEXT_TOWERS)} or {OPEN_CLIP}NAME; got {name!r}"
                         + (f"; did you mean {close[0]!r}?" if close else ""))
