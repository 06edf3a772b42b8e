"""Who takes part: site names, and the node each has right now.

Flower's node ids are random and may change when a site restarts; everything we keep goes by the site's own name,
learnt from one hello message a node. Sampling draws from sorted names with a seed of (run seed, round), so it does
not depend on node ids or on the order in which nodes connected.
"""

from __future__ import annotations

import logging
import math
import time
from dataclasses import dataclass
from random import Random

from flwr.app import ConfigRecord, Message, RecordDict
from flwr.serverapp import Grid

from server_app.rounds import Outcome, Plan, RunFailed, exchange
from strategies.seeds import derive_seed

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Hello:
    """What a client said of itself: its name, what the model must fit, and the digest of its part of the split."""

    site: str
    classes: int
    class_digest: str
    input_shape: tuple[int, int, int]
    split_digest: str


class Roster:
    """The clients of one run, by name."""

    def __init__(self, seed: int, fraction: float) -> None:
        self.seed, self.fraction = seed, fraction
        self._node_of: dict[str, int] = {}
        self._known_nodes: set[int] = set()
        self.hellos: dict[str, Hello] = {}
        self._started = False

    def names(self) -> tuple[str, ...]:
        return tuple(sorted(self.hellos))

    def node_id(self, name: str) -> int | None:
        """The node that speaks for ``name`` now, or None while it is offline."""
        return self._node_of.get(name)

    def sample(self, round_number: int) -> tuple[str, ...]:
        """The clients asked in a round: all, or a seeded draw without replacement, in sorted order."""
        names = self.names()
        count = max(1, math.ceil(self.fraction * len(names) - 1e-9))
        if count == len(names):
            return names
        return tuple(sorted(Random(derive_seed(self.seed, "sample", round_number)).sample(names, count)))

    def gather(self, grid: Grid, expected: int, wait: float, deadline: float) -> None:
        """Wait until ``expected`` clients have said hello.

        Raises
        ------
        RunFailed
            If one reports that it cannot take part, two share a name, their models would differ, or time is up.
        """
        end = time.monotonic() + wait
        while True:
            self.refresh(grid, deadline)
            if len(self.hellos) >= expected:
                break
            if time.monotonic() > end:
                raise RunFailed(f"expected {expected} clients, only {len(self.hellos)} said hello within {wait:g} s: "
                                f"{', '.join(self.names()) or 'none'}. Start the others, or set clients to the number there are.")
            time.sleep(0.5)
        self._check_alike()

    def refresh(self, grid: Grid, deadline: float) -> None:
        """Greet nodes that are new since the last time, forget those that left."""
        online = set(grid.get_node_ids())
        self._node_of = {name: node for name, node in self._node_of.items() if node in online}
        self._known_nodes &= online
        new = sorted(online - self._known_nodes)
        if not new:
            return
        messages = [Message(RecordDict({"hello": ConfigRecord()}), node, "query.hello", ttl=deadline, group_id="hello") for node in new]
        plan = Plan(rounds=1, deadline=deadline, quorum=1.0)
        for reply in exchange(grid, messages, plan, Outcome(0, None)):  # type: ignore[arg-type]
            asked = next((m for m in messages if m.metadata.message_id == reply.metadata.reply_to_message_id), None)
            if asked is not None:
                self._welcome(asked.metadata.dst_node_id, reply)

    def _welcome(self, node: int, reply: Message) -> None:
        if reply.has_error():
            reason = reply.error.reason or ""
            text = reason.split(":", 2)[-1].strip() if reason.startswith("fedhearth:") else f"Flower error {reply.error.code}"
            if not self._started:
                raise RunFailed(f"a client cannot take part: {text}")
            log.warning("a node could not say hello: %s", text)
            return
        said = reply.content["hello"]
        hello = Hello(str(said["site"]), int(said["classes"]), str(said["class-digest"]),  # type: ignore[arg-type]
                      tuple(int(n) for n in str(said["input-shape"]).split("x")), str(said["split-digest"]))  # type: ignore[arg-type]
        if hello.site in self._node_of:
            raise RunFailed(f"two nodes call themselves {hello.site!r}; give every SuperNode its own --site")
        self._known_nodes.add(node)
        self._node_of[hello.site] = node
        self.hellos[hello.site] = hello

    def _check_alike(self) -> None:
        """All clients must need the same model; the first two that differ are named."""
        first = self.hellos[self.names()[0]]
        for hello in self.hellos.values():
            for what in ("classes", "class_digest", "input_shape"):
                mine, other = getattr(first, what), getattr(hello, what)
                if mine != other:
                    label = {"classes": "number of classes", "class_digest": "class names", "input_shape": "image shape"}[what]
                    raise RunFailed(f"clients differ in their {label}: {first.site} says {mine}, {hello.site} says {other}; "
                                    "all sites need the same classes in the same order, and images of one shape")
        self._started = True
