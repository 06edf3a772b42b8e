"""What is wrong with a data set: the checks of every client at its start, and those that only this machine can make."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import numpy as np

from client_app.data.checks import Share, check
from client_app.data.class_names import class_digest, differences
from client_app.data.client_data import DataError
from client_app.data.findings import Finding
from client_app.data.partition import PartitionError
from client_app.node import client_name
from deploy.checks.data_opened import SITE, Opened, open_all
from deploy.checks.file_rows import wrong_rows
from strategies.config import ConfigError, RunConfig
from strategies.data_warnings import few
from strategies.registry import Settings


def findings(settings: Settings, clients: int, agreed: tuple[str, ...], expect: str) -> Iterator[Finding]:
    """Every finding about ``settings.run.dataset``, in the order in which one would mend things.

    ``clients``: of a simulation, 0 for one site's own data. ``agreed``: class names as they must be; ``expect``: other data that
    have them. Raises ``ConfigError`` if ``expect`` cannot be opened.
    """
    run = settings.run
    names = [client_name(index) for index in range(clients)] or [SITE]
    try:
        opened = open_all(run, names)
    except (DataError, PartitionError) as error:
        yield from _not_opened(run.dataset, error, "reading")
        return
    shape = "x".join(map(str, opened.image_shape))
    yield Finding("PASS", "reading", "the data can be opened", here=f"{opened.told}, images {shape} {opened.dtype}")
    if opened.unreadable:
        yield _unreadable(run, opened.unreadable)
    yield _agreement(opened, agreed, run, expect)
    try:
        shares = opened.shares()
    except (DataError, PartitionError) as error:
        yield from _not_opened(run.dataset, error, "division")
        return
    yield from _by_kind({name: check(share) for name, share in shares.items()})
    if len(shares) > 1:
        yield _shared(shares)
    yield _model(settings, opened)


def _not_opened(uri: str, error: Exception, kind: str) -> Iterator[Finding]:
    where, cause = getattr(error, "path", ""), error.__cause__
    here = "; ".join(filter(None, (where, f"{type(cause).__name__}: {cause}" if cause else "")))
    yield Finding("STOP", kind, str(error), here=here)
    if rows := wrong_rows(uri):
        yield Finding("STOP", "rows", "these entries are wrong", "mend or remove them", named=tuple(rows))


def _unreadable(run: RunConfig, names: tuple[str, ...]) -> Finding:
    if run.bad_images == "skip":
        return Finding("WARN", "unreadable", "images that cannot be read are left out (bad-images = skip)", named=names)
    return Finding("STOP", "unreadable", "some images cannot be read", "repair or remove them, or set bad-images=skip to leave them out",
                   named=names)


def _agreement(opened: Opened, agreed: tuple[str, ...], run: RunConfig, expect: str) -> Finding:
    """The class names (and image shape) against those that all sites are to have."""
    differing: list[str] = []
    if expect:
        try:
            other = open_all(replace(run, dataset=expect), [SITE])
        except (DataError, PartitionError) as error:
            raise ConfigError(f"--expect: {error} ({getattr(error, 'path', '') or expect})") from error
        agreed = other.classes
        if opened.image_shape != other.image_shape:
            differing.append(f"images are {opened.image_shape} here and {other.image_shape} there (channels, height, width)")
    digest = f"{len(opened.classes)} classes, digest {class_digest(opened.classes)}: {few(opened.classes)}"
    if not agreed:
        return Finding("PASS", "agreement", "class names and their order must be those of all sites, with the same digest", here=digest)
    if differing := differences(opened.classes, agreed) + differing:
        return Finding("STOP", "agreement", "the data are not what all sites agreed on", "list every class at every site, also one without "
                       "a sample there, in one order; convert images to one shape", "; ".join(differing))
    return Finding("PASS", "agreement", "classes are those all sites agreed on", here=digest)


def _by_kind(found: dict[str, list[Finding]]) -> Iterator[Finding]:
    """One finding a check: the gravest of all clients', and which clients it is about."""
    order = ("PASS", "WARN", "STOP")
    for together in zip(*found.values(), strict=True):
        worst = max(together, key=lambda finding: order.index(finding.verdict))
        if len(found) == 1 or worst.verdict == "PASS":
            yield worst if len(found) == 1 else replace(worst, here="all clients")
            continue
        who = [name for name, finding in zip(found, together, strict=True) if finding.verdict == worst.verdict]
        # one client is not named twice
        first = f"; {who[0]}" if len(who) > 1 else ""
        about = f"{len(who)} of {len(found)} clients: {few(who)}{first}: {worst.here or few(worst.named)}"
        yield replace(worst, here=about, named=() if not worst.here else worst.named)


def _shared(shares: dict[str, Share]) -> Finding:
    """No two clients hold the same image."""
    holders: dict[int, list[str]] = {}
    for name, share in shares.items():
        for digest in np.unique(np.concatenate([share.train.content.digests, share.test.content.digests])).tolist():
            holders.setdefault(digest, []).append(name)
    common = [names for names in holders.values() if len(names) > 1]
    if not common:
        return Finding("PASS", "shared", "no two clients hold the same image")
    pairs = sorted({tuple(names[:2]) for names in common})
    return Finding("WARN", "shared", "some clients hold the same images, which separate sites would not",
                   "look for duplicates in the data, or for a loader that ignores node.index",
                   f"{len(common)} images; first: {few([' and '.join(pair) for pair in pairs])}")


def _model(settings: Settings, opened: Opened) -> Finding:
    """The run's model takes such images."""
    run = settings.run
    try:
        settings.build_model(len(opened.classes), opened.image_shape)
    except ValueError as error:
        return Finding("STOP", "model", str(error), here=f"model = {run.model}")
    return Finding("PASS", "model", "the run's model takes these images", here=run.model)
