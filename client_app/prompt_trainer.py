"""What the learners of prompted Vision Transformers are made of, as ``client_app.learner.Trainer`` is for split models.

The model is a skeleton around a frozen backbone; prompts, head, prototypes and the client's prior are filled in anew for every
message. Scores have the same two labels; here *raw* is what the shared model gives, and without ``raw`` the same logits plus the
client's log prior if the run says ``logit-prior = true`` (else the same number). Training never looks at ``logit-prior``.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from client_app.clock import scoring
from client_app.data.client_data import ClientData, Split
from client_app.learner import Reply
from client_app.local.priors import class_prior
from client_app.local.store import LocalStore
from client_app.loop_settings import LoopSettings
from client_app.personal_facts import PERSONAL, PersonalError, PersonalFacts, facts_of
from client_app.placing import place_backbone
from client_app.prompt_loop import Direction, fit_prompts, logits_of, require_finite
from models.backbones import prepare
from models.split import ModelError
from strategies.registry import Settings
from strategies.seeds import derive_seed
from strategies.types import Layout, Round, Slots, Tensors, layout_of

PRIOR = "prior"
# run-config keys that a prompted model cannot be rebuilt without
_NEEDED = ("weights-dir", "logit-prior", "precision")


@dataclass(frozen=True)
class PromptTrainer:
    """A prompted model with the loop's settings; the arguments are those of ``Trainer``."""

    model: Any
    settings: LoopSettings
    send_counts: bool = True
    made_by: Settings | None = None

    @property
    def parts(self) -> dict[str, Layout]:
        return {part: layout_of(self.model.tensors(part)) for part in self.model.parts}

    @property
    def frozen(self) -> tuple[nn.Module, ...]:
        """What comes from a file and never changes."""
        return (self.model.vit,)

    @property
    def logit_prior(self) -> bool:
        return self.made_by is not None and self.made_by.run.logit_prior

    def fill(self, slots: Slots, data: ClientData) -> None:
        """Load those parts of ``slots`` that the model has, and this client's own prior."""
        place_backbone(self.model, self.settings)
        for part in self.model.parts:
            if part in slots:
                self.model.load(part, slots[part])
        self.model.set_prior(class_prior(data.train.labels, len(data.classes)))

    def train(self, slots: Slots, data: ClientData, store: LocalStore, rnd: Round, rates: Mapping[str, float],
              directions: Mapping[str, Direction] | None = None) -> dict[str, float]:
        """One client's round in place: score what it serves with, train from ``slots``. Returns the metrics.

        Raises ``TrainingDiverged`` if the loss or a weight is no finite number.
        """
        self.fill(slots, data)
        metrics = self.counts(data) | (self.scores(data, "served") if rnd.score_served else {})
        return metrics | self.fit(data, store, rnd, rates, directions) | (self.scores(data, "adapted") if rnd.score_adapted else {})

    def fit(self, data: ClientData, store: LocalStore, rnd: Round, rates: Mapping[str, float],
            directions: Mapping[str, Direction] | None = None) -> dict[str, float]:
        """Train what ``rates`` names, and the head with the run's rate; the loss."""
        seed = derive_seed(rnd.seed, store.site, rnd.number, "fit")
        fitted = fit_prompts(self.model, data.train.images, data.train.labels, self.settings, {**rates, "head": self.settings.lr}, seed,
                             directions)
        require_finite(fitted)
        return {"loss": fitted.loss}

    def trained(self, *parts: str) -> dict[str, Tensors]:
        """Those parts of the model, copied."""
        return {part: {name: tensor.copy() for name, tensor in self.model.tensors(part).items()} for part in parts}

    @scoring
    def scores(self, data: ClientData, label: str) -> dict[str, float]:
        """Test accuracy as ``{label}`` and ``{label}-raw``; nothing for an empty test set."""
        return self.accuracies(self.logits(data.test), data, label)

    def logits(self, split: Split) -> np.ndarray:
        """Logits (n, C) of a split, without any prior."""
        return logits_of(self.model, split.images, self.settings)

    def accuracies(self, logits: np.ndarray, data: ClientData, label: str) -> dict[str, float]:
        """The two accuracies of test logits (n, C)."""
        if not len(logits):
            return {}
        final = with_prior(logits, data) if self.logit_prior else logits
        return {name: float((found.argmax(1) == data.test.labels).mean()) for name, found in ((label, final), (f"{label}-raw", logits))}

    def close(self, slots: Slots, data: ClientData, store: LocalStore, rnd: Round) -> Reply:
        """Score the model the client ends up serving with, and leave it in the client's own hands, its prior included."""
        self.fill(slots, data)
        metrics = self.counts(data) | self.scores(data, "served")
        return self.keep(data, store, rnd, metrics)

    def keep(self, data: ClientData, store: LocalStore, rnd: Round, metrics: dict[str, float]) -> Reply:
        """Leave the model as it stands in the client's hands; the reply to the closing evaluation."""
        prior = class_prior(data.train.labels, len(data.classes))
        kept = {part: tensors for part in self.model.parts if (tensors := self.model.tensors(part))} | {PRIOR: {PRIOR: prior}}
        store.export(PERSONAL, kept, self._facts(data, store, rnd, metrics.get("served")))
        return Reply(metrics=metrics)

    def counts(self, data: ClientData) -> dict[str, float]:
        """The sample counts that may leave a client (D9); none with ``weighting = uniform``."""
        return {"num-examples": len(data.train), "num-test": len(data.test)} if self.send_counts else {}

    def _facts(self, data: ClientData, store: LocalStore, rnd: Round, served: float | None) -> dict[str, Any] | None:
        if self.made_by is None:
            return None
        facts, run = facts_of(self.made_by, data, store.site, rnd, served), self.made_by.run
        more = {key: getattr(run, key.replace("-", "_")) for key in _NEEDED}
        return replace(facts, settings={**facts.settings, **more}).to_json()


class Personal(nn.Module):
    """A personal prompted model: images as the client's data were, to logits (B, C), with the prior if the run served with it."""

    takes_pixels = True

    def __init__(self, model: Any, logit_prior: bool) -> None:
        super().__init__()
        self.model, self.logit_prior = model, logit_prior

    def forward(self, images: Tensor) -> Tensor:
        logits = self.model(prepare(images, self.model.vit))
        return logits + self.model.log_prior if self.logit_prior else logits


def personal_module(kept: Slots, facts: PersonalFacts) -> Personal:
    """The model of a personal file, around its backbone, whose weights must be at hand (``weights-dir`` or the hub)."""
    settings = facts.parsed
    try:
        model = settings.build_model(len(facts.classes), facts.input_shape)
        for part in model.parts:
            if model.tensors(part):
                model.load(part, kept[part])
        model.set_prior(kept[PRIOR][PRIOR])
    except KeyError as missing:
        raise PersonalError(f"this personal model lacks its {missing.args[0]}; restore the file, or finish the run again") from None
    except ModelError as error:
        raise PersonalError(f"this personal model cannot be rebuilt: {error}") from error
    return Personal(model, settings.run.logit_prior)


def with_prior(logits: np.ndarray, data: ClientData) -> np.ndarray:
    """Logits (n, C) plus the client's log class prior, float32."""
    # in float32, as a personal model adds it
    return (torch.from_numpy(logits) + torch.from_numpy(np.log(class_prior(data.train.labels, len(data.classes)))).float()).numpy()
