"""What the learners of methods on CLIP-like towers are made of: one client's prompt model and image features for one message.

The towers are shared by all messages; the prompt model is built anew for each, so that nothing of a client stays. Scores have the labels
of ``PromptTrainer``: *raw* without, the other with the client's log prior if the run says ``logit-prior = true``.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from client_app.clip_features import ClipFeatures, Source
from client_app.clip_fit import Seen, fit_prompts
from client_app.clock import scoring
from client_app.data.client_data import ClientData, Split
from client_app.learner import Reply
from client_app.local.priors import class_prior
from client_app.local.store import LocalStore
from client_app.loop import check_labels
from client_app.loop_settings import LoopSettings
from client_app.personal_facts import PERSONAL, PersonalError, PersonalFacts
from client_app.placing import place_backbone
from client_app.prompt_trainer import PRIOR, PromptTrainer
from models.clip_models import ClipModel
from models.patch_evidence import Evidence, patch_evidence
from models.prompt_classifier import GLOBAL, PromptClassifier
from models.prompted_clip import PromptedClip
from models.split import ModelError
from models.towers import ImageFeatures
from strategies.config import RunConfig
from strategies.global_prompt import Rate
from strategies.seeds import derive_seed
from strategies.types import Round, Slots, Tensors

# run-config keys without which the towers and the prompt cannot be rebuilt
_NEEDED = ("text-tower", "tower-size", "patch-source", "prompt-words", "prompt-tokens", "seed")
EXPERTS = "experts"


class ClipTrainer(PromptTrainer):
    """Towers with the loop's settings; the arguments are those of ``Trainer``. ``model`` is a ``ClipModel``."""

    model: ClipModel

    @property
    def run(self) -> RunConfig:
        """The run's settings, those of the towers among them."""
        return self.made_by.run if self.made_by else RunConfig()

    @property
    def frozen(self) -> tuple[nn.Module, ...]:
        """Both towers, as far as the method has them."""
        return tuple(tower for tower in (self.model.image, self.model.text) if isinstance(tower, nn.Module))

    def open(self, slots: Slots, data: ClientData, store: LocalStore) -> ClipClient:
        """One client's model with those parts of ``slots`` that it has, and its features."""
        net = self.model.fresh(data.classes)
        place_backbone(net, self.settings)
        load_parts(net, slots)
        assert self.model.image is not None
        source = Source(self.model.image, self.model.patch_source, self.run.features_dir)
        return ClipClient(net, ClipFeatures(source, self.settings, store, bool(net.needs - {"cls"})), self.settings)

    @scoring
    def scored(self, client: ClipClient, data: ClientData, label: str) -> dict[str, float]:
        """Test accuracy as ``{label}`` and ``{label}-raw``; nothing for an empty test set."""
        return self.accuracies(client.logits(data.test), data, label)

    def leave(self, client: ClipClient, data: ClientData, store: LocalStore, rnd: Round, metrics: dict[str, float],
              more: Slots | None = None) -> Reply:
        """Leave the model as it stands in the client's hands, with ``more`` it needs; the reply to the closing evaluation."""
        prior = class_prior(data.train.labels, len(data.classes))
        kept = {part: client.net.tensors(part) for part in client.net.parts} | dict(more or {}) | {PRIOR: {PRIOR: prior}}
        store.export(PERSONAL, kept, self._facts(data, store, rnd, metrics.get("served")))
        return Reply(metrics=metrics)

    def _facts(self, data: ClientData, store: LocalStore, rnd: Round, served: float | None) -> dict[str, Any] | None:
        facts = super()._facts(data, store, rnd, served)
        if facts is not None:
            facts["settings"] = {**facts["settings"], **{key: getattr(self.run, key.replace("-", "_")) for key in _NEEDED}}
        return facts


