"""Local phases that several methods share: training a part of the model, fine-tuning at the end, and reuse while an encoder stands."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import replace

from torch import nn

from client_app.data.client_data import ClientData
from client_app.learner import Trainer
from client_app.local.store import LocalStore
from client_app.loop import FitStats, fit
from client_app.reuse import Reused
from models.split import SplitModel
from strategies.seeds import derive_seed
from strategies.types import Round, Slots

FOLDER = "features"


def reusing(trainer: Trainer, store: LocalStore, rnd: Round) -> Trainer:
    """``trainer`` for this message, with what a standing encoder makes taken from the client's cache: the same bits, computed once."""
    # the closing evaluation has the number of the last round, but is a message of its own
    return replace(trainer, source=Reused(store.location / FOLDER, trainer.model.feature_dim, rnd.number + rnd.closing))


@contextmanager
def training_only(model: nn.Module, weights: Iterable[nn.Parameter]) -> Iterator[None]:
    """Within it, only ``weights`` of ``model`` ask for a gradient; afterwards all do, since the model is every client's skeleton."""
    chosen = {id(weight) for weight in weights}
    for weight in model.parameters():
        weight.requires_grad_(id(weight) in chosen)
    try:
        yield
    finally:
        model.requires_grad_(True)


def copied(slots: Slots) -> Slots:
    """``slots`` with tensors of their own: a live model's change with whatever is loaded next."""
    return {slot: {name: tensor.copy() for name, tensor in tensors.items()} for slot, tensors in slots.items()}


def fine_tuned(trainer: Trainer, part: str, epochs: int, model: Slots, data: ClientData, store: LocalStore, rnd: Round) -> Slots:
    """``model`` (encoder and head) fine-tuned on the client's images: its ``head`` on the standing encoder, or ``full``.

    The head sees features with the BatchNorm statistics it will be served with. 0 epochs give the model as it is. Raises
    ``TrainingDiverged``.
    """
    if epochs == 0:
        return model
    if part == "head":
        tuner = replace(trainer, settings=replace(trainer.settings, join_epochs=epochs))
        head, _ = tuner.fit_head(model["encoder"], model["head"], data, store, rnd)
        return copied({"encoder": model["encoder"], "head": head})

    def whole(skeleton: SplitModel, data: ClientData, seed: int) -> FitStats:
        settings = replace(trainer.settings, epochs=epochs)
        return fit(skeleton, data.train.images, data.train.labels, settings, derive_seed(seed, "fine-tuning"))

    silent = replace(rnd, score_served=False, score_adapted=False)
    return copied(trainer.train(model["encoder"], model["head"], data, store, silent, training=whole)[0])
