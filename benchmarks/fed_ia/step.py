"""What FedIA's training costs: an epoch from cached features beside one that encodes images, and the memory of one step.

    FEDHEARTH_DATA=... FEDHEARTH_WEIGHTS=... OMP_NUM_THREADS=1 python benchmarks/fed_ia/step.py [--images 48] [--side 224]

One client of PACS with the towers of the comparison. A step's memory is that of batch 32, 100 classes and 196 patches: bytes that autograd
keeps for the backward pass, and the largest tensor that any operation made, evidence included. Writes ``step.json``.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE.parents[1])]

from data import pacs, source  # noqa: E402
from rows import PROTOCOL  # noqa: E402

BATCH, CLASSES, PATCHES = 32, 100, 196


class Largest(TorchDispatchMode):
    """Remembers the most numbers in a tensor that an operation made."""

    numbers = 0
    shape: tuple[int, ...] = ()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        for tensor in out if isinstance(out, (tuple, list)) else (out,):
            # an expanded view takes no memory of its own
            if isinstance(tensor, torch.Tensor) and tensor.untyped_storage().nbytes() // tensor.element_size() > self.numbers:
                self.numbers, self.shape = tensor.untyped_storage().nbytes() // tensor.element_size(), tuple(tensor.shape)
        return out


def settings(side: int) -> Any:
    from strategies.registry import parse_run_config

    return parse_run_config({**PROTOCOL, "method": "fed-ia", "tower-size": side, "rounds": 4})


def epochs(count: int, side: int) -> dict[str, float]:
    """CPU seconds of a client's round that encodes its images, and of the next one, which finds them in its cache; scores left out."""
    from client_app.clip_trainer import ClipTrainer
    from client_app.data.client_data import ClientData, Split
    from client_app.local.store import LocalStore
    from client_app.loop_settings import LoopSettings
    from strategies.types import Round

    arrays = pacs(source(), 0, 2)
    rows = slice(0, count)
    images, labels = arrays["x_train"][rows].transpose(0, 3, 1, 2).copy(), arrays["y_train"][rows]
    names = tuple(map(str, arrays["class_names"]))
    data = ClientData(Split(images, labels, torch.arange(count).numpy()), Split(images[:0], labels[:0], labels[:0]), names)
    told = settings(side)
    model = told.build_model(len(names), images.shape[1:])
    learner = told.method.learner_class()(ClipTrainer(model, LoopSettings.from_config(told.run), made_by=told), told.own)
    rule = told.method.rule_class()(told.own, told.run)
    state = rule.init({part: dict(model.tensors(part)) for part in model.parts})
    seconds = []
    with tempfile.TemporaryDirectory() as folder, LocalStore(Path(folder), "site", "run") as store:
        for number in (1, 2, 3):
            rnd = Round(number, 4, 0, score_served=False, score_adapted=False)
            began = time.process_time()
            learner.train(rule.downlink(state, "site", rnd), data, store, rnd)
            seconds.append(time.process_time() - began)
    return {"encoding": round(seconds[0], 2), "cached": round(min(seconds[1:]), 2), "ratio": round(seconds[0] / min(seconds[1:]), 1)}


def step_memory() -> dict[str, Any]:
    """Bytes that autograd keeps for one step, and the largest tensor made."""
    from models.patch_evidence import patch_evidence
    from models.towers import ImageFeatures

    told = settings(224)
    net = told.build_model(CLASSES, (3, 96, 96)).fresh(tuple(f"thing {n}" for n in range(CLASSES)))
    unit = torch.nn.functional.normalize
    cls, patches = unit(torch.randn(BATCH, 512), dim=-1), unit(torch.randn(BATCH, PATCHES, 512), dim=-1)
    kept: dict[int, int] = {}

    def keep(tensor: torch.Tensor) -> torch.Tensor:
        storage = tensor.untyped_storage()
        kept[storage.data_ptr()] = storage.nbytes()
        return tensor

    frozen = {weight.untyped_storage().data_ptr() for weight in (*net.parameters(), *net.buffers())}
    with Largest() as largest:
        with torch.no_grad():
            evidence = patch_evidence(patches, net.anchors(), cls, net.config.evidence)
        with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
            loss = net.loss(ImageFeatures(cls, None, evidence), torch.arange(BATCH) % CLASSES)
        torch.autograd.grad(loss, [weight for held in net.trainable().values() for weight in held], allow_unused=True)
    assert largest.numbers < BATCH * PATCHES * CLASSES * 512 // 50, f"a tensor of {largest.numbers} numbers was built: {largest.shape}"
    return {"kept_for_backward_mib": round(sum(size for place, size in kept.items() if place not in frozen) / 2**20, 1),
            "largest_tensor": {"shape": largest.shape, "mib": largest.numbers * 4 / 2**20},
            "all_pairs_would_be_mib": BATCH * PATCHES * CLASSES * 512 * 4 / 2**20}


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--images", type=int, default=48)
    parser.add_argument("--side", type=int, default=224)
    a = parser.parse_args()
    found = {"images": a.images, "side": a.side, "epoch_cpu_seconds": epochs(a.images, a.side), "step": step_memory()}
    (HERE / "step.json").write_text(json.dumps(found, indent=1) + "\n")
    print(json.dumps(found, indent=1))


if __name__ == "__main__":
    main()
