"""Where a model is: threads, device and memory order, settled once and then left alone; and the mode it scores in."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from itertools import islice
from weakref import WeakKeyDictionary

import torch
from torch import nn

from client_app.device import switches
from client_app.loop_settings import LoopSettings

FEWEST_CHANNELS_LAST = 8
# models that are where they should be: letting torch find at every scoring that nothing is to be moved took a tenth of a tiny client's time
_PLACED: WeakKeyDictionary[nn.Module, tuple[torch.device, bool]] = WeakKeyDictionary()


def threads(settings: LoopSettings) -> None:
    """Let torch use ``settings.threads`` CPU threads in this process."""
    if torch.get_num_threads() != settings.threads:
        torch.set_num_threads(settings.threads)


def place(model: nn.Module, settings: LoopSettings) -> None:
    """Put ``model`` on the device, in the memory order the settings ask for."""
    _settle(model, settings, settings.channels_last)


def place_backbone(model: nn.Module, settings: LoopSettings) -> None:
    """Put ``model``, which has no convolution worth another memory order, on the device."""
    _settle(model, settings, channels_last=False)


def _settle(model: nn.Module, settings: LoopSettings, channels_last: bool) -> None:
    threads(settings)
    switches(settings)
    device, wanted = settings.torch_device, (settings.torch_device, channels_last)
    # one weight is asked all the same, in case somebody took the model elsewhere
    if _PLACED.get(model) == wanted and all(weight.device.type == device.type for weight in islice(model.parameters(), 1)):
        return
    model.to(device)
    if channels_last and takes_channels_last(model, device):
        model.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    _PLACED[model] = wanted


@contextmanager
def eval_mode(module: nn.Module) -> Iterator[None]:
    """Eval mode for a while; ``module`` is walked through only where it is not in it already."""
    if was_training := module.training:
        module.eval()
    yield
    if was_training:
        module.train()


def takes_channels_last(model: nn.Module, device: torch.device) -> bool:
    """Whether this model can be in channels_last: torch 2.14's CPU convolutions of fewer channels corrupt memory in it."""
    widths = (layer.out_channels for layer in model.modules() if isinstance(layer, nn.Conv2d))
    return device.type == "cuda" or min(widths, default=0) >= FEWEST_CHANNELS_LAST
