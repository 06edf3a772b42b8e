"""A data set of Hugging Face ``datasets``: ``hub:NAME``, the optional extra ``fedhearth[hub]``.

``NAME`` is a folder that ``save_to_disk`` wrote, a local folder that ``load_dataset`` understands (Parquet files, an image
folder), or a data set's name on a hub (``hub:NAME#CONFIG``), which is fetched over the network; what lies on this disk
wins. Columns are found as in a table (``columns.py``), but an ``Image`` feature is the image column and a ``ClassLabel``
the label column before any name counts; its names are the classes. Splits train, validation and test are the official
sets; others are left out.
"""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from client_app.data.client_data import DataError
from client_app.data.columns import OPTIONS, SPLITS, declared_classes, find_columns
from client_app.data.file_source import stamp
from client_app.data.images import Encoded
from client_app.data.place import check_options, is_there, options
from client_app.data.reading import Reading
from client_app.data.source import Source
from client_app.data.table import encoded, pool

log = logging.getLogger(__name__)
AT_ONCE = 256  # rows read from disk at a time


def load(where: str, reading: Reading) -> Source:
    """The samples of the data set ``where``, training samples first.

    Raises
    ------
    DataError
        If ``datasets`` is not installed, the data set cannot be opened, has no usable columns, or as ``file_source``.
    """
    place, chosen = options(where)
    try:
        check_options(chosen, OPTIONS)
        return _source(_opened(place), chosen, reading)
    except DataError as error:
        error.path = error.path or place
        raise


def _opened(place: str) -> Any:
    try:
        import datasets
    except ImportError as error:
        raise DataError("hub:NAME needs Hugging Face datasets: pip install 'fedhearth[hub]'") from error
    try:
        if not is_there(place):
            name, _, config = place.partition("#")
            return datasets.load_dataset(name, config or None)
        folder = Path(place).expanduser()
        if any((folder / name).is_file() for name in ("dataset_dict.json", "state.json")):
            return datasets.load_from_disk(str(folder))
        return datasets.load_dataset(str(folder))
    except Exception as error:  # its readers raise nearly anything on damaged input, and so does the network
        raise DataError(f"the data set cannot be opened ({type(error).__name__}): expected a folder that datasets can read, or a name on "
                        "a hub that this machine can reach") from error


def _source(found: Any, chosen: dict[str, str], reading: Reading) -> Source:
    parts = _official(found)
    first = parts[0][1]
    roles = _roles(first.features, chosen)
    image = roles.pop("image")
    columns: dict[str, Sequence[object]] = {}
    for role, name in roles.items():
        if any(name not in part.column_names for _, part in parts):
            raise DataError("expected the same columns in every split of the data set")
        columns[role] = [value for _, part in parts for value in part.select_columns([name])[:][name]]
    if len(parts) > 1:
        columns["split"] = [split for split, part in parts for _ in range(len(part))]
    names = getattr(first.features[roles["label"]], "names", None)
    images = HubImages(tuple(_undecoded(part, image) for _, part in parts), image, tuple(map(_content, (part for _, part in parts))))
    return pool(columns, images, declared_classes(chosen) or tuple(names or ()), reading)


def _official(found: Any) -> list[tuple[str, Any]]:
    """(train, val or test; data set) of every official split; a data set without splits is one of training samples."""
    if not isinstance(found, dict):
        return [("train", found)]
    parts = [(SPLITS[name.lower()], part) for name, part in found.items() if name.lower() in SPLITS]
    parts.sort(key=lambda part: ("train", "val", "test").index(part[0]))
    if not parts and len(found) == 1:
        return [("train", next(iter(found.values())))]
    if not parts or parts[0][0] != "train":
        raise DataError("the data set has no training samples: expected a split named train")
    if len(parts) < len(found):
        log.info("%d splits of the data set are neither train, validation nor test, and are left out", len(found) - len(parts))
    return parts


def _roles(features: Any, chosen: dict[str, str]) -> dict[str, str]:
    """As ``find_columns``; features that say what they are come before names."""
    by_kind = {"image": "Image", "label": "ClassLabel"}
    told = {role: next((name for name, feature in features.items() if type(feature).__name__ == kind), None)
            for role, kind in by_kind.items()}
    return find_columns(list(features), {**{role: name for role, name in told.items() if name},
                                         **{role: name for role, name in chosen.items() if role != "classes"}})


def _undecoded(part: Any, image: str) -> Any:
    import datasets

    is_image = isinstance(part.features[image], datasets.Image)
    return part.select_columns([image]).cast_column(image, datasets.Image(decode=False)) if is_image else part.select_columns([image])


def _content(part: Any) -> bytes:
    """What tells this data set from another: the fingerprint that ``datasets`` gives it, and its files' sizes and times."""
    files = (file["filename"] for file in part.cache_files)
    return b"\0".join([part._fingerprint.encode(), *(file.encode() + stamp(Path(file)) for file in files)])


@dataclass(frozen=True, eq=False)
class HubImages:
    """The image column of one or more data sets, one after the other; ``contents`` changes with what they hold."""

    parts: tuple[Any, ...]
    column: str
    contents: tuple[bytes, ...]

    def __len__(self) -> int:
        return sum(map(len, self.parts))

    def name(self, row: int) -> str:
        return f"row {row} (from 0) of the data set"

    def digest(self) -> str:
        return hashlib.sha256(b"\0".join((self.column.encode(), *self.contents))).hexdigest()

    def batches(self, rows: np.ndarray) -> Iterator[tuple[np.ndarray, Sequence[Encoded]]]:
        ends = np.cumsum([len(part) for part in self.parts])
        for start in range(0, len(rows), AT_ONCE):
            places = np.arange(start, min(start + AT_ONCE, len(rows)))
            part_of = np.searchsorted(ends, rows[places], side="right")
            for number in np.unique(part_of):
                mine, part = places[part_of == number], self.parts[number]
                within = rows[mine] - (ends[number] - len(part))
                yield mine, [encoded(value, Path()) for value in part[within.tolist()][self.column]]
