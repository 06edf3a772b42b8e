"""Whether a run's clients can be trained as a cohort: asked before round 1, of the method and of the model.

A method says so itself: its learner has a static method ``stacks(config) -> bool`` (see ``client_app.learner.Learner``). A model is tried:
two steps of two of its copies at once must do what their steps do alone. That finds what ``torch.func`` cannot stack, such as layers
that draw random numbers, and what it would stack wrongly, such as statistics kept outside of buffers.
"""

from __future__ import annotations

import copy
from dataclasses import replace

import numpy as np
import torch
from torch import Tensor

from client_app.cohort import Fit
from client_app.cohort_fit import train_stacked
from client_app.loop import LoopSettings, fit
from models.split import SplitModel
from strategies.config import ConfigError
from strategies.registry import METHODS, Method, Settings

BATCH = 8
# two steps each, the first of them together
SAMPLES = (16, 14)
# of the way that the steps went: in float64 rounding gives less than a millionth, even in a MobileNetV2 whose BatchNorm sees 6 values
FARTHEST = 1e-4


def check_cohort(settings: Settings, classes: int, in_shape: tuple[int, int, int]) -> None:
    """Raise a ``ConfigError`` unless clients of this run can be trained ``cohort`` at a time; images are (channels, H, W)."""
    size, method = settings.run.cohort, settings.method
    if size == 1:
        return
    if not stacks(method, settings.own):
        can = [name for name, other in METHODS.items() if stacks(other, other.config_class()())]
        raise ConfigError(f"cohort = {size} trains clients at once, which {method.name} cannot with these settings; set cohort = 1, or "
                          f"take one of those that can with their defaults: {', '.join(can)}")
    if not trains_alike(settings.build_model(classes, in_shape), in_shape):
        raise ConfigError(f"cohort = {size} trains clients at once, which this model cannot: its layers draw random numbers (Dropout), "
                          "look at values, keep something outside of parameters and buffers, or compute in float32 only; set cohort = 1, "
                          "or take one of the models that can: cnn, resnet18, mobilenetv2")


def stacks(method: Method, config: object) -> bool:
    """Whether the method's learner says that its local training can be one of a cohort's."""
    said = getattr(method.learner_class(), "stacks", None)
    return bool(said and said(config))


def trains_alike(model: SplitModel, in_shape: tuple[int, int, int]) -> bool:
    """Whether steps of two copies at once are those of each alone, on the CPU in float64, on images of noise."""
    settings = LoopSettings(epochs=1, batch=BATCH, device="cpu", threads=torch.get_num_threads())
    rng = np.random.default_rng(0)
    images = [rng.integers(0, 256, (count, *in_shape), dtype=np.uint8) for count in SAMPLES]
    alone = [Fit(_double(model), each, np.arange(len(each)) % model.head.out_features, settings, seed=0) for each in images]
    together = [replace(each, model=copy.deepcopy(each.model)) for each in alone]
    start = _flat(alone[0].model)
    try:
        with torch.random.fork_rng(devices=[]):
            train_stacked(together)
            for each in alone:
                fit(each.model, each.images, each.labels, each.settings, each.seed)
    except Exception:  # what a layer raises that cannot be stacked, nobody knows
        return False
    return all(_near(_flat(one.model), _flat(other.model), start) for one, other in zip(alone, together, strict=True))


def _double(model: SplitModel) -> SplitModel:
    """A copy in float64, where a small mistake is no rounding. The loop's images are float32."""
    twin = copy.deepcopy(model).double()
    twin.register_forward_pre_hook(lambda _, images: (images[0].double(),))
    return twin


def _near(alone: tuple[Tensor, Tensor], together: tuple[Tensor, Tensor], start: tuple[Tensor, Tensor]) -> bool:
    return all(bool((a - b).norm() <= FARTHEST * (a - before).norm()) for a, b, before in zip(alone, together, start, strict=True))


def _flat(model: SplitModel) -> tuple[Tensor, Tensor]:
    """All weights, and all statistics, as one vector each."""
    weights, statistics = ([t.detach().double().reshape(-1) for t in found] for found in (model.parameters(), model.buffers()))
    return torch.cat(weights), torch.cat([torch.zeros(0, dtype=torch.float64), *statistics])
