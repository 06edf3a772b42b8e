"""What travels, what packing costs and what accuracy comes out: float32, float16 and bfloat16, each whole and as a lossless difference.

    python benchmarks/wire/dtypes.py [--out dtypes.json] [--seeds 3] [--rounds 4]

Bytes and accuracy: FedPer with the CNN on rotated digits, a few clients and rounds; bytes a client and round as the report counts
them, which is as they travelled, from the second round on (in the first a client has no base), and the served accuracy at the end.
A difference must change no score: that is checked with the first seed, whose run alone is also made whole. ``mobilenetv2`` has the
bytes of the second round, after real training steps. CPU seconds: packing and unpacking the encoder of a ResNet-18 (random weights
moved by a random step of a hundredth of their size), the least of three, with the check that every message gets.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from flwr.app import Context, RecordDict

from deploy.inprocess import InProcessGrid
from server_app.main import serve
from strategies.contract import Slot, Wire
from strategies.delta import digest_of
from strategies.registry import parse_run_config
from strategies.thin import restored, thinned, whole_of
from strategies.types import Tensors, layout_of
from strategies.wire import pack_slot, unpack

TRAVEL = ("float32", "float16", "bfloat16")
KINDS = [(travel, delta) for travel in TRAVEL for delta in ("none", "lossless")]
CLIENTS = 4


def ran(travel: str, delta: str, seed: int, rounds: int, **more: Any) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """Summary and rounds of one run."""
    with tempfile.TemporaryDirectory() as out:
        config = {"method": "fedper", "clients": CLIENTS, "rounds": rounds, "out": out, "state-dir": f"{out}/clients", "run-id": "dtypes",
                  "wire-dtype": travel, "wire-delta": delta, "seed": seed, "score-every": 1000, "score-adapted": "never", **more}
        summary = serve(InProcessGrid(config, config["clients"]), Context(1, 1, {}, RecordDict(), config), "inprocess")
        return summary, [json.loads(line) for line in Path(out, "rounds.jsonl").read_text().splitlines()]


def bytes_a_round(records: list[dict[str, Any]], way: str) -> float:
    """Of the encoder, a client and round, from the second round on."""
    later = [r for r in records if r["round"] > 1 and "encoder" in r["bytes"]["up"]]
    return statistics.mean(r["bytes"][way]["encoder"] / len(r["accepted"]) for r in later)


def digits(seeds: int, rounds: int) -> list[dict[str, Any]]:
    rows = []
    for travel in TRAVEL:
        runs = {seed: ran(travel, "lossless", seed, rounds) for seed in range(seeds)}
        served = [summary["served"]["mean"] for summary, _ in runs.values()]
        whole, records = ran(travel, "none", 0, rounds)
        if whole["served"]["mean"] != served[0]:
            raise SystemExit(f"{travel}: a difference changed the served accuracy from {whole['served']['mean']} to {served[0]}")
        for delta, found in (("none", [records]), ("lossless", [records for _, records in runs.values()])):
            rows.append({"wire-dtype": travel, "wire-delta": delta, "served": [round(mean, 4) for mean in served],
                         **{way: round(statistics.mean(bytes_a_round(each, way) for each in found)) for way in ("up", "down")}})
            print(rows[-1], flush=True)
    return rows


def resnet(repeats: int = 3) -> list[dict[str, Any]]:
    """CPU seconds of one side's packing and the other side's unpacking, checks included."""
    model = parse_run_config({"model": "resnet18"}).build_model(10, (3, 32, 32))
    base: Tensors = {name: tensor.copy() for name, tensor in model.tensors("encoder").items()}
    rng = np.random.default_rng(0)
    new = {name: t + np.float32(0.01) * np.abs(t) * rng.standard_normal(t.shape).astype(np.float32) for name, t in base.items()}
    parts = {"encoder": layout_of(base)}
    rows = []
    for travel, delta in KINDS:
        wire = Wire((), (Slot("encoder", "", "", like="encoder"),), (), travel=travel, delta=delta)
        whole = whole_of(pack_slot(base, travel)) or b""
        bases = {digest_of(whole): whole} if delta == "lossless" else {}
        packed, pack = least(lambda travel=travel, bases=bases: RecordDict({"encoder": thinned(pack_slot(new, travel), bases)}), repeats)
        _, undo = least(lambda wire=wire, packed=packed, bases=bases: unpack(
            wire, "up", restored(packed, {"encoder": parts["encoder"]}, wire.travel, bases.get), parts), repeats)
        size = len(next(iter(packed["encoder"].values())).data)
        rows.append({"wire-dtype": travel, "wire-delta": delta, "bytes": size, "pack_cpu": round(pack, 3), "unpack_cpu": round(undo, 3)})
        print(rows[-1], flush=True)
    return rows


def least(work: Callable[[], Any], repeats: int) -> tuple[Any, float]:
    taken = []
    for _ in range(repeats):
        start = time.process_time()
        result = work()
        taken.append(time.process_time() - start)
    return result, min(taken)


def mobilenet() -> list[dict[str, Any]]:
    """Bytes of the encoder of a MobileNetV2 a quarter as wide, after real steps: the second round of two clients."""
    rows = []
    for travel, delta in (("float32", "none"), *((travel, "lossless") for travel in TRAVEL)):
        _, records = ran(travel, delta, 0, 2, model="mobilenetv2", width=8, clients=2, epochs=1, bn="average")
        rows.append({"wire-dtype": travel, "wire-delta": delta, **{way: round(bytes_a_round(records, way)) for way in ("up", "down")}})
        print(rows[-1], flush=True)
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--rounds", type=int, default=4)
    a = parser.parse_args()
    result = {"digits": digits(a.seeds, a.rounds), "mobilenetv2": mobilenet(), "resnet18": resnet(),
              "settings": {"seeds": a.seeds, "rounds": a.rounds, "clients": CLIENTS, "load": round(os.getloadavg()[0], 1)}}
    if a.out:
        a.out.write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()
