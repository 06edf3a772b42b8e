"""METHODS: one line a method. The only place that maps a method's name to code.

Both halves are named, not imported, like Flower's own references: the server process never loads torch for a
rule, and a client never loads the server.
"""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from strategies.config import MODELS, ConfigError, RunConfig, Scalar, check_known, choice, items_of, keys_of, nearest, parse
from strategies.contract import Wire
from strategies.donor_swap import DONOR_SLOT
from strategies.scalars import COUNTS, SECONDS, TOTALS

SPLIT_MODEL = "models.split:split_model"
PROMPTED_MODEL = "models.prompted_model:prompted_model"
GROUPED_MODEL = "models.grouped_vit:grouped_model"
CLIP_MODELS = "models.clip_models"


@dataclass(frozen=True)
class Method:
    """Where the two halves of a method live. The rule's module also holds its ``Config`` (settings and contract).

    ``model`` names what builds its model: ``build(run, own, classes, in_shape, weights)``, see ``Settings.build_model``.
    """

    name: str
    server: str
    client: str
    summary: str
    model: str = SPLIT_MODEL

    def config_class(self) -> type:
        """The method's frozen config dataclass; its ``wire`` property is the contract those settings imply."""
        return importlib.import_module(self.server.partition(":")[0]).Config

    def rule_class(self) -> type:
        return _resolve(self.server)

    def learner_class(self) -> type:
        return _resolve(self.client)

    def builder(self) -> Any:
        """What builds the model; loads torch."""
        return _resolve(self.model)


METHODS: dict[str, Method] = {m.name: m for m in (
    Method("hdc-fl", "strategies.hdc_fl:HdcRule", "client_app.learners.hdc_fl:HdcLearner",
           "private heads are the similarity signal; each client serves a soft mixture of cluster encoders"),
    Method("fed-cache", "strategies.fed_cache:FedCacheRule", "client_app.learners.fed_cache:FedCacheLearner",
           "reuse features: cached on the client, exact where the encoder stands, gated where it trains"),
    Method("fedper", "strategies.fedper:FedPerRule", "client_app.learners.fedper:FedPerLearner",
           "shared encoder, private head"),
    Method("fedavg", "strategies.fedavg:FedAvgRule", "client_app.learners.fedavg:FedAvgLearner",
           "one shared model for all"),
    Method("local-only", "strategies.local_only:LocalOnlyRule", "client_app.learners.local_only:LocalOnlyLearner",
           "every client trains alone; nothing is shared after the common start"),
    Method("fedrep", "strategies.fedrep:FedPerRule", "client_app.learners.fedrep:FedRepLearner",
           "shared encoder, private head; the head is fitted first, then the encoder"),
    Method("fedbabu", "strategies.fedbabu:FedPerRule", "client_app.learners.fedbabu:FedBabuLearner",
           "the encoder is trained under a head that stands still, and the head fine-tuned at the end"),
    Method("fedavg-ft", "strategies.fedavg_ft:FedAvgRule", "client_app.learners.fedavg_ft:FineTuningLearner",
           "one shared model, of which every client fine-tunes a copy at the end"),
    Method("ditto", "strategies.ditto:FedAvgRule", "client_app.learners.ditto:DittoLearner",
           "one shared model, and beside it a private one held near it"),
    Method("fedbn", "strategies.fedbn:FedBnRule", "client_app.learners.fedbn:FedBnLearner",
           "one shared model, but for private BatchNorm layers"),
    Method("ifca", "strategies.ifca:IfcaRule", "client_app.learners.ifca:IfcaLearner",
           "several shared models; a client takes the one that fits its images best"),
    Method("cfl", "strategies.cfl:CflRule", "client_app.learners.cfl:CflLearner",
           "one shared model, split in two where clients pull in different directions"),
    Method("fedamp", "strategies.fedamp:FedAmpRule", "client_app.learners.fedamp:FedAmpLearner",
           "each client's own model, pulled towards a mix of those that are near it"),
    Method("fedproto", "strategies.fedproto:FedProtoRule", "client_app.learners.fedproto:FedProtoLearner",
           "each client's own model; class prototypes are shared and no weight"),
    Method("pfedsim", "strategies.pfedsim:PfedSimRule", "client_app.learners.pfedsim:PfedSimLearner",
           "encoders mixed pairwise by how much the private heads resemble each other"),
    Method("knn-per", "strategies.knn_per:FedAvgRule", "client_app.learners.knn_per:KnnPerLearner",
           "one shared model, whose answer is mixed with that of a client's nearest training images"),
    Method("pep-fedpt", "strategies.pep_fedpt:PepRule", "client_app.learners.pep_fedpt:PepLearner",
           "class prompts around a frozen ViT, mixed a sample by global prototypes and the client's own class prior", PROMPTED_MODEL),
    Method("fedvpt", "strategies.fedvpt:PromptAverageRule", "client_app.learners.shared_prompts:SharedPromptLearner",
           "shared prompts at the first layer of a frozen ViT", PROMPTED_MODEL),
    Method("fedvpt-d", "strategies.fedvpt_d:PromptAverageRule", "client_app.learners.shared_prompts:SharedPromptLearner",
           "shared prompts at every layer of a frozen ViT", PROMPTED_MODEL),
    Method("head-only", "strategies.head_only:PromptAverageRule", "client_app.learners.head_only:HeadOnlyLearner",
           "a shared head on the features of a frozen ViT", PROMPTED_MODEL),
    Method("sgpt", "strategies.sgpt:SgptRule", "client_app.learners.sgpt:SgptLearner",
           "shared prompts, and groups of prompts picked by sample, around a frozen ViT", GROUPED_MODEL),
    Method("pfedpg", "strategies.pfedpg:PfedPgRule", "client_app.learners.pfedpg:PfedPgLearner",
           "the server generates each client's prompts for a frozen ViT; private heads", PROMPTED_MODEL),
    Method("fedpr", "strategies.fedpr:PromptAverageRule", "client_app.learners.fedpr:FedPrLearner",
           "deep prompts of a frozen ViT, trained in the null space of the global ones", PROMPTED_MODEL),
    Method("fed-ia", "strategies.fed_ia:GlobalPromptRule", "client_app.learners.fed_ia:FedIaLearner",
           "a shared text prompt picks image patches; local prompt, meta-net and fusion gate stay at home", f"{CLIP_MODELS}:fed_ia"),
    Method("promptfl", "strategies.promptfl:GlobalPromptRule", "client_app.learners.global_prompt:GlobalPromptLearner",
           "a shared text prompt on CLIP-like towers", f"{CLIP_MODELS}:promptfl"),
    Method("zero-shot", "strategies.zero_shot:GlobalPromptRule", "client_app.learners.frozen_towers:ZeroShotLearner",
           "CLIP-like towers as they are, with what a client knows of its classes", f"{CLIP_MODELS}:zero_shot"),
    Method("local-logistic", "strategies.local_logistic:GlobalPromptRule", "client_app.learners.frozen_towers:LogisticLearner",
           "each client's own logistic regression on CLS features", f"{CLIP_MODELS}:local_logistic"),
    Method("local-prompt", "strategies.local_prompt:GlobalPromptRule", "client_app.learners.local_prompt:LocalPromptLearner",
           "each client's own text prompt, nothing shared", f"{CLIP_MODELS}:promptfl"),
    Method("fixed-mix", "strategies.fixed_mix:GlobalPromptRule", "client_app.learners.global_prompt:GlobalPromptLearner",
           "a shared and a local text prompt, mixed with one fixed weight", f"{CLIP_MODELS}:fixed_mix"),
    Method("cocoop", "strategies.cocoop:GlobalPromptRule", "client_app.learners.global_prompt:GlobalPromptLearner",
           "a shared text prompt that a shared network shifts by image", f"{CLIP_MODELS}:cocoop"),
    Method("fedotp", "strategies.fedotp:GlobalPromptRule", "client_app.learners.global_prompt:GlobalPromptLearner",
           "a shared and a local text prompt share an image's patches by optimal transport", f"{CLIP_MODELS}:fedotp"),
    Method("fedpgp", "strategies.fedpgp:GlobalPromptRule", "client_app.learners.global_prompt:GlobalPromptLearner",
           "a shared text prompt plus a local low-rank change", f"{CLIP_MODELS}:fedpgp"),
    Method("pfedmoap", "strategies.pfedmoap:PfedMoapRule", "client_app.learners.pfedmoap:PfedMoapLearner",
           "own text prompt mixed with other clients' prompts, which it downloads", f"{CLIP_MODELS}:pfedmoap"),
)}


