"""A classifier in two parts, an encoder and a linear head: three architectures for small images.

- ``cnn``: stages of 3x3 convolution, BatchNorm, ReLU and 2x2 max-pooling; the pilot's model (METHODS 1.8).
- ``resnet18``: He et al. 2016, arXiv:1512.03385, in the 32x32 form: 3x3 stem of stride 1, no max-pooling.
- ``mobilenetv2``: Sandler et al. 2018, arXiv:1801.04381, with a stem of stride 1.

Our own choices: the ``cnn`` pools only while the image is at least 4 pixels wide, so that 8x8 digits work;
one key, ``width``, scales every stage of a model; the weights start from a seed and leave torch's global
random state alone, so that a server and a test may build a model anywhere.

The encoder's BatchNorm statistics are shared like its weights. Their integer counters
(``num_batches_tracked``) are neither sent nor loaded: BatchNorm's momentum is fixed, so nothing reads them.

torchvision costs seconds to import, so only the two models made of its blocks import it.
"""

from __future__ import annotations

import difflib
import importlib
from collections import OrderedDict
from collections.abc import Callable, Mapping
from typing import Protocol

import numpy as np
import torch
from torch import Tensor, nn

from models.flat_copy import fetch, send

PARTS = ("encoder", "head")
SMALLEST_SIDE = 4


class ModelError(ValueError):
    """No such model, or tensors that do not fit it. The text holds no weight and no path."""


class ModelSettings(Protocol):
    """What a run says of its split model."""

    @property
    def model(self) -> str: ...
    @property
    def width(self) -> int: ...
    @property
    def seed(self) -> int: ...


class SplitModel(nn.Module):
    """``head(encoder(x))``.

    Attributes
    ----------
    encoder : maps images (B, channels, height, width) to features (B, D).
    head : ``nn.Linear``, features (B, D) to logits (B, C).
    feature_dim : D.
    """

    parts = PARTS

    def __init__(self, encoder: nn.Module, feature_dim: int, num_classes: int) -> None:
        super().__init__()
        self.encoder = encoder
        self.head = nn.Linear(feature_dim, num_classes)
        self.feature_dim = feature_dim

    def forward(self, images: Tensor) -> Tensor:
        """Logits (B, C) of images (B, channels, height, width)."""
        return self.head(self.encoder(images))

    def tensors(self, part: str) -> dict[str, np.ndarray]:
        """The floating parameters and buffers of ``part`` ("encoder" or "head"), float32, on the CPU.

        A view of the live weights where they lie on the CPU: whoever keeps one across training copies it.
        """
        own = self._floating(part)
        if _on_cpu(own):
            return {name: _as_numpy(tensor) for name, tensor in own.items()}
        return fetch(own)

    def load(self, part: str, tensors: Mapping[str, np.ndarray]) -> None:
        """Copy ``tensors`` into ``part``, all or nothing; the arrays may be read-only.

        Raises ``ValueError`` if names, shapes or a kind of number differ from those of ``tensors(part)``.
        """
        own = self._floating(part)
        _check_tensors(part, own, tensors)
        if not _on_cpu(own):
            send(tensors, own)
            return
        for name, target in own.items():
            # through numpy, because torch warns about (and so forbids) a view of a read-only array
            np.copyto(target.numpy(), tensors[name])

    def _floating(self, part: str) -> dict[str, Tensor]:
        if part not in PARTS:
            raise ModelError(f"a model's part must be one of {', '.join(PARTS)}; got {part!r}")
        state = getattr(self, part).state_dict()
        return {name: tensor for name, tensor in state.items() if tensor.is_floating_point()}


def _on_cpu(tensors: Mapping[str, Tensor]) -> bool:
    return all(tensor.device.type == "cpu" for tensor in tensors.values())


def _as_numpy(tensor: Tensor) -> np.ndarray:
    # contiguous() undoes channels_last: what is sent has the plain order of its shape
    return tensor.to("cpu", torch.float32).contiguous().numpy()


