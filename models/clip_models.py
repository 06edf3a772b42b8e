"""A run's frozen towers and the prompt model around them, one function a method; the registry names them.

The class names come with the data, not with the settings, so the model itself is built for each message (`ClipModel.fresh`), which costs
little beside the towers. The server builds it without weights: what travels depends on sizes alone.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

import numpy as np

from models.backbones import empty_backbone
from models.frozen_classifiers import LocalLogistic, ZeroShot
from models.patch_evidence import EvidenceConfig
from models.prompt_classifier import PromptClassifier, PromptStart
from models.prompt_rivals import ConditionalPrompt, ExpertPrompts, LowRankPrompt
from models.prompt_transport import Transport, TransportPrompts
from models.prompted_clip import ClipConfig, PromptedClip
from models.prompted_model import BackboneSettings, check_image, weights_folder, whole_patches
from models.split import ModelError
from models.towers import OPEN_CLIP, TEXT_TOWERS, ImageTower, TextTower, empty_text_tower, load_image_tower, load_text_tower

Shape = tuple[int, int, int]
# builds the prompt model around a text tower and class names
Make = Callable[[TextTower, Sequence[str]], PromptClassifier]


class TowerSettings(BackboneSettings, Protocol):
    """What a run says of its towers and of how prompts start."""

    @property
    def text_side(self) -> str: ...
    @property
    def tower_size(self) -> int: ...
    @property
    def patch_source(self) -> str: ...
    @property
    def prompt_words(self) -> str: ...
    @property
    def prompt_tokens(self) -> int: ...


class ClipModel:
    """Both towers of a run, and how its prompt model is built around them.

    Attributes
    ----------
    image, text : the towers, on the CPU; None without weights. reads_text : whether prompts are made of the class names.
    patch_source : which patch features the image tower gives.
    template : the prompt model around a text tower without weights: sizes, and first values of what travels.
    """

    def __init__(self, run: TowerSettings, classes: int, in_shape: Shape, weights: bool, make: Make, reads_text: bool = True,
                 extra: Mapping[str, Mapping[str, np.ndarray]] | None = None) -> None:
        """``extra``: parts beside the prompt model's own. Raises ``ModelError`` for towers that are unknown, absent or do not fit."""
        check_image(in_shape)
        _check_text_side(run)
        self.patch_source, self.extra, self.reads_text = run.patch_source, dict(extra or {}), reads_text
        self._make, empty = make, empty_text_tower(run.text_side)
        self.template = make(empty, [str(c) for c in range(classes)])
        self.image: ImageTower | None = None
        self.text: TextTower | None = None
        if weights:
            self.image = image_tower(run, in_shape)
            self.text = load_text_tower(run.text_side, weights_folder(run)) if reads_text else empty
            if self.image.dim != self.text.dim:
                raise ModelError(f"image and text tower must have features of one width; {run.model} gives {self.image.dim} numbers and "
                                 f"{run.text_side} {self.text.dim}. Name towers that belong together")
            self.fresh(["thing"])  # words that do not fit the tower show now, not in a round

    @property
    def parts(self) -> tuple[str, ...]:
        """The names of the parts."""
        return (*self.template.parts, *self.extra)

    def tensors(self, part: str) -> Mapping[str, np.ndarray]:
        """The first tensors of ``part``; what a text tower's weights decide is not in them."""
        return self.extra[part] if part in self.extra else self.template.tensors(part)

    def fresh(self, names: Sequence[str]) -> PromptClassifier:
        """A prompt model in its first state for the classes ``names``, around the shared text tower."""
        if self.text is None:
            raise ModelError("this model was built without its towers' weights, so it cannot be used; build it with them")
        return self._make(self.text, names)


def image_tower(run: TowerSettings, in_shape: Shape) -> ImageTower:
    """The image tower for images of ``in_shape``: at ``tower-size``, or at the images' longer side, in whole patches."""
    if run.model.startswith(OPEN_CLIP):
        return load_image_tower(run.model, weights_folder(run))
    side = whole_patches(empty_backbone(run.model), run.tower_size or max(in_shape[1:]))
    return load_image_tower(run.model, weights_folder(run), side, precision=run.precision)


