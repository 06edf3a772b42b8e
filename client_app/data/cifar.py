"""CIFAR-10 (Krizhevsky 2009) from the python batches on this machine; nothing is ever downloaded.

Torchvision reads them and checks every file's md5.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from client_app.data.client_data import DataError
from client_app.data.source import Source


def load(where: str) -> Source:
    """The 50,000 training and 10,000 test images as (60000, 3, 32, 32) uint8.

    ``where`` is the folder that holds ``cifar-10-batches-py``, or that folder itself.

    Raises
    ------
    DataError
        If a batch is missing or damaged.
    """
    from torchvision.datasets import CIFAR10

    folder = Path(where).expanduser()
    root = folder.parent if folder.name == CIFAR10.base_folder else folder
    try:
        parts: list[Any] = [CIFAR10(str(root), train=train) for train in (True, False)]
    except (RuntimeError, OSError) as error:
        raise DataError(f"CIFAR-10 is missing or damaged: expected a folder with {CIFAR10.base_folder} "
                        "(data_batch_1 to 5, test_batch, batches.meta, unchanged); unpack "
                        "cifar-10-python.tar.gz there", where) from error
    images = np.concatenate([part.data for part in parts]).transpose(0, 3, 1, 2)
    labels = np.concatenate([np.asarray(part.targets, np.int64) for part in parts])
    return Source(np.ascontiguousarray(images), labels, tuple(parts[0].classes), len(parts[0].data))
