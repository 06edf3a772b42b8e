"""The configurations that the FedCache benchmark compares, as data (METHODS 2.5 and 2.6).

Every row names the row it is measured against; rows against the same one share its seeds, splits and everything not listed.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

Value = str | int | float | bool

# the lite protocol of METHODS 2.6
PROTOCOL: Mapping[str, Value] = {"partition": "dirichlet", "alpha": 0.1, "clients": 10, "rounds": 16, "epochs": 2, "model": "cnn",
                                 "width": 16, "score-every": 99, "score-adapted": "never", "channels-last": True, "device": "cpu"}


@dataclass(frozen=True)
class Row:
    """One configuration.

    Attributes
    ----------
    group : the table it stands in.
    settings : run-config keys beside `PROTOCOL`.
    against : the row it is compared with, "" for none.
    main : whether all seeds are run, or the first three.
    """

    group: str
    settings: Mapping[str, Value] = field(default_factory=dict)
    against: str = "fedper"
    main: bool = False


def cache(**settings: Value) -> dict[str, Value]:
    """Settings of FedCache, ``head_epochs=5`` for ``fed-cache.head-epochs = 5``."""
    return {"method": "fed-cache", **{f"fed-cache.{key.replace('_', '-')}": value for key, value in settings.items()}}


def exact(reuse: bool, freeze_after: float = 0.75) -> dict[str, Value]:
    """Five head epochs a round, two held-out clients with a cold start, an end with the encoder frozen, scores every round."""
    return {**cache(routes="off", head_epochs=5, freeze_after=freeze_after, reuse=reuse), "held-out": 0.2, "score-every": 1}


def _curve(prefix: str, **settings: Value) -> dict[str, Row]:
    return {f"{prefix}, from {low}": Row("curve", cache(confidence_low=low, **settings)) for low in (0.5, 0.6, 0.8)}


ROWS: dict[str, Row] = {
    "fedper": Row("baseline", {"method": "fedper"}, against="", main=True),
    "exact, no cache": Row("exact reuse", exact(reuse=False), against="", main=True),
    "exact": Row("exact reuse", exact(reuse=True), against="exact, no cache", main=True),
    "exact, frozen half, no cache": Row("exact reuse", exact(reuse=False, freeze_after=0.5), against=""),
    "exact, frozen half": Row("exact reuse", exact(reuse=True, freeze_after=0.5), against="exact, frozen half, no cache"),
    "cache": Row("approximate", cache(), main=True),
    "drop the same": Row("approximate", cache(hit="drop"), main=True),
    "stable stage": Row("approximate", cache(stage="stable")),
    "stable stage, drop": Row("approximate", cache(stage="stable", hit="drop")),
    **_curve("cache"),
    **_curve("drop", hit="drop"),
    **{f"random {share}": Row("curve", cache(routes="random", hit_share=share)) for share in (0.25, 0.5, 0.7)},
    **{f"random drop {share}": Row("curve", cache(routes="random", hit_share=share, hit="drop")) for share in (0.25, 0.5, 0.7)},
    **{f"fewer rounds: {rounds}": Row("curve", {"method": "fedper", "rounds": rounds}) for rounds in (8, 10, 12)},
    "half sync": Row("bytes", cache(routes="off", sync_every=2), main=True),
    "lazy upload": Row("bytes", cache(routes="off", lazy_upload=True), main=True),
    "lazy upload, 1.2": Row("bytes", cache(routes="off", lazy_upload=True, lazy_share=1.2)),
    "every second round": Row("bytes", {"method": "fedper", "rounds": 8, "epochs": 4}),
    "half sync and cache": Row("bytes", cache(sync_every=2)),
    "log gate": Row("ablation", cache(gate="log"), against="cache"),
    "fixed blend": Row("ablation", cache(gate="fixed"), against="cache"),
    "sigmoid gate": Row("ablation", cache(gate="sigmoid"), against="cache"),
    "no warm-up": Row("ablation", cache(warm_up=0.0), against="cache"),
    "log gate, no warm-up": Row("ablation", cache(gate="log", warm_up=0.0), against="log gate"),
    "no class policy": Row("ablation", cache(class_policy=False), against="cache"),
    "no drift trigger": Row("ablation", cache(drift_trigger=False), against="cache"),
    "fixed drift": Row("ablation", cache(drift="fixed"), against="cache"),
    "no version in the key": Row("ablation", cache(versioned=False, max_uses=10_000), against="cache"),
    "no confidence rule": Row("ablation", cache(confidence_low=0.0), against="cache"),
    "split batches": Row("ablation", cache(packing="split"), against="cache"),
    "BatchNorm in eval mode": Row("ablation", cache(bn_below="eval"), against="cache"),
    "BatchNorm in eval mode, no hit": Row("ablation", cache(bn_below="eval", confidence_low=1.0)),
    "frozen for the last half": Row("frozen", cache(routes="off", freeze_after=0.5)),
    "frozen for the last quarter": Row("frozen", cache(routes="off", freeze_after=0.75)),
    "fedper, IID": Row("IID", {"method": "fedper", "partition": "iid"}, against=""),
    "cache, IID": Row("IID", {**cache(), "partition": "iid"}, against="fedper, IID"),
    "drop the same, IID": Row("IID", {**cache(hit="drop"), "partition": "iid"}, against="fedper, IID"),
    "fedavg": Row("composition", {"method": "fedavg"}, against=""),
    "cache over fedavg": Row("composition", cache(heads="shared"), against="fedavg"),
    "hdc-fl": Row("composition", {"method": "hdc-fl"}, against=""),
    "cache under hdc-fl": Row("composition", {"method": "hdc-fl", "hdc-fl.feature-cache": True}, against="hdc-fl"),
}
