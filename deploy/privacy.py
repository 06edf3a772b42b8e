"""The privacy table: what crosses the wire, written from the contracts the code itself checks.

Nothing here is typed by hand but the opt-in settings worth a row of their own, and what the facts of a hello mean in words;
README holds the Markdown form and a test keeps it equal.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from strategies.contract import HELLO_FACTS, Slot, Wire
from strategies.data_warnings import MEANING
from strategies.donor_swap import DONOR_SLOT
from strategies.registry import METHODS, Method, find_method
from strategies.scalars import COMMON_METRICS, COUNTS, DONOR_SCORES, SCORES, SECONDS, TOTALS

# settings, off by default, that let more leave a client
OPT_IN: dict[str, tuple[dict[str, str | bool], ...]] = {
    "hdc-fl": ({"signal": "head"}, {"feature_cache": True}),
    "fed-cache": ({"heads": "shared"},),
    "pep-fedpt": ({"prototype_weighting": "count"},),
}
# what a client sends that comes after training, once, in place of a round's tensors
JOINING = "from a client that joins after training: "
# what a method's replies carry beside the numbers that all have in common
NUMBERS = "also the numbers "
# strategies.wire.HELLO_FACTS in words; a fact without words is a KeyError here
HELLO_MEANS = {
    "site": "the client's name",
    "classes": "how many classes it has",
    "class-digest": "a hash of their names, by which clients are compared",
    "input-shape": "channels x height x width of its images",
    "split-digest": "a hash of its part of the split; empty at a site",
    "warnings": "what the check of its data found, as words from a fixed list",
    "weights-digest": "a hash of its frozen backbone, by which clients are compared; empty without one",
}
LIMITS = ("A contract bounds *which* tensors leave, not what they reveal: an encoder or a sketch of a head still says something "
          "about the data it was trained on.",
          "The checks catch mistakes, not malice: the app itself comes from whoever submits the run.")


@dataclass(frozen=True)
class Contract:
    """A method, with the settings that imply this ``wire``."""

    label: str
    wire: Wire


def contracts(name: str = "") -> list[Contract]:
    """The contracts of all methods or of one; an unknown name is a ``ConfigError``."""
    chosen = [find_method(name)] if name else METHODS.values()
    return [contract for method in chosen for contract in _variants(method)]


def _variants(method: Method) -> Iterable[Contract]:
    config = method.config_class()
    yield Contract(method.name, config().wire)
    for settings in OPT_IN.get(method.name, ()):
        told = ", ".join(f"{key.replace('_', '-')} = {str(value).lower()}" for key, value in settings.items())
        yield Contract(f"{method.name} ({told}, opt-in)", config(**settings).wire)


def markdown(found: Iterable[Contract]) -> str:
    """One table, a row a contract, and what holds for all: scalars, the hello, and limits."""
    lines = ["| method | server to client | client to server | strictly local |", "| --- | --- | --- | --- |"]
    lines += [f"| {c.label} | {_cell(c.wire.down)} | {'<br>'.join([_cell(c.wire.up), *_beside(c.wire)])} | "
              f"{', '.join(c.wire.local)} |" for c in found]
    common = [line for paragraph in (scalars(), swap(), hello(), warnings()) for line in (paragraph, "")]
    return "\n".join([*lines, "", *common, *(f"{n}. {limit}" for n, limit in enumerate(LIMITS, 1))]) + "\n"


def text(found: Iterable[Contract]) -> str:
    """The same for a terminal, a paragraph a contract."""
    blocks = []
    for contract in found:
        wire = contract.wire
        lines = [contract.label, *_lines("server to client", wire.down), *_lines("client to server", wire.up),
                 *(f"{'':20}{told.replace('`', '')}" for told in _beside(wire)),
                 f"  strictly local    {', '.join(wire.local)}"]
        blocks.append("\n".join(lines))
    common = [paragraph.replace("`", "").replace("**", "") for paragraph in (scalars(), swap(), hello(), warnings())]
    return "\n\n".join([*blocks, *common, *(f"{n}. {x.replace('*', '')}" for n, x in enumerate(LIMITS, 1))]) + "\n"


def scalars() -> str:
    """The sentence about scalars: the same for every method."""
    return (f"Beside tensors, a reply may carry these numbers and no others: the client's own scores ({_code(sorted(SCORES))}), "
            f"{_code(sorted(COMMON_METRICS - SCORES))}, and those that its row names. With `weighting = uniform` what tells the number "
            f"of samples stays at home: {_code(sorted(COUNTS | SECONDS | TOTALS))}.")


def swap() -> str:
    """The sentence about a donor swap, which a run has only if it says so."""
    methods = [method.name for method in METHODS.values() if hasattr(method.rule_class(), "donors")]
    return (f"With `donor-swap` above 0 (opt-in; {_code(methods)}) the server sends every client, after its closing evaluation, "
            f"{_cell((DONOR_SLOT,))}. Back come the client's own accuracies with it, {_code(sorted(DONOR_SCORES))}, and nothing else.")


def hello() -> str:
    """The sentence about what a client says of itself before round 1."""
    facts = ", ".join(f"`{fact}` ({HELLO_MEANS[fact]})" for fact in HELLO_FACTS)
    return (f"Before round 1 a client says hello, with these facts and no others: {facts}. A client that cannot take part or answer sends "
            "the kind of the error, and its text if it is one of ours; none of those holds a value, a label or a path.")


def warnings() -> str:
    """The sentence about the findings that a hello may name."""
    kinds = ", ".join(f"`{kind}` ({meaning})" for kind, meaning in MEANING.items())
    return (f"The words of `warnings` are {kinds}. How labels are distributed (classes without a sample, one class far "
            "ahead, few samples) is told to the client's own log alone.")


def _code(names: Iterable[str]) -> str:
    return ", ".join(f"`{name}`" for name in names)


def _cell(slots: tuple[Slot, ...]) -> str:
    return "<br>".join(f"`{s.name}` ({s.shape}{', sometimes' if s.optional else ''}): {s.purpose}" for s in slots) or "no tensor"


def _beside(wire: Wire) -> list[str]:
    """What else may come up: the numbers that other methods lack, and what a client sends that joins after training."""
    numbers = sorted(wire.metrics - COMMON_METRICS)
    return ([f"{NUMBERS}{_code(numbers)}"] if numbers else []) + ([f"{JOINING}{_code(s.name for s in wire.join)}"] if wire.join else [])


def _lines(way: str, slots: tuple[Slot, ...]) -> list[str]:
    if not slots:
        return [f"  {way}  no tensor"]
    return [f"  {way if n == 0 else '':16}  {s.name} ({s.shape}{', sometimes' if s.optional else ''}): {s.purpose}"
            for n, s in enumerate(slots)]
