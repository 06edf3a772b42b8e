"""Class names as a federation needs them: the same at every site, in one order, and no two that pass for one."""

from __future__ import annotations

import hashlib
from collections import defaultdict


def class_digest(classes: tuple[str, ...]) -> str:
    """16 hex digits by which sites compare their class names without telling them."""
    return hashlib.sha256("\x1f".join(classes).encode()).hexdigest()[:16]


def numbered(classes: tuple[str, ...]) -> bool:
    """Whether all names are bare numbers, as those of classes that nobody has named are: nothing a text tower could know."""
    return all(name.strip().isdecimal() for name in classes)


def twins(classes: tuple[str, ...]) -> list[tuple[str, ...]]:
    """Groups of names that differ in upper and lower case or in blanks only, or not at all.

    Single letters may differ in case, since data sets of handwriting tell an ``A`` from an ``a``.
    """
    groups: defaultdict[str, list[str]] = defaultdict(list)
    for name in classes:
        bare = "".join(name.split())
        groups[bare if len(bare) == 1 else bare.casefold()].append(name)
    return [tuple(group) for group in groups.values() if len(group) > 1]


def differences(here: tuple[str, ...], there: tuple[str, ...]) -> list[str]:
    """In what two lists of class names differ, a phrase each; empty if they are equal."""
    only_here = [name for name in here if name not in there]
    only_there = [name for name in there if name not in here]
    found = [f"only {side}: {', '.join(map(repr, names))}" for side, names in (("here", only_here), ("there", only_there)) if names]
    if found or here == there:
        return found
    if len(here) != len(there):
        return [f"{len(here)} names here, {len(there)} there, some of them repeated"]
    place = next(i for i, (mine, theirs) in enumerate(zip(here, there, strict=True)) if mine != theirs)
    return [f"the same names in another order: label {place} is {here[place]!r} here and {there[place]!r} there"]
