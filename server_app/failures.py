"""How a run fails as a whole. Light to import: a command that only shows its options loads no Flower for an exception's name."""

from __future__ import annotations


class RunFailed(RuntimeError):
    """The run cannot go on. The text says why and what to do."""


class CannotStart(RunFailed):
    """The clients as they are cannot make up this run; nothing was trained."""
