"""The first model is the same wherever it is built, and building it leaves no torch in a server that had none."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import numpy as np
import pytest

from server_app.initial import built_here, initial_model
from strategies.registry import parse_run_config
from tests.thorough import THOROUGH

CHECK = """
import sys
from server_app.initial import initial_model
from strategies.registry import parse_run_config
parts = initial_model(parse_run_config({"width": 4, "seed": 7}), 10, (1, 8, 8))
assert "torch" not in sys.modules, "torch was loaded"
print(sum(float(abs(t).sum()) for t in parts["encoder"].values()), list(parts["encoder"])[:2], parts["head"]["weight"].shape)
"""


def test_a_server_without_torch_stays_without_it() -> None:
    done = subprocess.run([sys.executable, "-c", CHECK], capture_output=True, text=True, check=True)
    here = built_here(parse_run_config({"width": 4, "seed": 7}), 10, (1, 8, 8))
    wanted = f"{sum(float(abs(t).sum()) for t in here['encoder'].values())} {list(here['encoder'])[:2]} {here['head']['weight'].shape}"
    assert done.stdout.strip() == wanted


@pytest.mark.parametrize("given", [{"width": 4}, {"method": "pep-fedpt", "model": "vit-tiny-random"},
                                   *[{"method": "sgpt", "model": "clip-tiny-random"}][:THOROUGH]],
                         ids=str)
def test_another_process_builds_the_same_bits(given: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    """Also around a backbone whose weights this process never has."""
    run = parse_run_config({**given, "seed": 3})
    here = built_here(run, 5, (3, 16, 16))
    modules = {name: module for name, module in sys.modules.items() if name != "torch"}
    with monkeypatch.context() as hidden:
        hidden.setattr(sys, "modules", modules)
        elsewhere = initial_model(run, 5, (3, 16, 16))
    assert {part: list(tensors) for part, tensors in elsewhere.items()} == {part: list(tensors) for part, tensors in here.items()}
    for part, tensors in here.items():
        for name, tensor in tensors.items():
            np.testing.assert_array_equal(elsewhere[part][name], tensor)
