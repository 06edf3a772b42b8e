"""A split model whose answer is mixed with that of its nearest remembered features (kNN-Per, Marfoq et al. 2022, arXiv 2111.09360).

The vote of a remembered feature at squared distance d is ``exp(-d / (D * scale))``; votes are normalised among the k nearest, and
mixed as probabilities with the softmax of the head. The answer is given as the logarithm of the mixed probabilities, so that
whatever takes logits takes it. No weight of the neighbours, or no memory, gives the model's own decision.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.functional import one_hot

from models.split import SplitModel

_TINY = 1e-30


class NeighbourModel(SplitModel):
    """``split`` with a memory; encoder and head are its own modules, not copies.

    Attributes
    ----------
    remembered : features (m, D), m of 0 or more. votes : their classes as one-hot rows (m, C).
    neighbours, weight, scale : k, share of the neighbours in the answer, width of the kernel.
    """

    remembered: Tensor
    votes: Tensor

    def __init__(self, split: SplitModel, neighbours: int, weight: float, scale: float) -> None:
        nn.Module.__init__(self)
        self.encoder, self.head, self.feature_dim = split.encoder, split.head, split.feature_dim
        self.neighbours, self.weight, self.scale = neighbours, weight, scale
        # not in the state: what a client remembers is no part of the model that is trained
        self.register_buffer("remembered", torch.zeros(0, self.feature_dim), persistent=False)
        self.register_buffer("votes", torch.zeros(0, self.head.out_features), persistent=False)

    def remember(self, features: np.ndarray, labels: np.ndarray) -> None:
        """Put features (m, D) with labels (m,) in place of what was remembered."""
        device = self.head.weight.device
        self.remembered = torch.tensor(features, dtype=torch.float32, device=device)
        self.votes = one_hot(torch.tensor(labels, dtype=torch.int64), self.head.out_features).float().to(device)

    def memory(self) -> Mapping[str, np.ndarray]:
        """What is remembered: ``features`` (m, D) float32 and ``labels`` (m,) int64."""
        return {"features": self.remembered.cpu().numpy(), "labels": self.votes.cpu().numpy().argmax(1).astype(np.int64)}

    def forward(self, images: Tensor) -> Tensor:
        """Logits (B, C) while training, else the logarithm of mixed probabilities (B, C)."""
        features = self.encoder(images)
        return self.head(features) if self.training else self.answer(features)

    def answer(self, features: Tensor) -> Tensor:
        """Logarithm of mixed probabilities (B, C) of features (B, D); logits while nothing is remembered."""
        logits, features = self.head(features).float(), features.float()
        if not len(self.remembered):
            return logits
        near = torch.square(features).sum(1, keepdim=True) + torch.square(self.remembered).sum(1) - 2 * features @ self.remembered.T
        values, places = torch.topk(-near.clamp_min(0), min(self.neighbours, len(self.remembered)), dim=1)
        shares = torch.softmax(values / (self.feature_dim * self.scale), dim=1)  # (B, k); normalises the exponential votes
        voted = (shares[:, :, None] * self.votes[places]).sum(1)
        return torch.log((self.weight * voted + (1 - self.weight) * torch.softmax(logits, dim=1)).clamp_min(_TINY))
