"""METHODS: one line a method. The only place that maps a method's name to code.

Both halves are named, not imported, like Flower's own references: the server process never loads torch for a
rule, and a client never loads the server.
"""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from strategies.config import ConfigError, RunConfig, Scalar, check_known, items_of, keys_of, nearest, parse
from strategies.wire import Wire


@dataclass(frozen=True)
class Method:
    """Where the two halves of a method live. The rule's module also holds its ``Config`` (settings and contract)."""

    name: str
    server: str
    client: str
    summary: str

    def config_class(self) -> type:
        """The method's frozen config dataclass; its ``wire`` property is the contract those settings imply."""
        return importlib.import_module(self.server.partition(":")[0]).Config

    def rule_class(self) -> type:
        return _resolve(self.server)

    def learner_class(self) -> type:
        return _resolve(self.client)


METHODS: dict[str, Method] = {m.name: m for m in (
    Method("hdc-fl", "strategies.hdc_fl:HdcRule", "client_app.learners.hdc_fl:HdcLearner",
           "private heads are the similarity signal; each client serves a soft mixture of cluster encoders"),
    Method("fedper", "strategies.fedper:FedPerRule", "client_app.learners.fedper:FedPerLearner",
           "shared encoder, private head"),
    Method("fedavg", "strategies.fedavg:FedAvgRule", "client_app.learners.fedavg:FedAvgLearner",
           "one shared model for all"),
    Method("local-only", "strategies.local_only:LocalOnlyRule", "client_app.learners.local_only:LocalOnlyLearner",
           "every client trains alone; nothing is shared after the common start"),
)}


def find_method(name: str) -> Method:
    """The method called ``name``; an unknown one is a ``ConfigError`` that names the nearest."""
    if name not in METHODS:
        names = tuple(METHODS)
        raise ConfigError(f"unknown method {name!r}{nearest(name, names)} (known: {', '.join(names)})")
    return METHODS[name]


@dataclass(frozen=True)
class Settings:
    """A whole run config, parsed: what all methods share, and the chosen method's own."""

    run: RunConfig
    method: Method
    own: Any

    @property
    def wire(self) -> Wire:
        """The contract of the method with these settings and in this run: precision, and whether counts may leave."""
        wire: Wire = self.own.wire
        kept_home = frozenset() if self.run.weighting == "examples" else frozenset({"num-examples", "num-test"})
        return replace(wire, travel=self.run.wire_dtype, metrics=wire.metrics - kept_home)


def known_keys() -> tuple[str, ...]:
    """Every run-config key there is."""
    own = (key for m in METHODS.values() for key in keys_of(m.config_class(), f"{m.name}."))
    return (*keys_of(RunConfig), *own)


def parse_run_config(flat: Mapping[str, object]) -> Settings:
    """Flower's flat run config -> ``Settings``; raises ``ConfigError`` for anything that cannot be run.

    Settings of methods other than the chosen one are checked too: a typing error never passes in silence.
    """
    check_known(flat, known_keys())
    run = parse(RunConfig, flat)
    method = find_method(run.method)
    own = {m.name: parse(m.config_class(), flat, f"{m.name}.") for m in METHODS.values()}
    return Settings(run=run, method=method, own=own[method.name])


def items_of_all(settings: Settings) -> dict[str, Scalar]:
    """The whole run config, defaults included, as flat items: what a run writes down of itself."""
    return items_of(settings.run) | items_of(settings.own, f"{settings.method.name}.")


def default_items() -> dict[str, Scalar]:
    """Every key with its default, as pyproject.toml must list them."""
    own = (items_of(m.config_class()(), f"{m.name}.") for m in METHODS.values())
    return {key: value for table in (items_of(RunConfig()), *own) for key, value in table.items()}


def _resolve(reference: str) -> type:
    module, _, attribute = reference.partition(":")
    return getattr(importlib.import_module(module), attribute)
