"""All who watch a run while it goes on, told of the same few events: ``progress.json``, TensorBoard's pictures, the
Prometheus page and a tracker. None of them can change the run, and what they need is checked before it writes anything. One
that fails later, for want of disk for one, costs a warning.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from server_app.events import ScalarLog
from server_app.finished import FIGURES, ComparisonError, read_run
from server_app.metrics import Metrics, check_metrics
from server_app.pictures import last_similarity, served_png, similarity_png
from server_app.progress import ProgressFile
from server_app.report import read_rounds
from server_app.reproduce import PLACES, belongs
from server_app.summary import tail
from server_app.trackers import Tracker, check_tracker, open_tracker
from strategies.config import RunConfig, Scalar

log = logging.getLogger(__name__)
# folders of this machine say nothing about a run's numbers, and trackers may be anywhere
KEPT_HERE = PLACES | {"weights-dir", "features-dir"}
PICTURES = "TensorBoard's pictures"


def check_watchers(run: RunConfig) -> None:
    """Raise ``ConfigError`` if a tracker or the metrics' port that ``run`` asks for cannot be had on this machine."""
    check_tracker(run.tracker)
    if run.metrics_port:
        check_metrics(run)


@contextmanager
def watched(run: RunConfig) -> Iterator[Watch]:
    """The watchers of one run; the port is held, and the tracker's run open, until the block ends.

    Raises
    ------
    ConfigError
        As ``check_watchers``.
    """
    check_watchers(run)
    watch = Watch(run, Metrics(run) if run.metrics_port else None)
    try:
        yield watch
    finally:
        watch.close()


class Watch:
    """Tells the watchers; those in the run's folder begin with ``into``."""

    def __init__(self, run: RunConfig, metrics: Metrics | None) -> None:
        self._run, self._metrics = run, metrics
        self._folder = Path()
        self._progress: ProgressFile | None = None
        self._pictures: ScalarLog | None = None
        self._tracker: Tracker | None = None
        self._finished = False
        self._failed: set[str] = set()

    def into(self, folder: Path, settings: Mapping[str, Scalar]) -> None:
        """The run's folder is there. Raises ``ConfigError`` if the tracker does not open."""
        told = {key: value for key, value in settings.items() if key not in KEPT_HERE and belongs(key, self._run.method)}
        self._tracker = open_tracker(self._run.tracker, folder, told, self._run.resume)
        self._folder = folder
        self._progress = ProgressFile(folder, self._run.rounds, self._run.deadline)

    def begins(self, number: int, online: int) -> None:
        """Round ``number`` begins with so many clients connected; one beyond the last stands for the closing evaluation."""
        if self._progress:
            self._progress.begins(number)
        if self._metrics:
            self._metrics.begins(min(number, self._run.rounds), time.time())
            self._metrics.online(online)

    def reply(self, number: int, replied: int, asked: int) -> None:
        """A client has answered well; so far ``replied`` of ``asked`` have in this exchange."""
        if self._progress:
            self._progress.reply(replied, asked)
        if self._metrics:
            self._metrics.reply(replied, asked)

    def round(self, record: Mapping[str, Any]) -> None:
        """A round is over; ``record`` is its line of rounds.jsonl."""
        if self._metrics:
            self._metrics.round(record)
        number = int(record["round"])
        if self._tracker:
            # scored before this round's training, so of the state after the round before
            if served := over_clients("served", record):
                self._tracker.scalars(number - 1, served)
            self._tracker.scalars(number, of_round(record))
        if clusters := last_similarity(record):
            self._image(number, "heads/similarity", similarity_png(clusters))

    def exchange(self, record: Mapping[str, Any]) -> None:
        """One of the exchanges after the last round is over; ``record`` is its tally."""
        if self._metrics:
            self._metrics.exchange(record)

    def finished(self, summary: Mapping[str, Any]) -> None:
        """The run's files are written, and ``summary`` is its outcome."""
        self._finished, rounds = True, int(summary["rounds"])
        if self._metrics:
            self._metrics.served(summary.get("served"))
        self._tried(PICTURES, lambda: self._last_pictures(rounds))
        if self._tracker:
            self._tracker.summary(closing(summary))

    def close(self) -> None:
        """Let go of the port and the tracker, and of what says that a run goes on."""
        if self._progress:
            self._tried("progress.json", self._progress.remove)
        if self._metrics:
            self._tried("the metrics page", self._metrics.close)
        if self._tracker:
            self._tracker.close(self._finished)

    def _tried(self, name: str, call: Callable[[], object]) -> None:
        """Call it; the first time that something of this ``name`` fails, warn."""
        try:
            call()
        except Exception as error:  # noqa: BLE001  (whatever a watcher's library raises, the run's own files are what counts)
            if name not in self._failed:
                log.warning("%s failed (%s: %s); no result depends on that", name, type(error).__name__, error)
            self._failed.add(name)

    def _last_pictures(self, rounds: int) -> None:
        if (split := self._folder / "split.png").exists():
            self._image(0, "split", split.read_bytes())
        if picture := served_png(read_rounds(self._folder / "rounds.jsonl"), self._last_served()):
            self._image(rounds, "served/by-client", picture)

    def _last_served(self) -> Mapping[str, float]:
        try:
            return read_run(self._folder).accuracy["served"]
        except ComparisonError:  # nobody was scored
            return {}

    def _image(self, step: int, name: str, png: bytes) -> None:
        if PICTURES not in self._failed:  # a file that lacks a piece takes no more
            self._tried(PICTURES, lambda: self._tensorboard(step, name, png))
        if self._tracker:
            self._tracker.image(max(step, 0), name, png)

    def _tensorboard(self, step: int, name: str, png: bytes) -> None:
        # a folder of its own: TensorBoard follows one file a folder, and the scalars' is written at the same time
        self._pictures = self._pictures or ScalarLog(self._folder / "tensorboard" / "images", first_step=step)
        self._pictures.image(step, name, png)


def over_clients(label: str, record: Mapping[str, Any]) -> dict[str, float]:
    """``served/mean`` and the like, in 0..1, over the clients scored in ``record``; empty if none was."""
    figures = tail(record.get(label), {})
    return {f"{label}/{name}": figures[name] for name in FIGURES} if figures else {}


def of_round(record: Mapping[str, Any]) -> dict[str, float]:
    """What a round cost and came to, as numbers: bytes by direction, seconds, replies, and adapted figures if it has some."""
    sizes: Mapping[str, Mapping[str, int]] = record.get("bytes") or {}
    lost: Sequence[int] = list((record.get("dropped") or {}).values())
    return {**{f"bytes/{way}": float(sum(slots.values())) for way, slots in sizes.items()}, "seconds": record["seconds"],
            "replies/accepted": len(record.get("accepted") or ()), "replies/dropped": sum(lost), "void": float(bool(record.get("void"))),
            **over_clients("adapted", record)}


def closing(summary: Mapping[str, Any]) -> dict[str, float]:
    """The closing figures, in 0..1, and what the run cost."""
    found = {f"{kind}-{name}": summary[kind][name] for kind in ("served", "adapted") if summary.get(kind) for name in FIGURES}
    return {**found, "bytes-up": summary["bytes"]["up"], "bytes-down": summary["bytes"]["down"], "seconds": summary["seconds"]["total"]}
