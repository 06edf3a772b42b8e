"""Frozen Vision Transformers by their timm name: weights from a hub, from a local folder, or tiny random twins.

What a file in ``weights-dir`` must be called, for the backbone ``NAME`` (first found, first taken):

- ``NAME.safetensors`` or ``NAME.pth``: the ``state_dict`` of timm's model ``NAME``, with whatever head it had;
- for a name in ``PACKED``, the file named there. A packed file holds some weights as int8 ``weight.q`` (rows, columns)
  with one float scale a row ``weight.s`` (rows,): ``weight[r, c] = q[r, c] * s[r]``. Any safetensors file may do so.

Files load strictly: a missing, unknown or misshapen tensor is an error, never a random weight left in place. A backbone is
built at its own image size, filled, and then resampled by timm to the one asked for.

Our own choices: the twins, real architectures shrunk, for tests; ``bf16`` keeps the weights of linear and convolution layers in
bfloat16 and everything else (norms, position embeddings, and so the residual stream) in float32. It needs autocast, which
``PromptedViT`` switches on by itself, takes half the memory, and costs less precision than a wholly bfloat16 model.

timm costs seconds to import, so only the functions that need it import it.
"""

from __future__ import annotations

import difflib
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.nn.functional import interpolate

from models.split import ModelError

if TYPE_CHECKING:
    from timm.models.vision_transformer import VisionTransformer

PRECISIONS = ("float32", "bf16")
# backbone -> the packed file that a weights folder may hold for it
PACKED = {"vit_base_patch16_clip_quickgelu_224": "clip_vitb16_image_int8.safetensors"}
# twin -> (the timm model it shrinks, its size); "jax" (Xavier) weights let features depend on the image, timm's default hardly does
TWINS: dict[str, tuple[str, dict[str, int]]] = {
    "vit-tiny-random": ("vit_tiny_patch16_224", {"embed_dim": 32, "depth": 8, "num_heads": 2, "num_classes": 0}),
    "clip-tiny-random": ("vit_base_patch16_clip_quickgelu_224", {"embed_dim": 64, "depth": 12, "num_heads": 4, "num_classes": 32}),
}
# patches up to which attention in bfloat16 goes as matrix products: on a CPU a step through the fused kernel takes 3.7 times as long
# at 12 tokens, 2.5 times at 102 and as long at 258; scoring alone is level until 102
FEW_TOKENS = 128
Triple = tuple[float, ...]


def load_backbone(
    name: str, weights_dir: str = "", image_size: int = 224, seed: int = 0, precision: str = "float32", keep_head: bool = False
) -> VisionTransformer:
    """A frozen ViT on the CPU, in eval mode, whose features are (B, D).

    Parameters
    ----------
    name : a timm name, with or without its tag (``vit_base_patch16_224.augreg_in21k``), or one of ``TWINS``.
    weights_dir : folder with the weights; empty: timm's hub, which needs the internet. Twins need neither.
    image_size : pixels a side of the square images it will get; a multiple of the patch size.
    seed : decides a twin's weights; torch's global random state stays as it was.
    precision : ``float32`` or ``bf16``, as the module says.
    keep_head : keep the head that came with the weights (CLIP's projection); otherwise it is removed.

    Raises ``ModelError`` for an unknown name, size or precision, and for weights that are absent, unreadable or of another model.
    """
    if precision not in PRECISIONS:
        raise ModelError(f"a backbone's precision must be one of {', '.join(PRECISIONS)}; got {precision!r}")
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(seed)
        vit = _twin(name) if name in TWINS else _from_folder(name, Path(weights_dir)) if weights_dir else _from_hub(name)
    _resize(vit, image_size)
    if not keep_head:
        vit.reset_classifier(0)
    if precision == "bf16":
        _halve(vit)
        _plain_attention(vit)
    return vit.requires_grad_(False).eval()


