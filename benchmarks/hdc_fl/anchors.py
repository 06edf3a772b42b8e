"""Sanity anchors: FedAvg with BatchNorm beside central training, and all methods where clients do not differ.

    FEDHEARTH_DATA=FOLDER python -m benchmarks.hdc_fl.anchors --work FOLDER [--scale lite] [--seeds 0 1 2] [--jobs 2] [--dry]

1. Central training of the same model on all training images, in a loop of its own (torch's SGD, BatchNorm as torch keeps it), against
   FedAvg on near-IID data (Dirichlet 100) with as many passes over them: the field's most repeated bug, BatchNorm statistics that are not
   averaged, shows here as tens of points.
2. Configuration 0, IID: what a method shares should agree with FedAvg within noise. What it keeps to a client cannot, since that has seen
   the client's images only.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from statistics import mean, stdev
from typing import Any

import numpy as np

from benchmarks.hdc_fl.configurations import ZERO, Job, Settings, planned
from benchmarks.hdc_fl.grid import grid_of
from benchmarks.hdc_fl.images import Images, NoImages, prepared
from benchmarks.hdc_fl.paired import difference
from benchmarks.hdc_fl.parts import titles
from benchmarks.hdc_fl.results import MixedResults, Result, machine, read_all, there, with_reclustered, write
from benchmarks.hdc_fl.running import Bench, run_all
from benchmarks.hdc_fl.sweep import HERE, arguments, bench_of, dry, rows_of
from benchmarks.hdc_fl.text import gap, markdown, points

# few clients, averaged after every epoch; early on FedAvg lags behind for want of rounds alone, late central training overfits
NEAR_IID: Settings = {"partition": "dirichlet", "alpha": 100.0, "clients": 5, "epochs": 1}
ROUNDS = {"lite": (30, 90), "full": (100,)}
ALONE = ("local-only", "fedproto")
ABOUT = """All at one rate, and at the methods' defaults: nothing was searched here. There is nothing to personalise, so that a method
should agree with FedAvg, and what a client keeps to itself (a head, a whole model, fine-tuning, neighbours) can only cost: it has learned
from a fraction of the images that FedAvg's has. "No" under a method that keeps nothing but its BatchNorm would be a fault.
"""


def federated(scale: str, seeds: Sequence[int], changed: Settings) -> list[Job]:
    """FedAvg on near-IID data, a run a seed and number of rounds."""
    counts = (changed["rounds"],) if "rounds" in changed else ROUNDS[scale]
    return [replace(job, row=f"near-IID fedavg, {count} rounds") for count in counts
            for job in planned(scale, (ZERO,), ("fedavg",), tuple(seeds), {}, {**NEAR_IID, **changed, "rounds": count})]


def central(job: Job, images: Images) -> dict[str, Any]:
    """The same model, batch, rate and passes on the pooled images, in plain torch."""
    import torch
    from torch.nn.functional import cross_entropy

    from models.split import build_model

    s, began = job.settings, time.process_time()
    with np.load(images.path) as file:
        (x, y), (x_test, y_test) = ((torch.tensor(file[f"x_{part}"]).permute(0, 3, 1, 2), torch.tensor(file[f"y_{part}"]))
                                    for part in ("train", "test"))
        classes = len(file["class_names"])
    device = torch.device("cuda" if s.get("device", "auto") != "cpu" and torch.cuda.is_available() else "cpu")
    x, x_test = ((pixels.to(device).float() / 255 - 0.5) / 0.25 for pixels in (x, x_test))
    y, y_test = y.to(device), y_test.to(device)
    shape = (x.shape[1], x.shape[2], x.shape[3])
    model = build_model(str(s["model"]), classes, shape, int(s["width"]), job.seed).to(device)
    if s.get("channels-last"):
        model.to(memory_format=torch.channels_last)
    optimiser = torch.optim.SGD(model.parameters(), lr=float(s["lr"]), momentum=float(s.get("momentum", 0.9)),
                                weight_decay=float(s.get("weight-decay", 5e-4)))
    order = torch.Generator().manual_seed(job.seed)
    model.train()
    for _ in range(int(s["rounds"]) * int(s["epochs"])):
        for rows in torch.randperm(len(y), generator=order).split(int(s["batch"])):
            optimiser.zero_grad()
            cross_entropy(model(x[rows]), y[rows]).backward()
            optimiser.step()
    model.eval()
    with torch.no_grad():
        right = sum(int((model(part).argmax(1) == labels).sum()) for part, labels in zip(x_test.split(500), y_test.split(500), strict=True))
    return {"row": "central", "seed": job.seed, "settings": dict(s), "images": {"title": images.title, "digest": images.digest},
            "accuracy": right / len(y_test), "seconds": {"cpu": round(time.process_time() - began, 2)}}


def centrally(jobs: Sequence[Job], bench: Bench) -> list[dict[str, Any]]:
    """Central training for every job, one after the other, or what is there of it."""
    import torch

    torch.set_num_threads(1)
    found = []
    for job in jobs:
        path = bench.results / f"central_{job.settings['rounds']}_epochs_seed_{job.seed}.json"
        images = prepared(job.scale, job.cell.data, False, bench.source, bench.work, bench.limit)
        made = known(path)
        if made is None or made["settings"] != dict(job.settings):
            made = {**central(job, images), "machine": machine(bench.machine)}
            write(path, made)
            print(f"{path.stem}: {points(made['accuracy'])}", flush=True)
        found.append(made)
    return found


def known(path: Path) -> dict[str, Any] | None:
    """What was made before; nothing if it is not there, or damaged."""
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None


def against_central(results: Sequence[Result], made: Sequence[dict[str, Any]]) -> str:
    """Both, and how far apart they are, by seed."""
    if not results:
        return "No run of FedAvg is there.\n"
    both = {r.seed: (r, c) for r in results for c in made if r.seed == c["seed"]}
    if any(r.content["images"]["digest"] != c["images"]["digest"] for r, c in both.values()):
        raise MixedResults("central training and FedAvg were on different images; delete the older of their results")
    s = results[0].content["settings"]
    figures = {"central training": [c["accuracy"] for _, c in both.values()],
               "FedAvg, BatchNorm recomputed": [r.content["served"]["weighted_mean"] for r, _ in both.values()],
               "FedAvg, BatchNorm as averaged": [r.content["served_raw"]["weighted_mean"] for r, _ in both.values()]}
    rows = [[name, points(mean(values)) + (f" ± {100 * stdev(values):.1f}" if len(values) > 1 else ""),
             f"{100 * (mean(values) - mean(figures['central training'])):+.1f}"] for name, values in figures.items()]
    told = (f"{s['clients']} clients, Dirichlet {s['alpha']}, {s['rounds']} rounds of {s['epochs']} epoch, batch {s['batch']}, lr "
            f"{s['lr']}; central: {s['rounds'] * s['epochs']} epochs; the same {results[0].content['images']['title']} and model; seeds "
            f"{', '.join(map(str, both))}. Accuracy in % over all test images.\n\n")
    return told + markdown(["", "accuracy", "less central training"], rows)


def without_heterogeneity(results: Sequence[Result], rows: Sequence[str]) -> str:
    """Every method less FedAvg where data are IID."""
    named = titles(results)
    grid = grid_of(results, rows, "served", named)
    cell = grid.cells.get(ZERO)
    if cell is None or "fedavg" not in cell.scores:
        return "No run of FedAvg is there.\n"
    lines = []
    for row, scores in cell.scores.items():
        d = difference(scores, cell.scores["fedavg"], "mean", seed=ZERO)
        agrees = "trains alone" if row in ALONE else "–" if row == "fedavg" else "no" if d.clear else "yes"
        lines.append([row, points(cell.figure(row, "mean")), "–" if row == "fedavg" else gap(d), agrees])
    told = f"{cell.title}; {cell.clients} clients, seeds {', '.join(map(str, cell.seeds))}; 95 % intervals over seeds and clients, paired."
    return f"{told}\n\n{ABOUT}\n" + markdown(["method", "served mean", "less FedAvg", "within noise"], lines)


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    arguments(parser)
    parser.add_argument("--rows", nargs="+", default=["methods"])
    parser.add_argument("--seeds", type=int, nargs="+", default=[0])
    a = parser.parse_args()
    bench, changed = bench_of(a, "anchors")
    near, rows = federated(a.scale, a.seeds, changed), rows_of(a.rows)
    # at one rate for all: where data are IID, another rate would look like another method
    zero = planned(a.scale, (ZERO,), rows, tuple(a.seeds), {}, changed)
    try:
        if a.dry:
            print(dry([*near, *zero], bench))
            return 0
        apart = replace(bench, results=bench.results / "central")
        failed = [*run_all([*near, *zero], bench)]
        made = centrally(near, apart)
        runs = [r for job in near if (r := there(job, bench.results))]
        near_iid = [against_central([r for r in runs if r.content["settings"]["rounds"] == count],
                                    [c for c in made if c["settings"]["rounds"] == count])
                    for count in dict.fromkeys(job.settings["rounds"] for job in near)]
        text = "\n".join([f"# Sanity anchors, {a.scale} scale\n", "Written by `python -m benchmarks.hdc_fl.anchors`.\n",
                          "## FedAvg with BatchNorm on near-IID data, beside central training\n", *near_iid,
                          "## No heterogeneity: every method beside FedAvg\n",
                          without_heterogeneity([r for r in with_reclustered(read_all(bench.results)) if r.row in rows], rows)])
    except (NoImages, MixedResults, OSError) as fault:
        sys.exit(str(fault))
    path = (HERE / a.scale if bench.results == HERE / a.scale / "anchors" else Path(bench.results)) / "anchors.md"
    path.write_text(text, encoding="utf-8")
    print(text, *failed, sep="\n")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
