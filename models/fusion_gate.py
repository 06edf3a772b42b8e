"""How much a class's local text feature counts beside the global one, for one image: FedIA's adaptive fusion (arXiv:2611.05994).

The gate is a small network over similarities, not over features, so its size depends on neither classes nor feature width. Its shape
is our own choice (METHODS 3.2), and so is what the pilot asked for (3.7):

- every input is standardised over an image's classes (mean 0, variance 1), because raw cosines spread by about .02 and left the gate
  the same for all images. Where all classes have one value, or there is one class, the input is 0;
- the last layer starts at zero: at step 0 every weight is exactly one half, the fixed mix that FedIA is compared with.

``pair`` gives a weight for each image and class, ``image`` one for each image: the mean over classes of the network's output, taken
before the sigmoid.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

_TINY = 1e-6  # below any spread of cosines worth telling from rounding


class FusionGate(nn.Module):
    """Inputs (B, C, Q) to weights of the local feature, (B, C), in (0, 1); with ``per_image`` all of a row are equal."""

    def __init__(self, inputs: int = 6, width: int = 16, per_image: bool = False) -> None:
        super().__init__()
        self.hidden, self.out = nn.Linear(inputs, width), nn.Linear(width, 1)
        nn.init.zeros_(self.out.weight)
        nn.init.zeros_(self.out.bias)
        self.per_image = per_image

    def forward(self, inputs: Tensor) -> Tensor:
        """Weights (B, C) of raw inputs (B, C, Q), which are standardised here."""
        odds = self.out(self.hidden(standardised(inputs)).relu())[:, :, 0]
        if self.per_image:
            odds = odds.mean(dim=1, keepdim=True).expand_as(odds)
        return torch.sigmoid(odds)


def standardised(inputs: Tensor) -> Tensor:
    """Inputs (B, C, Q) with mean 0 and variance 1 over the classes of each image; 0 where they do not differ."""
    offset = inputs - inputs.mean(dim=1, keepdim=True)
    variance = offset.square().mean(dim=1, keepdim=True)
    # the variance has a least value, not its root, whose slope at 0 is infinite; an ONNX exporter drops a sum with so small a number
    return offset / variance.clamp(min=_TINY**2).sqrt()


def mean_spread(weights: Tensor) -> float:
    """Standard deviation of gate weights (B, C) over images, mean over classes: 0 means that the gate ignores the image."""
    return float(weights.detach().float().std(dim=0, correction=0).mean()) if len(weights) else 0.0
