"""Which prompts enter a Vision Transformer where: the settings of ``models/prompted_vit.py``."""

from __future__ import annotations

import math
from dataclasses import dataclass

from models.class_mixture import COSINES, SCORES
from models.split import ModelError

USES = ("both", "shared", "class")
HANDLINGS = ("replace", "append")


@dataclass(frozen=True)
class PromptConfig:
    """Which prompts enter where.

    Attributes
    ----------
    shared_tokens : n_S, tokens of a shared prompt; 1 by the paper's traffic (METHODS 4.2), 0 for none.
    shared_layers : layers that get a shared prompt of their own, ascending from 1; ``(1,)`` is shallow.
    class_layers : layers that get a mixture of class prompts, ascending; 5, 6, 7 in the paper.
    use : ``both``, or one kind alone: ``shared`` (FedVPT), ``class``.
    handling : of a mixture's output token: ``replace`` or ``append``.
    cosine : ``centred`` or ``raw``.
    score : ``log``, ``scaled``, ``prior`` or ``cosine``.
    tau : temperature of the cosines, above 0; our choice, from the pilot. About .001-.005 for ``raw``.
    stop_cls : no gradient through the CLS token of the score.
    checkpointing : recompute blocks in the backward pass: less memory, about a third more time.
    """

    shared_tokens: int = 1
    shared_layers: tuple[int, ...] = (1,)
    class_layers: tuple[int, ...] = (5, 6, 7)
    use: str = "both"
    handling: str = "replace"
    cosine: str = "centred"
    score: str = "log"
    tau: float = 0.2
    stop_cls: bool = True
    checkpointing: bool = False

    def __post_init__(self) -> None:
        for key, allowed in (("use", USES), ("handling", HANDLINGS), ("cosine", COSINES), ("score", SCORES)):
            if getattr(self, key) not in allowed:
                raise ModelError(f"{key} must be one of {', '.join(allowed)}; got {getattr(self, key)!r}")
        for key in ("shared_layers", "class_layers"):
            layers = getattr(self, key)
            if list(layers) != sorted({layer for layer in layers if layer >= 1}):
                raise ModelError(f"{key} must be ascending layers counted from 1, such as 5, 6, 7; got {layers}")
        if self.shared_tokens < 0:
            raise ModelError(f"shared_tokens must be 0 or more; got {self.shared_tokens}")
        if not (self.tau > 0 and math.isfinite(self.tau)):
            raise ModelError(f"tau must be a finite number above 0; got {self.tau}")

    @property
    def shared_at(self) -> tuple[int, ...]:
        """Layers where a shared prompt really enters."""
        return self.shared_layers if self.use != "class" and self.shared_tokens else ()

    @property
    def class_at(self) -> tuple[int, ...]:
        """Layers where a mixture of class prompts really enters, P of them."""
        return self.class_layers if self.use != "shared" else ()
