"""What happened in one exchange of messages, counted for the report: who was asked, what came, what was dropped and why."""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import dataclass, field
from typing import Any

# Flower's error codes in words; their own texts may hold paths, so they are not logged.
ERROR_WORDS = {1: "app-not-loaded", 2: "client-raised", 3: "expired", 4: "reply-lost", 5: "node-unavailable", 6: "mod-failed",
               7: "invalid-bundle", 8: "client-crashed"}
# How our own clients word an error. The kind becomes a key of the report, so it must look like one.
OWN_ERROR = re.compile(r"fedhearth:([A-Za-z][A-Za-z0-9]{0,39}):(.*)", re.DOTALL)


@dataclass
class Tally:
    """What happened in one exchange, ready for the report. ``dropped`` counts replies by reason, ``lost`` names the reason by client."""

    asked: list[str] = field(default_factory=list)  # also those who are offline, or whose message the deadline cut off
    accepted: list[str] = field(default_factory=list)
    up: Counter[str] = field(default_factory=Counter)
    down: Counter[str] = field(default_factory=Counter)
    dropped: Counter[str] = field(default_factory=Counter)
    lost: dict[str, str] = field(default_factory=dict)
    metrics: dict[str, dict[str, float]] = field(default_factory=dict)
    delta: Counter[str] = field(default_factory=Counter)  # slots that travelled as a difference and whole, with wire-delta
    void: bool = False

    def record(self) -> dict[str, Any]:
        """As JSON-able data: scores by label and client, bytes by slot, drops by reason."""
        by_label: dict[str, dict[str, float]] = {}
        for client, metrics in self.metrics.items():
            for label, value in metrics.items():
                by_label.setdefault(label.replace("-", "_"), {})[client] = value
        names = {"num_examples": "n_train", "num_test": "n_test"}
        return {"asked": self.asked, "accepted": self.accepted, "void": self.void, "dropped": dict(self.dropped), "lost": dict(self.lost),
                "bytes": {"up": dict(self.up), "down": dict(self.down)},
                **({"delta": dict(self.delta)} if self.delta else {}),
                **{names.get(label, label): values for label, values in by_label.items()}}


def word_of(code: int) -> str:
    """Flower's error ``code`` in a word."""
    return ERROR_WORDS.get(code, f"error-{code}")
