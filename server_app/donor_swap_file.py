"""``donor_swap.json`` and ``donor_swap.png`` in a run's folder: what a donor swap leaves there, and the report reads."""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from server_app.durable import replacing

log = logging.getLogger(__name__)
FILE, PICTURE = "donor_swap.json", "donor_swap.png"
NEEDED = frozenset({"recipients", "donors", "clients", "similarity", "accuracy", "own", "association", "controls", "drop", "dropped", "bn"})


def write_swap(folder: Path, told: Mapping[str, Any]) -> None:
    """``told`` is what ``server_app.donor_swap.write`` put together; the picture is left out where no pair has a score."""
    from server_app.donor_swap_section import swap_png

    picture = swap_png(told)
    if picture:
        with replacing(folder / PICTURE) as torn:
            torn.write_bytes(picture)
    else:
        (folder / PICTURE).unlink(missing_ok=True)  # an earlier swap's would contradict the figures
    with replacing(folder / FILE) as torn:
        torn.write_text(json.dumps(told, indent=1, ensure_ascii=False, allow_nan=False) + "\n", encoding="utf-8", newline="")


def read_swap(folder: Path) -> dict[str, Any] | None:
    """What a donor swap of the run in ``folder`` found, None if there was none, or the file is damaged (which is logged)."""
    try:
        told = json.loads((folder / FILE).read_text(encoding="utf-8"))
        if not isinstance(told, dict) or not told.keys() >= NEEDED:
            raise ValueError("it is not what a donor swap leaves")
    except FileNotFoundError:
        return None
    except (OSError, ValueError) as error:
        log.warning("%s cannot be read (%s) and is left out of the report; make it again: fedhearth donor-swap", FILE, error)
        return None
    return told


def split_of(folder: Path) -> dict[str, Any]:
    """The manifest of a simulated split; empty on separate machines, whose sites keep their class counts to themselves."""
    try:
        return json.loads((folder / "split.json").read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
