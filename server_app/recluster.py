"""The last refresh of a finished HDC-FL run made anew under other settings, and how well its clients would have been served by it.

Clusters and mixtures are served and never trained, so the encoders and signals of the last round say what other settings would have
served: the figures are those of a whole run with them, and cost seconds. Every client scores its mixture with its own head by the messages
of the donor swap, which keep nothing. Neither the run nor its clients change; prototypes go to a folder of their own. Clients that were
held out are not asked.
"""

from __future__ import annotations

import math
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from flwr.serverapp import Grid

from server_app.donor_swap import scored
from server_app.encoder_shelf import EncoderShelf
from server_app.finished_state import finished_strategy
from server_app.rounds import Plan, RunFailed
from strategies.adapter import RuleStrategy
from strategies.config import ConfigError, Scalar, check_known, dashed
from strategies.donor_swap import ACCURACY, RAW
from strategies.hdc_config import Config
from strategies.hdc_fl import HdcRule, State
from strategies.registry import Settings, items_of_all, known_keys, parse_run_config
from strategies.tails import spread
from strategies.types import Tensors

NAME = "hdc-fl"
# what has a say in clusters and mixtures alone; every other setting changes training, or what clients send
FREE = tuple(f"{NAME}.{dashed(key)}" for key in (
    "rank", "max_rank", "energy", "num_clusters", "max_clusters", "min_cluster_size", "min_silhouette", "restarts", "temperature",
    "staleness", "shrink", "grouping"))


@dataclass(frozen=True)
class Tried:
    """What other settings would have served, by client.

    Attributes
    ----------
    settings : what was changed; empty for the run as it was.
    clusters, silhouette, rank : of the refresh.
    silent : clients of the refresh from whom no answer came.
    served, served_raw : test accuracy by client, with BatchNorm as the run scores, and as the mixture has it.
    """

    settings: Mapping[str, Scalar]
    clusters: int
    silhouette: float
    rank: int
    silent: tuple[str, ...]
    served: Mapping[str, float]
    served_raw: Mapping[str, float]

    def to_json(self) -> dict[str, Any]:
        tails = {key: asdict(spread(scores)) for key, scores in (("served", self.served), ("served_raw", self.served_raw)) if scores}
        for told in tails.values():
            del told["weighted_mean"]  # would need the counts, which may have stayed at home
        # JSON has no word for inf, which is a temperature
        settings = {key: str(value) if value == math.inf else value for key, value in self.settings.items()}
        return {"settings": settings, "silent": list(self.silent), "clusters": self.clusters, "silhouette": self.silhouette,
                "rank": self.rank, **{f"{key}_tails": told for key, told in tails.items()},
                "served": dict(self.served), "served_raw": dict(self.served_raw)}


class BesideShelf:
    """A run's shelf to read from, and another one for what is put."""

    def __init__(self, of_run: EncoderShelf, own: EncoderShelf) -> None:
        self.of_run, self.own, self._put = of_run, own, set[tuple[str, int]]()

    def put(self, client: str, round_number: int, tensors: Tensors) -> None:
        self.own.put(client, round_number, tensors)
        self._put.add((client, round_number))

    def get(self, client: str, round_number: int) -> Tensors:
        return (self.own if (client, round_number) in self._put else self.of_run).get(client, round_number)


def changed(settings: Settings, given: Mapping[str, Scalar]) -> Config:
    """HDC-FL's settings with what is ``given``; raises ``ConfigError`` for what is wrong or needs a run of its own."""
    if not isinstance(settings.own, Config):
        raise ConfigError(f"only {NAME} has clusters to make anew, and this is a run of {settings.method.name}")
    check_known(given, known_keys())
    if bound := [key for key in given if key not in FREE]:
        raise ConfigError(f"{bound[0]} has a say in training or in what clients send, so it needs a run of its own; "
                          f"free to change: {', '.join(FREE)}")
    own = parse_run_config({**items_of_all(settings), **given}).own
    assert isinstance(own, Config)
    return own


def recluster(grid: Grid, folder: Path, settings: Settings, tries: Sequence[Mapping[str, Scalar]],
              on_try: Callable[[int, int], None] | None = None) -> list[Tried]:
    """What the clients of ``grid``, those of the finished run in ``folder``, would have been served under each of ``tries``.

    Raises
    ------
    ConfigError
        If a setting cannot change, the clients' data are not the run's, or its last state is not there.
    CannotStart, RunFailed
        If a client cannot take part, or a mixture has no score at all.
    """
    configs = [changed(settings, given) for given in tries]
    strategy, _ = finished_strategy(grid, folder, settings)
    found = []
    for number, (given, config) in enumerate(zip(tries, configs, strict=True), 1):
        found.append(_tried(grid, strategy, given, config))
        if on_try:
            on_try(number, len(configs))
    return found


def _tried(grid: Grid, strategy: RuleStrategy, given: Mapping[str, Scalar], config: Config) -> Tried:
    state: State = strategy.state
    if state.groups is None:
        raise ConfigError("the run had no refresh, so there is nothing to make anew")
    with tempfile.TemporaryDirectory() as own:
        shelf = BesideShelf(strategy.rule.shelf, EncoderShelf(own))  # type: ignore[attr-defined]
        rule = replace(strategy.rule, config=config, shelf=shelf)  # type: ignore[type-var]
        assert isinstance(rule, HdcRule)
        again = rule.refreshed(state, state.groups.round)
        assert again.groups is not None

        def mixture(client: str) -> Tensors:
            found = rule.mixture_of(again, client)
            assert found is not None
            return found

        plan = Plan(strategy.run.rounds, strategy.run.deadline, strategy.run.quorum, done=strategy.run.rounds)
        tally = scored(grid, strategy, plan, again.groups.clients, mixture)
    scores = [{client: told[key] for client, told in sorted(tally.metrics.items()) if key in told} for key in (ACCURACY, RAW)]
    if not tally.metrics:
        raise RunFailed(f"no client answered ({dict(tally.dropped)}); the log above says why")
    groups = again.groups
    silent = tuple(sorted(set(again.groups.clients) - tally.metrics.keys()))
    return Tried(given, groups.weights.shape[1], groups.silhouette, groups.rank, silent, *scores)
