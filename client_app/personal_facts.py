"""What a personal model says of itself: enough to rebuild and use it without the run that made it.

The facts lie in the model's own file and, for people, in ``personal.json`` beside it. They are as local as the model. Loading
them takes no torch, so that a command can look at many models quickly.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from typing import Any

from client_app.data.client_data import ClientData
from strategies.config import Scalar, items_of
from strategies.registry import Settings, parse_run_config
from strategies.types import Round

PERSONAL = "personal"
DTYPES = ("uint8", "float32")
INFINITE = "inf"


class PersonalError(RuntimeError):
    """This personal model cannot be used; the message says why and what to do, and names no path."""


@dataclass(frozen=True)
class PersonalFacts:
    """One client's personal model, described.

    Attributes
    ----------
    method, model, width, settings : how it was made; ``settings`` are the method's own run-config keys.
    classes : (C,) names, in the order of the logits.
    input_shape : (channels, height, width) of an image.
    dtype : of the images the client trained on: ``uint8`` pixels, which are normalised to ``(x / 255 - 0.5) / 0.25``, or
        ``float32``, which are used as they are.
    image_size, channels : the run's rules for image files; 0 is the data's own.
    client, run_id, round : whose, and of which run's last round.
    served : accuracy on the client's own test images in 0..1, None if it has none.
    precision : what it was scored in. The weights are float32.
    version : of this program.
    """

    method: str
    model: str
    width: int
    classes: tuple[str, ...]
    input_shape: tuple[int, int, int]
    dtype: str
    image_size: int = 0
    channels: int = 0
    client: str = ""
    run_id: str = ""
    round: int = 0
    served: float | None = None
    precision: str = "float32"
    version: str = ""
    settings: Mapping[str, Scalar] = field(default_factory=dict)

    def __post_init__(self) -> None:
        object.__setattr__(self, "classes", tuple(self.classes))
        object.__setattr__(self, "input_shape", tuple(self.input_shape))
        if not self.classes or not all(isinstance(name, str) for name in self.classes):
            raise PersonalError("a personal model needs one class name or more")
        if len(self.input_shape) != 3 or not all(isinstance(n, int) and n >= 1 for n in self.input_shape):
            raise PersonalError("a personal model's image shape must be three numbers: channels, height, width")
        if self.dtype not in DTYPES:
            raise PersonalError(f"a personal model's images must be of dtype {' or '.join(DTYPES)}")

    @property
    def parsed(self) -> Settings:
        """The part of the run's config that makes the model, for a method that needs its own settings to rebuild it."""
        return parse_run_config({"method": self.method, "model": self.model, "width": self.width, **self.settings})

    def to_json(self) -> dict[str, Any]:
        """As JSON can hold it, which knows no infinity: such a setting is written as a word."""
        settings = {key: INFINITE if value == math.inf else value for key, value in self.settings.items()}
        return {**asdict(self), "classes": list(self.classes), "input_shape": list(self.input_shape), "settings": settings}

    @classmethod
    def from_json(cls, found: Mapping[str, Any]) -> PersonalFacts:
        """Of what ``to_json`` made; keys that a later version added are left out. Raises ``PersonalError``."""
        if not found:
            raise PersonalError("this personal model says nothing of itself, so it was written by an older version; "
                                "finish the run again with this one")
        try:
            known: dict[str, Any] = {name: found[name] for name in (f.name for f in fields(cls)) if name in found}
            if isinstance(told := known.get("settings"), Mapping):
                known["settings"] = {key: math.inf if value == INFINITE else value for key, value in told.items()}
            return cls(**known)
        except (TypeError, ValueError):
            raise PersonalError("what this personal model says of itself is damaged; restore the file, or finish the run again") from None


def facts_of(settings: Settings, data: ClientData, client: str, rnd: Round, served: float | None) -> PersonalFacts:
    """The facts of the model that ``client`` ends up with after round ``rnd`` of the run that ``settings`` describe."""
    run = settings.run
    return PersonalFacts(
        method=run.method, model=run.model, width=run.width, classes=data.classes, input_shape=data.input_shape,
        dtype=str(data.train.images.dtype), image_size=run.image_size, channels=run.channels,
        client=client, run_id=run.run_id, round=rnd.number, served=served, precision=run.precision, version=_version(),
        settings=items_of(settings.own, f"{run.method}."))


@cache  # reading a package's metadata takes milliseconds, and a simulation asks for every client
def _version() -> str:
    try:
        return version("fedhearth")
    except PackageNotFoundError:  # the code came with the run, to a site that has not installed it
        return ""
