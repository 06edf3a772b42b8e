"""The clients and the last state of a finished run, put together again for questions that come afterwards."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from flwr.serverapp import Grid

from server_app.encoder_shelf import EncoderShelf
from server_app.initial import initial_model
from server_app.join import HELLO_WAIT, load_state
from server_app.record import held_out_before
from server_app.roster import Roster
from strategies.adapter import RuleStrategy, strategy_of
from strategies.config import ConfigError
from strategies.registry import Settings
from strategies.split_hash import combined_hash
from strategies.types import Slots


def finished_strategy(grid: Grid, folder: Path, settings: Settings) -> tuple[RuleStrategy, Slots]:
    """The strategy of the run in ``folder`` where it ended, with the clients of ``grid``, and the model that it began with.

    Raises
    ------
    ConfigError
        If the clients' data are not the run's, or its last state is not there.
    CannotStart
        If a client cannot take part.
    """
    run = settings.run
    roster = Roster(run.seed, run.fraction)
    roster.gather(grid, run.clients, wait=HELLO_WAIT, deadline=min(run.deadline, HELLO_WAIT))
    roster.hold_out(0, before=held_out_before(folder) or ())
    check_data(folder, roster)
    hello = roster.hellos[roster.names()[0]]
    start = initial_model(settings, hello.classes, hello.input_shape)
    strategy = strategy_of(settings, start, EncoderShelf(folder / "shelf"), roster)
    load_state(strategy, folder)
    return strategy, start


def check_data(folder: Path, roster: Roster) -> None:
    """Raise ``ConfigError`` unless the clients hold the samples they had in the run, as far as that can be known."""
    try:
        before: Mapping[str, Any] = json.loads((folder / "summary.json").read_text(encoding="utf-8"))
        if not isinstance(before, dict):
            raise ValueError("it holds no object")
    except (OSError, ValueError, RecursionError) as error:
        raise ConfigError(f"cannot read {folder / 'summary.json'}: {error}; restore it from a copy") from None
    now = combined_hash({name: hello.split_digest for name, hello in roster.hellos.items()}, roster.held_out())
    if before.get("split_hash") not in ("", None, now):
        raise ConfigError("the clients now hold other samples than in the run; restore the data set")
