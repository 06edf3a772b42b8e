"""Text and image towers of an open_clip model (https://github.com/mlfoundations/open_clip); needs ``pip install 'fedhearth[clip]'``.

A name is open_clip's own, such as ``ViT-B-16``, with a hub's tag behind an @ (``ViT-B-16@openai``). Weights come from ``weights-dir``,
where the file is called ``open_clip_NAME.safetensors`` or ``open_clip_NAME.pt`` ("/" in a name becomes "-"), else from the hub. The name
``tiny-random`` is a random twin for tests.

How a soft prompt enters: the text holds placeholder words before the class name, and their embeddings are replaced behind the model's own
embedding layer. So every model that open_clip can build serves, whatever its text encoder. For the common kind (causal attention, read
at the end token) only the tokens up to the longest text are computed instead of all 77, with the same result, since nothing looks ahead.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import interpolate, normalize

from models.image_tower import check_patches
from models.split import ModelError
from models.towers import ImageFeatures

TINY = "tiny-random"
PROMPT_STD = 0.02  # of CoOp (arXiv:2109.01134)


def load_open_clip(name: str, weights_dir: str = "", seed: int = 0) -> nn.Module:
    """The whole open_clip model, frozen, in eval mode, on the CPU.

    Raises ``ModelError`` for an unknown name and for weights that cannot be had or do not fit.
    """
    open_clip, (base, _, tag) = _library(), name.partition("@")
    if base == TINY:
        return _tiny(seed).requires_grad_(False).eval()
    _config(base)
    files = [f"open_clip_{base.replace('/', '-')}.{kind}" for kind in ("safetensors", "pt")]
    local = next((Path(weights_dir) / file for file in files if weights_dir and (Path(weights_dir) / file).is_file()), None)
    if local is None and not tag:
        raise ModelError(f"weights-dir must hold {' or '.join(files)}, and holds none; put the file there, or name a tag of open_clip's "
                         f"hub, such as open_clip:{base}@openai")
    try:
        model = open_clip.create_model(base, pretrained=str(local or tag))
    except Exception as fault:  # whatever the hub's client, the file's format or the disk raises
        raise ModelError(f"the weights of open_clip's {base} could not be loaded ({type(fault).__name__}). Fetch the file again, or check "
                         "the hub's tag and the connection") from fault
    return model.requires_grad_(False).eval()


def text_sizes(name: str) -> tuple[int, int]:
    """W and D of the model's text side, without its weights. Raises ``ModelError`` for an unknown name, and where its configuration
    does not say W, as for text encoders of Hugging Face."""
    base = name.partition("@")[0]
    if base == TINY:
        return 32, 32
    config = _config(base)
    if "width" not in config["text_cfg"]:
        raise ModelError(f"the width of the text encoder of open_clip's {base} is not in its configuration. Use another model, such as "
                         "ViT-B-16")
    return config["text_cfg"]["width"], config["embed_dim"]


class OpenClipText(nn.Module):
    """``TextTower`` of an open_clip model; ``name`` chooses its tokenizer."""

    prompt_std = PROMPT_STD

    def __init__(self, model: Any, name: str) -> None:
        super().__init__()
        open_clip, base = _library(), name.partition("@")[0]
        self.model = model.requires_grad_(False).eval()
        self.tokenizer = open_clip.tokenizer.SimpleTokenizer() if base == TINY else open_clip.get_tokenizer(base)
        self.embedding = _embedding(model)
        self.width, self.logit_scale = self.embedding.embedding_dim, float(model.logit_scale.exp())
        # open_clip's CLIP holds the text encoder's layers itself, under slightly other names
        self.text = text = getattr(model, "text", model)
        self.pool = getattr(model, "text_pool_type", getattr(text, "pool_type", ""))
        self.end = getattr(model, "text_eos_id", getattr(text, "eos_id", None))
        # one kind of encoder can be cut short: causal, read at the end token, without CoCa's own class token
        causal = getattr(text, "attn_mask", None) is not None and getattr(text, "cls_emb", None) is None
        self.cuts = causal and self.pool in ("argmax", "eos")
        first = self.tokenizer(["a", "b"])
        self.start = int(first[0, 0] == first[1, 0])  # start tokens before a text, 0 or 1
        with torch.no_grad():
            self.dim = model.encode_text(first).shape[1]

    def embed(self, words: str) -> Tensor:
        """As ``TextTower``."""
        ids, bare = self.tokenizer([words])[0], self.tokenizer([""])[0]
        padding = bare[-1]
        count = int((ids != padding).sum() - (bare != padding).sum())
        return self.embedding(ids[self.start : self.start + count])

    def tokens(self, names: Sequence[str], context: int) -> Tensor:
        """As ``TextTower``; longer texts are cut as the tokenizer cuts them."""
        ids = self.tokenizer([" ".join(["x"] * context + [name.replace("_", " ") + "."]) for name in names])
        if context and not (ids[:, self.start : self.start + context] == ids[:1, self.start : self.start + 1]).all():
            raise ModelError("this open_clip tokenizer does not keep placeholder words apart, so a prompt has no place. Use another model")
        return ids

    def forward(self, context: Tensor, tokens: Tensor) -> Tensor:
        """As ``TextTower``."""
        (*many, length, _), classes = context.shape, len(tokens)
        prompts = context.reshape(-1, 1, length, self.width).expand(-1, classes, -1, -1).flatten(0, 1)  # (P C, length, W)
        ids = tokens.to(context.device).repeat(len(prompts) // classes, 1)
        start = self.start

        def put(_: nn.Module, __: tuple[Tensor, ...], words: Tensor) -> Tensor:
            return torch.cat([words[:, :start], prompts.to(words.dtype), words[:, start + length :]], dim=1)

        hook = self.embedding.register_forward_hook(put)
        try:
            features = self._short(ids) if self.cuts else self.model.encode_text(ids)
        finally:
            hook.remove()
        return normalize(features.float(), dim=1).reshape(*many, classes, self.dim)

    def train(self, mode: bool = True) -> OpenClipText:
        """Eval mode, whatever is asked: a frozen tower stays in it."""
        return super().train(False)

    def _short(self, ids: Tensor) -> Tensor:
        """What ``encode_text`` gives for ids (B, 77), computed up to the last end token only; (B, D)."""
        text = self.text
        end = ids.argmax(dim=1) if self.pool == "argmax" else (ids == self.end).int().argmax(dim=1)
        long = int(end.max()) + 1
        x = self.embedding(ids[:, :long]) + text.positional_embedding[:long]
        x = text.ln_final(text.transformer(x, attn_mask=text.attn_mask[:long, :long]))
        x = x[torch.arange(len(x), device=x.device), end]
        projection = text.text_projection
        return x if projection is None else projection(x) if isinstance(projection, nn.Module) else x @ projection


class OpenClipImage(nn.Module):
    """``ImageTower`` of an open_clip Vision Transformer; ``value`` patches as in ``models/image_tower.py``.

    Raises ``ModelError`` for another kind of image encoder: a ResNet, one of timm's, one that pools by attention.
    """

    mean: Tensor
    std: Tensor

    def __init__(self, model: Any) -> None:
        super().__init__()
        from open_clip.transformer import VisionTransformer

        visual = model.visual
        if not isinstance(visual, VisionTransformer) or visual.attn_pool is not None or visual.pool_type != "tok":
            raise ModelError("an open_clip image tower must be a Vision Transformer that reads its class token, such as ViT-B-16; got "
                             f"{type(visual).__name__}. Use another model")
        self.visual = visual.requires_grad_(False).eval()
        self.dim, self.patches = model.visual.output_dim, math.prod(visual.grid_size)
        mean, std = (torch.tensor(getattr(visual, name, None) or default)[:, None, None] for name, default in (
            ("image_mean", (0.48145466, 0.4578275, 0.40821073)), ("image_std", (0.26862954, 0.26130258, 0.27577711))))
        self.register_buffer("mean", mean, persistent=False)
        self.register_buffer("std", std, persistent=False)

    @torch.no_grad()
    def forward(self, images: Tensor, patches: str = "projected") -> ImageFeatures:
        """As ``ImageTower``; float32."""
        check_patches(patches)
        seen: list[Tensor] = []
        block: Any = self.visual.transformer.resblocks[-1]
        hook = block.register_forward_pre_hook(lambda _, inputs: seen.append(inputs[0]))
        try:
            x = self.visual.transformer(self.visual._embeds(self._prepare(images)))
        finally:
            hook.remove()
        if patches == "value":
            attention, width = block.attn, x.shape[2]
            value = nn.functional.linear(block.ln_1(seen[0]), attention.in_proj_weight[-width:], attention.in_proj_bias[-width:])
            rest = attention.out_proj(value)
        else:
            rest = x
        cls, rest = (self.visual.ln_post(part) @ self.visual.proj for part in (x[:, 0], rest[:, 1:]))
        return ImageFeatures(normalize(cls.float(), dim=1), normalize(rest.float(), dim=2))

    def train(self, mode: bool = True) -> OpenClipImage:
        """Eval mode, whatever is asked: a frozen tower stays in it."""
        return super().train(False)

    def _prepare(self, images: Tensor) -> Tensor:
        """As ``models.backbones.prepare``, with this model's size, mean and standard deviation."""
        pixels, side = (images.float() / 255 if images.dtype == torch.uint8 else images), tuple(self.visual.image_size)
        if tuple(pixels.shape[-2:]) != side:
            pixels = interpolate(pixels, side, mode="bicubic", antialias=True)
            pixels = pixels.clamp(0, 1) if images.dtype == torch.uint8 else pixels
        pixels = pixels.expand(-1, 3, -1, -1)
        return (pixels - self.mean) / self.std if images.dtype == torch.uint8 else pixels