def empty_backbone(name: str, image_size: int = 224) -> VisionTransformer:
    """The same ViT without a number in it (torch's meta device): its sizes, at no cost. Raises ``ModelError`` as ``load_backbone``."""
    base, size = TWINS.get(name, (name, {}))
    _known(base)
    with torch.device("meta"):
        vit = _create(base, pretrained=False, **_unfilled(base), **size)
    _resize(vit, image_size)
    vit.reset_classifier(0)
    return vit.requires_grad_(False).eval()


def normalisation(vit: nn.Module) -> tuple[Triple, Triple]:
    """Mean and standard deviation a channel that ``vit`` was trained with, for pixels in 0..1; .5 where it names none."""
    facts: Any = getattr(vit, "pretrained_cfg", None) or {}
    return tuple(facts.get("mean", (0.5,) * 3)), tuple(facts.get("std", (0.5,) * 3))


def prepare(images: Tensor, vit: VisionTransformer) -> Tensor:
    """Images (B, 1 or 3, height, width) as ``vit`` takes them: float32 (B, 3, S, S), S its image size.

    uint8 is scaled to 0..1, resized (bicubic, as timm's own evaluation does) and normalised by ``normalisation``; float32 counts
    as normalised already and is only resized. One channel stands for three equal ones.
    """
    side = vit.patch_embed.img_size
    pixels = images.to(torch.float32) / 255 if images.dtype == torch.uint8 else images
    if tuple(pixels.shape[-2:]) != side:
        pixels = interpolate(pixels, side, mode="bicubic", antialias=True)
        pixels = pixels.clamp(0, 1) if images.dtype == torch.uint8 else pixels  # bicubic overshoots
    if images.dtype == torch.uint8:
        mean, std = (_constant(numbers, pixels.device)[:, None, None] for numbers in normalisation(vit))
        pixels = (pixels - mean) / std
    return pixels.expand(-1, 3, -1, -1)


def _constant(numbers: Triple, device: torch.device) -> Tensor:
    # sending numbers to a GPU waits for it, so there they are kept; not on a CPU, where an export may be tracing
    return _kept(numbers, device) if device.type == "cuda" else torch.tensor(numbers, device=device)


@cache
def _kept(numbers: Triple, device: torch.device) -> Tensor:
    with torch.inference_mode(False):  # whoever asks first may score, the next one train
        return torch.tensor(numbers, device=device)


def expected_files(name: str) -> tuple[str, ...]:
    """The names, in order of preference, that a weights folder's file for ``name`` may have."""
    base, _, tag = name.partition(".")
    packed = (PACKED[base],) if base in PACKED and tag in ("", "openai") else ()
    return (f"{name}.safetensors", f"{name}.pth", *packed)


def _twin(name: str) -> VisionTransformer:
    base, size = TWINS[name]
    vit = _create(base, pretrained=False, weight_init="jax", **size)
    if isinstance(vit.head, nn.Linear):  # "jax" leaves it at zero; a projection must show the features
        nn.init.normal_(vit.head.weight, std=vit.embed_dim**-0.5)
    return vit


def _from_hub(name: str) -> VisionTransformer:
    _known(name)
    try:
        return _create(name, pretrained=True)
    except ModelError:
        raise
    except Exception as fault:  # whatever the hub's client, a proxy or the disk raises
        raise ModelError(f"the weights of {name} could not be had from timm's hub ({type(fault).__name__}). Go online, or put "
                         f"{' or '.join(expected_files(name))} in a folder and name it as weights-dir") from fault


