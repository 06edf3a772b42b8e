"""The model every client starts from, without torch in the server's memory.

The server only averages arrays, yet building the first model takes torch, some 350 MiB that would never be given back.
So where torch is not loaded already (the in-process engine has it), a short-lived process builds the model and hands
it over in a file.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np
from safetensors.numpy import load_file, save_file

from strategies.registry import Settings, items_of_all, parse_run_config
from strategies.types import Slots


def initial_model(settings: Settings, classes: int, in_shape: tuple[int, int, int]) -> Slots:
    """The travelling parts of the first model, float32. Raises what ``Settings.build_model`` raises."""
    if "torch" not in sys.modules:
        built = _built_elsewhere(settings, classes, in_shape)
        if built is not None:
            return built
    return built_here(settings, classes, in_shape)


def built_here(settings: Settings, classes: int, in_shape: tuple[int, int, int]) -> Slots:
    """The same, in this process."""
    model = settings.build_model(classes, in_shape, weights=False)
    return {part: {name: tensor.copy() for name, tensor in model.tensors(part).items()} for part in model.parts}


def _built_elsewhere(settings: Settings, classes: int, in_shape: tuple[int, int, int]) -> Slots | None:
    """None if the other process did not succeed: building here then gives the error, or the model."""
    words = {"settings": items_of_all(settings), "classes": classes, "in_shape": in_shape}
    # Flower puts the app's folder on sys.path only, which a child does not inherit
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(p for p in sys.path if p)}
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder, "model.safetensors")
        done = subprocess.run([sys.executable, "-m", "server_app.initial", json.dumps(words), str(file)], env=environment,
                              capture_output=True, check=False)
        if done.returncode or not file.is_file():
            return None
        flat: dict[str, np.ndarray] = load_file(file)
        # safetensors sorts by name, and sums must run in the model's own order
        order = json.loads(done.stdout)
    return {part: {name: flat[f"{part}/{name}"] for name in names} for part, names in order.items()}


def main() -> None:
    words, file = json.loads(sys.argv[1]), sys.argv[2]
    parts = built_here(parse_run_config(words["settings"]), words["classes"], tuple(words["in_shape"]))
    save_file({f"{part}/{name}": t for part, tensors in parts.items() for name, t in tensors.items()}, file)
    print(json.dumps({part: list(tensors) for part, tensors in parts.items()}))


if __name__ == "__main__":
    main()
