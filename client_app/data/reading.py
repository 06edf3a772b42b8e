"""How image files become arrays: what a run's settings say, as one cache key.

Every site of a federation reads with the same settings, so that images of one federation have one shape.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from strategies.config import RunConfig


@dataclass(frozen=True)
class Reading:
    """How image files are read. The first three fields are those of ``RunConfig``; ``images.py`` states the rules.

    Attributes
    ----------
    image_size : side of the square that every image is scaled and cropped to, in pixels; 0 for the size they all share.
    channels : 1 (grey) or 3 (colour); 0 for what the data need.
    bad_images : ``stop`` or ``skip``: what to do about images that cannot be read.
    shelf : folder of this client's own where decoded images may be kept, None to keep none.
    """

    image_size: int = 0
    channels: int = 0
    bad_images: str = "stop"
    shelf: Path | None = None


def reading_of(config: RunConfig, shelf: Path | None = None) -> Reading:
    """What ``config`` says, with decoded images kept in ``shelf``."""
    return Reading(config.image_size, config.channels, config.bad_images, shelf)
