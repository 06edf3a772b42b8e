"""What a run leaves behind while it runs: its folder, the checkpoint of every round, the shelf, the report.

Order at the end of a round: the shelf's files and the report's line are made durable, then the checkpoint that counts
on them; older files go last. Killed anywhere in between, a run resumes from its latest checkpoint, and the report is
cut back to it.
"""

from __future__ import annotations

import json
import logging
import platform
import sys
import time
from collections.abc import Mapping, Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any

from server_app.checkpoint import Checkpoints
from server_app.durable import sync_file_system, sync_to_disk
from server_app.encoder_shelf import EncoderShelf
from server_app.report import RunReport, replace_text
from server_app.reproduce import code_hash
from server_app.roster import Roster, data_warnings
from server_app.rounds import Outcome
from strategies.adapter import RuleStrategy
from strategies.config import ConfigError
from strategies.registry import Settings
from strategies.split_hash import combined_hash

log = logging.getLogger(__name__)
# A resumed run may change where and how patiently it runs, not what it computes.
FREE_KEYS = frozenset({"resume", "out", "state-dir", "deadline", "quorum", "max-void-rounds", "threads", "weights-dir", "tracker",
                       "metrics-port", "metrics-host", "donor-swap"})
# What run.json says beside the settings: which clients are kept out of training.
HELD_OUT = "held-out-clients"


def open_run(settings: Settings, flat: Mapping[str, Any]) -> Path:
    """The run's folder, with its config in ``run.json``.

    Raises
    ------
    ConfigError
        If the folder holds another run and this one does not resume it, or resumes it with other settings.
    """
    run = settings.run
    folder = Path(run.out).expanduser() if run.out else Path.home() / ".fedhearth" / "runs" / (run.run_id or time.strftime("%Y%m%d-%H%M%S"))
    folder = folder.absolute()
    saved = folder / "run.json"
    if not run.resume:
        if saved.exists():
            raise ConfigError("out already holds a run; give another folder, or resume that one with resume = true")
        folder.mkdir(parents=True, exist_ok=True)
        replace_text(saved, json.dumps(dict(flat), indent=1, sort_keys=True))
        return folder
    if not saved.exists():
        raise ConfigError("resume = true, but out holds no run; give the folder of the run to go on with")
    try:
        before = dict(json.loads(saved.read_text(encoding="utf-8")))
    except (ValueError, TypeError):
        raise ConfigError("the run.json in out is damaged; restore it, or start the run anew in another folder") from None
    differing = sorted(k for k in (before.keys() | flat.keys()) - FREE_KEYS - {HELD_OUT} if before.get(k) != flat.get(k))
    if differing:
        raise ConfigError(f"a run resumes with the settings it started with; different now: {', '.join(differing)} (FH-032)")
    return folder


def held_out_before(folder: Path) -> tuple[str, ...] | None:
    """The clients that the run in ``folder`` keeps out of training, None if it has not chosen them yet."""
    noted = json.loads((folder / "run.json").read_text(encoding="utf-8")).get(HELD_OUT)
    return None if noted is None else tuple(noted)


def note_held_out(folder: Path, names: Sequence[str]) -> None:
    """Write the held-out clients down before round 1, so that a resumed run keeps the same ones out, whoever is there then."""
    saved = json.loads((folder / "run.json").read_text(encoding="utf-8"))
    if names and HELD_OUT not in saved:
        replace_text(folder / "run.json", json.dumps({**saved, HELD_OUT: list(names)}, indent=1, sort_keys=True))


