"""From an image file to an array: one set of rules for every source of files.

1. The orientation that a camera noted (EXIF) is applied; damaged EXIF data are ignored. Of several frames, the first counts.
2. Transparency is laid over white; a palette is looked up; CMYK and other colour spaces become RGB; 1 bit becomes 0 and
   255; of 16 bits the upper 8 are kept (of wider whole numbers, after cutting to 0..65535; transparency is ignored
   there). Floating-point pixels have no agreed range and count as unreadable.
3. Channels: 3 if any image of the data set is not stored as grey (a palette is not grey), else 1; ``channels`` = 1 or 3
   says it for all sites. Grey made of colour is ITU-R 601 luma; colour made of grey repeats it.
4. Size: without ``image-size`` all images must have one size. With it, the middle square of an image, as large as its
   shorter side, is scaled to it (bilinear, antialiased): up to rounding, the same as scaling the shorter side and
   cropping the middle.
5. The result is uint8.

The rules are our own choice, near to what torchvision and Pillow do by default. Headers are enough for everything but
pixels: ``header`` decodes nothing unless asked to.
"""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from io import BytesIO
from pathlib import Path
from stat import S_ISREG
from typing import TypeAlias

import numpy as np
from PIL import ExifTags, Image, ImageOps

Encoded: TypeAlias = Path | bytes | np.ndarray
"""A file, a file's content, or (channels, H, W) uint8 pixels with 1 or 3 channels."""

WIDE = ("I;16", "I;16B", "I;16L", "I;16N", "I")
GREY = ("1", "L", "LA", "La", *WIDE)
SIDEWAYS = (5, 6, 7, 8)  # EXIF orientations that swap height and width

# Pillow warns of images above 89 megapixels, which a slide scanner makes every day, and refuses twice that
warnings.filterwarnings("ignore", category=Image.DecompressionBombWarning)
# Pillow loads its rarer formats at the first image it does not know, and a second thread that comes meanwhile is told
# that its image is none
Image.init()


@dataclass(frozen=True)
class Header:
    """Height and width after rule 1, in pixels, and whether the image is stored in colour."""

    height: int
    width: int
    coloured: bool


def header(encoded: Encoded, whole: bool = False) -> Header:
    """What a file says of itself; with ``whole``, only after all of it could be decoded.

    Raises whatever Pillow raises for a file that is damaged, cut short, missing or no image.
    """
    with _opened(encoded) as image:
        if image.mode == "F":
            raise ValueError("floating-point pixels: save them as 8 or 16 bits")
        width, height = image.size
        # Pillow swaps a TIFF's size by itself, and would decode a PNG to look for EXIF behind its pixels
        if image.format != "TIFF" and "exif" in image.info and _orientation(image) in SIDEWAYS:
            width, height = height, width
        found = Header(height, width, image.mode not in GREY)
        if whole:
            image.load()
    return found


def pixels(encoded: Encoded, channels: int, size: int) -> np.ndarray:
    """(channels, H, W) uint8 by the rules above; ``size`` 0 keeps the image's own. Raises as ``header``."""
    with _opened(encoded) as image:
        image.load()
        upright = ImageOps.exif_transpose(image) if _orientation(image) > 1 else image
        plain = _plain(upright, "L" if channels == 1 else "RGB")
        array = np.asarray(_square(plain, size) if size else plain)
    return array[None] if channels == 1 else np.ascontiguousarray(array.transpose(2, 0, 1))


def _opened(encoded: Encoded) -> Image.Image:
    if isinstance(encoded, np.ndarray):
        return Image.fromarray(encoded[0] if len(encoded) == 1 else np.ascontiguousarray(encoded.transpose(1, 2, 0)))
    if isinstance(encoded, bytes):
        return Image.open(BytesIO(encoded))
    if not S_ISREG(encoded.stat().st_mode):  # a pipe would be waited for without end
        raise ValueError("no file: expected an image file, got a folder, a pipe or a device")
    return Image.open(encoded)


def _orientation(image: Image.Image) -> int:
    try:
        return int(image.getexif().get(ExifTags.Base.Orientation, 1))
    except Exception:  # damaged EXIF in sound images is common, and Pillow raises nearly anything on it
        return 1


def _plain(image: Image.Image, mode: str) -> Image.Image:
    """``image`` as ``L`` or ``RGB``."""
    if image.mode == "F":
        raise ValueError("floating-point pixels: save them as 8 or 16 bits")
    if image.mode in WIDE:
        wide = np.clip(np.asarray(image).astype(np.int64), 0, 65535) >> 8
        image = Image.fromarray(wide.astype(np.uint8))
    elif image.has_transparency_data:
        image = _over_white(image)
    if image.mode not in ("L", "RGB"):
        image = image.convert("L" if image.mode == "1" else "RGB")
    return image if image.mode == mode else image.convert(mode)


def _over_white(image: Image.Image) -> Image.Image:
    if image.mode == "La":  # Pillow knows no direct way from there
        image = image.convert("LA")
    coloured = image.convert("RGBA")
    return Image.alpha_composite(Image.new("RGBA", image.size, "white"), coloured).convert("RGB")


def _square(image: Image.Image, size: int) -> Image.Image:
    width, height = image.size
    side = min(width, height)
    left, top = (width - side) // 2, (height - side) // 2
    return image.resize((size, size), Image.Resampling.BILINEAR, box=(left, top, left + side, top + side))