def _check_tensors(part: str, own: Mapping[str, Tensor], got: Mapping[str, np.ndarray]) -> None:
    missing, unknown = sorted(own.keys() - got.keys()), sorted(got.keys() - own.keys())
    if missing or unknown:
        raise ModelError(
            f"{part} must get exactly the {len(own)} tensors of this model; missing {_few(missing)}, "
            f"unknown {_few(unknown)}. Check that both sides build the same model and width"
        )
    for name, target in own.items():
        if got[name].shape != target.shape:
            raise ModelError(
                f"{part} tensor {name!r} must have shape {tuple(target.shape)}, got {got[name].shape}. "
                "Check that both sides build the same model, width, image shape and classes"
            )
        if got[name].dtype.kind != "f":
            raise ModelError(f"{part} tensor {name!r} must hold floats, got {got[name].dtype}. Send float32")


def _few(names: list[str]) -> str:
    return (", ".join(names[:3]) + (f" and {len(names) - 3} more" if len(names) > 3 else "")) or "none"


def build_model(
    name: str, num_classes: int, in_shape: tuple[int, int, int], width: int = 0, seed: int = 0
) -> SplitModel:
    """A freshly initialised model on the CPU; the same arguments give the same weights, bit for bit.

    Parameters
    ----------
    name : ``cnn``, ``resnet18``, ``mobilenetv2``, or ``module:function`` for an encoder of your own:
        ``function(in_shape, width) -> (nn.Module, D)``, where the module maps images to features (B, D).
    num_classes : C, 1 or more.
    in_shape : (channels, height, width) of an image; height and width 4 or more.
    width : channels of the first stage; 0 is the model's own default (16, 64, 32). MobileNetV2 rounds its
        channels to multiples of 8.
    seed : decides the initial weights; torch's global random state stays as it was.

    Raises ``ModelError`` for an unknown name and for a size no model can have.
    """
    if ":" not in name and name not in _ENCODERS:
        close = difflib.get_close_matches(name, _ENCODERS, n=1, cutoff=0.5)
        hint = f"; did you mean {close[0]!r}?" if close else ""
        raise ModelError(f"a model must be one of {', '.join(_ENCODERS)}; got {name!r}{hint}")
    if num_classes < 1 or width < 0:
        raise ModelError(f"a model needs classes >= 1 and width >= 0, got {num_classes} and {width}")
    if len(in_shape) != 3 or in_shape[0] < 1 or min(in_shape[1:]) < SMALLEST_SIDE:
        raise ModelError(
            f"an image for model {name!r} must be (channels, height, width) with sides of {SMALLEST_SIDE} pixels or more, "
            f"got {tuple(in_shape)}. Enlarge smaller images in the data loader"
        )
    encoder_of, default_width = (_own_encoder(name), 0) if ":" in name else _ENCODERS[name]
    with torch.random.fork_rng(devices=[]):
        # not torch.manual_seed, which would also reset the generators of every GPU
        torch.default_generator.manual_seed(seed)
        try:
            encoder, feature_dim = encoder_of(in_shape, width or default_width)
            return SplitModel(encoder, feature_dim, num_classes)
        except (MemoryError, RuntimeError) as error:  # torch says RuntimeError
            raise ModelError(f"a model of width {width or default_width} does not fit in this machine's memory; "
                             "use a smaller width") from error


def split_model(run: ModelSettings, own: object, classes: int, in_shape: tuple[int, int, int], weights: bool = True) -> SplitModel:
    """The split model of a run, as the registry asks for it; ``own`` and ``weights`` change nothing."""
    return build_model(run.model, classes, in_shape, run.width, run.seed)


def _own_encoder(reference: str) -> _EncoderOf:
    """The user's function, which then answers for what it returns before anything is trained."""
    module, _, function = reference.partition(":")
    try:
        made_by = getattr(importlib.import_module(module), function)
    except (Exception, SystemExit) as missing:  # a module can raise anything when it is imported
        raise ModelError(f"model = {reference!r} must name an importable function, module:function "
                         f"({type(missing).__name__}; is its folder on PYTHONPATH?)") from missing

    def encoder_of(in_shape: tuple[int, int, int], width: int) -> tuple[nn.Module, int]:
        try:
            encoder, feature_dim = made_by(in_shape, width)
            with torch.no_grad():
                features = encoder.eval()(torch.zeros(2, *in_shape))
            shape = tuple(features.shape)
        except (Exception, SystemExit) as fault:
            raise ModelError(f"model = {reference!r} failed with {type(fault).__name__}; expected function(in_shape, width) -> "
                             "(torch.nn.Module, D), whose module maps float32 images (B, channels, height, width) to (B, D)") from fault
        if shape != (2, feature_dim):
            raise ModelError(f"model = {reference!r} must map images (B, ...) to features (B, {feature_dim}), as it says; "
                             f"for 2 images it gave the shape {shape}")
        return encoder.train(), feature_dim

    return encoder_of


