"""PEP-FedPT: class prompts, mixed a sample by global prototypes and the client's own class prior (arXiv 2510.25372).

Around a frozen Vision Transformer, a shared prompt (layer 1), one prompt a class and the head are trained by all clients and
averaged (FedAvg). At some layers each sample gets a mixture of the class prompts by how close its CLS token is to the
classes' global prototypes, and by how frequent each class is at the client: the prior, which never leaves it. No parameter
belongs to a client.

Prototypes travel with the model, both ways, in the one message of a round: class means of CLS tokens at those layers. Known
from a summary and the opening of the paper only. Our own choices (METHODS 4.2, 4.7): the posterior form of the mixture weights,
centred cosines, all rates, ``rho``, ``n_S = 1`` (from the paper's traffic), and how the first prototypes come about: in the
first round no class has any, so each client starts with its own class means, taken with the initial shared prompt in place, for
the classes it holds; what it sends becomes the first global prototypes. Degenerate cases: ``use = shared`` is FedVPT.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from strategies.class_prototypes import RowMeans, drift, mixture_map
from strategies.config import ConfigError, RunConfig, choice, require
from strategies.contract import Slot, Wire
from strategies.prompt_average import AT_HOME, HEAD_DOWN, HEAD_UP
from strategies.reduce import WeightedMean
from strategies.scalars import COMMON_METRICS, LAYER_SHARE
from strategies.types import Round, Shelf, Slots, Tensors, Update

COUNTS = "class-counts"
# classes beyond which the mixture map is not written down
MOST_DRAWN = 100
_PROMPTS = "tokens x dim, classes x dim"
_DOWN = (Slot("prompts", _PROMPTS, "the shared prompt and the class prompts", like="prompts"), HEAD_DOWN,
         Slot("prototypes", "layers x classes x dim", "the global class prototypes", like="prototypes"))
_SENT = {"shrunk": "class means, each drawn towards the prototype received; an exact copy of a received row shows that the client "
                   "lacks the class",
         "uniform": "plain class means; an exact copy of a received row shows that the client lacks the class",
         "count": "plain class means; an exact copy of a received row shows that the client lacks the class"}


@dataclass(frozen=True)
class Config:
    """Settings of PEP-FedPT. All but the layers are this project's choice (METHODS 4.3, 4.7).

    Attributes
    ----------
    shared_tokens : n_S, tokens of the shared prompt.
    class_layers : where mixtures enter, counted from 1; the paper's.
    use, handling, cosine, score, tau, stop_cls : see ``models.prompt_config.PromptConfig``.
    shared_lr, class_lr : learning rates of the shared and the class prompts; the head has the run's ``lr``.
    rho : momentum of the prototypes: the share of the old one that stays.
    prototype_weighting : ``shrunk`` sends (n_c mean_c + kappa mu_c) / (n_c + kappa), so that few images move a prototype little
        and no count leaves; ``uniform`` sends plain means, all weighing the same; ``count`` (opt-in) sends counts beside them,
        for the paper's data-point average.
    kappa : images that the received prototype counts for in ``shrunk``.
    prototypes_from : ``trained``: class means under the client's trained prompts; ``received``: under those it received, which
        are the same for all clients of a round.
    """

    shared_tokens: int = 1
    class_layers: str = "5,6,7"
    use: str = "both"
    handling: str = "replace"
    cosine: str = "centred"
    score: str = "log"
    tau: float = 0.2
    stop_cls: bool = True
    shared_lr: float = 0.1
    class_lr: float = 1.0
    rho: float = 0.2
    prototype_weighting: str = "shrunk"
    kappa: float = 5.0
    prototypes_from: str = "trained"

    def __post_init__(self) -> None:
        _ = self.layers
        choice("pep-fedpt.use", ("both", "shared", "class"), self.use)
        choice("pep-fedpt.handling", ("replace", "append"), self.handling)
        choice("pep-fedpt.cosine", ("centred", "raw"), self.cosine)
        choice("pep-fedpt.score", ("log", "scaled", "prior", "cosine"), self.score)
        choice("pep-fedpt.prototype-weighting", ("shrunk", "uniform", "count"), self.prototype_weighting)
        choice("pep-fedpt.prototypes-from", ("trained", "received"), self.prototypes_from)
        require(self.shared_tokens >= 1, "pep-fedpt.shared-tokens", "1 or more", self.shared_tokens)
        require(0 <= self.rho < 1, "pep-fedpt.rho", "at least 0 and below 1", self.rho)
        for key in ("tau", "shared_lr", "class_lr"):
            value = getattr(self, key)
            require(value > 0 and math.isfinite(value), f"pep-fedpt.{key.replace('_', '-')}", "a finite number above 0", value)
        require(self.kappa >= 0 and math.isfinite(self.kappa), "pep-fedpt.kappa", "a finite number of 0 or more", self.kappa)

    @property
    def layers(self) -> tuple[int, ...]:
        """``class_layers`` as numbers."""
        words = [word.strip() for word in self.class_layers.split(",")]
        if not all(re.fullmatch(r"[1-9][0-9]{0,3}", word) for word in words) or [*map(int, words)] != sorted({*map(int, words)}):
            raise ConfigError(f"pep-fedpt.class-layers must be ascending layers counted from 1, such as 5,6,7; got {self.class_layers!r}")
        return tuple(map(int, words))

    @property
    def wire(self) -> Wire:
        up = (Slot("prompts", _PROMPTS, "the same, locally trained", like="prompts"), HEAD_UP,
              Slot("prototypes", "layers x classes x dim", _SENT[self.prototype_weighting], like="prototypes"))
        counts = (Slot(COUNTS, "classes", "training images a class (prototype-weighting = count, opt-in)",
                       layout=(("counts", ("C",), "float32"),)),)
        counted = self.prototype_weighting == "count"
        return Wire(down=_DOWN, up=up + counts if counted else up, local=AT_HOME[1:] if counted else AT_HOME,
                    metrics=COMMON_METRICS | {"mixture-accuracy", *(f"{LAYER_SHARE}layer{layer}" for layer in self.layers)})

    @property
    def prompts(self) -> Mapping[str, Any]:
        """Settings of ``models.prompt_config.PromptConfig``."""
        return {"shared_tokens": self.shared_tokens, "class_layers": self.layers, "use": self.use, "handling": self.handling,
                "cosine": self.cosine, "score": self.score, "tau": self.tau, "stop_cls": self.stop_cls}

    @property
    def rates(self) -> Mapping[str, float]:
        """Learning rates of the prompts by kind."""
        return {"shared": self.shared_lr, "class": self.class_lr}


@dataclass(frozen=True)
class State:
    """The shared model, the global prototypes, how far they moved in the last round (a layer), and that round."""

    prompts: Tensors
    head: Tensors
    prototypes: Tensors
    moved: tuple[float, ...] = ()
    round: int = 0


@dataclass(frozen=True)
class PepRule:
    """FedAvg of prompts and head; prototypes with momentum, a class at a time."""

    config: Config
    run: RunConfig
    shelf: Shelf | None = None

    def init(self, start: Slots) -> State:
        return State(start["prompts"], start["head"], start["prototypes"])

    def downlink(self, state: State, client: str, rnd: Round) -> Slots:
        return {"prompts": state.prompts, "head": state.head, "prototypes": state.prototypes}

    def merge(self, state: State, updates: Iterable[Update], rnd: Round) -> State:
        prompts, head, rows = WeightedMean(), WeightedMean(), RowMeans(state.prototypes, self.run.wire_dtype)
        for update in updates:
            prompts.add(update.slots["prompts"], update.weight)
            head.add(update.slots["head"], update.weight)
            counts = update.slots.get(COUNTS)
            rows.add(update.slots["prototypes"], None if counts is None else counts["counts"])
        prototypes = rows.merged(state.prototypes, self.config.rho)
        return replace(state, prompts=prompts.result(), head=head.result(), prototypes=prototypes,
                       moved=tuple(drift(state.prototypes, prototypes)), round=rnd.number)

    def diagnostics(self, state: State) -> Mapping[str, Any]:
        """Drift a layer; after the last round, what mixture a typical sample of each class gets."""
        found: dict[str, Any] = {"prototype_drift": dict(zip(state.prototypes, state.moved, strict=False))}
        rows = list(state.prototypes.values())
        if state.round == self.run.rounds and rows and len(rows[0]) <= MOST_DRAWN:
            found["mixture_map"] = mixture_map(rows, self.config.tau).round(4).tolist()
        return found
