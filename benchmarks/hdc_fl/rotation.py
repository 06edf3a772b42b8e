"""HDC-FL on rotated CIFAR-10 (the lite protocol B of METHODS.md 1.8), beside its controls.

    FEDHEARTH_DATA=... python benchmarks/hdc_fl/rotation.py [--seeds 0 1 2] [--jobs 2]

20 clients in four rotation groups, 600 images each (450 to train, 150 to test), the run config's default model and
schedule (channels_last is on: the same mathematics, 1.4 times faster on a CPU). Every run goes through ``fedhearth
run`` and leaves one JSON in ``results/``; what is there is not run again. The table states served scores at the
closing evaluation, BatchNorm recomputed alike for all methods, raw in brackets.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from statistics import mean

import numpy as np

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parents[1]))

from benchmarks.command_line import command, words_of  # noqa: E402

RESULTS = HERE / "results"
VARIANTS: dict[str, dict[str, str]] = {
    "hdc-fl": {"method": "hdc-fl"},
    "hdc-fl head": {"method": "hdc-fl", "hdc-fl.signal": "head"},
    "hdc-fl random": {"method": "hdc-fl", "hdc-fl.grouping": "random"},
    "fedper": {"method": "fedper"},
    "fedavg": {"method": "fedavg"},
    "local-only": {"method": "local-only"},
}
KEEP = ("method", "partition", "clients", "rounds", "seed", "engine", "served", "served_raw", "adapted", "adapted_raw", "bytes",
        "seconds", "server_peak_rss_mib", "dropped", "split_hash", "versions", "clusters")


def projected_ari(run_folder: Path, projections: int = 5) -> list[float]:
    """Agreement with the true groups under other projection seeds: the final heads, as the clients keep them, go through
    the descriptor and the clustering once more. The shared trajectory does not depend on the projection, so nothing
    else of the run would change."""
    from client_app.local.store import LocalStore
    from strategies.hdc_config import Config
    from strategies.head_clusters import adjusted_rand, cluster
    from strategies.head_descriptor import flat_signal, project
    from strategies.seeds import derive_seed

    config = json.loads(Path(run_folder, "run.json").read_text())
    groups = json.loads(Path(run_folder, "split.json").read_text())["groups"]
    signals = []
    for client in sorted(groups):
        with LocalStore(config["state-dir"], config["run-id"], client) as store:
            kept = store.load(config["rounds"])
        assert kept is not None
        signals.append(flat_signal(kept["head"], kept["initial-head"]))
    out = []
    for number in range(projections):
        seed = derive_seed(config["seed"], "projection", number)
        found = cluster(np.stack([project(s, 512, seed) for s in signals]).astype(np.float64), Config().clustering,
                        derive_seed(config["seed"], "refresh", config["rounds"]))
        out.append(adjusted_rand(np.array([groups[c] for c in sorted(groups)]), found.assignment))
    return out


def run(job: tuple[str, dict[str, str]], data: Path) -> dict:
    """One run through the command line, or its result if it is there already."""
    name, settings = job
    path = RESULTS / (name.replace(" ", "_") + ".json")
    if path.exists():
        return json.loads(path.read_text())
    with tempfile.TemporaryDirectory() as folder:
        config = {"dataset": f"npz:{data}", "partition": "rotation", "score-every": "5", "channels-last": "true"} | settings
        began = time.monotonic()
        command("run", *words_of(config), "--workers", "1", "--quiet", "--out", f"{folder}/run")
        summary = json.loads(Path(folder, "run", "summary.json").read_text())
        kept = {key: summary[key] for key in KEEP if key in summary}
        if name.startswith("hdc-fl seed"):
            kept["projected_ari"] = projected_ari(Path(folder, "run"))
    path.write_text(json.dumps(kept, indent=1))
    served = kept["served"]
    print(f"{name:40s} {time.monotonic() - began:5.0f} s  mean {served['mean']:.4f}  worst {served['worst']:.4f}  "
          f"bottom-20 {served['bottom20']:.4f}  ari {kept.get('clusters', {}).get('adjusted_rand', float('nan')):.3f}", flush=True)
    return kept


def table(results: dict[str, dict], seeds: list[int]) -> str:
    """The Markdown table: means over seeds, in percent."""
    rows = [f"| served, 20 clients, mean of seeds {seeds} | mean | worst | bottom-20 % | raw: mean | worst | bottom-20 % | ARI |",
            "|---|---|---|---|---|---|---|---|"]
    for name in VARIANTS:
        found = [results[f"{name} seed {seed}"] for seed in seeds if f"{name} seed {seed}" in results]
        cells = [f"{100 * mean(r[kind][figure] for r in found):.1f}"
                 for kind in ("served", "served_raw") for figure in ("mean", "worst", "bottom20")]
        ari = [r["clusters"]["adjusted_rand"] for r in found if "clusters" in r]
        rows.append(f"| {name} | " + " | ".join(cells) + " | " + (", ".join(f"{a:.2f}" for a in ari) or "-") + " |")
    return "\n".join(rows)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1)
    a = parser.parse_args()
    data = Path(os.environ.get("FEDHEARTH_DATA", ""), "cifar10_sub12k.npz")
    if not data.is_file():
        sys.exit("set FEDHEARTH_DATA to the folder with cifar10_sub12k.npz")
    RESULTS.mkdir(exist_ok=True)
    todo = [(f"{name} seed {seed}", settings | {"seed": str(seed)}) for seed in a.seeds for name, settings in VARIANTS.items()
            if name != "local-only" or seed == a.seeds[0]]
    with ThreadPoolExecutor(a.jobs) as pool:
        results = dict(zip([name for name, _ in todo], pool.map(lambda job: run(job, data), todo), strict=True))
    projected = [ari for seed in a.seeds for ari in results[f"hdc-fl seed {seed}"]["projected_ari"]]
    text = table(results, a.seeds) + (f"\n\nDescriptor mode, 5 projection seeds on each run seed: mean ARI {mean(projected):.3f}, "
                                     f"lowest {min(projected):.3f}\n")
    (HERE / "rotation.md").write_text(text)
    print(text)


if __name__ == "__main__":
    main()
