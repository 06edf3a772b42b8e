"""Where worker processes come from: on Linux, a process that has loaded torch once and forks them, so that they start at once.

A spawned worker imports torch and the app for itself, two seconds and more of CPU time each, and only after the server's end has
done so too. Python's fork server loads them while that goes on, and its forks share the pages. It computes nothing, so that it
has no thread of torch's and no GPU, and forking it is sound; ``deploy.warm`` does the same for a site. Elsewhere, and for whoever did
not ask for it beforehand, workers are spawned.
"""

from __future__ import annotations

import multiprocessing as mp
import os
import sys
from multiprocessing import forkserver
from typing import Any

# what a client imports for any method
LOADED = ["client_app.main", "client_app.learner", "models.split"]
# Flower says so itself wherever it is imported, and so in workers too
SET_BY_FLOWER = {"GRPC_VERBOSITY"}
_environment: dict[str, str] | None = None


def warm() -> None:
    """Begin to load, in the background, what workers will need. Returns at once."""
    global _environment
    if sys.platform != "linux" or _environment is not None:
        return
    mp.get_context("forkserver").set_forkserver_preload(LOADED)
    _environment = _now()
    forkserver.ensure_running()


def context() -> Any:
    """What starts a worker now. Forks have the environment of `warm`: should ours have changed since, workers are spawned."""
    return mp.get_context("forkserver" if _environment is not None and _environment == _now() else "spawn")


def _now() -> dict[str, str]:
    return {key: value for key, value in os.environ.items() if key not in SET_BY_FLOWER}
