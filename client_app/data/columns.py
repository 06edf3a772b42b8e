"""Columns of a table of images: which is which, labels as numbers, official sets.

A column is found by the first of a short list of names (case does not matter); the URI may say another one
(``?label=diagnosis``), or none for an optional one (``?split=``). Our own choices: the names, and that validation
samples count as training samples where there are test samples too, else as test samples.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

import numpy as np

from client_app.data.client_data import DataError
from client_app.data.npz import MOST_UNNAMED
from client_app.data.place import SPLIT_FOLDERS

ALIASES = {
    "image": ("image", "img", "bytes", "image_bytes", "path", "file", "filename", "file_name", "filepath", "file_path", "image_path"),
    "label": ("label", "labels", "class", "target", "y", "category"),
    "split": ("split", "set", "subset"),
    "client": ("client", "client_id", "user", "user_id", "writer", "writer_id", "site"),
    "domain": ("domain", "domain_id"),
}
OPTIONS = (*ALIASES, "classes")
META = ("client", "domain")
SPLITS = {**SPLIT_FOLDERS, "dev": "val"}


def find_columns(names: Sequence[str], chosen: Mapping[str, str]) -> dict[str, str]:
    """Role (a key of ``ALIASES``) -> the column that plays it; ``split``, ``client`` and ``domain`` only if there is one.

    Raises
    ------
    DataError
        If there is no image or label column, ``chosen`` names a column that is not there, or two columns have the name.
    """
    lowered: dict[str, str] = {}
    for name in names:
        lowered.setdefault(name.strip().lower(), name)
    found: dict[str, str] = {}
    for role, aliases in ALIASES.items():
        if role in chosen:
            if chosen[role] and chosen[role] not in names:
                raise DataError(f"the data have no column of the name that `{role}=` gives in the dataset URI")
            column = chosen[role]
        else:
            column = next((lowered[alias] for alias in aliases if alias in lowered), "")
        if column and list(names).count(column) > 1:
            raise DataError(f"the data have more than one column of the name that the {role} column has; rename or remove the others")
        if column:
            found[role] = column
        elif role in ("image", "label"):
            raise DataError(f"the data have no {role} column: expected one of {', '.join(aliases)}, or its name in the dataset URI "
                            f"as `?{role}=NAME`")
    return found


def declared_classes(chosen: Mapping[str, str]) -> tuple[str, ...]:
    """The class names that the URI gives as ``classes=ant,bee,cat``, () for none. Raises ``DataError`` for an empty name."""
    names = tuple(name.strip() for name in chosen["classes"].split(",")) if chosen.get("classes") else ()
    if not all(names):
        raise DataError("`classes=` in the dataset URI holds an empty name: expected names joined by single commas")
    return names


def labels_of(values: Sequence[object], classes: tuple[str, ...] = ()) -> tuple[np.ndarray, tuple[str, ...]]:
    """(n,) int64 labels and the (C,) class names, of labels that are whole numbers or names.

    Whole numbers (also as text) are labels 0..C-1 already; ``classes`` names them, else they are named "0".."C-1" with
    C one above the largest. Names are numbered in the order of ``classes``, else in alphabetical order. A site that
    lacks some of the federation's classes must therefore give ``classes``.

    Raises
    ------
    DataError
        If a label is missing, neither a whole number nor text, or not among ``classes``.
    """
    missing = sum(value is None or value != value or (isinstance(value, str) and not value.strip()) for value in values)
    if missing:
        raise DataError(f"{missing} of the samples have no label; label them or remove them")
    if all(isinstance(value, int | np.integer) and not isinstance(value, bool) for value in values):
        return _numbered([int(value) for value in values], classes)  # type: ignore[call-overload]
    if not all(isinstance(value, str) for value in values):
        raise DataError("expected labels that are whole numbers or names, got another type in the label column")
    names = [str(value).strip() for value in values]
    # a class may be called "7" beside others in words, and then all are names
    if all(re.fullmatch(r"0|-?[1-9][0-9]{0,17}", name) for name in names) and not set(names) <= set(classes):
        return _numbered([int(name) for name in names], classes)
    classes = classes or tuple(sorted(set(names)))
    number = {name: label for label, name in enumerate(classes)}
    strangers = sum(name not in number for name in names)
    if strangers:
        raise DataError(f"{strangers} of the samples have a label that is not among the declared classes")
    return np.array([number[name] for name in names], np.int64), classes


def _numbered(labels: list[int], classes: tuple[str, ...]) -> tuple[np.ndarray, tuple[str, ...]]:
    largest = max(labels, default=0)
    if not classes and largest >= MOST_UNNAMED:
        raise DataError(f"expected labels 0..C-1 with C at most {MOST_UNNAMED}: number the classes from 0, or use their names as labels")
    return np.array(labels, np.int64), classes or tuple(map(str, range(1 + max(largest, 0))))


def official_order(splits: Sequence[object]) -> tuple[np.ndarray, int]:
    """Positions (n,) with training samples first, then test samples, each in their order; and how many train.

    Raises ``DataError`` for anything but train, val and test, in any case and with their usual other spellings.
    """
    named = np.array([SPLITS.get(str(value).strip().lower(), "") for value in splits], np.str_)
    unknown = int((named == "").sum())
    if unknown:
        raise DataError(f"{unknown} of the samples have an unknown word in the split column: expected train, val or test")
    is_test = named == ("test" if (named == "test").any() else "val")
    return np.concatenate([np.flatnonzero(~is_test), np.flatnonzero(is_test)]), int((~is_test).sum())


def as_text(values: Sequence[object]) -> np.ndarray:
    """(n,) text of a further column; "" where it is empty."""
    return np.array(["" if value is None else str(value) for value in values], np.str_)
