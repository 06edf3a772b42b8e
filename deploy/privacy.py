"""The privacy table: what crosses the wire, written from the contracts the code itself checks.

Nothing here is typed by hand but the opt-in settings worth a row of their own; README holds the Markdown form and a
test keeps it equal.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from strategies.registry import METHODS, Method, find_method
from strategies.wire import SCORES, Slot, Wire

# settings, off by default, that let more leave a client
OPT_IN: dict[str, tuple[dict[str, str], ...]] = {"hdc-fl": ({"signal": "head"},)}
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
        told = ", ".join(f"{key} = {value}" for key, value in settings.items())
        yield Contract(f"{method.name} ({told}, opt-in)", config(**settings).wire)


def markdown(found: Iterable[Contract]) -> str:
    """One table, a row a contract, and the scalars and limits that hold for all."""
    lines = ["| method | server to client | client to server | strictly local |", "| --- | --- | --- | --- |"]
    lines += [f"| {c.label} | {_cell(c.wire.down)} | {_cell(c.wire.up)} | {', '.join(c.wire.local)} |" for c in found]
    return "\n".join([*lines, "", scalars(), "", *(f"{n}. {limit}" for n, limit in enumerate(LIMITS, 1))]) + "\n"


def text(found: Iterable[Contract]) -> str:
    """The same for a terminal, a paragraph a contract."""
    blocks = []
    for contract in found:
        wire = contract.wire
        lines = [contract.label, *_lines("server to client", wire.down), *_lines("client to server", wire.up),
                 f"  strictly local    {', '.join(wire.local)}"]
        blocks.append("\n".join(lines))
    return "\n\n".join([*blocks, scalars().replace("`", ""), *(f"{n}. {x.replace('*', '')}" for n, x in enumerate(LIMITS, 1))]) + "\n"


def scalars() -> str:
    """The sentence about scalars: the same for every method."""
    rest = sorted(Wire((), (), ()).metrics - SCORES)
    return (f"Beside tensors, a reply may carry these numbers and no others: the client's own scores ({_code(sorted(SCORES))}) and "
            f"{_code(rest)}. With `weighting = uniform` the number of training samples stays at home too.")


def _code(names: Iterable[str]) -> str:
    return ", ".join(f"`{name}`" for name in names)


def _cell(slots: tuple[Slot, ...]) -> str:
    return "<br>".join(f"`{s.name}` ({s.shape}{', sometimes' if s.optional else ''}): {s.purpose}" for s in slots) or "no tensor"


def _lines(way: str, slots: tuple[Slot, ...]) -> list[str]:
    if not slots:
        return [f"  {way}  no tensor"]
    return [f"  {way if n == 0 else '':16}  {s.name} ({s.shape}{', sometimes' if s.optional else ''}): {s.purpose}"
            for n, s in enumerate(slots)]
