"""Steps of SGD on cross-entropy plus a pull: towards another model's weights, or towards class prototypes."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy, mse_loss

from client_app.loop import LoopSettings, Sgd, array_on_device, precision
from models.split import SplitModel
from strategies.types import Slots


class ProximalSgd(Sgd):
    """Adds ``pull * (w - anchor)`` to the gradient of every weight: the loss has ``pull / 2 ||w - anchor||^2`` beside it.

    ``anchor`` holds encoder and head as a model gives them; only weights are pulled, no BatchNorm statistic. With ``pull = 0``
    the bits are those of `Sgd`. What a step returns is the cross-entropy alone.
    """

    def __init__(self, model: SplitModel, settings: LoopSettings, anchor: Slots, pull: float) -> None:
        super().__init__(model, settings)
        parts = (name.partition(".") for name, weight in model.named_parameters() if weight.requires_grad)
        self.anchor = [array_on_device(anchor[part][name], settings) for part, _, name in parts]
        self.pull = pull

    def apply(self, gradients: list[Tensor]) -> None:
        if self.pull:
            pairs = zip(gradients, self.weights, self.anchor, strict=True)
            gradients = [gradient + self.pull * (weight.detach() - anchor) for gradient, weight, anchor in pairs]
        super().apply(gradients)


class PrototypeSgd(Sgd):
    """Adds ``pull`` times the mean squared distance of features (B, D) from their classes' prototypes, where these are known.

    ``prototypes`` (C, D) and ``known`` (C,), on the device. What a step returns is the cross-entropy alone.
    """

    def __init__(self, model: SplitModel, settings: LoopSettings, prototypes: Tensor, known: Tensor, pull: float) -> None:
        super().__init__(model, settings)
        self.split, self.prototypes, self.known, self.pull = model, prototypes, known.bool(), pull

    def __call__(self, images: Tensor, labels: Tensor) -> Tensor:
        with precision(self.settings):
            features = self.split.encoder(images)
            loss = cross_entropy(self.split.head(features), labels)
        features = features.float()
        # a class without a prototype pulls nobody
        target = torch.where(self.known[labels][:, None], self.prototypes[labels], features.detach())
        pulled = loss + self.pull * mse_loss(features, target) if self.pull else loss
        self.apply(list(torch.autograd.grad(pulled, self.weights)))
        return loss.detach()
