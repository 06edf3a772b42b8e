"""HDC-FL on rotated CIFAR-10 (the lite protocol B of METHODS.md 1.8), beside its controls.

    FEDHEARTH_DATA=... python benchmarks/hdc_fl/rotation.py [--seeds 0 1 2] [--jobs 2]

20 clients in four rotation groups, 600 images each (450 to train, 150 to test), the run config's default model and
schedule. Every run goes through ``fedhearth run`` and leaves one JSON in ``results/``; what is there is not run again.
The table states served scores at the closing evaluation, BatchNorm recomputed alike for all methods, raw in brackets.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from statistics import mean

HERE = Path(__file__).resolve().parent
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


def jobs(seeds: list[int], projections: int) -> list[tuple[str, dict[str, str]]]:
    """(name, settings) of every run: all variants a seed, and further projection seeds on the first one."""
    out = [(f"{name} seed {seed}", settings | {"seed": str(seed)}) for seed in seeds for name, settings in VARIANTS.items()]
    return out + [(f"hdc-fl seed {seeds[0]} projection {p}", VARIANTS["hdc-fl"] | {"seed": str(seeds[0]), "hdc-fl.projection-seed": str(p)})
                  for p in range(1, projections)]


def run(job: tuple[str, dict[str, str]], data: Path) -> dict:
    """One run through the command line, or its result if it is there already."""
    name, settings = job
    path = RESULTS / (name.replace(" ", "_") + ".json")
    if path.exists():
        return json.loads(path.read_text())
    with tempfile.TemporaryDirectory() as folder:
        config = {"dataset": f"npz:{data}", "partition": "rotation", "score-every": "5"} | settings
        options = [word for key, value in config.items() for word in ("-c", f"{key}={value}")]
        began = time.monotonic()
        done = subprocess.run([sys.executable, "-m", "deploy.cli", "run", *options, "--workers", "1", "--quiet", "--out", f"{folder}/run"],
                              cwd=HERE.parents[1], capture_output=True, text=True, env=os.environ | {"OMP_NUM_THREADS": "1"})
        if done.returncode:
            raise RuntimeError(f"{name}: {done.stderr[-2000:]}")
        summary = json.loads(Path(folder, "run", "summary.json").read_text())
    kept = {key: summary[key] for key in KEEP if key in summary}
    path.write_text(json.dumps(kept, indent=1))
    served = kept["served"]
    print(f"{name:40s} {time.monotonic() - began:5.0f} s  mean {served['mean']:.4f}  worst {served['worst']:.4f}  "
          f"bottom-20 {served['bottom20']:.4f}  ari {kept.get('clusters', {}).get('adjusted_rand', float('nan')):.3f}", flush=True)
    return kept


def table(results: dict[str, dict], seeds: list[int]) -> str:
    """The Markdown table: means over seeds, in percent."""
    rows = ["| served, mean of seeds " + ", ".join(map(str, seeds)) + " | mean | worst | bottom-20 % | raw: mean | worst | bottom-20 % | ARI |",
            "|---|---|---|---|---|---|---|---|"]
    for name in VARIANTS:
        found = [results[f"{name} seed {seed}"] for seed in seeds]
        cells = [f"{100 * mean(r[kind][figure] for r in found):.1f}" for kind in ("served", "served_raw") for figure in ("mean", "worst", "bottom20")]
        ari = [r["clusters"]["adjusted_rand"] for r in found if "clusters" in r]
        rows.append(f"| {name} | " + " | ".join(cells) + " | " + (", ".join(f"{a:.2f}" for a in ari) or "-") + " |")
    return "\n".join(rows)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--projections", type=int, default=5, help="projection seeds on the first seed")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1)
    a = parser.parse_args()
    data = Path(os.environ.get("FEDHEARTH_DATA", ""), "cifar10_sub12k.npz")
    if not data.is_file():
        sys.exit("set FEDHEARTH_DATA to the folder with cifar10_sub12k.npz")
    RESULTS.mkdir(exist_ok=True)
    todo = jobs(a.seeds, a.projections)
    with ThreadPoolExecutor(a.jobs) as pool:
        results = dict(zip([name for name, _ in todo], pool.map(lambda job: run(job, data), todo), strict=True))
    projected = [results[f"hdc-fl seed {a.seeds[0]}"], *(results[f"hdc-fl seed {a.seeds[0]} projection {p}"] for p in range(1, a.projections))]
    tails = ", ".join(f"{100 * r['served']['bottom20']:.1f}" for r in projected)
    text = table(results, a.seeds) + (f"\n\nDescriptor mode over {len(projected)} projection seeds (run seed {a.seeds[0]}): mean ARI "
                                     f"{mean(r['clusters']['adjusted_rand'] for r in projected):.3f}, bottom-20 % {tails}\n")
    (HERE / "rotation.md").write_text(text)
    print(text)


if __name__ == "__main__":
    main()