def _from_folder(name: str, folder: Path) -> VisionTransformer:
    _known(name)
    found = next((folder / file for file in expected_files(name) if (folder / file).is_file()), None)
    if found is None:
        there = [f"model = {base}" for base, file in PACKED.items() if (folder / file).is_file()]
        holds = ("is no folder" if not folder.is_dir() else "holds none" + (f" (what it holds is for {there[0]})" if there else ""))
        raise ModelError(f"weights-dir must hold {' or '.join(expected_files(name))} for the backbone {name}, and {holds}; put "
                         "the file there, or leave weights-dir empty to fetch it from timm's hub")
    weights = _read(found)
    classes = len(weights["head.weight"]) if "head.weight" in weights else 0
    vit = _create(name, pretrained=False, num_classes=classes, **_unfilled(name))
    own, got = ({key: tuple(tensor.shape) for key, tensor in state.items()} for state in (vit.state_dict(), weights))
    wrong = sorted(key for key in own.keys() | got.keys() if own.get(key) != got.get(key))
    if wrong:
        raise ModelError(f"{found.name} must hold exactly the {len(own)} tensors of timm's {name}, at its own image size; {len(wrong)} "
                         f"are missing, unknown or of another shape, such as {wrong[0]}. Save model.state_dict() of that model")
    vit.load_state_dict(weights)
    return vit


def _read(file: Path) -> dict[str, Tensor]:
    """The file's tensors in float32, int8 weights multiplied out."""
    from timm.models import load_state_dict

    try:
        raw = load_state_dict(str(file), device="cpu", weights_only=True)
        weights = {name: tensor.float() for name, tensor in raw.items() if not name.endswith((".q", ".s"))}
        for name in (name.removesuffix(".q") for name in raw if name.endswith(".q")):
            weights[name] = raw[f"{name}.q"].float() * raw[f"{name}.s"].float()[:, None]
    except Exception as fault:  # each format has errors of its own
        raise ModelError(f"{file.name} cannot be read as a file of weights ({type(fault).__name__}). Fetch it again") from fault
    broken = [name for name, tensor in weights.items() if not tensor.isfinite().all()]
    if broken:
        raise ModelError(f"{file.name} must hold finite numbers; {len(broken)} tensors do not, such as {broken[0]}. Fetch it again")
    return weights


def _create(name: str, **options: Any) -> VisionTransformer:
    import timm
    from timm.models.vision_transformer import VisionTransformer

    vit = timm.create_model(name, **options)
    if not isinstance(vit, VisionTransformer):
        raise ModelError(f"a backbone must be one of timm's VisionTransformer models, such as {next(iter(PACKED))}; "
                         f"{name} is a {type(vit).__name__}")
    return vit


def _unfilled(name: str) -> dict[str, str]:
    # first weights that nobody reads cost more than the rest of building a model, even on the meta device
    from timm.models import is_model_in_modules

    return {"weight_init": "skip"} if is_model_in_modules(name, ("vision_transformer", "deit")) else {}


def _known(name: str) -> None:
    import timm

    base = name.partition(".")[0]
    if not timm.is_model(base):
        close = difflib.get_close_matches(base, [*TWINS, *timm.list_models("*vit*")], n=1)
        hint = f"; did you mean {close[0]!r}?" if close else ""
        raise ModelError("model must name a Vision Transformer of timm, such as vit_base_patch16_224, or one of "
                         f"{', '.join(TWINS)}; got {name!r}{hint}")


def _resize(vit: VisionTransformer, side: int) -> None:
    patch = max(vit.patch_embed.patch_size)
    if side < patch or side % patch:
        near = max(side // patch, 1) * patch
        raise ModelError(f"image-size must be a multiple of the backbone's patch of {patch} pixels, such as {near}; got {side}")
    vit.set_input_size(img_size=(side, side))


def _halve(vit: nn.Module) -> None:
    for layer in vit.modules():
        if isinstance(layer, nn.Linear | nn.Conv2d):
            layer.to(torch.bfloat16)


def _plain_attention(vit: VisionTransformer) -> None:
    """Attention as matrix products where tokens are few; small images leave a training step mostly to it otherwise."""
    if vit.patch_embed.num_patches <= FEW_TOKENS:
        for layer in vit.modules():
            if hasattr(layer, "fused_attn"):
                setattr(layer, "fused_attn", False)  # noqa: B010 - nn.Module's own types know no plain attribute
