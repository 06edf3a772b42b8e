"""Finished runs whose clients all lie on this machine, so that these can be asked again: what ``donor-swap`` and ``recluster`` share."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

from deploy.launch import saved_settings, state_of, to_finish
from strategies.config import ConfigError
from strategies.registry import Settings, parse_run_config


def finished_run(folder: Path) -> tuple[Settings, Path]:
    """Settings of the run in ``folder``, and where its clients' state is if it is here; raises ``ConfigError`` unless it is finished."""
    saved = saved_settings(folder)
    if not (folder / "summary.json").exists():
        raise ConfigError(f"the run in {folder} is not finished; {to_finish(folder)}")
    return parse_run_config(saved), state_of(folder, saved)


def to_ask_again(settings: Settings, state: Path, donors: int = 1) -> Settings:
    """``settings`` under which the clients in ``state`` score encoders they are sent, of up to ``donors`` others."""
    # without `out` the first client does not write the split's manifest anew
    return replace(settings, run=replace(settings.run, out="", state_dir=str(state.parent), resume=False, donor_swap=donors))


@contextmanager
def counted_off(what: str) -> Iterator[Callable[[int, int], None] | None]:
    """Counts on a terminal how much of ``what`` is done: called with (done, in all); None where there is no terminal."""
    if not sys.stderr.isatty():
        yield None
        return
    yield lambda done, total: print(f"\r{what}: {done}/{total} ", end="", file=sys.stderr, flush=True)
    print("\r\x1b[K", end="", file=sys.stderr)
