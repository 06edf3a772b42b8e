"""A new client of a finished run: the run's last state, one client, and the same two exchanges as a held-out client's.

The newcomer joins by the method's own cold-start rule and is scored once. Nothing of the run changes: what the rule makes
of the newcomer lives for this call only, and ``joined.json`` beside the run notes who has joined.
"""

from __future__ import annotations

import csv
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from flwr.app import ArrayRecord
from flwr.serverapp import Grid

from server_app.checkpoint import Checkpoints
from server_app.encoder_shelf import EncoderShelf
from server_app.initial import initial_model
from server_app.report import replace_text
from server_app.roster import Hello, Roster
from server_app.rounds import Plan, RunFailed, run_rounds
from strategies.adapter import RuleStrategy, strategy_of
from strategies.config import ConfigError
from strategies.registry import Settings

JOINED = "joined.json"
HELLO_WAIT = 300.0


def join_finished(grid: Grid, folder: Path, settings: Settings, name: str) -> dict[str, Any]:
    """Take ``name``, the one client of ``grid``, into the finished run in ``folder``; returns its line of joined.json.

    Raises
    ------
    ConfigError
        If the client's classes or images are others than the run's, or the run's last state is not there.
    CannotStart, RunFailed
        If the client cannot take part, or failed.
    """
    run = settings.run
    roster = Roster(run.seed, run.fraction)
    roster.gather(grid, 1, wait=HELLO_WAIT, deadline=min(run.deadline, HELLO_WAIT))
    roster.hold_out(0, before=(name,))
    hello = roster.hellos[name]
    _check_fits(hello, _json(folder / "summary.json", dict).get("model"))
    strategy = strategy_of(settings, initial_model(settings, hello.classes, hello.input_shape), EncoderShelf(folder / "shelf"), roster)
    rule = strategy.rule
    if not getattr(rule, "serves_newcomers", True):
        raise ConfigError(f"{run.method} cannot serve a client that it has not trained with, so nobody can join its runs afterwards")
    load_state(strategy, folder)
    told: dict[str, Mapping[str, Any]] = {}

    plan = Plan(run.rounds, run.deadline, run.quorum, done=run.rounds)
    run_rounds(grid, strategy, ArrayRecord(), plan, on_join=lambda _: told.update(join=strategy.tally.record()),
               on_evaluate=lambda _: told.update(evaluate=strategy.tally.record()))
    for record in (told.get("join", {}), told.get("evaluate", {})):
        if name not in record.get("accepted", ()):
            raise RunFailed(f"{name} could not join: {', '.join(record.get('dropped') or ('no answer',))}; the log above says why")
    mixture = rule.diagnostics(strategy.state).get("newcomers", {}).get(name)
    return {"client": name, **{key: told["evaluate"].get(key, {}).get(name) for key in ("served", "served_raw", "n_train", "n_test")},
            **({"mixture": mixture} if mixture else {})}


def taken(folder: Path) -> set[str]:
    """The names of everybody who was or became a client of the run in ``folder``; raises ``ConfigError``."""
    table = folder / "clients.csv"
    try:
        with table.open(encoding="utf-8", newline="") as lines:
            return {row["client"] for row in csv.DictReader(lines)} | {line["client"] for line in joined_before(folder)}
    except (OSError, UnicodeDecodeError, csv.Error, KeyError, TypeError) as error:
        raise ConfigError(f"cannot read who the clients of the run are ({type(error).__name__}: {error}); restore {table} and "
                          f"{JOINED} from a copy") from None


def joined_before(folder: Path) -> list[dict[str, Any]]:
    """The lines of joined.json, none if nobody has joined."""
    return _json(folder / JOINED, list) if (folder / JOINED).exists() else []


def note_joined(folder: Path, line: Mapping[str, Any]) -> None:
    """Add ``line`` to joined.json."""
    lines = [*joined_before(folder), dict(line)]
    replace_text(folder / JOINED, json.dumps(lines, indent=1, ensure_ascii=False) + "\n")


def load_state(strategy: RuleStrategy, folder: Path) -> None:
    """Put ``strategy`` where the run in ``folder`` ended; raises ``ConfigError`` if its last checkpoint is not there."""
    found = Checkpoints(folder / "checkpoints").latest(type(strategy.state))
    if found is None or found[0] != strategy.run.rounds:
        raise ConfigError(f"the last checkpoint of the run in {folder} is missing or damaged; restore it from a copy")
    _, strategy.state, extra = found
    strategy.acked = {client: int(number) for client, number in extra["acked"].items()}


def _check_fits(hello: Hello, model: object) -> None:
    """The classes and images of the newcomer against those all clients of the run had."""
    if not isinstance(model, dict) or model.keys() != {"classes", "class-digest", "input-shape"}:
        raise ConfigError("summary.json does not say what classes and images the run had; it was written by an older version. Train again")
    if hello.classes != model["classes"] or hello.class_digest != model["class-digest"]:
        raise ConfigError(f"the data's classes are not the run's: expected its {model['classes']} class names in its order, got "
                          f"{hello.classes} others or in another order. Name every class, also those without a sample")
    if list(hello.input_shape) != list(model["input-shape"]):
        expected, got = ("x".join(map(str, shape)) for shape in (model["input-shape"], hello.input_shape))
        raise ConfigError(f"expected images of {expected} (channels x height x width), as the run had, got {got}; convert them")


def _json(path: Path, kind: type) -> Any:
    try:
        read = json.loads(path.read_text(encoding="utf-8"))
        if not isinstance(read, kind):
            raise ValueError(f"expected a {kind.__name__}")
    except (OSError, ValueError) as error:
        raise ConfigError(f"cannot read {path}: {error}; restore it from a copy") from None
    return read