def has_batchnorm(model: nn.Module) -> bool:
    """Whether ``model`` keeps running statistics of BatchNorm."""
    return bool(batchnorms(model))


def batchnorms(model: nn.Module) -> list[nn.Module]:
    """The layers of ``model`` that normalise by batch."""
    kinds = (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d)
    return [layer for layer in model.modules() if isinstance(layer, kinds)]


def shared_buffers(model: SplitModel) -> list[str]:
    """Names, within the encoder, of the floating buffers that travel beside its weights."""
    return [name for name, buffer in model.encoder.named_buffers() if buffer.is_floating_point()]


def _cnn(in_shape: tuple[int, int, int], width: int) -> tuple[nn.Module, int]:
    channels, side = in_shape[0], min(in_shape[1:])
    stages: list[tuple[str, nn.Module]] = []
    for number, scale in enumerate((1, 2, 4, 8), start=1):
        stage = _conv_norm_relu(channels, width * scale)
        if side >= SMALLEST_SIDE:
            stage.add_module("pool", nn.MaxPool2d(2))
            side //= 2
        stages.append((f"stage{number}", stage))
        channels = width * scale
    return nn.Sequential(OrderedDict(stages + _flat_mean())), channels


def _resnet18(in_shape: tuple[int, int, int], width: int) -> tuple[nn.Module, int]:
    from torchvision.models.resnet import BasicBlock, conv1x1

    channels = width
    stages: list[tuple[str, nn.Module]] = [("stem", _conv_norm_relu(in_shape[0], width))]
    for number, scale in enumerate((1, 2, 4, 8), start=1):
        out, stride, shortcut = width * scale, 1 if number == 1 else 2, None
        if number > 1:
            shortcut = nn.Sequential(conv1x1(channels, out, stride), nn.BatchNorm2d(out))
        blocks = nn.Sequential(BasicBlock(channels, out, stride, shortcut), BasicBlock(out, out))
        stages.append((f"stage{number}", blocks))
        channels = out
    encoder = nn.Sequential(OrderedDict(stages + _flat_mean()))
    encoder.apply(_init_conv)
    return encoder, channels


def _mobilenetv2(in_shape: tuple[int, int, int], width: int) -> tuple[nn.Module, int]:
    from torchvision.models.mobilenetv2 import Conv2dNormActivation, MobileNetV2

    whole = MobileNetV2(width_mult=width / 32)
    stem = whole.features[0]
    assert isinstance(stem, Conv2dNormActivation)
    stem[0] = nn.Conv2d(in_shape[0], stem.out_channels, 3, stride=1, padding=1, bias=False)
    _init_conv(stem[0])
    features: list[tuple[str, nn.Module]] = [("features", whole.features)]
    return nn.Sequential(OrderedDict(features + _flat_mean())), whole.last_channel


def _conv_norm_relu(channels: int, out: int) -> nn.Sequential:
    layers: list[tuple[str, nn.Module]] = [
        ("conv", nn.Conv2d(channels, out, 3, padding=1, bias=False)),
        ("norm", nn.BatchNorm2d(out)),
        ("relu", nn.ReLU(inplace=True)),
    ]
    return nn.Sequential(OrderedDict(layers))


def _flat_mean() -> list[tuple[str, nn.Module]]:
    """Global average pooling: (B, D, height, width) to (B, D)."""
    return [("mean", nn.AdaptiveAvgPool2d(1)), ("flatten", nn.Flatten())]


def _init_conv(layer: nn.Module) -> None:
    """He initialisation by fan-out, as torchvision's models do."""
    if isinstance(layer, nn.Conv2d):
        nn.init.kaiming_normal_(layer.weight, mode="fan_out", nonlinearity="relu")


_EncoderOf = Callable[[tuple[int, int, int], int], tuple[nn.Module, int]]
# name -> (encoder and its D for an image shape and a width, default width)
_ENCODERS: dict[str, tuple[_EncoderOf, int]] = {
    "cnn": (_cnn, 16),
    "resnet18": (_resnet18, 64),
    "mobilenetv2": (_mobilenetv2, 32),
}