class RunRecorder:
    """Checkpoint, shelf and report of one run, kept in step."""

    def __init__(self, folder: Path, settings: Settings, flat: Mapping[str, Any], engine: str, roster: Roster) -> None:
        self.folder, self.settings, self.roster = folder, settings, roster
        self.shelf = EncoderShelf(folder / "shelf")
        self._checkpoints = Checkpoints(folder / "checkpoints")
        self._flat, self._engine = dict(flat), engine
        self._report: RunReport | None = None
        self._kept: dict[str, int] = {}
        self._final: dict[str, Any] = {}
        self._joined: dict[str, Any] = {}
        self._began = time.monotonic()

    @property
    def report(self) -> RunReport:
        if self._report is None:
            self._report = RunReport(self.folder, self._flat, self._engine)
        return self._report

    def resume(self, strategy: RuleStrategy) -> int:
        """Put ``strategy`` back where the latest checkpoint left it; returns the rounds that lie behind."""
        found = self._checkpoints.latest(type(strategy.state))
        done = 0
        if found is not None:
            done, strategy.state, extra = found
            strategy.acked = {client: int(number) for client, number in extra["acked"].items()}
            if extra.get("split") not in (None, self._split()):
                raise ConfigError("a run resumes with the data it started with, but the clients now hold other samples; restore the "
                                  "data set, or start the run anew in another folder")
            self._kept = self._shelved(strategy)
            log.info("resuming after round %d", done)
        else:
            log.warning("no checkpoint is there to resume from; the run starts again with round 1")
        self._report = RunReport(self.folder, self._flat, self._engine, resume_from=done)
        return done

    def after_round(self, strategy: RuleStrategy, outcome: Outcome) -> dict[str, Any]:
        """Write the round's line and make the round durable; returns the line."""
        kept = self._shelved(strategy)
        self.shelf.sync()
        diagnostics = dict(strategy.rule.diagnostics(strategy.state))
        if diagnostics.get("clusters", {}).get("round") != outcome.number:
            diagnostics.pop("clusters", None)
        record = {"round": outcome.number, "seconds": outcome.seconds, "diagnostics": diagnostics, **strategy.tally.record()}
        self.report.round(record)
        # a line without its checkpoint is cut on resuming, a checkpoint without its line would leave a gap for ever
        sync_to_disk(self.folder / "rounds.jsonl")
        self._sync_clients()
        self._checkpoints.save(outcome.number, strategy.state, {"acked": strategy.acked, "split": self._split()})
        # the checkpoint before this one may still be resumed from, so its encoders stay one round longer
        self.shelf.prune(kept, self._kept)
        self._kept = kept
        return record

    def after_join(self, strategy: RuleStrategy, outcome: Outcome) -> None:
        newcomers = strategy.rule.diagnostics(strategy.state).get("newcomers", {})
        self._joined = {"record": strategy.tally.record(), "mixtures": newcomers}

    def after_evaluate(self, strategy: RuleStrategy, outcome: Outcome) -> None:
        self._final = strategy.tally.record()

    def finish(self, strategy: RuleStrategy) -> dict[str, Any]:
        """Write the report and return the summary."""
        run = self.settings.run
        self._sync_clients()
        return self.report.finish({
            **self._final,
            "held_out": self.roster.held_out(),
            "serves_newcomers": getattr(strategy.rule, "serves_newcomers", True),
            "data_warnings": data_warnings(self.roster.hellos),
            "joined": self._joined,
            "model": self._model(),
            "seconds": time.monotonic() - self._began,
            "peak_rss_mib": peak_rss_mib(),
            "split_hash": combined_hash({name: hello.split_digest for name, hello in self.roster.hellos.items()}, self.roster.held_out()),
            "versions": {"python": platform.python_version(), **{p: version(p) for p in ("flwr", "torch", "numpy", "scikit-learn")},
                         "fedhearth-code": code_hash()},
            "personal_models": str(Path(run.state_dir).expanduser() / (run.run_id or "run")) if run.state_dir else "",
        })

    def _sync_clients(self) -> None:
        """A simulation's clients write their state without waiting for the disk, each; here all of them are waited for at once."""
        where = Path(self.settings.run.state_dir).expanduser() if self.settings.run.state_dir else Path.home()
        if self._engine != "grpc" and where.is_dir():
            sync_file_system(where)

    def _model(self) -> dict[str, Any]:
        """What all clients agreed on, and one that joins later must fit."""
        hello = self.roster.hellos[self.roster.names()[0]]
        return {"classes": hello.classes, "class-digest": hello.class_digest, "input-shape": list(hello.input_shape)}

    def _split(self) -> str | None:
        """What identifies the samples of a simulation; None on separate machines, whose sites say nothing of theirs."""
        digests = {name: hello.split_digest for name, hello in self.roster.hellos.items()}
        return combined_hash(digests) if all(digests.values()) else None

    def _shelved(self, strategy: RuleStrategy) -> dict[str, int]:
        """What the state still needs from the shelf; rules that keep nothing there have no such method."""
        shelved = getattr(strategy.rule, "shelved", None)
        return shelved(strategy.state) if shelved else {}


def peak_rss_mib() -> float:
    """Largest resident memory of this process so far, in MiB (0 where the platform does not tell)."""
    if sys.platform == "win32":
        return 0.0
    import resource

    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak / 1024 if sys.platform != "darwin" else peak / 2**20
