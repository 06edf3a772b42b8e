"""A client with a feature cache, within one message: what it takes from the cache, how it trains, what it keeps and tells.

Under FedCache and, with ``hdc-fl.feature-cache``, under HDC-FL. It knows nothing of what crosses the wire.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from client_app.cache_clock import Clock
from client_app.cache_policy import refresh
from client_app.cached_fit import Cached, CachedFit, RouteCounts, gate_tensors, load_gate
from client_app.data.client_data import ClientData
from client_app.head_phase import fit_head
from client_app.learner import Trainer, Training
from client_app.local.sample_notes import SampleNotes, TwoPlaces
from client_app.local.store import LocalStore
from client_app.loop import FitStats, fit
from client_app.reuse import Reused
from models.gate import build_gate
from models.split import SplitModel
from strategies.cache_config import Config
from strategies.seeds import derive_seed
from strategies.types import Round, Slots, Tensors

FOLDER = "features"
MEGABYTE = 10**6


class CachedClient:
    """One client at one message.

    Parameters
    ----------
    kept : the client's committed state as of the last acknowledged round, None if there is none.

    Attributes
    ----------
    trainer : the client's own, which takes what a standing encoder makes from the cache.
    clock : how far the encoder has come; whoever knows moves it on before `training`.
    """

    def __init__(self, trainer: Trainer, config: Config, data: ClientData, store: LocalStore, rnd: Round, kept: Slots | None) -> None:
        self.config, self.data, self.rnd = config, data, rnd
        self._kept: Slots = kept or {}
        self._location, self._folder = store.location, store.location / FOLDER
        self._site = store.site
        limit = int(config.max_megabytes * MEGABYTE) if config.max_megabytes else None
        # the routes' two places get half of it, the exact features the other
        self._limit = limit // 2 if limit and config.routes != "off" else limit
        # the closing evaluation has the number of the last round, but is a message of its own
        number = rnd.number + rnd.closing
        self.source = Reused(self._folder if config.reuse else None, trainer.model.feature_dim, number, self._limit)
        self.trainer = replace(trainer, source=self.source)
        self.clock = Clock.from_tensors(self._kept.get("clock"))
        self._slots: dict[str, Tensors] = {}
        self._counts: RouteCounts | None = None
        self._bytes = 0

    def training(self, encoder: Tensors, frozen: bool = False) -> Training:
        """How this round trains from ``encoder``: the head on the standing encoder first, if the run says so, then both.

        ``frozen`` trains the head alone, for as many epochs as both phases together.
        """
        def train(model: SplitModel, data: ClientData, seed: int) -> FitStats:
            epochs = self.config.head_epochs + (self.trainer.settings.epochs if frozen else 0)
            stats = self._head_phase(model, encoder, epochs, seed) if epochs else None
            return stats if frozen and stats else self._joint(model, seed)

        return train

    def slots(self) -> dict[str, Tensors]:
        """What the client must keep for its next round, beside its model: commit it."""
        return {"clock": self.clock.tensors(), **self._slots}

    def metrics(self) -> dict[str, float]:
        """Scalars that may leave: shares by route, and totals where counts may leave."""
        shares = self._counts.shares() if self._counts else {}
        if not self.trainer.send_counts:
            return shares
        source = self.source
        return shares | {"forwards": source.forwards, "forwards-avoided": source.avoided, "cache-bytes": self._bytes + source.nbytes}

    def _head_phase(self, model: SplitModel, encoder: Tensors, epochs: int, seed: int) -> FitStats:
        """The head on the features it will see when it is served, so with the statistics of the ``bn`` rule."""
        settings, train = self.trainer.settings, self.data.train
        if settings.bn == "recompute":
            self.source.recompute(model, train, settings)
        features = self.source.every_epoch(model, train, settings)
        stats = fit_head(model, features, train.labels, settings, derive_seed(seed, "head-phase"), epochs)
        model.load("encoder", encoder)
        return stats

    def _joint(self, model: SplitModel, seed: int) -> FitStats:
        settings, train = self.trainer.settings, self.data.train
        if self.config.routes == "off":
            self.source.forwards += settings.epochs * len(train)
            return fit(model, train.images, train.labels, settings, seed)
        places = TwoPlaces(self._folder, model.feature_dim, self.config.payload, self._limit) if self.config.hit == "cache" else None
        cached = self._cached(model, places)
        self.clock = refresh(cached.notes, self.clock, train.labels, cached.disagreement, self.config)
        gate = build_gate(self.config.gate, model.feature_dim, derive_seed(self.rnd.seed, self._site, "gate"))
        if gate is not None and "gate" in self._kept:
            load_gate(gate, self._kept["gate"])
        training = CachedFit(model, train, settings, self.config, cached, self.clock, self.rnd, seed, gate)
        stats = training.run()
        if stats.finite:
            self._keep(training, places)
        return stats

    def _cached(self, model: SplitModel, places: TwoPlaces | None) -> Cached:
        notes = SampleNotes.of(self.data.train.ids, self._kept.get("notes"))
        features = places.load(notes) if places else np.zeros((len(notes.ids), 0), np.float16)
        kept = self._kept.get("classes")
        disagreement = np.zeros(len(self.data.classes)) if kept is None else kept["disagreement"].copy()
        return Cached(notes, features, disagreement)

    def _keep(self, training: CachedFit, places: TwoPlaces | None) -> None:
        cached, self._counts = training.cached, training.counts
        avoided = int(self._counts.by_route.sum()) - self._counts.forwards
        self.source.forwards += self._counts.forwards
        self.source.avoided += avoided
        if places:
            places.save(cached.notes, cached.features, cached.made)
            self._bytes = places.nbytes
        self._slots = {"notes": cached.notes.tensors(), "classes": {"disagreement": cached.disagreement}}
        self._counts.weights.keep(self._location, self.data.classes, self.rnd.number)
        if training.gate is not None and gate_tensors(training.gate):
            self._slots["gate"] = gate_tensors(training.gate)
