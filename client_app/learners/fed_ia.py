"""FedIA's client: the shared prompt chooses patches; local prompt, meta-net and fusion gate are trained here and stay here.

Only figures about its test images leave beside the scores: the gate's mean weight, how much weights differ by image, and how many kept
patches two classes share.
"""

from __future__ import annotations

import numpy as np
import torch

from client_app.clip_trainer import ClipClient
from client_app.clock import scoring
from client_app.data.client_data import ClientData, Split
from client_app.learner import Reply
from client_app.learners.global_prompt import GlobalPromptLearner
from client_app.local.store import LocalStore
from models.fusion_gate import mean_spread
from models.patch_evidence import kept_patches, overlap, similarities
from models.prompt_classifier import LOCAL
from models.prompted_clip import PromptedClip
from strategies.seeds import derive_seed
from strategies.types import Round, Slots


class FedIaLearner(GlobalPromptLearner):
    """Train all four kinds of weights; send the global prompt."""

    def evaluate(self, inbound: Slots, data: ClientData, store: LocalStore, rnd: Round) -> Reply:
        client = self.opened(inbound, data, store, rnd)
        metrics = self.trainer.counts(data) | self.scores(client, data, "served")
        if self.config.pictures:
            from client_app.patch_pictures import draw

            draw(client, data, store.location / "patches", self.config.pictures)
        return self.trainer.leave(client, data, store, rnd, metrics)

    @scoring
    def scores(self, client: ClipClient, data: ClientData, label: str) -> dict[str, float]:
        """Accuracies; of the served model also the gate's and the patches' figures."""
        logits, weights = fused(client, data.test)
        found = self.trainer.accuracies(logits, data, label)
        return found | (gate_figures(weights) | patch_figures(client, data.test) if label == "served" and len(weights) else {})

    def fit(self, client: ClipClient, data: ClientData, store: LocalStore, rnd: Round) -> dict[str, float]:
        """The round's training. With ``validation``, what is local goes back unless its loss on the images set aside fell."""
        train, aside = set_aside(data.train, self.config.validation, derive_seed(rnd.seed, store.site, "validation"))
        before, loss = client.tensors(LOCAL)[LOCAL], validation_loss(client, aside)
        metrics = client.fit(train, store, rnd, self.config.rates(self.trainer.run))
        if len(aside) and not validation_loss(client, aside) < loss:
            client.net.load(LOCAL, before)
        return metrics


def fused(client: ClipClient, split: Split) -> tuple[np.ndarray, np.ndarray]:
    """Logits and gate weights, (n, C) each, of a split."""
    net, found = client.net, []
    assert isinstance(net, PromptedClip)
    net.eval()
    with torch.inference_mode():
        for images in client.images(split):
            both = net.fuse(images)
            found.append((both.logits.float().cpu().numpy(), both.weights.cpu().numpy()))
    if not found:
        return np.zeros((0, len(net.names)), np.float32), np.zeros((0, len(net.names)), np.float32)
    logits, weights = zip(*found, strict=True)
    return np.concatenate(logits), np.concatenate(weights)


def gate_figures(weights: np.ndarray) -> dict[str, float]:
    """Mean of gate weights (n, C), and how far they differ by image."""
    return {"gate-weight": float(weights.mean()), "gate-spread": mean_spread(torch.from_numpy(weights))}


def patch_figures(client: ClipClient, split: Split) -> dict[str, float]:
    """Share of kept patches that two classes have in common, mean over images; nothing without patches or images."""
    net, shares = client.net, []
    if client.anchors is None or not isinstance(net, PromptedClip) or net.config.evidence is None:
        return {}
    with torch.inference_mode():
        for _, _, patches in client.features.stream(split):
            assert patches is not None
            near = similarities(torch.from_numpy(patches).to(client.device), client.anchors)
            shares.append(overlap(kept_patches(near, net.config.evidence)).cpu().numpy())
    return {"patch-overlap": float(np.concatenate(shares).mean())} if shares else {}


def set_aside(split: Split, share: float, seed: int) -> tuple[Split, Split]:
    """A split without, and with, a ``share`` of it drawn by ``seed``; always the same images, and at least one stays."""
    count = min(round(share * len(split)), len(split) - 1)
    order = np.random.default_rng(seed).permutation(len(split))
    return tuple(Split(split.images[rows], split.labels[rows], split.ids[rows])  # type: ignore[return-value]
                 for rows in (np.sort(order[count:]), np.sort(order[:count])))


def validation_loss(client: ClipClient, split: Split) -> float:
    """Mean cross-entropy of the fused logits; 0 for no image."""
    logits = client.logits(split)
    return float(torch.nn.functional.cross_entropy(torch.from_numpy(logits), torch.from_numpy(split.labels))) if len(split) else 0.0