def find_method(name: str) -> Method:
    """The method called ``name``; an unknown one is a ``ConfigError`` that names the nearest."""
    if name not in METHODS:
        names = tuple(METHODS)
        raise ConfigError(f"unknown method {name!r}{nearest(name, names)} (known: {', '.join(names)})")
    return METHODS[name]


@dataclass(frozen=True)
class Settings:
    """A whole run config, parsed: what all methods share, the chosen method's own, and what it ``borrows`` of other methods' by
    their names (`Config.borrows`)."""

    run: RunConfig
    method: Method
    own: Any
    borrowed: tuple[tuple[str, Any], ...] = ()

    @property
    def wire(self) -> Wire:
        """The contract of the method with these settings and in this run: precision, whether counts may leave, and a donor swap."""
        wire: Wire = self.own.wire
        kept_home = frozenset() if self.run.weighting == "examples" else COUNTS | SECONDS | TOTALS
        return replace(wire, travel=self.run.wire_dtype, delta=self.run.wire_delta, metrics=wire.metrics - kept_home,
                       swap=(DONOR_SLOT,) if self.run.donor_swap else ())

    def build_model(self, classes: int, in_shape: tuple[int, int, int], weights: bool = True) -> Any:
        """A fresh model of this run on the CPU, with ``parts``, ``tensors(part)`` and ``load(part, tensors)``.

        Without ``weights`` a frozen backbone stays an empty shape: enough for what travels, and neither a file nor memory is
        needed. Raises ``models.split.ModelError`` (a ``ValueError``) for a model that cannot be.
        """
        return self.method.builder()(self.run, self.own, classes, in_shape, weights)


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
    if method.model == SPLIT_MODEL and ":" not in run.model:
        choice("model", MODELS, run.model)
    own = {m.name: parse(m.config_class(), flat, f"{m.name}.") for m in METHODS.values()}
    borrows = getattr(own[method.name], "borrows", ())
    return Settings(run=run, method=method, own=own[method.name], borrowed=tuple((name, own[name]) for name in borrows))


def items_of_all(settings: Settings) -> dict[str, Scalar]:
    """The whole run config, defaults included, as flat items: what a run writes down of itself."""
    configs = ((settings.method.name, settings.own), *settings.borrowed)
    return items_of(settings.run) | {key: value for name, config in configs for key, value in items_of(config, f"{name}.").items()}


def default_items() -> dict[str, Scalar]:
    """Every key with its default, as pyproject.toml must list them."""
    own = (items_of(m.config_class()(), f"{m.name}.") for m in METHODS.values())
    return {key: value for table in (items_of(RunConfig()), *own) for key, value in table.items()}


def _resolve(reference: str) -> type:
    module, _, attribute = reference.partition(":")
    return getattr(importlib.import_module(module), attribute)
