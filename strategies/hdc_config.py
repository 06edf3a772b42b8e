"""Settings of HDC-FL, and the contract they imply (METHODS.md 1.3 and 1.8).

Every default is this project's choice, none is the paper's.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import cast, get_args

from strategies.cache_config import CACHE_METRICS, LOCAL
from strategies.config import ConfigError, choice, dashed, require
from strategies.contract import Slot, Wire
from strategies.fedper import ENCODER_DOWN, ENCODER_UP, INITIAL_HEAD
from strategies.head_clusters import ClusterSettings, Rank
from strategies.scalars import COMMON_METRICS

DESCRIPTOR = "descriptor"
# beyond these a client would be at work for ever, or run out of memory
WIDEST_SKETCH, MOST_RESTARTS = 65_536, 10_000
MIXTURE = Slot("mixture", "encoder tensors", "this client's own mixture of the cluster encoders, after a refresh; served, never trained",
               like="encoder", optional=True, serves=True)
HEAD_UP = Slot("head", "classes x dim, classes", "the head, to the server only (signal = head, opt-in)", like="head")


@dataclass(frozen=True)
class Config:
    """Settings of HDC-FL. Every default is this project's choice (METHODS.md 1.3 and 1.8), none is the paper's.

    Attributes
    ----------
    signal : ``descriptor`` keeps the head at home and sends a projected sketch of it; ``head`` sends it to the server.
    projection_dim, projection_seed : width Q of the sketch, and a number that varies the projection.
    rank, max_rank, energy : how many dimensions are signal: largest eigenvalue ratio, ``parallel`` analysis, or ``energy`` share.
    num_clusters, max_clusters, min_silhouette : 0 chooses by silhouette, at most so many; below ``min_silhouette`` there is one.
    restarts, min_cluster_size : of k-means; a number of clusters that leaves one of fewer members is not taken.
    temperature : of the mixture; towards 0 a client takes its own cluster's prototype alone.
    refresh_first, refresh_every : rounds; 0 scales with the run: min(20, rounds/2), then every rounds/3. The last
        round always refreshes.
    staleness : weight of a cached encoder a round older, as in gamma ** age.
    shrink : pull the mixture towards the mean of all clients where the silhouette is weak.
    serve : ``mixture``, or the ``better`` of mixture and shared encoder by the client's own training loss.
    grouping : ``heads``, or ``random``: the control that deals the same clusters and weights out at random.
    feature_cache : clients keep features and train by routes, as FedCache's do; how is said by the ``fed-cache`` settings, of
        which those about heads and what travels (heads, freeze-after, sync-every, lazy-upload) have no meaning here.
    """

    signal: str = "descriptor"
    projection_dim: int = 512
    projection_seed: int = 0
    rank: str = "ratio"
    max_rank: int = 8
    energy: float = 0.9
    num_clusters: int = 0
    max_clusters: int = 8
    min_cluster_size: int = 1
    min_silhouette: float = 0.05
    restarts: int = 50
    temperature: float = 0.3
    refresh_first: int = 0
    refresh_every: int = 0
    staleness: float = 0.9
    shrink: bool = False
    serve: str = "mixture"
    grouping: str = "heads"
    feature_cache: bool = False

    def __post_init__(self) -> None:
        choice("hdc-fl.signal", ("descriptor", "head"), self.signal)
        choice("hdc-fl.serve", ("mixture", "better"), self.serve)
        choice("hdc-fl.grouping", ("heads", "random"), self.grouping)
        require(1 <= self.projection_dim <= WIDEST_SKETCH, "hdc-fl.projection-dim", f"in 1..{WIDEST_SKETCH}", self.projection_dim)
        require(self.projection_seed >= 0, "hdc-fl.projection-seed", "0 or more", self.projection_seed)
        require(self.temperature >= 0, "hdc-fl.temperature", "0 or more (inf is allowed)", self.temperature)
        require(0 < self.staleness <= 1, "hdc-fl.staleness", "above 0 and at most 1", self.staleness)
        require(self.refresh_first >= 0, "hdc-fl.refresh-first", "0 (scales with the run) or a round", self.refresh_first)
        require(self.refresh_every >= 0, "hdc-fl.refresh-every", "0 (scales with the run) or a number of rounds", self.refresh_every)
        require(self.restarts <= MOST_RESTARTS, "hdc-fl.restarts", f"at most {MOST_RESTARTS}", self.restarts)
        choice("hdc-fl.rank", get_args(Rank), self.rank)
        try:
            _ = self.clustering  # validates the rest
        except ValueError as wrong:
            name, _, told = str(wrong).partition(" ")
            raise ConfigError(f"hdc-fl.{dashed(name)} {told}") from wrong

    @property
    def clustering(self) -> ClusterSettings:
        return ClusterSettings(rank=cast(Rank, self.rank), max_rank=self.max_rank, energy=self.energy, max_clusters=self.max_clusters,
                               num_clusters=self.num_clusters, min_cluster_size=self.min_cluster_size,
                               min_silhouette=self.min_silhouette, restarts=self.restarts)

    @property
    def wire(self) -> Wire:
        """The contract these settings imply: the head travels only where ``signal = head``."""
        sketch = Slot(DESCRIPTOR, "Q", "projected, normalised sketch of how the head has moved",
                      layout=((DESCRIPTOR, (self.projection_dim,), "float16"),))
        cache, metrics = (LOCAL, CACHE_METRICS) if self.feature_cache else ((), frozenset())
        up, head = (sketch, ("head",)) if self.signal == "descriptor" else (HEAD_UP, ())
        return Wire(down=(ENCODER_DOWN, INITIAL_HEAD, MIXTURE), up=(ENCODER_UP, up), local=(*head, *cache, "data", "optimiser state"),
                    join=(up,), metrics=COMMON_METRICS | metrics)

    @property
    def borrows(self) -> tuple[str, ...]:
        """The methods whose settings this one uses too."""
        return ("fed-cache",) if self.feature_cache else ()

    def refreshes(self, number: int, rounds: int) -> bool:
        """Whether round ``number`` of ``rounds`` ends with a refresh."""
        first = self.refresh_first or max(1, min(20, rounds // 2))
        every = self.refresh_every or max(1, rounds // 3)
        return number == rounds or (number >= first and (number - first) % every == 0)
