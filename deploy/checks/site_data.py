"""A site's data: do they load, and are they what the federation agreed on?

The same ``open_data`` that a round uses. Nothing leaves this machine: numbers and paths are for its own terminal.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from deploy.checks import Finding, failed, passed, warned
from strategies.registry import Settings

if TYPE_CHECKING:
    from client_app.data import ClientData


@dataclass(frozen=True)
class Declared:
    """What all sites agreed on; 0 and "" for what was not told."""

    classes: int = 0
    shape: str = ""


def data(settings: Settings, node_config: dict[str, str], declared: Declared, modules: Path, sizes: list[int]) -> Iterator[Finding]:
    """Open the data as a round would, compare with ``declared``, fit the run's model.

    ``modules`` is where the site's own loader lies; the model's bytes are appended to ``sizes``.
    """
    from client_app.data import DataError, PartitionError, open_data
    from client_app.node import NodeError, open_node

    run = settings.run
    if not node_config.get("data"):
        yield warned("data", f"no --data: this site would train on the run's own dataset ({run.dataset}); a site with data of its own "
                             "gives --data npz:FILE or --data module:function")
    # last, so that a models.py lying there shadows nothing of ours
    sys.path.append(str(modules.absolute()))
    try:
        mine = open_data(run, open_node(node_config, run))
    except (DataError, PartitionError, NodeError) as error:
        where, cause = getattr(error, "path", ""), error.__cause__
        yield failed("data", f"{error}{f' [{where}]' if where else ''}{f' ({type(cause).__name__}: {cause})' if cause else ''}")
        return
    shape = "x".join(map(str, mine.input_shape))
    yield passed("data", f"{len(mine.train)} training and {len(mine.test)} test samples, {len(mine.classes)} classes, "
                         f"images {shape} {mine.train.images.dtype}")
    yield from looked_over(mine, run.batch)
    yield from declared_as(len(mine.classes), shape, declared)
    yield from fitting(settings, len(mine.classes), mine.input_shape, sizes)


def looked_over(mine: ClientData, batch: int) -> Iterator[Finding]:
    """The checks of this client's start; what they pass is one line."""
    from client_app.data.checks import check
    from client_app.data.start_check import MOST_IMAGES, share_of

    found = check(share_of(mine, batch, MOST_IMAGES))
    for finding in found:
        if finding.verdict != "PASS":
            yield (failed if finding.verdict == "STOP" else warned)(finding.kind, finding.local())
    good = sum(finding.verdict == "PASS" for finding in found)
    yield passed("data check", f"{good} of {len(found)} checks found nothing (`fedhearth data check` looks at every image)")


def declared_as(classes: int, shape: str, declared: Declared) -> Iterator[Finding]:
    """What came against what was declared. Names of classes must agree too; the server compares a digest of them."""
    if declared.classes and declared.classes != classes:
        yield failed("classes", f"expected {declared.classes}, the data have {classes}; list every class, also those without a sample "
                                "here, in the order all sites use")
    if declared.shape and declared.shape != shape:
        yield failed("shape", f"expected images of {declared.shape}, the data have {shape} (channels x height x width); "
                              "convert them in the loader")
    if not (declared.classes or declared.shape):
        yield warned("classes", "not compared; give --classes N --shape CxHxW as the sites agreed")
    elif declared.classes in (0, classes) and declared.shape in ("", shape):
        yield passed("classes", "as declared")


def fitting(settings: Settings, classes: int, shape: tuple[int, int, int], sizes: list[int]) -> Iterator[Finding]:
    """Build the run's model for such images."""
    run = settings.run
    try:
        model = settings.build_model(classes, shape)
    except ValueError as error:
        yield failed("model", str(error))
        return
    sizes.append(sum(tensor.nbytes for part in model.parts for tensor in model.tensors(part).values()))
    yield passed("model", f"{run.model} takes these images; {sizes[-1] / 2**20:.1f} MiB")
