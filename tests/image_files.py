"""Small image files that the tests of loaders share."""

from __future__ import annotations

from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image


def encode(pixels: Any, mode: str = "", form: str = "PNG", **more: Any) -> bytes:
    """A file's content; ``pixels`` is an array or a colour for a 4x4 image."""
    out = BytesIO()
    image = Image.fromarray(pixels) if isinstance(pixels, np.ndarray) else Image.new(mode, (4, 4), pixels)
    image.save(out, form, **more)
    return out.getvalue()


def grey(value: int, height: int = 4, width: int = 4) -> np.ndarray:
    return np.full((height, width), value, np.uint8)


def write(path: Path, content: bytes) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content)
    return path


def write_folder(root: Path, **sets: list[tuple[str, int]]) -> Path:
    """Grey 4x4 PNGs ``<set>/<name>.png``; the set "all" stands for no set. Names hold the class folder."""
    for part, files in sets.items():
        for name, value in files:
            write((root if part == "all" else root / part) / f"{name}.png", encode(grey(value)))
    return root
