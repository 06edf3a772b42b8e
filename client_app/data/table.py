"""A table of labelled images: ``table:FILE`` with a CSV or Parquet file.

One row a sample. The image column holds paths (relative to the table's folder) or, in Parquet, the encoded images
themselves: binary, or Hugging Face's struct of ``bytes`` and ``path``. ``columns.py`` says how columns are found and what
labels, splits and classes mean; ``table:FILE?image=scan&label=finding&classes=benign,malignant`` names them.

CSV is UTF-8 with a header line; the separator is the one of comma, semicolon and tab that the header has most of.
Parquet's images are read one row group at a time.
"""

from __future__ import annotations

import csv
import hashlib
import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from client_app.data.client_data import DataError
from client_app.data.columns import META, OPTIONS, as_text, declared_classes, find_columns, labels_of, official_order
from client_app.data.file_source import Files, ImageStore, file_source, stamp
from client_app.data.images import Encoded
from client_app.data.place import check_options, options
from client_app.data.reading import Reading
from client_app.data.source import Source

CSV_ENDINGS = (".csv", ".tsv", ".txt")


def load(where: str, reading: Reading) -> Source:
    """The samples of the table ``where``, training samples first.

    Raises
    ------
    DataError
        If the file is missing or damaged, a column is missing or malformed, pyarrow is not installed, or as
        ``file_source``.
    """
    place, chosen = options(where)
    try:
        check_options(chosen, OPTIONS)
        path = _file(place)
        columns, images, classes = (_csv if path.suffix.lower() in CSV_ENDINGS else _parquet)(path, chosen)
        return pool(columns, images, declared_classes(chosen) or classes, reading)
    except DataError as error:
        error.path = error.path or place
        raise


def pool(columns: dict[str, Sequence[object]], images: ImageStore, classes: tuple[str, ...], reading: Reading) -> Source:
    """A source of ``columns``, (n,) values by role, whose row i has the image in row i of ``images``."""
    if not len(images):
        raise DataError("the table has no row: expected one a sample")
    labels, names = labels_of(columns["label"], classes)
    order, train_count = official_order(columns["split"]) if "split" in columns else (np.arange(len(labels)), len(labels))
    meta = {role: as_text(columns[role])[order] for role in META if role in columns}
    return file_source(images, order, labels[order], names, train_count, meta, reading)


def encoded(value: object, base: Path) -> Encoded:
    """One entry of an image column; what is no image becomes empty content, which cannot be read."""
    if isinstance(value, dict):
        value = value.get("bytes") or value.get("path")
    return value if isinstance(value, bytes) else base / value if isinstance(value, str) and value else b""


def _file(place: str) -> Path:
    try:
        path = Path(place).expanduser()
        if path.is_file():
            return path
    except (OSError, RuntimeError):  # no permission to look; a home that nobody has
        pass
    raise DataError("the table is missing: expected `table:FILE` with a CSV or Parquet file that this client can read (FH-026)")


def _csv(path: Path, chosen: dict[str, str]) -> tuple[dict[str, Sequence[object]], ImageStore, tuple[str, ...]]:
    try:
        with path.open(encoding="utf-8-sig", newline="") as file:
            heading = file.readline()
            file.seek(0)
            reader = csv.DictReader(file, delimiter=max(",;\t", key=heading.count), strict=True)
            rows, names = list(reader), reader.fieldnames or ()
    except (UnicodeDecodeError, csv.Error, OSError) as error:
        raise DataError("the table is damaged or no CSV in UTF-8; save it anew as CSV in UTF-8 with a header line") from error
    found = find_columns(names, chosen)
    uneven = sum(None in row or None in row.values() for row in rows)
    if uneven:
        raise DataError(f"{uneven} rows of the table have another number of columns than its header, its first line; mend or remove them")
    columns: dict[str, Sequence[object]] = {role: [row[name] for row in rows] for role, name in found.items()}
    return columns, Files([path.parent / str(name) for name in columns.pop("image")]), ()


def _parquet(path: Path, chosen: dict[str, str]) -> tuple[dict[str, Sequence[object]], ImageStore, tuple[str, ...]]:
    try:
        import pyarrow as arrow
        import pyarrow.parquet as parquet
    except ImportError as error:
        raise DataError("reading Parquet needs pyarrow: pip install 'fedhearth[table]'") from error
    try:
        with parquet.ParquetFile(path) as file:
            schema = file.schema_arrow
            found = find_columns(schema.names, chosen)
            image = found.pop("image")
            columns: dict[str, Sequence[object]] = {role: file.read([name]).column(name).to_pylist() for role, name in found.items()}
            if arrow.types.is_string(schema.field(image).type) or arrow.types.is_large_string(schema.field(image).type):
                paths = file.read([image]).column(image).to_pylist()
                return columns, Files([path.parent / (name or "") for name in paths]), _class_label_names(schema.metadata, found["label"])
            groups = [file.metadata.row_group(group).num_rows for group in range(file.num_row_groups)]
    except (arrow.ArrowException, OSError, UnicodeDecodeError) as error:
        raise DataError("the table is damaged or no Parquet file; write it anew (a CSV table's name must end in "
                        f"{', '.join(CSV_ENDINGS)})") from error
    return columns, ParquetImages(path, image, tuple(groups)), _class_label_names(schema.metadata, found["label"])


def _class_label_names(metadata: dict[bytes, bytes] | None, column: str) -> tuple[str, ...]:
    """The names that Hugging Face's ``datasets`` noted in the file for a ``ClassLabel`` column, () if it did not."""
    try:
        noted: Any = json.loads((metadata or {})[b"huggingface"])["info"]["features"][column]
        return tuple(map(str, noted["names"])) if noted["_type"] == "ClassLabel" else ()
    except (KeyError, TypeError, ValueError):
        return ()


@dataclass(frozen=True, eq=False)
class ParquetImages:
    """A column of encoded images; ``groups`` holds the rows of every row group."""

    path: Path
    column: str
    groups: tuple[int, ...]

    def __len__(self) -> int:
        return sum(self.groups)

    def name(self, row: int) -> str:
        return f"row {row} (from 0) of {self.path}"

    def digest(self) -> str:
        return hashlib.sha256(f"{self.path}\0{self.column}\0".encode() + stamp(self.path)).hexdigest()

    def batches(self, rows: np.ndarray) -> Iterator[tuple[np.ndarray, Sequence[Encoded]]]:
        import pyarrow.parquet as parquet

        ends = np.cumsum(self.groups)
        group_of = np.searchsorted(ends, rows, side="right")
        with parquet.ParquetFile(self.path) as file:
            for group in np.unique(group_of):
                places = np.flatnonzero(group_of == group)
                column = file.read_row_group(int(group), columns=[self.column]).column(self.column)
                first = ends[group] - self.groups[group]
                yield places, [encoded(column[int(row - first)].as_py(), self.path.parent) for row in rows[places]]