def fed_ia(run: TowerSettings, own: Any, classes: int, in_shape: Shape, weights: bool = True) -> ClipModel:
    """FedIA's model, as the registry asks for it."""
    evidence = EvidenceConfig(own.keep, own.tau, own.select, own.pool, own.add_cls) if own.patches else None
    config = ClipConfig(_start(run), evidence, own.meta, own.meta_width, own.gate, own.anchors, own.lambda_global, own.lambda_local,
                        own.local_noise)
    return ClipModel(run, classes, in_shape, weights, lambda tower, names: PromptedClip(tower, names, config, run.seed))


def fixed_mix(run: TowerSettings, own: Any, classes: int, in_shape: Shape, weights: bool = True) -> ClipModel:
    """Two prompts and one fixed weight."""
    config = ClipConfig(_start(run), None, "none", gate=f"fixed:{own.weight}", lambda_global=own.lambda_global)
    return ClipModel(run, classes, in_shape, weights, lambda tower, names: PromptedClip(tower, names, config, run.seed))


def promptfl(run: TowerSettings, own: Any, classes: int, in_shape: Shape, weights: bool = True) -> ClipModel:
    """One prompt: PromptFL's, and a local one's."""
    return ClipModel(run, classes, in_shape, weights, lambda tower, names: PromptClassifier(tower, names, _start(run), run.seed))


def cocoop(run: TowerSettings, own: Any, classes: int, in_shape: Shape, weights: bool = True) -> ClipModel:
    """A prompt that the image shifts."""
    return ClipModel(run, classes, in_shape, weights, lambda tower, names: ConditionalPrompt(tower, names, _start(run), run.seed))


def fedpgp(run: TowerSettings, own: Any, classes: int, in_shape: Shape, weights: bool = True) -> ClipModel:
    """A prompt and a low-rank change of it."""
    return ClipModel(run, classes, in_shape, weights, lambda tower, names: LowRankPrompt(
        tower, names, _start(run), own.rank, own.mu, own.temperature, run.seed))


def fedotp(run: TowerSettings, own: Any, classes: int, in_shape: Shape, weights: bool = True) -> ClipModel:
    """Two prompts that share an image's patches."""
    transport = Transport(own.eps, own.mass, own.iterations, own.stop)
    return ClipModel(run, classes, in_shape, weights, lambda tower, names: TransportPrompts(tower, names, _start(run), transport, run.seed))


def pfedmoap(run: TowerSettings, own: Any, classes: int, in_shape: Shape, weights: bool = True) -> ClipModel:
    """A prompt and a gate over experts, which come with the message."""
    def make(tower: TextTower, names: Sequence[str]) -> ExpertPrompts:
        width = own.gate_width or max(tower.dim // 4, 1)
        return ExpertPrompts(tower, names, _start(run), own.own_weight, width, own.heads, own.scaling, run.seed)

    experts = np.zeros((own.experts, run.prompt_tokens, empty_text_tower(run.text_side).width), np.float32)
    return ClipModel(run, classes, in_shape, weights, make, extra={"experts": {"experts": experts}})


def zero_shot(run: TowerSettings, own: Any, classes: int, in_shape: Shape, weights: bool = True) -> ClipModel:
    """The towers and the starting words."""
    return ClipModel(run, classes, in_shape, weights, lambda tower, names: ZeroShot(tower, names, _start(run), run.seed))


def local_logistic(run: TowerSettings, own: Any, classes: int, in_shape: Shape, weights: bool = True) -> ClipModel:
    """Logistic regression beside the image tower; the text tower's weights are not read."""
    return ClipModel(run, classes, in_shape, weights, lambda tower, names: LocalLogistic(tower, names, _start(run), own.penalty, run.seed),
                     reads_text=False)


def _start(run: TowerSettings) -> PromptStart:
    return PromptStart(run.prompt_words, run.prompt_tokens)


def _check_text_side(run: TowerSettings) -> None:
    name = run.text_side
    if not name.startswith(OPEN_CLIP) and name not in TEXT_TOWERS:
        got = f"it is empty beside model = {name}" if name == run.model else f"got {name!r}"
        raise ModelError(f"text-tower must name the text tower that goes with the run's model: {OPEN_CLIP}NAME, minilm-bridge for a CLIP "
                         f"ViT-B/16 of timm, or text-tiny-random for clip-tiny-random; {got}. It may be left out where model is "
                         f"{OPEN_CLIP}NAME")
