"""Prompt methods that FedIA is compared with; all of them work on the same frozen towers and cached features.

PromptFL (arXiv:2208.11625) is ``PromptClassifier`` itself, FedOTP stands in ``models/prompt_transport.py``, a fixed global-local mix and
a CLS-fed meta-net are settings of ``models/prompted_clip.py``. Here: CoCoOp (arXiv:2203.05557) trained federated, FedPGP
(arXiv:2405.09771) and pFedMoAP (arXiv:2410.10114). Mechanics from the papers and public code, values beside them; what we chose is marked.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.functional import cosine_similarity, cross_entropy, softplus

from models.prompt_classifier import GLOBAL, LOCAL, PromptClassifier, PromptStart
from models.split import ModelError
from models.towers import ImageFeatures, TextTower


class ConditionalPrompt(PromptClassifier):
    """CoCoOp: a small network turns the CLS feature into one vector that is added to every token of the prompt.

    Prompt and network both travel. It needs B x C texts a step, so it is for small batches. The network is D -> D / 16 -> W as
    published; that its last layer starts at zero is our choice: step 0 is PromptFL.
    """

    held = {GLOBAL: ("global_prompt", "meta")}

    def __init__(self, tower: TextTower, names: Sequence[str], start: PromptStart, seed: int = 0) -> None:
        super().__init__(tower, names, start, seed)
        with torch.random.fork_rng(devices=[]):
            torch.default_generator.manual_seed(seed)
            hidden = max(tower.dim // 16, 1)
            self.meta = nn.Sequential(nn.Linear(tower.dim, hidden), nn.ReLU(), nn.Linear(hidden, tower.width))
        nn.init.zeros_(self.meta[2].weight)  # type: ignore[arg-type]
        nn.init.zeros_(self.meta[2].bias)  # type: ignore[arg-type]

    def hold_text(self) -> None:
        """Nothing: the prompt of every image is another one."""

    def forward(self, images: ImageFeatures) -> Tensor:
        """Logits (B, C)."""
        cls = images.cls.float()
        text = self.features(self.global_prompt + self.meta(cls)[:, None])  # (B, C, D)
        return self.text.logit_scale * torch.einsum("bd,bcd->bc", cls, text)


class LowRankPrompt(PromptClassifier):
    """FedPGP: prompt = sigma + U V; sigma travels, the low-rank rest stays at home.

    The contrast draws sigma's features to those of the starting words (zero-shot CLIP) and away from the personal ones:
    mean over classes of softplus((cos(sigma, personal) - cos(sigma, zero-shot)) / temperature), weighed by ``mu``. Published: rank 4-8,
    mu .5-1, temperature .5. Ours: V starts at zero, so that step 0 is PromptFL; without words, zero-shot means the first prompt.
    """

    held = {GLOBAL: ("global_prompt",), LOCAL: ("u", "v")}
    zero_shot: Tensor

    def __init__(self, tower: TextTower, names: Sequence[str], start: PromptStart, rank: int = 8, mu: float = 1.0, temperature: float = 0.5,
                 seed: int = 0) -> None:
        super().__init__(tower, names, start, seed)
        if rank < 1 or not (mu >= 0 and temperature > 0):
            raise ModelError("a low-rank prompt needs rank 1 or more, mu 0 or more and temperature above 0; "
                             f"got {rank}, {mu} and {temperature}")
        self.mu, self.temperature = mu, temperature
        self.u = nn.Parameter(torch.randn(start.tokens, rank, generator=torch.Generator().manual_seed(seed)) / rank**0.5)
        self.v = nn.Parameter(torch.zeros(rank, tower.width))
        with torch.no_grad():
            self.register_buffer("zero_shot", self.features(self.global_prompt), persistent=False)

    def prompts(self) -> Tensor:
        """The personal prompt (n_ctx, W)."""
        return self.global_prompt + self.u @ self.v

    def forward(self, images: ImageFeatures) -> Tensor:
        """Logits (B, C) under the personal prompt."""
        return self.logits(images.cls, self.text_features())

    def loss(self, images: ImageFeatures, labels: Tensor) -> Tensor:
        """Cross-entropy under the personal prompt plus mu x the contrast."""
        sigma, personal = self.features(torch.stack([self.global_prompt, self.global_prompt + self.u @ self.v]))
        apart = contrast(sigma, personal, self.zero_shot, self.temperature)
        return cross_entropy(self.logits(images.cls, personal), labels) + self.mu * apart


class ExpertPrompts(PromptClassifier):
    """pFedMoAP: this client's own prompt beside other clients' prompts, which it downloads and leaves as they are.

    For each class, attention with the image as query weighs the own and the experts' text features; logits are
    ``own_weight`` x those of the own prompt + those of the attended feature. Attention works on every (D / width)-th number of a feature,
    with scores multiplied by ``scaling`` instead of divided by a root. The own prompt travels, **and reaches other clients**; the gate
    stays at home. Published: 10 experts, own_weight .5, width 128, 8 heads, scaling 10. Without experts the logits are the own prompt's.
    """

    held = {GLOBAL: ("global_prompt",), LOCAL: ("query", "key", "value", "out")}
    experts: Tensor

    def __init__(self, tower: TextTower, names: Sequence[str], start: PromptStart, own_weight: float = 0.5, width: int = 128,
                 heads: int = 8, scaling: float = 10.0, seed: int = 0) -> None:
        super().__init__(tower, names, start, seed)
        if tower.dim % width or width % heads:
            raise ModelError(f"the gate's width must divide the feature width {tower.dim} and be a multiple of its heads; "
                             f"got {width} and {heads}")
        self.own_weight, self.heads, self.scaling, self.step = own_weight, heads, scaling, tower.dim // width
        with torch.random.fork_rng(devices=[]):
            torch.default_generator.manual_seed(seed)
            self.query, self.key, self.value, self.out = (nn.Linear(width, width) for _ in range(4))
        self.register_buffer("experts", torch.zeros(0, len(self.names), tower.dim), persistent=False)

    @torch.no_grad()
    def set_experts(self, prompts: Sequence[np.ndarray]) -> None:
        """Take other clients' prompts, (n_ctx, W) each, for this round. Raises ``ModelError`` for another shape."""
        shape = tuple(self.global_prompt.shape)
        if any(prompt.shape != shape for prompt in prompts):
            raise ModelError(f"an expert's prompt must have shape {shape}. Check that all clients use the same prompt and text tower")
        if prompts:
            self.experts = self.features(torch.tensor(np.stack(prompts)).to(self.global_prompt))
        else:
            self.experts = self.experts[:0]

    def forward(self, images: ImageFeatures) -> Tensor:
        """Logits (B, C)."""
        own = self.text_features()
        logits = self.logits(images.cls, own)
        if not len(self.experts):
            return logits
        image = images.cls.float()[:, :: self.step]  # (B, width)
        mixed = self.attended(image, torch.cat([own[None], self.experts])[:, :, :: self.step])
        return self.own_weight * logits + self.text.logit_scale * torch.einsum("bw,bcw->bc", image, mixed)

    def attended(self, image: Tensor, text: Tensor) -> Tensor:
        """(B, C, width) from image features (B, width) and the prompts' text features (E, C, width)."""
        query, key, value = (layer(x).unflatten(-1, (self.heads, -1)) for layer, x in (
            (self.query, image), (self.key, text), (self.value, text)))
        weights = (self.scaling * torch.einsum("bhk,echk->bche", query, key)).softmax(dim=3)
        return self.out(torch.einsum("bche,echk->bchk", weights, value).flatten(2))


def contrast(sigma: Tensor, personal: Tensor, zero_shot: Tensor, temperature: float) -> Tensor:
    """FedPGP's contrast of text features (C, D), a scalar: -log of the share of the pair (sigma, zero-shot) against (sigma, personal)."""
    apart = cosine_similarity(sigma, personal, dim=1) - cosine_similarity(sigma, zero_shot, dim=1)
    return softplus(apart / temperature).mean()