def _library() -> Any:
    try:
        import open_clip
    except ImportError as missing:
        raise ModelError("towers of open_clip need the package open_clip_torch. Run: pip install 'fedhearth[clip]'") from missing
    return open_clip


def _config(base: str) -> dict[str, Any]:
    config = _library().get_model_config(base)
    if config is None:
        raise ModelError(f"an open_clip tower must be one of open_clip's own models, such as ViT-B-16; got {base!r}")
    return config


def _embedding(model: Any) -> nn.Embedding:
    """The model's token embedding, wherever its kind keeps it."""
    text = getattr(model, "text", model)
    found = getattr(text, "token_embedding", None)
    if found is None and hasattr(getattr(text, "transformer", None), "get_input_embeddings"):
        found = text.transformer.get_input_embeddings()  # a Hugging Face text encoder
    if not isinstance(found, nn.Embedding):
        raise ModelError("this open_clip model's text encoder has no embedding layer to put a prompt in. Use another model")
    return found


def _tiny(seed: int) -> nn.Module:
    from open_clip.model import CLIP, CLIPTextCfg, CLIPVisionCfg

    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(seed)
        vision = CLIPVisionCfg(layers=2, width=64, head_width=16, patch_size=16, image_size=32)
        return CLIP(32, vision, CLIPTextCfg(width=32, heads=4, layers=2), init_logit_scale=math.log(100))
