"""Which sites may take part: those whose public keys lie on the server's disk, told to the SuperLink at its start and on SIGHUP.

A key that cannot be registered keeps nobody else out: it is named, and the others are registered all the same. Taking a
file away takes no right away, since a registration is in the SuperLink's database (RUNBOOK: removing a site).
"""

from __future__ import annotations

import glob
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from strategies.config import ConfigError, check_site_name

if TYPE_CHECKING:
    from deploy.link import Node


def authorised(patterns: Iterable[str]) -> list[Path]:
    """The public keys that the patterns match; a file's stem is the site's name. Raises ``ConfigError`` if a name is none."""
    found = sorted({Path(path) for pattern in patterns for path in glob.glob(pattern)})
    for path in found:
        try:
            check_site_name(path.stem)
        except ConfigError as error:
            raise ConfigError(f"{path}: {error}") from None
    if len({path.stem for path in found}) < len(found):
        raise ConfigError("--authorize found two keys for one site name; a site has one key")
    return found


def admit(keys: Sequence[Path], address: str, ca: Path | None) -> int:
    """Register the ``keys`` that are not known yet, and say so; how many of them may take part.

    Raises
    ------
    LinkError
        If no SuperLink answers at ``address``.
    """
    from deploy.link import KeyRefused, Link

    if not keys:
        return 0
    admitted = 0
    with Link(address, ca) as link:
        for key in keys:
            try:
                new = link.register(key, key.stem)
            except KeyRefused as error:
                say(f"warning: site {key.stem} is not admitted: {error}")
                continue
            admitted += 1
            say(f"site {key.stem} {'admitted' if new else 'was admitted before'}")
        for text in doubled(link.nodes(), keys):
            say(f"warning: {text}")
    return admitted


def doubled(nodes: Sequence[Node], keys: Iterable[Path]) -> Iterator[str]:
    """What to do about sites of ``keys`` that have another key as well: after a loss or a leak it must go."""
    for name in sorted(key.stem for key in keys):
        numbers = [node.id for node in nodes if node.name == name]
        if len(numbers) > 1:
            yield (f"site {name} has {len(numbers)} keys, nodes {', '.join(map(str, numbers))}; take the right of the old one away "
                   "(RUNBOOK: removing a site) (FH-013)")


def say(text: str) -> None:
    print(f"fedhearth: {text}", flush=True)