class ClipClient:
    """One client at one message: its prompt model ``net`` and its images' ``features``."""

    def __init__(self, net: PromptClassifier, features: ClipFeatures, settings: LoopSettings) -> None:
        self.net, self.features, self.settings = net, features, settings
        # those of the prompt as broadcast, whatever training makes of it afterwards
        self.anchors = anchors_of(net)

    def images(self, split: Split) -> Iterator[ImageFeatures]:
        """What the model reads of a split, ``score_batch`` images at a time, on the device."""
        for _, cls, patches in self.features.stream(split):
            yield features_of(self.net, self.anchors, self._there(cls), None if patches is None else self._there(patches))

    def logits(self, split: Split) -> np.ndarray:
        """Logits (n, C) float32 of a split, without any prior."""
        self.net.eval()
        with torch.inference_mode():
            found = [self.net(images).float().cpu().numpy() for images in self.images(split)]
        return np.concatenate(found) if found else np.zeros((0, len(self.net.names)), np.float32)

    def seen(self, split: Split) -> Seen:
        """All that training reads of a split."""
        parts = [replace(images, patches=None) for images in self.images(split)]
        found = [part.evidence for part in parts if part.evidence is not None]
        joined = Evidence(*(torch.cat([getattr(e, name) for e in found]) for name in ("features", "entropy", "peak"))) if found else None
        rows = self.features.patch_rows(split) if "patches" in self.net.needs else None
        return Seen(torch.cat([part.cls for part in parts]), joined, rows)

    def fit(self, split: Split, store: LocalStore, rnd: Round, rates: Mapping[str, Rate]) -> dict[str, float]:
        """Train what ``rates`` names; the loss. Raises ``TrainingDiverged``."""
        check_labels(split.images, split.labels, len(self.net.names))
        seed = derive_seed(rnd.seed, store.site, rnd.number, "fit")
        self.net.train()
        return {"loss": fit_prompts(self.net, self.seen(split), split.labels, self.settings, rates, seed)}

    def tensors(self, *parts: str) -> dict[str, Tensors]:
        """Those parts of the model, copied."""
        return {part: {name: tensor.copy() for name, tensor in self.net.tensors(part).items()} for part in parts}

    @property
    def device(self) -> torch.device:
        return self.settings.torch_device

    def _there(self, array: np.ndarray) -> Tensor:
        return torch.from_numpy(array).to(self.device)


class Personal(nn.Module):
    """A personal model with its image tower: images as the client's data were, to logits (B, C), with the prior if the run served so."""

    takes_pixels = True
    anchors: Tensor | None

    def __init__(self, net: PromptClassifier, model: ClipModel, log_prior: Tensor | None) -> None:
        super().__init__()
        self.net, self.tower, self.patch_source = net, model.image, model.patch_source
        self.register_buffer("anchors", anchors_of(net), persistent=False)
        net.hold_text()
        self.register_buffer("log_prior", log_prior, persistent=False)

    def forward(self, images: Tensor) -> Tensor:
        assert self.tower is not None
        found = self.tower(images, self.patch_source)
        patches = found.patches if self.net.needs - {"cls"} else None
        # rounded as the cache rounds what is scored
        cls, patches = found.cls.half().float(), None if patches is None else patches.half().float()
        logits = self.net(features_of(self.net, self.anchors, cls, patches))
        return logits if self.log_prior is None else logits + self.log_prior


def personal_module(kept: Slots, facts: PersonalFacts) -> Personal:
    """The model of a personal file, around its towers, whose weights must be at hand (``weights-dir`` or the hub)."""
    settings = facts.parsed
    try:
        model = settings.build_model(len(facts.classes), facts.input_shape)
        net = model.fresh(facts.classes)
        for part in net.parts:
            net.load(part, kept[part])
        load_experts(net, kept)
        prior = torch.from_numpy(np.log(kept[PRIOR][PRIOR])).float() if settings.run.logit_prior else None
    except KeyError as missing:
        raise PersonalError(f"this personal model lacks its {missing.args[0]}; restore the file, or finish the run again") from None
    except ModelError as error:
        raise PersonalError(f"this personal model cannot be rebuilt: {error}") from error
    return Personal(net, model, prior)


def load_parts(net: PromptClassifier, slots: Slots) -> None:
    """Load what of ``slots`` the model has, other clients' prompts included."""
    for part in net.parts:
        if part in slots:
            net.load(part, slots[part])
    load_experts(net, slots)


def load_experts(net: PromptClassifier, slots: Slots) -> None:
    """Other clients' prompts, where the method has any; rows of zeros stand for none (``strategies.pfedmoap``)."""
    if EXPERTS in slots:
        net.set_experts([prompt for prompt in slots[EXPERTS][EXPERTS] if prompt.any()])  # type: ignore[operator]


def anchors_of(net: PromptClassifier) -> Tensor | None:
    """The anchors (C, D) of the present global prompt, for a model that takes evidence with the broadcast one."""
    return net.anchors() if isinstance(net, PromptedClip) and "evidence" in net.needs else None


def features_of(net: PromptClassifier, anchors: Tensor | None, cls: Tensor, patches: Tensor | None = None) -> ImageFeatures:
    """What ``net`` reads of images with CLS (B, D) and patch features (B, M, D); evidence is kept in float16, C x D numbers an image."""
    if anchors is None or not isinstance(net, PromptedClip) or net.config.evidence is None or patches is None:
        return ImageFeatures(cls, patches)
    with torch.no_grad():
        found = patch_evidence(patches, anchors, cls, net.config.evidence)
    return ImageFeatures(cls, None, replace(found, features=found.features.half()))


__all__ = ["GLOBAL", "ClipClient", "ClipTrainer", "Personal", "personal_module"]
