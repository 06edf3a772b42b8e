"""Images out of features: a small decoder, and how close its images are (PSNR, SSIM).

Images are float32 in [0, 1] of shape (n, channels, 32, 32) here. The decoder's form and its training are this project's own choice:
small enough for a CPU, and the same for every kind of feature, so that kinds can be compared.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import torch
from scipy.ndimage import correlate1d
from torch import nn

SMALLEST_ERROR = 1e-10
# Wang et al. 2004: a Gaussian window of 11 x 11 with standard deviation 1.5, and the constants of section III.B
WINDOW, SPREAD, K1, K2 = 11, 1.5, 0.01, 0.03


def psnr(images: np.ndarray, made: np.ndarray) -> np.ndarray:
    """Peak signal-to-noise ratio (n,) in dB of ``made`` against ``images``, both (n, channels, H, W) in [0, 1]."""
    error = np.square(images.astype(np.float64) - made).mean(axis=(1, 2, 3))
    return -10 * np.log10(np.maximum(error, SMALLEST_ERROR))


def ssim(images: np.ndarray, made: np.ndarray) -> np.ndarray:
    """Structural similarity (n,) after Wang et al. 2004 (doi:10.1109/TIP.2003.819861, eq. 13), mean over windows and channels.

    Both are (n, channels, H, W) in [0, 1], H and W 11 or more. Only windows that lie in the image count, as in the authors' code. Our
    own choice: each colour is compared by itself, where the paper knows grey images only.
    """
    x, y = images.astype(np.float64), made.astype(np.float64)
    mean_x, mean_y = _windowed(x), _windowed(y)
    variance_x, variance_y = _windowed(x * x) - mean_x**2, _windowed(y * y) - mean_y**2
    covariance = _windowed(x * y) - mean_x * mean_y
    c1, c2 = K1**2, K2**2
    similar = ((2 * mean_x * mean_y + c1) * (2 * covariance + c2)) / ((mean_x**2 + mean_y**2 + c1) * (variance_x + variance_y + c2))
    return similar.mean(axis=(1, 2, 3))


def _windowed(values: np.ndarray) -> np.ndarray:
    """Gaussian means over all windows within the image: (n, channels, H - 10, W - 10)."""
    at = np.arange(WINDOW) - WINDOW // 2
    weights = np.exp(-(at**2) / (2 * SPREAD**2))
    weights, edge = weights / weights.sum(), WINDOW // 2
    for axis in (2, 3):
        values = correlate1d(values, weights, axis=axis)
    return values[:, :, edge:values.shape[2] - edge, edge:values.shape[3] - edge]


@dataclass(frozen=True)
class Fit:
    """How a decoder is trained: Adam on the mean squared error, the rate falling to 0 along a cosine.

    Attributes
    ----------
    epochs, batch, rate : of the training.
    held_out : part of the pairs that chooses the best epoch and is never trained on, so that a decoder that overfits does not
        understate what the features tell.
    channels : of the decoder's first image of 4 x 4.
    """

    epochs: int = 12
    batch: int = 64
    rate: float = 2e-3
    held_out: float = 0.1
    channels: int = 64


class Decoder(nn.Module):
    """Features (n, D) to images (n, 3, 32, 32) in [0, 1]: a linear layer, then three transposed convolutions of stride 2."""

    mean: torch.Tensor
    scale: torch.Tensor

    def __init__(self, features: np.ndarray, channels: int) -> None:
        super().__init__()
        mean, spread = features.mean(axis=0), features.std(axis=0)
        self.register_buffer("mean", torch.from_numpy(mean))
        # a unit that never fires stays 0
        self.register_buffer("scale", torch.from_numpy(1 / np.where(spread > 1e-6, spread, np.inf).astype(np.float32)))
        layers: list[nn.Module] = [nn.Linear(features.shape[1], channels * 16), nn.Unflatten(1, (channels, 4, 4)), nn.ReLU()]
        for given, made in ((channels, channels), (channels, channels // 2)):
            layers += [nn.ConvTranspose2d(given, made, 4, stride=2, padding=1), nn.ReLU()]
        self.layers = nn.Sequential(*layers, nn.ConvTranspose2d(channels // 2, 3, 4, stride=2, padding=1), nn.Sigmoid())

    def forward(self, features: torch.Tensor) -> torch.Tensor:
        return self.layers((features - self.mean) * self.scale)

    def images(self, features: np.ndarray) -> np.ndarray:
        """Images (n, 3, 32, 32) float32 of features (n, D) float32."""
        with torch.inference_mode():
            return np.concatenate([self(part).numpy() for part in torch.from_numpy(features).split(512)])


def fit_decoder(features: np.ndarray, images: np.ndarray, fit: Fit, seed: int) -> Decoder:
    """A decoder of features (n, D) float32 trained to give ``images`` (n, 3, 32, 32) back, as it was after its best epoch."""
    torch.manual_seed(seed)
    order = torch.randperm(len(images))
    kept, held = order[round(fit.held_out * len(images)):], order[:round(fit.held_out * len(images))]
    x, y = torch.from_numpy(features), torch.from_numpy(images)
    decoder = Decoder(features[kept.numpy()], fit.channels)
    steps = math.ceil(len(kept) / fit.batch)
    step = torch.optim.Adam(decoder.parameters(), fit.rate)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(step, fit.epochs * steps)
    best, weights = math.inf, decoder.state_dict()
    for _ in range(fit.epochs):
        for rows in kept[torch.randperm(len(kept))].split(fit.batch):
            step.zero_grad(set_to_none=True)
            nn.functional.mse_loss(decoder(x[rows]), y[rows]).backward()
            step.step()
            schedule.step()
        error = float(np.square(decoder.images(features[held.numpy()]) - images[held.numpy()]).mean())
        if error < best:
            best, weights = error, {name: tensor.clone() for name, tensor in decoder.state_dict().items()}
    decoder.load_state_dict(weights)
    return decoder
