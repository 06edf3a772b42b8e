"""FedPR's step: Adam's direction without what lies along the leading directions of the global prompt (arXiv 2303.16181).

Adam as in arXiv 1412.6980, without weight decay. The projection follows Adam's scaling, since a scaling by element would turn a
projected gradient back towards what is protected.
"""

from __future__ import annotations

import torch
from torch import Tensor

DECAY, SQUARES, TINY = 0.9, 0.999, 1e-8


class NullSpaceAdam:
    """Directions for one message's training of deep prompts (layers, tokens, D)."""

    def __init__(self, received: Tensor, ratio: float) -> None:
        self.protected = [leading_directions(layer, ratio) for layer in received.detach().clone()]
        self.mean, self.square, self.steps = torch.zeros_like(received), torch.zeros_like(received), 0

    def __call__(self, weights: list[Tensor], gradients: list[Tensor]) -> list[Tensor]:
        """The one tensor's direction (layers, tokens, D), to be taken off times the learning rate."""
        (gradient,) = gradients
        self.steps += 1
        self.mean.mul_(DECAY).add_(gradient, alpha=1 - DECAY)
        self.square.mul_(SQUARES).addcmul_(gradient, gradient, value=1 - SQUARES)
        step = (self.mean / (1 - DECAY**self.steps)) / ((self.square / (1 - SQUARES**self.steps)).sqrt() + TINY)
        return [torch.stack([layer - layer @ v.T @ v for layer, v in zip(step, self.protected, strict=True)])]


def leading_directions(prompt: Tensor, ratio: float) -> Tensor:
    """The fewest leading right singular vectors (r, D) of a prompt (tokens, D) that hold ``ratio`` of its squared singular values.

    None for ``ratio = 0`` and for a prompt of zeros.
    """
    _, values, vectors = torch.linalg.svd(prompt, full_matrices=False)
    energy = values.square()
    if ratio == 0 or not energy.sum() > 0:
        return vectors[:0]
    # the energy before each direction: those that begin below the ratio are needed
    before = (energy.cumsum(0) - energy) / energy.sum()
    return vectors[before < ratio * (1 - 1e-6)]
