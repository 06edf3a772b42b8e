"""What the benchmark runs, as data: the 11 configurations of METHODS.md 1.4, two scales, every method with its search.

The configurations are a reconstruction: the HDC-FL paper says that there are 11 and which shifts, data and encoders occur, not how they
are combined. Configuration 0, without heterogeneity, is an anchor and in no average.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

Value = str | int | float | bool
Settings = Mapping[str, Value]
OURS, CONTROL, PLAIN = "hdc-fl", "hdc-fl random", "fedper"


@dataclass(frozen=True)
class Configuration:
    """One cell of the grid.

    Attributes
    ----------
    data : ``ten`` or ``hundred`` classes; which images those are is the scale's and the machine's matter (``images.SOURCES``).
    shift : heterogeneity in words. settings : the same as run-config keys.
    encoder : ``resnet18`` or ``mobilenetv2``.
    """

    number: int
    data: str
    shift: str
    encoder: str
    settings: Settings


def _labels(count: int) -> tuple[str, Settings]:
    return f"{count} classes a client", {"partition": "label-subset", "classes-per-client": count}


def _dirichlet(alpha: float) -> tuple[str, Settings]:
    return f"Dirichlet {alpha}", {"partition": "dirichlet", "alpha": alpha}


ROTATION: tuple[str, Settings] = ("rotation", {"partition": "rotation"})
IID: tuple[str, Settings] = ("none (IID)", {"partition": "iid"})
_CELLS = (("ten", IID, "resnet18"),
          ("ten", _labels(2), "resnet18"), ("ten", _labels(5), "resnet18"), ("ten", _dirichlet(0.1), "resnet18"),
          ("ten", _dirichlet(0.5), "resnet18"), ("ten", ROTATION, "resnet18"), ("hundred", _labels(10), "resnet18"),
          ("hundred", _labels(20), "resnet18"), ("hundred", _dirichlet(0.1), "resnet18"), ("hundred", ROTATION, "resnet18"),
          ("ten", _dirichlet(0.1), "mobilenetv2"), ("hundred", _labels(10), "mobilenetv2"))
CONFIGURATIONS: dict[int, Configuration] = {n: Configuration(n, data, shift, encoder, settings)
                                            for n, (data, (shift, settings), encoder) in enumerate(_CELLS)}
ZERO = 0
GRID = tuple(number for number in CONFIGURATIONS if number != ZERO)
TUNED_ON, TUNING_SEED = 3, 100  # the middle of the label shifts, which are nine of the eleven


@dataclass(frozen=True)
class Scale:
    """How large a run is.

    Attributes
    ----------
    models : encoder -> run-config keys of its model.
    images : data -> images a class, to train on and to test on; 0 takes all there are.
    settings : run-config keys that all runs share.
    milliseconds : encoder -> of one core, to train on an image; what ``--dry`` reckons with until runs of this machine are there.
    search_rounds : of every try of the search, which so costs a fifth of the grid's first seed.
    """

    models: Mapping[str, Settings]
    images: Mapping[str, tuple[int, int]]
    settings: Settings
    milliseconds: Mapping[str, float]
    search_rounds: int


# official tests are divided in proportion to a client's training classes, so that no image changes sides (report 9 of PEERS.md)
_COMMON: Settings = {"test-split": "official", "score-every": 100_000, "channels-last": True}
SCALES: dict[str, Scale] = {
    "lite": Scale(
        models={"resnet18": {"model": "benchmarks.hdc_fl.encoders:resnet18", "width": 8},
                "mobilenetv2": {"model": "benchmarks.hdc_fl.encoders:mobilenetv2", "width": 8}},
        images={"ten": (450, 400), "hundred": (45, 40)},
        # MobileNetV2's last features are one pixel large, and BatchNorm over 25 of them is noise; half the batches cost two thirds
        settings={**_COMMON, "device": "cpu", "clients": 16, "rounds": 9, "epochs": 2, "batch": 50, "lr": 0.03},
        milliseconds={"resnet18": 1.1, "mobilenetv2": 2.2}, search_rounds=5),
    "full": Scale(
        models={"resnet18": {"model": "resnet18", "width": 64}, "mobilenetv2": {"model": "mobilenetv2", "width": 32}},
        images={"ten": (0, 0), "hundred": (0, 0)},
        settings={**_COMMON, "clients": 20, "rounds": 100, "epochs": 5, "batch": 64, "lr": 0.01},
        milliseconds={"resnet18": 35.0, "mobilenetv2": 12.0}, search_rounds=50),
}


@dataclass(frozen=True)
class Method:
    """One row of the tables.

    Attributes
    ----------
    settings : what makes it, as run-config keys.
    searched : the one setting of its own that is searched, with two values, the first of which the rates are tried with; empty if it
        has none.
    as_of : the method whose chosen values it takes over, "" if it is searched itself.
    reclustered : its figures come from the run of ``as_of``, made anew with other clusters: to the bit those of a run of its own.
    """

    settings: Settings
    searched: Mapping[str, tuple[Value, ...]] = field(default_factory=dict)
    as_of: str = ""
    reclustered: bool = False

    def rates(self) -> list[dict[str, Value]]:
        """The settings tried first: every rate with the first own value, one more where there is none, so that all have five tries."""
        own = {key: values[0] for key, values in self.searched.items()}
        return [{"lr": rate, **own} for rate in (RATES if own else MORE_RATES)]

    def last(self, rate: Value) -> list[dict[str, Value]]:
        """The setting tried after them, at the best rate: the second own value; none for a method without."""
        return [{"lr": rate, key: value} for key, values in self.searched.items() for value in values[1:]]


# At the lite scale no best is .01. Those whose best is .1 are worse at .2, and FedBN, the one that wants .3, is worse at .4 (rivals.md)
RATES, MORE_RATES = (0.01, 0.03, 0.05, 0.1), (0.01, 0.03, 0.05, 0.1, 0.3)


def _rival(name: str, **searched: tuple[Value, ...]) -> Method:
    return Method({"method": name}, {f"{name}.{key.replace('_', '-')}": values for key, values in searched.items()})


# Most own values are the sources' (METHODS.md 1.7). Lengths in weight space are of this scale's models: between two clients a squared
# distance of 60 (median, rate .1), so that FedAMP's sigma = 1 would mix nobody; a mean change a round of .6 to 1.8 and single ones of 2 to
# 9, so that CFL's .4 and 1.6 would never split
METHODS: dict[str, Method] = {
    OURS: _rival("hdc-fl", temperature=(0.3, 0.1)),
    CONTROL: Method({"method": "hdc-fl", "hdc-fl.grouping": "random"}, as_of=OURS, reclustered=True),
    PLAIN: _rival("fedper"),
    "fedavg": _rival("fedavg"),
    "local-only": _rival("local-only"),
    "fedrep": _rival("fedrep", head_epochs=(10, 2)),
    "fedbabu": _rival("fedbabu", tune_epochs=(10, 2)),
    "fedavg-ft": _rival("fedavg-ft", tune_epochs=(10, 2)),
    "ditto": _rival("ditto", pull=(1.0, 0.1)),
    "fedbn": _rival("fedbn"),
    "ifca": _rival("ifca", num_clusters=(2, 4)),
    "cfl": Method({"method": "cfl", "cfl.split-after": 1, "cfl.eps2": 0.5}, {"cfl.eps1": (2.0, 0.4)}),
    "fedamp": Method({"method": "fedamp", "fedamp.sigma": 100.0}, {"fedamp.alpha": (10.0, 1.0)}),
    # as its authors score it: among the client's own classes, as all that have heads of their own have learned to
    "fedproto": Method({"method": "fedproto", "fedproto.answers": "own"}, {"fedproto.pull": (1.0, 10.0)}),
    "pfedsim": _rival("pfedsim", warm_up=(0.5, 0.25)),
    "knn-per": _rival("knn-per", weight=(0.5, 0.75)),
}
RIVALS = tuple(name for name in METHODS if name not in (OURS, CONTROL, "local-only"))
# what METHODS.md 1.8 names to try where the mixture does not help; a table of their own, in no average or rank
_RECLUSTERED: dict[str, Settings] = {
    "one cluster": {"hdc-fl.num-clusters": 1},  # what FedPer serves at the same rate
    "shrunk": {"hdc-fl.shrink": True},
    "clusters of 3 or more": {"hdc-fl.min-cluster-size": 3},
    "clusters of 4 or more, shrunk": {"hdc-fl.min-cluster-size": 4, "hdc-fl.shrink": True},
    "rank by parallel analysis": {"hdc-fl.rank": "parallel"},
    "temperature .1": {"hdc-fl.temperature": 0.1},
    "temperature 1": {"hdc-fl.temperature": 1.0},
}
_RUN: dict[str, Settings] = {"better of both": {"hdc-fl.serve": "better"}, "the head itself": {"hdc-fl.signal": "head"}}
VARIANTS: dict[str, Method] = {
    f"hdc-fl, {name}": Method({"method": "hdc-fl", **settings}, as_of=OURS, reclustered=name in _RECLUSTERED)
    for name, settings in {**_RECLUSTERED, **_RUN}.items()}
ROWS: dict[str, Method] = METHODS | VARIANTS


def name_of(configuration: int, row: str, seed: int) -> str:
    """A run's name, and its file's."""
    return f"{configuration} {row} seed {seed}".replace(",", "").replace(" ", "_").replace("=", "_")


@dataclass(frozen=True)
class Job:
    """One run: ``settings`` are complete but for the data file and folders; ``tuning`` is on training images alone."""

    scale: str
    configuration: int
    row: str
    seed: int
    settings: Settings
    tuning: bool = False

    @property
    def name(self) -> str:
        return name_of(self.configuration, self.row, self.seed)

    @property
    def cell(self) -> Configuration:
        return CONFIGURATIONS[self.configuration]


# (scale, configuration, row) -> a rate: with the one that the search chose on another encoder training diverges in all clients and the run
# ends early, so these have the next lower one that was searched
LOWER: dict[tuple[str, int, str], Settings] = {("lite", 11, "fedrep"): {"lr": 0.05}}


def given(scale: str, number: int, row: str, chosen: Mapping[str, Settings]) -> Settings:
    """What the search chose for ``row`` in a configuration; empty if it has not been made."""
    found = chosen.get(ROWS[row].as_of or row, {})
    return {**found, **LOWER.get((scale, number, row), {})} if found else {}


def planned(scale: str, configurations: tuple[int, ...], rows: tuple[str, ...], seeds: tuple[int, ...],
            chosen: Mapping[str, Settings], changed: Settings) -> list[Job]:
    """Every run, seed by seed, so that all methods have a seed before any has the next; none for what is reclustered."""
    return [Job(scale, number, row, seed, {**base_of(scale, number), **ROWS[row].settings, **given(scale, number, row, chosen),
                                           **_own(row), **changed, "seed": seed})
            for seed in seeds for number in configurations for row in rows if not ROWS[row].reclustered]


def base_of(scale: str, number: int) -> Settings:
    """What all methods share in one configuration."""
    cell, of = CONFIGURATIONS[number], SCALES[scale]
    return {**of.settings, **of.models[cell.encoder], **cell.settings}


def _own(row: str) -> Settings:
    # a variant keeps what makes it, whatever was chosen for the method it is a variant of
    return ROWS[row].settings if ROWS[row].as_of else {}


def searches(scale: str, rows: tuple[str, ...], changed: Settings, number: int = TUNED_ON,
             best: Mapping[str, Value] | None = None) -> Iterator[Job]:
    """The search: as many tries for every method, on training images of one configuration, divided by a seed of their own.

    The first tries are of rates; with the ``best`` rate of each row, those that come after them.
    """
    for row in rows:
        if ROWS[row].as_of:
            continue
        first = ROWS[row].rates()
        for number_of_try, tried in enumerate(first) if best is None else enumerate(ROWS[row].last(best[row]), len(first)):
            yield Job(scale, number, f"{row} try {number_of_try}", TUNING_SEED,
                      {**base_of(scale, number), **ROWS[row].settings, **tried, "test-split": "own", "test-fraction": 0.25,
                       "rounds": SCALES[scale].search_rounds, **changed, "seed": TUNING_SEED}, tuning=True)
