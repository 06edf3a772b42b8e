"""What every prompt method on CLIP-like towers has in common: a frozen text tower, the class names, and soft prompts before them.

A prompt is held as its *difference from the embeddings of some words*, by default "a photo of a" (zero words: from nothing). The server
then starts it from zeros, with no text tower at hand, and averaging differences is the same as averaging prompts. This is our own choice,
as is starting from words (METHODS 3.7: 4 tokens from words are as good as 16 random ones, at half the cost).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from models.split import ModelError, _as_numpy, _check_tensors
from models.towers import EmptyText, ImageFeatures, TextTower

GLOBAL, LOCAL = "global-prompt", "local"


@dataclass(frozen=True)
class PromptStart:
    """Where a prompt starts.

    Attributes
    ----------
    words : the prompt starts from their embeddings; empty: from random numbers of about the size of word embeddings.
    tokens : n_ctx, its length in tokens; that of ``words`` where there are any.
    """

    words: str = "a photo of a"
    tokens: int = 4

    def __post_init__(self) -> None:
        if self.tokens < 1:
            raise ModelError(f"a prompt needs 1 token or more, got {self.tokens}")

    def offset(self, width: int, std: float, seed: int) -> Tensor:
        """The first difference (n_ctx, W): zeros with words, else normal numbers of deviation ``std`` that follow ``seed``."""
        shape = (self.tokens, width)
        return torch.zeros(shape) if self.words else torch.randn(shape, generator=torch.Generator().manual_seed(seed)) * std

    def base(self, tower: TextTower) -> Tensor:
        """What the difference is added to, (n_ctx, W). Raises ``ModelError`` if the words are not ``tokens`` tokens long."""
        if not self.words or isinstance(tower, EmptyText):
            return torch.zeros(self.tokens, tower.width)
        found = tower.embed(self.words).detach().clone()
        if len(found) != self.tokens:
            raise ModelError(f"prompt-words must be prompt-tokens = {self.tokens} tokens of this text tower, got {len(found)}. Set "
                             f"prompt-tokens = {len(found)}, or take other words")
        return found


class PromptClassifier(nn.Module):
    """Images' features to logits by text features under a prompt; a subclass says how.

    Attributes
    ----------
    needs : which fields of ``ImageFeatures`` it reads.
    held : part -> the attributes (parameters or modules) that make it up; the parts are what a learner sends or keeps.
    text : the text tower, frozen; it may be shared between models, and is in no part.
    words : (n_ctx, W), what prompts are added to; ``names`` : (C, length), the class names' tokens.
    """

    needs: frozenset[str] = frozenset({"cls"})
    held: ClassVar[Mapping[str, tuple[str, ...]]] = {GLOBAL: ("global_prompt",)}
    words: Tensor
    names: Tensor
    held_text: Tensor | None

    def __init__(self, tower: TextTower, names: Sequence[str], start: PromptStart, seed: int = 0) -> None:
        """``seed`` decides a prompt without words. Raises ``ModelError`` for no class, and as ``PromptStart.base``."""
        super().__init__()
        if not names:
            raise ModelError("a prompt model needs one class name or more, got none")
        self.text, self.start = tower, start
        self.register_buffer("words", start.base(tower), persistent=False)
        self.register_buffer("names", tower.tokens(names, start.tokens), persistent=False)
        self.register_buffer("held_text", None, persistent=False)
        self.global_prompt = nn.Parameter(start.offset(tower.width, tower.prompt_std, seed))

    @property
    def parts(self) -> tuple[str, ...]:
        """The names of the parts."""
        return tuple(self.held)

    def start_local(self, seed: int) -> None:
        """Start what one client trains for itself beside the present global prompt; nothing where there is no such part."""

    def forward(self, images: ImageFeatures) -> Tensor:
        """Logits (B, C), float32. Here: cosines of CLS features and text features under the global prompt (PromptFL)."""
        return self.logits(images.cls, self.text_features())

    def loss(self, images: ImageFeatures, labels: Tensor) -> Tensor:
        """What training makes small, a scalar; labels (B,). Here: cross-entropy of ``forward``."""
        return cross_entropy(self(images), labels)

    def features(self, prompt: Tensor) -> Tensor:
        """Text features (..., C, D) of length 1 under prompts (..., n_ctx, W), each a difference from the words."""
        return self.text(self.words + prompt, self.names)

    def prompts(self) -> Tensor:
        """The prompts (..., n_ctx, W) that ``forward`` reads; not of a model whose prompts depend on the image."""
        return self.global_prompt

    def text_features(self) -> Tensor:
        """Text features (..., C, D) under ``prompts``."""
        return self.features(self.prompts()) if self.held_text is None else self.held_text

    @torch.no_grad()
    def hold_text(self) -> None:
        """Keep the present text features and let the text tower go: for a finished model, which is then fast, small and only for use."""
        held, scale = self.features(self.prompts()), self.text.logit_scale
        self.text = EmptyText(self.text.width, self.text.dim, self.text.prompt_std)
        self.text.logit_scale = scale
        self.held_text = held

    def logits(self, cls: Tensor, text: Tensor) -> Tensor:
        """Scaled cosines (B, C) of features (B, D) and (C, D), both of length 1."""
        return self.text.logit_scale * cls.float() @ text.T

    def trainable(self) -> dict[str, list[nn.Parameter]]:
        """The parameters that ask for a gradient, by the attribute that holds them, since each kind wants a learning rate of its own."""
        kinds = {name: getattr(self, name, None) for names in self.held.values() for name in names}
        return {name: [held] if isinstance(held, nn.Parameter) else list(held.parameters())
                for name, held in kinds.items() if held is not None}

    def tensors(self, part: str) -> dict[str, np.ndarray]:
        """The tensors of ``part``, float32, on the CPU, by attribute: a prompt is ``global_prompt`` (n_ctx, W).

        Views of the live weights where those lie on the CPU. Raises ``ModelError`` for an unknown part.
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

    def _part(self, part: str) -> dict[str, Tensor]:
        if part not in self.held:
            raise ModelError(f"a model's part must be one of {', '.join(self.held)}; got {part!r}")
        found: dict[str, Tensor] = {}
        for name in self.held[part]:
            held: Any = getattr(self, name, None)
            if isinstance(held, nn.Parameter):
                found[name] = held.detach()
            elif held is not None:
                found |= {f"{name}.{inner}": tensor.detach() for inner, tensor in held.named_parameters()}
        return found
