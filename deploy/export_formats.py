"""How a personal model is written to a file and read back, format by format."""

from __future__ import annotations

import io
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from client_app.personal import Personal

OPSET = 18
# Of logits, or of the largest of them where that is above 1: another program orders float32 sums otherwise. A MobileNetV2 whose
# BatchNorm has channels without variance is as far from its own float64 form.
TOLERANCE = 1e-4


@dataclass(frozen=True)
class Format:
    """``write`` makes the file's content, ``logits`` what the model in a file says of images, within ``tolerance``.

    ``bare``: the file holds tensors and no computation.
    """

    write: Callable[[Personal, str], bytes]
    logits: Callable[[Path, np.ndarray], np.ndarray]
    tolerance: float
    bare: bool = False


def described(personal: Personal, bare: bool = False) -> dict[str, object]:
    """What a file says of the model in it: its facts, what goes in and what comes out. ``bare``: of its tensors alone."""
    facts = personal.facts
    shape = f"(batch, {', '.join(map(str, facts.input_shape))})"
    taken = f"{_input(personal)}: {facts.dtype} {shape}, as the client's data loader makes them"
    if facts.dtype == "uint8":
        rule = "(x / 255 - 0.5) / 0.25" if personal.normalises else f"as {facts.model} wants them"
        taken = f"images: float32 {shape}, pixels x of 0..255 as {rule}" if bare and personal.normalises else (
            f"pixels: uint8 {shape}, 0..255; the model normalises them itself, {rule}")
    return {**facts.to_json(), "input": taken,
            "output": f"logits: float32 (batch, {len(facts.classes)}), one a class in the order of `classes`; softmax gives probabilities"}


def _input(personal: Personal) -> str:
    return "pixels" if personal.facts.dtype == "uint8" else "images"


def samples(personal: Personal) -> tuple[np.ndarray, np.ndarray]:
    """A batch of one and one of five: random images (n, channels, height, width)."""
    rng = np.random.default_rng(0)
    whole = rng.integers(0, 256, (6, *personal.input_shape), np.uint8)
    images = whole if personal.facts.dtype == "uint8" else ((whole / 255 - 0.5) / 0.25).astype(np.float32)
    return images[:1], images[1:]


def _tensors(personal: Personal, facts: str) -> bytes:
    from safetensors.numpy import save

    from client_app.personal import FACTS_KEY

    flat = {f"{slot}.{name}": np.ascontiguousarray(tensor) for slot, tensors in personal.kept.items() for name, tensor in tensors.items()}
    return save(flat, metadata={"format": "pt", FACTS_KEY: facts})


def _tensors_logits(path: Path, images: np.ndarray) -> np.ndarray:
    from client_app.personal import load_personal

    return load_personal(path).logits(images)


def _program(personal: Personal, facts: str) -> bytes:
    import torch

    from client_app.personal import FACTS_KEY

    found = torch.export.export(personal.data_module, (torch.from_numpy(samples(personal)[1]),), **_any_batch())
    content = io.BytesIO()
    torch.export.save(found, content, extra_files={f"{FACTS_KEY}.json": facts})
    return content.getvalue()


def _program_logits(path: Path, images: np.ndarray) -> np.ndarray:
    import torch

    with path.open("rb") as file, torch.inference_mode():
        return torch.export.load(io.BytesIO(file.read())).module()(torch.from_numpy(images)).numpy()


def _onnx(personal: Personal, facts: str) -> bytes:
    import torch

    from client_app.personal import FACTS_KEY

    program = torch.onnx.export(personal.data_module, (torch.from_numpy(samples(personal)[1]),), dynamo=True, verbose=False,
                                opset_version=OPSET, input_names=[_input(personal)], output_names=["logits"], **_any_batch())
    assert program is not None
    program.model.metadata_props[FACTS_KEY] = facts
    return program.model_proto.SerializeToString()


def _onnx_logits(path: Path, images: np.ndarray) -> np.ndarray:
    import onnxruntime

    session = onnxruntime.InferenceSession(path.read_bytes(), providers=["CPUExecutionProvider"])
    return np.asarray(session.run(None, {session.get_inputs()[0].name: images})[0])


def _any_batch() -> Mapping[str, Any]:
    from torch.export import Dim

    # by position: the argument's name is the module's own affair
    return {"dynamic_shapes": ({0: Dim("batch", min=1)},)}


FORMATS: dict[str, Format] = {
    "safetensors": Format(_tensors, _tensors_logits, 0.0, bare=True),
    "onnx": Format(_onnx, _onnx_logits, TOLERANCE),
    "torch-export": Format(_program, _program_logits, TOLERANCE),
}
