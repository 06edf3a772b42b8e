"""What the PEP-FedPT benchmark runs, as data: tasks, methods, the search for learning rates, ablations (METHODS 4.4, 4.6, 4.7).

Every run has ``logit-prior = true``: the raw scores are those without the prior, so one run gives both figures.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

Value = str | int | float | bool
Settings = Mapping[str, Value]

BACKBONE = "vit_base_patch16_clip_quickgelu_224"
# the lite protocol of METHODS 4.7
LITE: Settings = {"model": BACKBONE, "image-size": 48, "precision": "bf16", "clients": 20, "held-out": 0.25, "rounds": 16, "epochs": 1,
                  "batch": 10, "score-every": 8, "score-adapted": "never", "logit-prior": True, "weight-decay": 0.0, "threads": 1}
# METHODS 4.3: for a GPU, with the full data; --full
FULL: Settings = {"image-size": 224, "clients": 100, "held-out": 0.1, "fraction": 0.05, "rounds": 60, "epochs": 5, "batch": 40,
                  "weight-decay": 1e-5, "score-every": 10, "device": "cuda"}

TASKS: dict[str, Settings] = {
    "cifar10": {"partition": "label-subset", "classes-per-client": 2, "test-split": "official"},
    "tiny100": {"partition": "label-subset", "classes-per-client": 10, "test-split": "official"},
    "pacs": {"partition": "domain", "test-fraction": 0.84},
    "cifar10 at 25 %": {"partition": "label-subset", "classes-per-client": 2, "test-split": "official", "fraction": 0.25, "rounds": 32},
    "cifar10 4 epochs": {"partition": "label-subset", "classes-per-client": 2, "test-split": "official", "epochs": 4},
    "cifar10 dirichlet": {"partition": "dirichlet", "alpha": 0.3, "test-split": "official"},
}


@dataclass(frozen=True)
class Method:
    """One method and what is searched: a setting's name -> the factor by which a prompt rate of the search is taken."""

    settings: Settings
    prompt_rates: Mapping[str, float] = field(default_factory=dict)

    def searched(self) -> list[dict[str, Value]]:
        """The settings tried in the search, as many for every method: the same head rates with the same prompt rates."""
        tried = RATES if self.prompt_rates else tuple((head, 0.0) for head in HEAD_RATES)
        return [{"lr": head, **{key: factor * prompt for key, factor in self.prompt_rates.items()}} for head, prompt in tried]


# (head, prompts), around what the pilot found (METHODS 4.7); all that two cores have the time for
RATES = ((0.01, 0.1), (0.01, 0.5), (0.01, 2.0))
HEAD_RATES: tuple[float, ...] = (0.003, 0.01, 0.03)
# the data set whose validation split the rates are searched on, for every task that has no search of its own
TUNED_ON = "cifar10"
METHODS: dict[str, Method] = {
    "pep-fedpt": Method({"method": "pep-fedpt"}, {"pep-fedpt.class-lr": 1.0, "pep-fedpt.shared-lr": 0.1}),
    "fedvpt": Method({"method": "fedvpt"}, {"fedvpt.prompt-lr": 1.0}),
    "fedvpt-d": Method({"method": "fedvpt-d"}, {"fedvpt-d.prompt-lr": 1.0}),
    "sgpt": Method({"method": "sgpt"}, {"sgpt.prompt-lr": 1.0}),
    "pfedpg": Method({"method": "pfedpg"}, {"pfedpg.prompt-lr": 1.0}),
    # Adam's steps have the length of the rate, whatever the gradient
    "fedpr": Method({"method": "fedpr"}, {"fedpr.prompt-lr": 0.02}),
    "head-only": Method({"method": "head-only"}),
}


def pep(**settings: Value) -> dict[str, Value]:
    """Settings of PEP-FedPT, ``class_lr=2`` for ``pep-fedpt.class-lr = 2``."""
    return {f"pep-fedpt.{key.replace('_', '-')}": value for key, value in settings.items()}


# of PEP-FedPT, with its own rates, on the first task
ABLATIONS: dict[str, Settings] = {
    "shared only": pep(use="shared"), "class prompts only": pep(use="class"), "s = prior": pep(score="prior"),
    "no prior in the mixture": pep(score="cosine"), "raw cosine, tau .003": pep(cosine="raw", tau=0.003),
    "scaled": pep(score="scaled"), "uniform": pep(prototype_weighting="uniform"), "count": pep(prototype_weighting="count"),
    "append": pep(handling="append"), "layers 2-4": pep(class_layers="2,3,4"), "layers 9-11": pep(class_layers="9,10,11"),
    "layer 6": pep(class_layers="6"), "rho 0": pep(rho=0.0), "rho .5": pep(rho=0.5), "means under the received prompts":
    pep(prototypes_from="received"), "tau .1": pep(tau=0.1), "tau .4": pep(tau=0.4),
    # PACS chose class prompts of rate 2 in half as many rounds; the head's rate is searched for head-only alone
    "class rate .5": pep(class_lr=0.5, shared_lr=0.05), "class rate .5, head rate .03": {**pep(class_lr=0.5, shared_lr=0.05), "lr": 0.03},
}
