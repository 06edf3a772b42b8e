"""Images turned by client: clients take turns at 0, 90, 180 and 270 degrees, so four true groups exist.

It says nothing about who gets which samples, so it goes with any division. That clients take turns in their
order is our own choice. Clients take turns at domains in the same way: with four domains, ``rotation+domain``
gives every domain one angle, and there are four groups, not sixteen.
"""

from __future__ import annotations

import numpy as np

from client_app.data.partition import PartitionError

ANGLES = (0, 90, 180, 270)


def angle_of(client: int) -> int:
    """Degrees, counter-clockwise, by which client's images are turned: 0, 90, 180, 270, 0, ..."""
    return ANGLES[client % len(ANGLES)]


def turned(images: np.ndarray, angle: int) -> np.ndarray:
    """(n, channels, H, H) images turned counter-clockwise by ``angle`` degrees, a multiple of 90.

    Raises
    ------
    PartitionError
        If the images are not square, since turned ones would have another shape than the rest.
    """
    check_square(images.shape[1:])
    return np.ascontiguousarray(np.rot90(images, angle // 90, axes=(2, 3)))


def check_square(image_shape: tuple[int, ...]) -> None:
    """Raise ``PartitionError`` unless images of shape (channels, H, W) are square."""
    if image_shape[1] != image_shape[2]:
        raise PartitionError("the rotation partition needs square images; use another partition or crop them")
