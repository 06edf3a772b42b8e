"""Which cases run: all of them with ``FEDHEARTH_THOROUGH=1 make test``, before a release; else methods share some out."""

import os
from collections.abc import Sequence

import pytest

from strategies.registry import METHODS

THOROUGH = bool(os.environ.get("FEDHEARTH_THOROUGH"))
EVERY = tuple(METHODS)
# these meet every fault and every moment of a stop; the other methods share out what only the common code decides, unless
# FEDHEARTH_THOROUGH=1, to keep the tests short
ALWAYS = ("fedavg", "fedper", "hdc-fl", "fed-cache", "pep-fedpt", "fed-ia", *(EVERY if THOROUGH else ()))


def in_turn(method: str, case: str, cases: Sequence[str], of: int = 0) -> None:
    """Skip unless it is ``method``'s turn: it gets every ``of``-th of ``cases`` (one, if not given), the next method those after."""
    if method not in ALWAYS and (cases.index(case) - EVERY.index(method)) % (of or len(cases)):
        pytest.skip("another method's turn; FEDHEARTH_THOROUGH=1 runs every case with every method")
