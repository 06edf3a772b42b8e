"""A run's prompted Vision Transformer: the backbone by the run's ``model``, at the size of its images.

The backbone is built for square images of the data's longer side, rounded up to whole patches (our choice); what it gets is
resized to that by ``models.backbones.prepare``. So ``image-size = 48`` gives 48 pixels with patches of 16.
"""

from __future__ import annotations

import math
import os
from collections.abc import Mapping
from typing import Any, Protocol

from models.backbones import empty_backbone, load_backbone
from models.prompt_config import PromptConfig
from models.prompted_vit import PromptedViT
from models.split import ModelError

# where a site's weights lie, if the run does not say
WEIGHTS = "FEDHEARTH_WEIGHTS"


class BackboneSettings(Protocol):
    """What a run says of its frozen backbone."""

    @property
    def model(self) -> str: ...
    @property
    def seed(self) -> int: ...
    @property
    def weights_dir(self) -> str: ...
    @property
    def precision(self) -> str: ...
    @property
    def checkpointing(self) -> bool: ...


class PromptSettings(Protocol):
    """What a method says of its prompts: settings of ``PromptConfig``, and ``deep`` for a shared prompt at every layer."""

    @property
    def prompts(self) -> Mapping[str, Any]: ...


def prompted_model(run: BackboneSettings, own: PromptSettings, classes: int, in_shape: tuple[int, int, int],
                   weights: bool = True) -> PromptedViT:
    """The prompted model of a run, as the registry asks for it; see ``backbone_of``."""
    vit = backbone_of(run, in_shape, weights)
    options = dict(own.prompts)
    if options.pop("deep", False):
        options["shared_layers"] = tuple(range(1, len(vit.blocks) + 1))
    return PromptedViT(vit, classes, PromptConfig(checkpointing=run.checkpointing, **options), run.seed)


def backbone_of(run: BackboneSettings, in_shape: tuple[int, int, int], weights: bool = True) -> Any:
    """The frozen backbone for images of ``in_shape`` (channels, height, width); without ``weights`` an empty one.

    Raises ``ModelError`` as ``models.backbones.load_backbone``, and for images of 2 or 4 channels.
    """
    check_image(in_shape)
    shape = empty_backbone(run.model)
    side = whole_patches(shape, max(in_shape[1:]))
    if not weights:
        shape.set_input_size(img_size=(side, side))
        return shape
    return load_backbone(run.model, weights_folder(run), side, precision=run.precision)


def check_image(in_shape: tuple[int, int, int]) -> None:
    """Raise ``ModelError`` unless images are (1 or 3 channels, height, width)."""
    if len(in_shape) != 3 or in_shape[0] not in (1, 3):
        raise ModelError(f"a Vision Transformer takes images of 1 or 3 channels, (channels, height, width); got {tuple(in_shape)}. "
                         "Set channels = 3, or convert them in the data loader")


def whole_patches(vit: Any, pixels: int) -> int:
    """``pixels`` a side, rounded up to whole patches of ``vit``."""
    patch = max(vit.patch_embed.patch_size)
    return math.ceil(pixels / patch) * patch


def weights_folder(run: BackboneSettings) -> str:
    """Where weights lie: the run's ``weights-dir``, else the site's."""
    return run.weights_dir or os.environ.get(WEIGHTS, "")
