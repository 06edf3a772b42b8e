"""FedOTP (arXiv:2403.00041): a global and a local prompt share an image's patches by unbalanced optimal transport.

For each image and class, the cost of moving patch m to prompt i is 1 - cosine. A plan moves mass ``mass`` in all: every prompt receives
exactly mass / prompts, every patch gives at most 1 / M. So background may stay unmoved, which is the "unbalanced" part. The logit is
scale x the plan's cosines; the plan is a constant for the gradient.

Values by the authors' code: 2 prompts, eps .1, mass .8, at most 100 iterations, stop at 1e-3. Ours: each prompt's lowest cost is
subtracted first, which changes no plan (a column's scaling absorbs it) and keeps the exponential from vanishing at small eps; the stop
looks at relative changes, since absolute ones depend on that.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from models.prompt_classifier import GLOBAL, LOCAL, PromptClassifier, PromptStart
from models.split import ModelError
from models.towers import ImageFeatures, TextTower


@dataclass(frozen=True)
class Transport:
    """Settings of the plan.

    Attributes
    ----------
    eps : weight of the entropy, .01 or more: then costs between 0 and 2 stay within a float64's range.
    mass : moved in all, above 0 to 1.
    iterations, stop : 1 or more; the relative change, 0 or more, that ends them early.
    """

    eps: float = 0.1
    mass: float = 0.8
    iterations: int = 100
    stop: float = 1e-3

    def __post_init__(self) -> None:
        if not (self.eps >= 0.01 and 0 < self.mass <= 1 and self.iterations >= 1 and self.stop >= 0):
            raise ModelError("transport needs eps .01 or more, mass above 0 and at most 1, 1 iteration or more and stop 0 or more; got "
                             f"{self.eps}, {self.mass}, {self.iterations} and {self.stop}")


class TransportPrompts(PromptClassifier):
    """FedOTP's model: ``global-prompt`` travels, the ``local`` prompt stays at home."""

    needs = frozenset({"cls", "patches"})
    held = {GLOBAL: ("global_prompt",), LOCAL: ("local_prompt",)}

    def __init__(self, tower: TextTower, names: Sequence[str], start: PromptStart, transport: Transport, seed: int = 0) -> None:
        """Both prompts start alike, the local one with 1 % noise (ours: otherwise a plan has nothing to tell apart)."""
        super().__init__(tower, names, start, seed)
        self.transport = transport
        self.local_prompt = nn.Parameter(torch.zeros_like(self.global_prompt))
        self.start_local(seed)

    @torch.no_grad()
    def start_local(self, seed: int) -> None:
        """Start the local prompt from the present global one plus noise that follows ``seed``."""
        size = (self.words + self.global_prompt).square().mean().sqrt()
        noise = torch.randn(self.global_prompt.shape, generator=torch.Generator().manual_seed(seed)).to(self.global_prompt.device)
        self.local_prompt.copy_(self.global_prompt + 0.01 * size * noise)

    def prompts(self) -> Tensor:
        """Global and local prompt, (2, n_ctx, W)."""
        return torch.stack([self.global_prompt, self.local_prompt])

    def forward(self, images: ImageFeatures) -> Tensor:
        """Logits (B, C) of patches (B, M, D). Raises ``ModelError`` if there are none."""
        if images.patches is None:
            raise ModelError("this model reads the images' patches, and they have none")
        text = self.text_features()  # (2, C, D)
        similarity = torch.einsum("bmd,icd->bcmi", images.patches.float(), text)
        plan = transport_plan(1 - similarity.detach(), self.transport)
        return self.text.logit_scale * (plan * similarity).sum(dim=(2, 3))


@torch.no_grad()
def transport_plan(cost: Tensor, transport: Transport) -> Tensor:
    """The plan (..., M, I) for costs (..., M, I): rows sum to at most 1 / M, columns to exactly mass / I.

    Alternating projections (Dykstra in the Kullback-Leibler sense, Benamou et al. 2015); the columns are exact after every step.
    """
    rows, columns = 1 / cost.shape[-2], transport.mass / cost.shape[-1]
    kernel = torch.exp((cost.amin(dim=-2, keepdim=True) - cost).double() / transport.eps)  # 1 at each column's cheapest patch
    of_column = torch.ones_like(kernel[..., :1, :])  # (..., 1, I)
    of_row = torch.ones_like(kernel[..., :1])
    traced = torch.compiler.is_compiling()
    done = torch.zeros((), dtype=torch.bool, device=cost.device)
    for _ in range(transport.iterations):
        row = (rows / (kernel * of_column).sum(dim=-1, keepdim=True)).clamp(max=1)
        column = columns / (kernel * row).sum(dim=-2, keepdim=True)
        still = ((column - of_column).abs() <= transport.stop * column).all()
        if traced:
            # an exported program has no early end: it goes on, and keeps what it had when it was done
            of_row, of_column, done = torch.where(done, of_row, row), torch.where(done, of_column, column), done | still
            continue
        of_row, of_column = row, column
        if still:
            break
    return (of_row * kernel * of_column).to(cost.dtype)
