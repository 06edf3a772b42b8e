"""Flower's flat run config -> frozen dataclasses, and back.

One flat name space: ``rounds`` belongs to the run, ``hdc-fl.refresh-every`` to a method. A key nobody knows
is an error that names the nearest known one; a value of the wrong type or out of range is an error before
anything starts. Defaults live in the dataclasses; pyproject.toml repeats them (Flower refuses to override a
key that is absent there) and a test keeps both equal.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any, TypeVar, get_type_hints

# re-exported: whoever has a config needs its error and its checks
from strategies.config_checks import ConfigError as ConfigError
from strategies.config_checks import check_name as check_name
from strategies.config_checks import check_partition as check_partition
from strategies.config_checks import check_site_name as check_site_name
from strategies.config_checks import choice as choice
from strategies.config_checks import nearest as nearest
from strategies.config_checks import require as require
from strategies.held_out import asked_of

Scalar = bool | int | float | str
C = TypeVar("C")

MODELS = ("cnn", "resnet18", "mobilenetv2")
BN_RULES = ("recompute", "average", "moments")
TF32 = ("convolutions", "off", "all")
GPU_KERNELS = ("heuristic", "deterministic", "benchmark")
TRACKERS = ("none", "mlflow", "wandb")
MOST_THREADS = 1024
MOST_CLIENTS = 1_000_000  # a name for each is made before anything else
LARGEST_IMAGE = 4096  # pixels a side
LARGEST_ALPHA = 1e9
LONGEST_DEADLINE = 1e7  # 115 days


@dataclass(frozen=True)
class RunConfig:
    """What every method has in common. Every field is a run-config key with dashes for underscores.

    Model, learning rate, batch, epochs and rounds default to the lite protocol B of the HDC-FL pilot, which is
    our own choice (no published values); ``width = 0`` means the model's own default width.

    Attributes
    ----------
    dataset : ``digits``, ``folder:PATH``, ``table:FILE``, ``npz:FILE``, ``cifar10:FOLDER``, ``torchvision:NAME@ROOT``,
        ``hub:NAME`` or ``module:function``; see ``client_app.data.sources``.
    partition : how a simulated data set is divided among ``clients``: ``iid``, ``label-subset`` (``classes_per_client``),
        ``dirichlet`` and ``quantity`` (``alpha``), ``natural`` (the data's client column), ``flwr-datasets:PARTITIONER?key=value``;
        ``rotation`` and ``domain`` (``domains_per_client``) stand alone or before one of these: ``rotation+dirichlet``.
    image_size : image files are scaled and cropped to squares of so many pixels; 0 keeps the size they all share.
    channels : 1 or 3: image files are read as grey or colour; 0: colour if any of them is stored in colour.
    bad_images : image files that cannot be read ``stop`` the run before it starts, or it ``skip``s and counts them.
    test_fraction, test_split : share of each client's samples kept for testing. With ``test_split = "own"`` all samples are taken
        together for that, an official test set too; with ``"official"`` the data set's own test images are divided in proportion
        to the training classes, and ``test_fraction`` has no meaning.
    rounds, fraction : rounds of training, and the share of the clients asked in each.
    seed : of the split, the first weights, the clients asked and the order of samples.
    epochs, batch, lr, momentum, weight_decay : a client's local training in a round, by SGD.
    bn : BatchNorm statistics a client scores with. ``recompute`` averages them on the server and re-estimates them
        on the client's own training images before scoring (both figures are reported); ``average`` and
        ``moments`` (law of total variance) score as aggregated.
    weighting : ``examples`` weighs a client by its number of training samples, ``uniform`` keeps that number home.
    score_every : rounds between two *served* scores; refresh rounds and the end are always scored.
    score_batch : images scored at a time; it changes memory and speed, not scores.
    device : ``auto`` takes a GPU if there is one; or ``cpu``, ``cuda``, ``cuda:1`` as torch names them.
    precision : ``float32``, or ``bf16`` for autocast with float32 weights; a frozen backbone's own weights are bfloat16 then.
    tf32 : where a GPU may round ``float32`` factors to TF32 (10 bits of mantissa), which is quicker: in ``convolutions``, torch's own
        default; ``off`` computes as a CPU does; ``all`` adds matrix products.
    gpu_kernels : ``heuristic`` leaves the choice to cuDNN, so the last bits can differ between two runs; ``deterministic`` takes kernels
        whose bits do not; ``benchmark`` times them first for every shape of a batch, for long runs of equal batches.
    resident_share : a client's training images lie on the GPU if they take no more than this share of the memory free there; else
        they come a batch at a time, fetched ahead. The numbers are the same.
    compile : compile training steps with ``torch.compile``, once a process and model; needs a C++ compiler (GPU: Triton).
    cohort : clients of the in-process engine that are trained at once on one device, as one model with so many weights; 1: one by one. The
        numbers are the same up to rounding, memory grows with it.
    channels_last : memory order of images and weights: quicker for some models, with the same results up to rounding.
    threads : of torch in each process that trains clients.
    width : channels of the model's first stage, 0 for the model's own number; narrower is smaller and quicker.
    model : ``cnn``, ``resnet18``, ``mobilenetv2``, or ``module:function`` for an encoder of your own (see ``models``); a method with
        prompts takes the timm name of a Vision Transformer, such as ``vit_base_patch16_224``.
    weights_dir : folder with the weights of a frozen backbone; "" for timm's hub (see ``models.backbones``). A site may have another:
        the environment variable ``FEDHEARTH_WEIGHTS`` stands in where this is empty.
    text_tower : of methods on CLIP-like towers, whose ``model`` names the image tower: ``minilm-bridge`` (CLIP-style, beside CLIP
        ViT-B/16), ``text-tiny-random`` (beside ``clip-tiny-random``) or ``open_clip:NAME@TAG``; "" is the text side of ``model``, if that
        is one of open_clip's (see ``models.towers``).
    tower_size : pixels a side that the image tower sees; 0: the images' longer side in whole patches. open_clip's keep their own.
    patch_source : patch features ``value`` (last block's value path, MaskCLIP-like) or ``projected`` (last tokens).
    prompt_words : every text prompt starts from these words' embeddings; "" starts from random numbers.
    prompt_tokens : length of a text prompt, that of ``prompt_words`` where there are any.
    features_dir : folder of image features computed beforehand (``client_app.precomputed``); images that are not in it are encoded.
    checkpointing : frozen blocks are computed again in the backward pass: less memory, about a third more time.
    logit_prior : methods with prompts add the client's log class prior to the logits when they serve; training is the same. The
        raw scores are those without it, so that one run gives both.
    score_adapted : *adapted* scores in the ``last`` round only, ``always`` or ``never``.
    wire_dtype : how float32 weights travel; ``float16`` and ``bfloat16`` halve the bytes and round on the wire alone.
    wire_delta : ``lossless`` lets encoders travel as a compressed difference, bit for bit, against one that the other side holds.
    deadline : seconds a round may take; also the time to live of its messages.
    quorum, max_void_rounds : share of the asked clients that must reply validly, else the round is void; so many void rounds in
        a row end the run.
    out, state_dir, run_id, resume : where results and the clients' own state go, the run's name, and whether an interrupted run goes
        on; ``fedhearth run`` sets them by ``--out`` and ``--resume``.
    held_out : share of the clients kept out of training, whole clients drawn by ``seed``; after the last round each is
        served by the method's own cold-start rule.
    join_epochs : epochs in which such a client fits its own head on the frozen encoder, where a method does that.
    tracker : where the server also notes its figures: ``none``, ``mlflow`` or ``wandb``; the runbook says what they get.
    metrics_port, metrics_host : port and address at which the server answers Prometheus; port 0: nowhere.
    donor_swap : after the closing evaluation every client scores its own head with up to so many other clients' encoders, which the
        server sends it; 0: none. ``fedhearth donor-swap`` does the same afterwards, where the run lies on one machine.
    """

    method: str = "hdc-fl"
    dataset: str = "digits"
    partition: str = "rotation"
    clients: int = 20
    classes_per_client: int = 2
    alpha: float = 0.1
    domains_per_client: int = 1
    image_size: int = 0
    channels: int = 0
    bad_images: str = "stop"
    test_fraction: float = 0.25
    test_split: str = "own"
    rounds: int = 15
    fraction: float = 1.0
    seed: int = 0
    model: str = "cnn"
    width: int = 0
    epochs: int = 2
    batch: int = 25
    lr: float = 0.01
    momentum: float = 0.9
    weight_decay: float = 5e-4
    bn: str = "recompute"
    weighting: str = "examples"
    score_every: int = 1
    score_adapted: str = "last"
    score_batch: int = 256
    device: str = "auto"
    precision: str = "float32"
    tf32: str = "convolutions"
    gpu_kernels: str = "heuristic"
    resident_share: float = 0.25
    compile: bool = False
    cohort: int = 1
    channels_last: bool = False
    threads: int = 1
    deadline: float = 3600.0
    quorum: float = 0.5
    max_void_rounds: int = 3
    out: str = ""
    state_dir: str = ""
    run_id: str = ""
    resume: bool = False
    wire_dtype: str = "float32"
    wire_delta: str = "none"
    weights_dir: str = ""
    text_tower: str = ""
    tower_size: int = 0
    patch_source: str = "value"
    prompt_words: str = "a photo of a"
    prompt_tokens: int = 4
    features_dir: str = ""
    checkpointing: bool = False
    logit_prior: bool = False
    held_out: float = 0.0
    join_epochs: int = 5
    donor_swap: int = 0
    tracker: str = "none"
    metrics_port: int = 0
    metrics_host: str = "127.0.0.1"

    def __post_init__(self) -> None:
        check_partition(self.partition)
        choice("wire-dtype", ("float32", "float16", "bfloat16"), self.wire_dtype)
        choice("wire-delta", ("none", "lossless"), self.wire_delta)
        choice("bn", BN_RULES, self.bn)
        choice("weighting", ("examples", "uniform"), self.weighting)
        choice("test-split", ("own", "official"), self.test_split)
        choice("bad-images", ("stop", "skip"), self.bad_images)
        require(0 <= self.image_size <= LARGEST_IMAGE, "image-size", f"0 (the images' own) to {LARGEST_IMAGE}", self.image_size)
        require(self.channels in (0, 1, 3), "channels", "0 (the data's own), 1 or 3", self.channels)
        require(0 <= self.tower_size <= LARGEST_IMAGE, "tower-size", f"0 (the images' own) to {LARGEST_IMAGE}", self.tower_size)
        choice("patch-source", ("value", "projected"), self.patch_source)
        choice("score-adapted", ("last", "always", "never"), self.score_adapted)
        choice("precision", ("float32", "bf16"), self.precision)
        choice("tf32", TF32, self.tf32)
        choice("gpu-kernels", GPU_KERNELS, self.gpu_kernels)
        require(0 <= self.resident_share <= 1, "resident-share", "between 0 and 1", self.resident_share)
        for key in ("clients", "classes_per_client", "rounds", "epochs", "batch", "score_every", "score_batch", "threads", "cohort",
                    "max_void_rounds", "join_epochs", "domains_per_client", "prompt_tokens"):
            require(getattr(self, key) >= 1, dashed(key), "1 or more", getattr(self, key))
        choice("tracker", TRACKERS, self.tracker)
        require(0 <= self.metrics_port < 65536, "metrics-port", "0 (off) to 65535", self.metrics_port)
        require(bool(self.metrics_host), "metrics-host", "an address of the server's machine", self.metrics_host)
        require(self.donor_swap >= 0, "donor-swap", "0 (none) or a number of donors", self.donor_swap)
        require(self.width >= 0, "width", "0 (the model's default) or more", self.width)
        require(0 <= self.seed < 2**63, "seed", "between 0 and 2**63 - 1", self.seed)
        require(self.clients <= MOST_CLIENTS, "clients", f"at most {MOST_CLIENTS}", self.clients)
        require(self.threads <= MOST_THREADS, "threads", f"at most {MOST_THREADS}", self.threads)
        for key in ("alpha", "lr", "deadline"):
            value = getattr(self, key)
            require(value > 0 and math.isfinite(value), dashed(key), "a finite number above 0", value)
        # beyond these, a sum of Dirichlet's weights and a wait for a reply overflow
        require(self.alpha <= LARGEST_ALPHA, "alpha", f"at most {LARGEST_ALPHA:g} (there, all shares are equal)", self.alpha)
        require(self.deadline <= LONGEST_DEADLINE, "deadline", f"at most {LONGEST_DEADLINE:g} seconds", self.deadline)
        require(0 <= self.test_fraction < 1, "test-fraction", "at least 0 and below 1", self.test_fraction)
        for key in ("fraction", "quorum"):
            require(0 < getattr(self, key) <= 1, key, "above 0 and at most 1", getattr(self, key))
        require(0 <= self.momentum < 1, "momentum", "at least 0 and below 1", self.momentum)
        require(self.weight_decay >= 0 and math.isfinite(self.weight_decay), "weight-decay", "0 or more", self.weight_decay)
        require(0 <= self.held_out < 1, "held-out", "at least 0 and below 1", self.held_out)
        require(self.held_out_count < self.clients, "held-out", f"a share that leaves at least one of clients = {self.clients} in training",
                self.held_out)
        if self.run_id:
            check_name("run-id", self.run_id)

    @property
    def text_side(self) -> str:
        """The text tower's name: ``text_tower``, or the model's own."""
        return self.text_tower or self.model

    @property
    def held_out_count(self) -> int:
        """How many clients are kept out of training: the nearest whole number, and one at least if any."""
        return max(1, round(self.held_out * self.clients)) if self.held_out else 0

    @property
    def asked_each_round(self) -> int:
        """How many clients a round asks, if no more than ``clients`` take part."""
        return asked_of(self.clients - self.held_out_count, self.fraction)


def dashed(field: str) -> str:
    """``refresh_every`` -> ``refresh-every``."""
    return field.replace("_", "-")


def keys_of(cls: type, prefix: str = "") -> dict[str, str]:
    """Run-config key -> field name, for a config dataclass."""
    return {prefix + dashed(f.name): f.name for f in fields(cls)}


def items_of(config: Any, prefix: str = "") -> dict[str, Scalar]:
    """A config dataclass as flat run-config items."""
    return {key: getattr(config, name) for key, name in keys_of(type(config), prefix).items()}


def parse(cls: type[C], flat: Mapping[str, object], prefix: str = "") -> C:
    """Build ``cls`` from those keys of ``flat`` that are its own; missing ones keep their default.

    Raises
    ------
    ConfigError
        If a value has the wrong type (a whole number serves where a float or text is meant) or is out of range.
    """
    hints = get_type_hints(cls)
    given = {name: _typed(key, flat[key], hints[name]) for key, name in keys_of(cls, prefix).items() if key in flat}
    return cls(**given)


def check_known(flat: Mapping[str, object], known: tuple[str, ...]) -> None:
    """Raise a ``ConfigError`` for the first key of ``flat`` that is not in ``known``."""
    for key in flat:
        if key not in known:
            raise ConfigError(f"unknown key {key!r}{nearest(key, known)}")


def _typed(key: str, value: object, wanted: type) -> Scalar:
    if type(value) is int and not -(2**63) <= value < 2**63:
        # more than a message, a file or a float can carry; also too long to print
        raise ConfigError(f"{key} must be {_WORDS[wanted]} between -2**63 and 2**63 - 1, got one beyond")
    if wanted is float and type(value) is int:
        return float(value)
    if wanted is str and type(value) is int:
        return str(value)  # a list of one number, a folder of digits: bare on a command line, they are no text
    if type(value) is not wanted:
        raise ConfigError(f"{key} must be {_WORDS[wanted]}, got {value!r} ({_WORDS.get(type(value), type(value).__name__)})")
    if isinstance(value, str) and ("\0" in value or not value.isprintable() and _has_lone_surrogate(value)):
        # no file can be named so, and no message can carry it
        raise ConfigError(f"{key} must be text in UTF-8 without a zero byte, got {value!r}")
    return value  # type: ignore[return-value]


def _has_lone_surrogate(text: str) -> bool:
    return any("\ud800" <= letter <= "\udfff" for letter in text)


_WORDS: dict[type, str] = {bool: "true or false", int: "a whole number", float: "a number", str: "text"}
