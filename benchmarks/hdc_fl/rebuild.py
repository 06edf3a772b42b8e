"""Everything, by one command: the search, the grid, more seeds, the anchors, tables, pictures, pages. What is there stays.

    FEDHEARTH_DATA=FOLDER python -m benchmarks.hdc_fl.rebuild --work FOLDER [--scale lite|full] [--jobs 2] [--gpus 0 1]
        [--keep FOLDER] [--dry]

Delete ``benchmarks/hdc_fl/SCALE`` first to begin from nothing.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
from pathlib import Path

from benchmarks.command_line import ROOT
from benchmarks.hdc_fl.configurations import GRID, SCALES
from deploy.arguments import count

# more seeds than the first where they tell most: two label shifts, Dirichlet, rotation on both data sets
MORE_ON, MORE_SEEDS = (1, 3, 5, 6, 9), (1, 2)
# variants that have runs of their own; all others come out of HDC-FL's runs, which train as these do
BETTER, HEAD, HEAD_ON = "hdc-fl, better of both", "hdc-fl, the head itself", (1, 3, 5)


def steps(scale: str, keep: str) -> list[list[str]]:
    """The commands, in order."""
    kept = ["--keep", keep] if keep else []
    numbers = [list(map(str, found)) for found in (GRID, MORE_ON, MORE_SEEDS, HEAD_ON)]
    return [["tune"],
            ["sweep", *kept, "--configurations", *numbers[0]],
            ["sweep", *kept, "--configurations", *numbers[1], "--seeds", *numbers[2]],
            ["sweep", *kept, "--rows", BETTER, "--configurations", *numbers[1], "--seeds", *numbers[2]],
            ["sweep", *kept, "--rows", HEAD, "--configurations", *numbers[3], "--seeds", *numbers[2][:1]],
            ["anchors"]]


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--work", type=Path, required=True)
    parser.add_argument("--scale", choices=SCALES, default="lite")
    parser.add_argument("--jobs", type=count)
    parser.add_argument("--gpus", nargs="*", default=[])
    parser.add_argument("--machine", default="")
    parser.add_argument("--keep", default="")
    parser.add_argument("--dry", action="store_true")
    a = parser.parse_args()
    shared = ["--work", str(a.work), "--scale", a.scale, *(["--jobs", str(a.jobs)] if a.jobs else []),
              *(["--gpus", *a.gpus] if a.gpus else []), *(["--machine", a.machine] if a.machine else []), *(["--dry"] if a.dry else [])]
    code = 0
    for name, *words in steps(a.scale, a.keep):
        print(f"== {name} {' '.join(words)}", flush=True)
        # a failed run is told and the rest goes on; what cannot be done at all ends it here
        code = max(code, done := python(name, *shared, *words))
        if done and name == "tune":
            return 1
    written = [] if a.dry else [["tables", "--scale", a.scale], *([["pages"]] if a.scale == "lite" else [])]  # pages quote the lite scale
    return max([code, *(python(name, *words) for name, *words in written)])


def python(name: str, *words: str) -> int:
    """The exit code of one step."""
    return subprocess.run([sys.executable, "-m", f"benchmarks.hdc_fl.{name}", *words], cwd=ROOT).returncode


if __name__ == "__main__":
    sys.exit(main())
