"""FedCache beside its controls on a CIFAR-10 subset (the lite protocol of METHODS 2.6), resumable.

    FEDHEARTH_DATA=... python benchmarks/fed_cache/compare.py [--seeds 0 1 2 3 4] [--rows main|all|GROUP|NAME ...] [--jobs 1] [--table]

Every run is a process of its own that measures itself after its imports: wall time and CPU time of the whole run, all clients
in one process. It leaves one JSON in ``results/``; what is there is not run again. Rows that are not main run for the first three
seeds. The table states differences of the served mean at the closing evaluation, paired by seed, with 95 % t-intervals, for
BatchNorm recomputed and raw. Ratios of times are of pairs that ran on one kind of machine.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from statistics import mean, median
from typing import Any

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE.parents[1])]

from rows import PROTOCOL, ROWS, Row  # noqa: E402

from strategies.tails import t_reach  # noqa: E402

RESULTS = HERE / "results"
DATA = "cifar10_sub12k.npz"
FEW = 3
NOTE = "Some runs had the machine to themselves and some had not: compare CPU times, and wall times with care.\n\n"
SCORES = (("served", "BN recomputed"), ("served_raw", "raw"))


def measure(name: str, seed: int, data: Path, changed: dict[str, Any]) -> dict[str, Any]:
    """One run in this process, measured after everything is imported."""
    from flwr.app import Context, RecordDict

    import client_app.main  # noqa: F401
    from deploy.inprocess import InProcessGrid
    from server_app.main import serve

    with tempfile.TemporaryDirectory() as folder:
        config = {**PROTOCOL, **ROWS[name].settings, "seed": seed, "dataset": f"npz:{data}", "run-id": "run", "out": f"{folder}/run",
                  "state-dir": f"{folder}/clients", **changed}
        wall, cpu = time.perf_counter(), time.process_time()
        with InProcessGrid(config, int(config["clients"])) as grid:
            summary = serve(grid, Context(1, 1, {}, RecordDict(), config), engine="inprocess")
        wall, cpu = time.perf_counter() - wall, time.process_time() - cpu
        records = [json.loads(line) for line in Path(folder, "run", "rounds.jsonl").read_text().splitlines()]
        digest = hashlib.sha256()
        for path in sorted(Path(folder, "clients").rglob("personal.safetensors")):
            digest.update(_tensors(path))
    keep = ("served", "served_raw", "bytes", "cache", "held_out", "clusters", "split_hash", "dropped", "versions")
    return {"row": name, "seed": seed, "settings": {k: v for k, v in config.items() if k not in ("dataset", "out", "state-dir")},
            "machine": machine(), "cpu_seconds": cpu, "wall_seconds": wall, "models": digest.hexdigest(),
            **{key: summary[key] for key in keep if key in summary},
            "silent": ((records[-1].get("diagnostics") or {}).get("cache") or {}).get("silent"),
            "rounds": [_round(record) for record in records]}


def machine() -> str:
    """A name for this kind of processor and its number of cores: times are only compared where it is the same."""
    from platform import machine as kind

    told = [line for line in Path("/proc/cpuinfo").read_text().splitlines() if line.startswith(("model name", "flags", "Features"))] \
        if Path("/proc/cpuinfo").exists() else [kind()]
    return f"{hashlib.sha256(' '.join(dict.fromkeys(told)).encode()).hexdigest()[:8]}, {os.cpu_count()} cores"


def _round(record: dict[str, Any]) -> dict[str, Any]:
    keys = ("served", "hit", "fuse", "miss", "gate_weight")
    means = {key: mean(record[key].values()) for key in keys if record.get(key)}
    return means | {"moved": ((record.get("diagnostics") or {}).get("cache") or {}).get("moved")}


def _tensors(path: Path) -> bytes:
    from safetensors.numpy import load_file

    return b"".join(name.encode() + tensor.tobytes() for name, tensor in sorted(load_file(path).items()))


def job(name: str, seed: int, data: Path, results: Path, changed: list[str]) -> dict[str, Any]:
    """One run in a process of its own, or its result if it is there already."""
    path = results / f"{name.replace(' ', '_').replace(',', '').replace(':', '')}_seed_{seed}.json"
    if path.exists():
        return json.loads(path.read_text())
    command = [sys.executable, __file__, "--one", name, "--seeds", str(seed), "--data", str(data), "--into", str(path), "--set", *changed]
    done = subprocess.run(command, capture_output=True, text=True, env=os.environ | {"OMP_NUM_THREADS": "1"})
    if done.returncode:
        raise RuntimeError(f"{name}, seed {seed}: {done.stderr[-2000:]}")
    found = json.loads(path.read_text())
    avoided = (found.get("cache") or {}).get("avoided_training", 0.0)
    print(f"{name:32s} seed {seed}  served {found['served']['mean']:.4f}  avoided {avoided:.2f}  cpu {found['cpu_seconds']:6.1f} s  "
          f"wall {found['wall_seconds']:6.1f} s", flush=True)
    return found


def interval(values: list[float]) -> str:
    """Mean and 95 % t-interval."""
    if len(values) < 2:
        return f"{mean(values):+.2f}" if values else "-"
    half = t_reach(values)
    return f"{mean(values):+.2f} [{mean(values) - half:+.2f}, {mean(values) + half:+.2f}]"


def table(found: dict[tuple[str, int], dict[str, Any]]) -> str:
    """Markdown: a table a group, every row against its own, in points of the served mean and ratios of means."""
    lines = []
    for group in dict.fromkeys(row.group for row in ROWS.values()):
        mine = {name: row for name, row in ROWS.items() if row.group == group and any(key[0] == name for key in found)}
        if not mine:
            continue
        head = ("row", "against", "seeds", "served %", *(f"change, {words}" for _, words in SCORES), "training passes avoided",
                "last quarter", "all passes avoided", "CPU", "wall", "bytes up", "bytes down", "silent: most / median", "same models")
        lines += ["", f"### {group}", "", f"| {' | '.join(head)} |", "|" + "---|" * len(head)]
        lines += [line(name, row, found) for name, row in mine.items()]
    return "\n".join(lines).strip() + "\n"


def line(name: str, row: Row, found: dict[tuple[str, int], dict[str, Any]]) -> str:
    """One row of the table."""
    own = {seed: result for (label, seed), result in found.items() if label == name}
    pairs = [(result, found[row.against, seed]) for seed, result in own.items() if (row.against, seed) in found]
    changes = [interval([100 * (mine[key]["mean"] - other[key]["mean"]) for mine, other in pairs]) if pairs else "-" for key, _ in SCORES]
    caches = [result.get("cache") or {} for result in own.values()]
    shares = [_share([c[key] for c in caches if key in c]) for key in ("avoided_training", "avoided_last_quarter")]
    passes = [c["forwards_avoided"] / max(1, c["forwards"] + c["forwards_avoided"]) for c in caches if "forwards" in c]
    timed = [(mine, other) for mine, other in pairs if mine.get("machine") == other.get("machine")]
    ratios = [_ratio([(mine[key], other[key]) for mine, other in timed]) for key in ("cpu_seconds", "wall_seconds")]
    sent = [_ratio([(_encoder_bytes(mine, way), _encoder_bytes(other, way)) for mine, other in pairs]) for way in ("up", "down")]
    silent = [_fairness(list(result["silent"].values())) for result in own.values() if result.get("silent")]
    equal = sum(mine["models"] == other["models"] for mine, other in pairs)
    same = f"{equal} of {len(pairs)}" if row.group == "exact reuse" and pairs else "-"
    served = f"{100 * mean(result['served']['mean'] for result in own.values()):.1f}"
    cells = [name, row.against or "-", str(len(own)), served, *changes, *shares, _share(passes), *ratios, *sent,
             ", ".join(silent) or "-", same]
    return f"| {' | '.join(cells)} |"


def _fairness(silent: list[int]) -> str:
    return f"{max(silent)} / {median(silent):g}"


def _encoder_bytes(result: dict[str, Any], way: str) -> float:
    return result["bytes"]["by_slot"][way].get("encoder", 0)


def _share(values: list[float]) -> str:
    return f"{mean(values):.2f}" if values else "-"


def _ratio(pairs: list[tuple[float, float]]) -> str:
    return f"{mean(mine / other for mine, other in pairs):.2f} x" if pairs and all(other for _, other in pairs) else "-"


def chosen(words: list[str]) -> dict[str, Row]:
    """Rows by "main", "all", a group or a name, with those they are measured against."""
    picked = {name for name, row in ROWS.items() for word in words
              if word == "all" or (word == "main" and row.main) or word in (name, row.group)}
    if unknown := [word for word in words if word not in {"all", "main", *ROWS, *(row.group for row in ROWS.values())}]:
        sys.exit(f"no such rows: {', '.join(unknown)}; known: main, all, {', '.join(ROWS)}")
    return {name: row for name, row in ROWS.items() if name in picked | {ROWS[name].against for name in picked}}


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2, 3, 4])
    parser.add_argument("--rows", nargs="+", default=["main"])
    parser.add_argument("--jobs", type=int, default=1, help="runs side by side; CPU figures are only comparable with as many cores")
    parser.add_argument("--results", type=Path, default=RESULTS)
    parser.add_argument("--table", action="store_true", help="write the table of what is there and run nothing")
    parser.add_argument("--set", nargs="*", default=[], metavar="KEY=VALUE",
                        help="change the protocol, for a quick look; use another --results")
    parser.add_argument("--one", help=argparse.SUPPRESS)
    parser.add_argument("--data", type=Path, default=Path(os.environ.get("FEDHEARTH_DATA", ""), DATA), help=argparse.SUPPRESS)
    parser.add_argument("--into", type=Path, help=argparse.SUPPRESS)
    a = parser.parse_args()
    if not a.table and not a.data.is_file():
        sys.exit(f"set FEDHEARTH_DATA to the folder with {DATA}")
    if a.one:
        from deploy.overrides import parse_overrides

        a.into.write_text(json.dumps(measure(a.one, a.seeds[0], a.data.resolve(), dict(parse_overrides(a.set))), indent=1))
        return
    a.results.mkdir(parents=True, exist_ok=True)
    if a.table:
        results = [json.loads(path.read_text()) for path in sorted(a.results.glob("*.json"))]
    else:
        rows = chosen(a.rows)
        jobs = [(name, seed) for seed in a.seeds for name, row in rows.items() if row.main or seed in a.seeds[:FEW]]
        with ThreadPoolExecutor(a.jobs) as pool:
            results = list(pool.map(lambda pair: job(*pair, a.data, a.results, a.set), jobs))
    text = NOTE + table({(result["row"], result["seed"]): result for result in results})
    (a.results.parent / f"{a.results.name.replace('results', 'compare')}.md").write_text(text)
    print(text)


if __name__ == "__main__":
    main()
