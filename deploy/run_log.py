"""Where a command's log goes: all of it into the run's file, warnings, in a line each, to stderr."""

from __future__ import annotations

import logging
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

log = logging.getLogger(__name__)


@contextmanager
def logged(file: Path | None) -> Iterator[None]:
    """Everything into the run's log, if there is one; warnings, without tracebacks, to stderr."""
    whole = _File(file, encoding="utf-8") if file else logging.NullHandler()
    brief = _Stderr()
    whole.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(name)s: %(message)s"))
    brief.setFormatter(_Brief())
    brief.setLevel(logging.WARNING)
    root = logging.getLogger()
    before, level, hook = list(root.handlers), root.level, threading.excepthook
    root.handlers[:] = [whole, brief]
    root.setLevel(logging.INFO)
    threading.excepthook = _thread_failed
    try:
        yield
    finally:
        threading.excepthook = hook
        root.handlers[:] = before
        root.setLevel(level)
        whole.close()


class _Brief(logging.Formatter):
    """The message alone: tracebacks belong in the run's log."""

    def format(self, record: logging.LogRecord) -> str:
        return f"fedhearth: {record.getMessage()}"


class _Stderr(logging.Handler):
    """Writes to what stderr is at that moment: bars put a stream of their own there, and would wipe what another one writes."""

    def emit(self, record: logging.LogRecord) -> None:
        try:
            print(self.format(record), file=sys.stderr, flush=True)
        except Exception:  # noqa: BLE001  (as every handler of the standard library)
            self.handleError(record)


class _File(logging.FileHandler):
    """The run's log. A full disk ends the run where it matters, not here: it is told once, and the rest of the log is lost."""

    _told = False

    def handleError(self, record: logging.LogRecord) -> None:  # noqa: N802  (logging's name)
        fault = sys.exc_info()[1]
        if not isinstance(fault, OSError):
            super().handleError(record)
        elif not self._told:
            self._told = True
            print(f"fedhearth: {self.baseFilename} is not written any more ({fault.strerror or fault})", file=sys.stderr)

    def close(self) -> None:
        with suppress(OSError):  # told already
            super().close()


def _thread_failed(failed: threading.ExceptHookArgs) -> None:
    name = failed.thread.name if failed.thread else "of no name"
    if failed.exc_type is not SystemExit and failed.exc_value is not None:
        log.warning("the thread %s failed (%s: %s)", name, failed.exc_type.__name__, failed.exc_value,
                    exc_info=(failed.exc_type, failed.exc_value, failed.exc_traceback))
