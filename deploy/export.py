"""``fedhearth export``: a client's personal model as a file that other programs can use.

All formats take images as the client's data were, and give logits: uint8 pixels (batch, channels, height, width), with the
normalisation inside the model, or float32 as they are where the data were float32. The batch may have any size of 1 or more.

- ``onnx``: opset 18, input ``pixels`` (or ``images``), output ``logits``.
- ``torch-export``: ``torch.export.load(FILE).module()``; the facts are the extra file ``fedhearth.json``.
- ``safetensors``: the tensors alone, named ``encoder.…`` and ``head.…`` for a split model; ``client_app.personal.load_personal(FILE)``
  rebuilds the model around them. Whoever builds it himself normalises the images himself.

What the model is lies in each file as JSON under the key ``fedhearth``: classes in the order of the logits, shape, normalisation,
method, served accuracy. A file is put in place only after it has been read back and compared with the model.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from deploy.client_models import add_arguments, open_model
from deploy.export_formats import FORMATS, described, samples
from deploy.launch import output_file
from server_app.durable import replacing
from strategies.config import ConfigError

if TYPE_CHECKING:
    from client_app.personal import Personal

EXTRA = ("onnx", "onnxscript", "onnxruntime")


def add_parser(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """The command ``export``."""
    parser = commands.add_parser("export", help="a client's personal model as a file for other programs")
    add_arguments(parser)
    parser.add_argument("--format", required=True, choices=tuple(FORMATS), help="onnx needs the extra fedhearth[export]")
    parser.add_argument("--out", required=True, metavar="FILE", help="replaced if it is there; usually .safetensors, .onnx or .pt2")
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    """Write the file; says what goes in, what comes out, and how far it is from the model."""
    if options.format == "onnx":
        _require_extra()
    out = output_file(options.out)
    personal = open_model(options)
    try:
        apart = export(personal, options.format, out)
    except OSError as error:
        raise ConfigError(f"cannot write {out}: {error.strerror or error}") from None
    except ExportError as error:
        print(f"fedhearth: {error}", file=sys.stderr)
        return 1
    facts = described(personal, FORMATS[options.format].bare)
    print(f"wrote {out}\n  in    {facts['input']}\n  out   {facts['output']}\n  compared with the model: largest difference {apart:.2g}")
    return 0


class ExportError(RuntimeError):
    """The model cannot be written in this format, or not truly."""


def export(personal: Personal, kind: str, out: Path) -> float:
    """Write ``personal`` to ``out`` in the format ``kind``; returns the largest difference of its logits from the model's.

    Raises
    ------
    ExportError
        If the exporter fails, or what was written says something else; ``out`` is as it was then.
    """
    form = FORMATS[kind]
    if kind == "onnx" and _in_bfloat16(personal):
        raise ExportError("this model computes in bfloat16 (precision = bf16 of its run), which ONNX Runtime cannot on a CPU; take "
                          "safetensors or torch-export, or train with precision = float32")
    with replacing(out, durable=False) as part:
        try:
            part.write_bytes(form.write(personal, json.dumps(described(personal, form.bare))))
            apart, largest = _compared(personal, lambda images: form.logits(part, images))
        except OSError:
            raise
        except Exception as fault:  # an exporter can raise anything about a model of somebody's own
            told = " ".join(str(fault).split())[:300]
            raise ExportError(f"this model cannot be written as {kind} ({type(fault).__name__}: {told})") from fault
        if not apart <= form.tolerance * max(1.0, largest):
            raise ExportError(f"what was written as {kind} differs from the model by {apart:.2g} in logits of up to {largest:.2g}; "
                              "use another format")
    return apart


def _compared(personal: Personal, written: Callable[[np.ndarray], np.ndarray]) -> tuple[float, float]:
    """Largest difference of the ``written`` model's logits from those of ``personal``, NaN where one is, and the largest logit.

    Logits of classes that are never the answer must be equal, and are no measure of the others.
    """
    from models.frozen_classifiers import NEVER

    pairs = [(written(images), personal.logits(images)) for images in samples(personal)]
    with np.errstate(invalid="ignore"):  # -inf less itself: a class that is never the answer
        apart = np.concatenate([np.where(ours == theirs, 0.0, np.abs(ours - theirs)).ravel() for theirs, ours in pairs])
    return float(apart.max()), max(float(np.abs(ours[ours > NEVER]).max(initial=0.0)) for _, ours in pairs)


def _in_bfloat16(personal: Personal) -> bool:
    import torch

    return any(weight.dtype == torch.bfloat16 for weight in personal.data_module.parameters())


def _require_extra() -> None:
    absent = [name for name in EXTRA if find_spec(name) is None]
    if absent:
        raise ConfigError(f"--format onnx needs {', '.join(absent)}, which this machine lacks: pip install 'fedhearth[export]'")
