"""What the FedIA benchmark runs, as data: tasks, methods with their searches, ablations (METHODS 3.6, 3.7).

Every run has ``logit-prior = true``: the raw scores are those without the client's class prior, so one run gives both figures.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import product

Value = str | int | float | bool
Settings = Mapping[str, Value]

# CLIP ViT-B/16's image tower beside MiniLM with a bridge into CLIP's text space: "CLIP-style", never "CLIP"
PROTOCOL: Settings = {"model": "vit_base_patch16_clip_quickgelu_224", "text-tower": "minilm-bridge", "precision": "float32", "rounds": 6,
                      "epochs": 1, "batch": 16, "momentum": 0.0, "weight-decay": 0.0, "score-every": 5, "score-adapted": "never",
                      "logit-prior": True, "threads": 1}


@dataclass(frozen=True)
class Task:
    """One setting: the data file it is on, the side of the image tower's view, and how the data are divided.

    Attributes
    ----------
    joins : the data file whose owner joins after training (leave one domain out), "" for none.
    novel : the data file with other classes on which the finished models are scored (base and novel classes), "" for none.
    """

    data: str
    tower_size: int
    settings: Settings
    joins: str = ""
    novel: str = ""


def _pacs(**settings: Value) -> dict[str, Value]:
    return {"clients": 8, "test-fraction": 0.7, **{key.replace("_", "-"): value for key, value in settings.items()}}


def _skewed(clients: int, **settings: Value) -> dict[str, Value]:
    return {"clients": clients, "test-split": "official", **{key.replace("_", "-"): value for key, value in settings.items()}}


DOMAINS = ("art_painting", "cartoon", "photo", "sketch")
TASKS: dict[str, Task] = {
    "domain": Task("pacs", 128, _pacs(partition="domain")),
    "domain x dirichlet": Task("pacs", 128, _pacs(partition="domain+dirichlet", alpha=0.3)),
    "classes": Task("tiny32", 96, _skewed(10, partition="label-subset", classes_per_client=4)),
    "dirichlet 0.1": Task("cifar10", 96, _skewed(10, partition="dirichlet", alpha=0.1)),
    "dirichlet 0.5": Task("cifar10", 96, _skewed(10, partition="dirichlet", alpha=0.5)),
    "held-out": Task("pacs", 128, {**_pacs(partition="domain+dirichlet", alpha=0.3), "clients": 12, "held-out": 0.25}),
    **{f"unseen {domain}": Task(f"pacs-no-{domain}", 128, {**_pacs(partition="domain"), "clients": 6}, joins=f"pacs-only-{domain}")
       for domain in DOMAINS},
    "base and novel": Task("tiny32-base", 96, _skewed(10, partition="label-subset", classes_per_client=2), novel="tiny32-novel"),
}
SHOTS: dict[str, int] = {"full": 0, "few-shot": 16}


@dataclass(frozen=True)
class Method:
    """One method and what is searched for it: as many tries for every method."""

    settings: Settings
    searched: Mapping[str, tuple[Value, ...]] = field(default_factory=dict)

    def tries(self) -> list[dict[str, Value]]:
        """Every combination of the searched settings."""
        return [dict(zip(self.searched, values, strict=True)) for values in product(*self.searched.values())]


RATES: tuple[float, ...] = (0.05, 0.2, 0.5)


def _own(method: str, **settings: Value) -> dict[str, Value]:
    """Settings of ``method``: ``meta_lr=1`` for ``METHOD.meta-lr = 1``."""
    return {"method": method, **{f"{method}.{key.replace('_', '-')}": value for key, value in settings.items()}}


# three tries each; what else a method has stays at its default, which METHODS 3.6 and 3.7 give
METHODS: dict[str, Method] = {
    "fed-ia": Method(_own("fed-ia"), {"fed-ia.prompt-lr": RATES}),
    "cls meta-net": Method(_own("fed-ia", meta="cls", patches=False), {"fed-ia.prompt-lr": RATES}),
    **{name: Method(_own(name), {f"{name}.prompt-lr": RATES})
       for name in ("promptfl", "local-prompt", "fixed-mix", "cocoop", "fedotp", "fedpgp", "pfedmoap")},
    "local-logistic": Method({**_own("local-logistic"), "rounds": 1}, {"local-logistic.penalty": (0.1, 1.0, 10.0)}),
    "zero-shot": Method({**_own("zero-shot"), "rounds": 1}),
    "zero-shot, own classes": Method({**_own("zero-shot", own_classes=True), "rounds": 1}),
}


def ia(**settings: Value) -> dict[str, Value]:
    """Settings of FedIA, ``add_cls=True`` for ``fed-ia.add-cls = true``."""
    return _own("fed-ia", **settings)


# of FedIA, with its own rates
ABLATIONS: dict[str, Settings] = {
    "no selection": ia(select="none"), "no meta-net": ia(meta="none"), "cls-fed meta-net": ia(meta="cls"),
    "w = 0": ia(gate="fixed:0"), "w = 0.5": ia(gate="fixed:0.5"), "w = 1": ia(gate="fixed:1"), "gate by image": ia(gate="image"),
    "trainable anchors": ia(anchors="trainable"), "projected patches": {**ia(), "patch-source": "projected"},
    "class-centred selection": ia(select="class-centred"), "class-centred selection and pooling":
    ia(select="class-centred", pool="class-centred"), "cls added": ia(add_cls=True), "lambda-global 0": ia(lambda_global=0.0),
    "validation": ia(validation=0.2), "net decay 0.1": ia(net_decay=0.1), "keep 0.05": ia(keep=0.05), "keep 0.5": ia(keep=0.5),
}
