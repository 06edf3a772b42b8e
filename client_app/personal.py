"""A finished personal model in use: loaded from what a client kept, without the run that made it.

    personal = load_personal("runs/mine/clients/RUN-ID/client-003")
    personal.predict(images)                       # (n, C) probabilities

``module`` takes normalised float32 images; ``data_module`` takes images as the client's data were, so for pixels it does the
normalisation itself. Both give logits, the same ones, and in float32 on the same machine exactly those that were scored.

A method whose personal model is no ``SplitModel`` names how it is rebuilt: ``personal_module(kept, facts)`` on its learner. A
module that prepares pixels in a way of its own, as its backbone wants them, says so by ``takes_pixels = True``.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor, nn

from client_app.local.store import StoreError, read_export
from client_app.loop import DeviceError, normalised, resolve_device
from client_app.personal_facts import PERSONAL, PersonalError, PersonalFacts
from models import PARTS, SplitModel, build_model
from models.split import ModelError
from strategies.registry import find_method
from strategies.types import Slots

__all__ = ["FACTS_KEY", "DeviceError", "FromPixels", "Personal", "PersonalError", "load_personal", "split_module"]

FILE = f"{PERSONAL}.safetensors"
# where an exported model keeps its facts, in whatever its format has for metadata
FACTS_KEY = "fedhearth"
BATCH = 256


class FromPixels(nn.Module):
    """``module`` with the normalisation inside: pixels (B, channels, height, width) uint8 to logits (B, C)."""

    def __init__(self, module: nn.Module) -> None:
        super().__init__()
        self.module = module

    def forward(self, pixels: Tensor) -> Tensor:
        return self.module(normalised(pixels))


@dataclass(frozen=True, eq=False)
class Personal:
    """One client's model, ready to use.

    Attributes
    ----------
    facts : what the model says of itself.
    kept : its tensors by slot, as the client kept them.
    module : maps images (B, channels, height, width), float32 and normalised as ``loop.inputs`` does, to logits (B, C); in
        eval mode, without gradients. If it ``takes_pixels``, it maps images as ``data_module`` does.
    device : where ``module`` lies.
    """

    facts: PersonalFacts
    kept: Slots = field(repr=False)  # thousands of numbers
    module: nn.Module
    device: torch.device

    @property
    def classes(self) -> tuple[str, ...]:
        """(C,) names, in the order of the logits."""
        return self.facts.classes

    @property
    def input_shape(self) -> tuple[int, int, int]:
        """(channels, height, width)."""
        return self.facts.input_shape

    @property
    def data_module(self) -> nn.Module:
        """Maps images of ``facts.dtype``, as the client's data were, to logits (B, C)."""
        return FromPixels(self.module).eval() if self.normalises else self.module

    @property
    def normalises(self) -> bool:
        """Whether pixels go through ``loop.normalised`` before they go through ``module``."""
        return self.facts.dtype == "uint8" and not getattr(self.module, "takes_pixels", False)

    def logits(self, images: np.ndarray) -> np.ndarray:
        """Logits (n, C) float32 of images (n, channels, height, width) of ``facts.dtype``.

        Raises ``ValueError`` for another shape or dtype: pixels that were scaled already would give confident nonsense.
        """
        if images.ndim != 4 or images.shape[1:] != self.input_shape or str(images.dtype) != self.facts.dtype:
            raise ValueError(f"expected images of shape (n, {', '.join(map(str, self.input_shape))}) and dtype {self.facts.dtype}, "
                             f"got {images.shape} {images.dtype}")
        module, chunks = self.data_module, range(0, len(images), BATCH)
        with torch.inference_mode():
            # np.array copies, since torch warns about a view of a read-only array
            parts = [module(torch.from_numpy(np.array(images[at:at + BATCH])).to(self.device)).float().cpu().numpy() for at in chunks]
        return np.concatenate(parts) if parts else np.zeros((0, len(self.classes)), np.float32)

    def predict(self, images: np.ndarray) -> np.ndarray:
        """Probabilities (n, C) float32 of images as ``logits`` takes them."""
        return torch.softmax(torch.from_numpy(self.logits(images)), dim=1).numpy()


def load_personal(place: Path | str, device: str = "cpu") -> Personal:
    """The personal model in a client's folder, or in a safetensors file that was copied or exported from there.

    Raises
    ------
    PersonalError
        If there is none, it is damaged, or it cannot be rebuilt here.
    DeviceError
        If this machine lacks ``device``.
    """
    target = resolve_device(device)
    path = Path(place)
    kept, facts = _read(path / FILE if path.is_dir() else path)
    rebuild = getattr(find_method(facts.method).learner_class(), "personal_module", split_module)
    module = rebuild(kept, facts).eval().requires_grad_(False).to(target)
    return Personal(facts, kept, module, target)


def split_module(kept: Slots, facts: PersonalFacts) -> SplitModel:
    """Encoder and head of ``kept`` as a model: what every method of split models serves with."""
    try:
        model = build_model(facts.model, len(facts.classes), facts.input_shape, facts.width)
        for part in PARTS:
            model.load(part, kept[part])
    except KeyError as missing:
        raise PersonalError(f"this personal model lacks its {missing.args[0]}; restore the file, or finish the run again") from None
    except ModelError as error:
        raise PersonalError(f"this personal model cannot be rebuilt: {error}") from error
    return model


def _read(path: Path) -> tuple[Slots, PersonalFacts]:
    try:
        with safe_open(path, framework="numpy") as file:
            meta = file.metadata() or {}
            if FACTS_KEY in meta:
                kept: dict[str, dict[str, np.ndarray]] = {}
                for key in file.keys():  # noqa: SIM118
                    slot, _, name = key.partition(".")
                    kept.setdefault(slot, {})[name] = file.get_tensor(key)
                return kept, PersonalFacts.from_json(json.loads(meta[FACTS_KEY]))
        slots, found = read_export(path)
    except FileNotFoundError:
        raise PersonalError("there is no personal model here; a client gets it at the end of a run") from None
    except OSError as error:
        raise PersonalError(f"the personal model cannot be read ({error.strerror}); check its permissions") from None
    except (SafetensorError, StoreError, ValueError):
        raise PersonalError("the personal model is damaged; restore the file, or finish the run again") from None
    return slots, PersonalFacts.from_json(found)
