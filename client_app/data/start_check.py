"""The data check at a client's start: inside its hello, before round 1.

What must stop the run becomes a ``DataError`` without value, label or path. Warnings go to this machine's log in full, and the
kinds of some of them to the server (``strategies.data_warnings``). At most ``MOST_IMAGES`` training and as many test images
are looked at, the first ones; ``fedhearth data check`` looks at all.
"""

from __future__ import annotations

import logging
from collections.abc import Callable

from client_app.data.checks import Part, Share, check
from client_app.data.client_data import ClientData, DataError, Split
from client_app.data.content import content_of
from strategies.data_warnings import told

log = logging.getLogger(__name__)
MOST_IMAGES = 5000


def share_of(data: ClientData, batch: int, most: int | None = None) -> Share:
    """``data`` as the checks see it, with the content of the first ``most`` images of each part (None: all)."""
    return Share(data.classes, _part(data.train, "training", most), _part(data.test, "test", most), batch,
                 data.train.images.dtype.kind == "f")


def check_at_start(data: ClientData, batch: int, simulated: bool, noted: tuple[str, ...] = ()) -> str:
    """The kinds of the warnings that may travel, joined by commas, those ``noted`` elsewhere among them.

    ``simulated``: a partition is uneven on purpose and its class counts are in the run's folder, so warnings are whispered.

    Raises
    ------
    DataError
        If a check says ``STOP``.
    """
    found = [finding for finding in check(share_of(data, batch, MOST_IMAGES)) if finding.verdict != "PASS"]
    level = logging.INFO if simulated else logging.WARNING
    for finding in found:
        log.log(logging.ERROR if finding.verdict == "STOP" else level, "data check: %s", finding.local())
    for finding in found:
        if finding.verdict == "STOP":
            raise DataError(f"{finding.travelling()}. `fedhearth data check` on this machine says which")
    return told((*(finding.kind for finding in found), *noted))


def _part(split: Split, word: str, most: int | None) -> Part:
    return Part(split.labels, content_of(split.images[:most]), _namer(word, split))


def _namer(word: str, split: Split) -> Callable[[int], str]:
    return lambda i: f"{word} sample {split.ids[i]}"


