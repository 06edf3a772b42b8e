"""Who takes part: site names, and the node each has right now.

Flower's node ids are random and may change when a site restarts; everything we keep goes by the site's own name,
learnt from one hello message a node. Sampling draws from sorted names with a seed of (run seed, round), so it does
not depend on node ids or on the order in which nodes connected.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping
from dataclasses import dataclass
from random import Random

from flwr.app import ArrayRecord, ConfigRecord, Message, RecordDict
from flwr.serverapp import Grid

from server_app.failures import CannotStart as CannotStart
from server_app.rounds import Outcome, Plan, RunFailed, exchange
from strategies.data_warnings import MEANING, few, heard
from strategies.held_out import asked_of, held_out_names
from strategies.seeds import derive_seed
from strategies.tally import OWN_ERROR, word_of
from strategies.wire import HELLO, WireViolation, unpack_hello

log = logging.getLogger(__name__)
POLL = 0.5
# Flower's codes for a message or a reply that never arrived, and for a node that is gone
NOT_THE_CLIENT = frozenset({3, 4, 5})


@dataclass(frozen=True)
class Hello:
    """What a client said of itself: its name, what the model must fit, the digest of its part of the split, the kinds of warnings
    that its own look at its data gave, and the digest of its frozen backbone, "" if it has none."""

    site: str
    classes: int
    class_digest: str
    input_shape: tuple[int, int, int]
    split_digest: str
    warnings: tuple[str, ...] = ()
    weights_digest: str = ""


class Roster:
    """The clients of one run, by name. Those held out of training are chosen once, when all have said hello."""

    def __init__(self, seed: int, fraction: float) -> None:
        self.seed, self.fraction = seed, fraction
        self._held_out: tuple[str, ...] = ()
        self._node_of: dict[str, int] = {}
        self._known_nodes: set[int] = set()
        self._rivals: dict[int, Hello] = {}  # nodes that say a name which another one has
        self.hellos: dict[str, Hello] = {}
        self._folded: dict[str, str] = {}  # a name in lower case -> the first client that had it
        self._started = False

    def names(self) -> tuple[str, ...]:
        return tuple(sorted(self.hellos))

    def held_out(self) -> tuple[str, ...]:
        """The clients kept out of training, in sorted order."""
        return self._held_out

    def participants(self) -> tuple[str, ...]:
        """All others. Who comes only after the run has begun is one of them."""
        outside = set(self._held_out)
        return tuple(name for name in self.names() if name not in outside)

    def hold_out(self, count: int, before: tuple[str, ...] | None = None) -> tuple[str, ...]:
        """Keep ``count`` clients, drawn by seed from the sorted names, out of training; returns them.

        ``before`` are those of the run that is resumed, whoever is here now. One client at least stays in training.
        """
        names = self.names()
        drawn = held_out_names(names, min(count, len(names) - 1), self.seed)
        self._held_out = drawn if before is None else tuple(sorted(before))
        return self._held_out

    def node_id(self, name: str) -> int | None:
        """The node that speaks for ``name`` now, or None while it is offline."""
        return self._node_of.get(name)

    def online(self) -> int:
        """How many clients have a node now, as of the last ``refresh``."""
        return len(self._node_of)

    def sample(self, round_number: int) -> tuple[str, ...]:
        """The participants asked in a round: all, or a seeded draw without replacement, in sorted order."""
        names = self.participants()
        count = asked_of(len(names), self.fraction)
        if count == len(names):
            return names
        return tuple(sorted(Random(derive_seed(self.seed, "sample", round_number)).sample(names, count)))

    def gather(self, grid: Grid, expected: int, wait: float, deadline: float) -> None:
        """Wait until ``expected`` clients have said hello.

        Raises
        ------
        CannotStart
            If one reports that it cannot take part, two share a name, their models would differ, or time is up.
        """
        end = time.monotonic() + wait
        while True:
            self.refresh(grid, min(deadline, max(end - time.monotonic(), 1.0)))
            if len(self.hellos) >= expected:
                break
            if time.monotonic() > end:
                raise CannotStart(f"expected {expected} clients, only {len(self.hellos)} said hello within {wait:g} s: "
                                f"{', '.join(self.names()) or 'none'}. Start the others, or set clients to the number there are. (FH-018)")
            time.sleep(POLL)
        self._started = True
        _log_data_warnings(self.hellos)

    def refresh(self, grid: Grid, deadline: float) -> None:
        """Greet nodes that are new since the last time, forget those that left.

        Once the run has begun, a node that cannot take part is left out and never ends the run.
        """
        online = set(grid.get_node_ids())
        self._node_of = {name: node for name, node in self._node_of.items() if node in online}
        self._known_nodes &= online
        self._rivals = {node: hello for node, hello in self._rivals.items() if node in online}
        for node, hello in list(self._rivals.items()):
            if hello.site not in self._node_of:  # it was the same site after a restart, and its old node has expired
                self._accept(node, self._rivals.pop(node))
        new = sorted(online - self._known_nodes)
        if not new:
            return
        messages = [Message(RecordDict({HELLO: ConfigRecord()}), node, "query.hello", ttl=deadline, group_id=HELLO) for node in new]
        sent = iter(messages)  # replies come in the order of the messages, though not to all of them
        plan = Plan(rounds=1, deadline=deadline, quorum=1.0)
        for reply in exchange(grid, messages, plan, Outcome(0, ArrayRecord())):
            node = next(m.metadata.dst_node_id for m in sent if m.metadata.message_id == reply.metadata.reply_to_message_id)
            try:
                self._welcome(node, reply)
            except RunFailed as fault:
                if not self._started:
                    raise
                log.warning("node %d is left out: %s", node, fault)
        if self._started:
            # one that is silent or unfit now is not asked again, since waiting for it would delay every round
            self._known_nodes.update(new)

    def _welcome(self, node: int, reply: Message) -> None:
        if reply.has_error() and reply.error.code in NOT_THE_CLIENT and not self._started:
            return  # it left before it answered; if it comes back, it is asked again
        if not reply.has_content():
            own = OWN_ERROR.fullmatch(reply.error.reason or "")
            text = own[2].strip() if own else f"Flower says {word_of(reply.error.code)}"
            raise CannotStart(f"a client cannot take part: {text} (FH-019)")
        try:
            said = unpack_hello(reply.content)
        except WireViolation as wrong:
            raise CannotStart(f"a client's hello cannot be read: {wrong}; all sites need the same version of this app") from None
        hello = Hello(said["site"], int(said["classes"]), said["class-digest"], _shape(said["input-shape"]), said["split-digest"],
                      heard(said["warnings"]), said["weights-digest"])
        self._check_name(hello.site)
        self._check_alike(hello)
        if hello.site in self._node_of:
            # without node keys a site that restarts is a new node, while its old one stays listed for a minute
            log.warning("a second node calls itself %s; it is not asked as long as the first is connected", hello.site)
            self._rivals[node] = hello
            return
        self._accept(node, hello)

    def _accept(self, node: int, hello: Hello) -> None:
        self._known_nodes.add(node)
        self._node_of[hello.site] = node
        self.hellos[hello.site] = hello
        self._folded.setdefault(hello.site.casefold(), hello.site)

    def _check_name(self, site: str) -> None:
        """Before a run nobody can tell which of two sites of one name is the right one."""
        if site in self._node_of and not self._started:
            raise CannotStart(f"two nodes call themselves {site!r}; give every SuperNode its own site name (FH-010)")
        # names are folders, and some disks do not tell a from A
        alike = self._folded.get(site.casefold(), site)
        if alike != site:
            raise CannotStart(f"the site names {alike!r} and {site!r} differ in upper and lower case only; rename one")

    def _check_alike(self, hello: Hello) -> None:
        """All clients must need the same model; two that differ are named."""
        for other in self.hellos.values():
            if other.site == hello.site and not self._started:
                continue
            for what, label in (("classes", "number of classes"), ("class_digest", "class names"), ("input_shape", "image shape")):
                mine, theirs = getattr(hello, what), getattr(other, what)
                if mine != theirs:
                    raise CannotStart(f"clients differ in their {label}: {other.site} says {theirs}, {hello.site} says {mine}; "
                                    "all sites need the same classes in the same order, and images of one shape. At each of the two, "
                                    "`fedhearth data check URI --classes NAME,NAME,...` with the names all agreed on says what differs "
                                    "(FH-020)")
            if hello.weights_digest != other.weights_digest:
                raise CannotStart(f"clients differ in the weights of their frozen backbone: {other.site} says {other.weights_digest}, "
                                  f"{hello.site} says {hello.weights_digest}; give all sites the same files (weights-dir), which sha256sum "
                                  "compares (FH-034)")
            return  # the others were compared with this one


def data_warnings(hellos: Mapping[str, Hello]) -> dict[str, list[str]]:
    """Kind of warning -> the clients whose own look at their data gave it, sorted; only kinds that occur."""
    found = {kind: sorted(name for name, hello in hellos.items() if kind in hello.warnings) for kind in MEANING}
    return {kind: clients for kind, clients in found.items() if clients}


def _log_data_warnings(hellos: Mapping[str, Hello]) -> None:
    if noted := data_warnings(hellos):
        log.warning("data check: %s; `fedhearth data check` says more, at the site, or with a simulation's --clients and -c partition",
                    "; ".join(f"{MEANING[kind]} ({few(clients)})" for kind, clients in noted.items()))


def _shape(text: str) -> tuple[int, int, int]:
    channels, height, width = map(int, text.split("x"))
    return channels, height, width
