"""One script for the hour a GPU is at hand: what the product's loop costs beside a plain PyTorch loop, and whether its numbers are a CPU's.

    python benchmarks/gpu_check/check.py                 # under 6 minutes on a GPU; rows that find no time left say so
    python benchmarks/gpu_check/check.py --quick         # the same on tiny sizes, under a minute on a CPU

Ours is ``client_app``'s ``fit`` from NumPy arrays to trained weights; plain is the tutorial's loop with ``torch.optim.SGD`` from the same
arrays, uploaded whole, under the same precision. Both alternate in one process. Images are random: only time and memory are looked at.
Writes ``result.json`` and ``result.md`` into ``--out``.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

sys.path[:0] = [str(Path(__file__).resolve().parents[2]), str(Path(__file__).resolve().parent)]

import torch  # noqa: E402

BUDGET = 330.0  # seconds


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="tiny sizes")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--out", type=Path, help="default: results/ beside this file; with --quick a temporary folder")
    parser.add_argument("--budget", type=float, default=BUDGET, help="seconds after which no row is begun")
    options = parser.parse_args()
    out = options.out or (Path(tempfile.mkdtemp(prefix="gpu-check-")) if options.quick else Path(__file__).with_name("results"))
    out.mkdir(parents=True, exist_ok=True)
    found = {"machine": machine(options), "rows": list(measured(options))}
    (out / "result.json").write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
    (out / "result.md").write_text(markdown(found), encoding="utf-8")
    print(f"{out / 'result.md'}")
    sys.exit(any(row.get("failed") for row in found["rows"]))


def measured(options: argparse.Namespace) -> Iterator[dict[str, Any]]:
    """A row a measurement, the likeliest to matter first; one that fails says so and stops nobody."""
    import federated
    import throughput

    jobs: list[tuple[str, Callable[[], dict[str, Any]]]] = [*federated.jobs(options.device, options.quick),
                                                            *throughput.jobs(options.device, options.quick)]
    end = time.monotonic() + options.budget
    for name, job in jobs:
        begun = time.monotonic()
        if begun > end:
            yield shown({"row": name, "note": "no time left"})
            continue
        try:
            row = {"row": name, **job()}
        except Exception as fault:
            row = {"row": name, "failed": True, "note": f"{type(fault).__name__}: {(str(fault).splitlines() or [''])[0][:150]}"}
        yield shown(row | {"took": round(time.monotonic() - begun, 1)})


def shown(row: dict[str, Any]) -> dict[str, Any]:
    print(json.dumps(row), flush=True)  # what a killed run leaves
    return row


def machine(options: argparse.Namespace) -> dict[str, Any]:
    on_gpu = torch.device(options.device).type == "cuda"
    return {"device": torch.cuda.get_device_name(options.device) if on_gpu else "cpu", "quick": options.quick, "torch": torch.__version__,
            "cuda": torch.version.cuda, "cudnn": torch.backends.cudnn.version() if on_gpu else None, "threads": torch.get_num_threads()}


COLUMNS = {"row": "", "ours": "ours, images/s", "plain": "plain, images/s", "ratio": "plain time / ours", "busy": "GPU busy",
           "peak_mib": "peak MiB", "plain_peak_mib": "plain peak MiB", "note": "note"}


def markdown(found: dict[str, Any]) -> str:
    """The rows as one table."""
    lines = [", ".join(f"{key} {value}" for key, value in found["machine"].items() if value is not None), "",
             "| " + " | ".join(COLUMNS.values()) + " |", "| --- " * len(COLUMNS) + "|"]
    lines += ["| " + " | ".join("" if row.get(key) is None else str(row[key]) for key in COLUMNS) + " |" for row in found["rows"]]
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    main()
