"""Run the fixed speed job: FedHearth beside the plain loop (and whatever else the job's harness knows).

The job's folder is given by ``FEDHEARTH_BENCH``; it is copied to a scratch folder together with ``ours.py``, so nothing
is written beside the original. Arguments go to the job's ``bench.py``::

    FEDHEARTH_BENCH=... python benchmarks/overhead/compare.py main --reps 3 --methods fedper --only plain-1,ours
    FEDHEARTH_BENCH=... python benchmarks/overhead/compare.py scale --sizes 100,500 --rounds 1 --only plain-1,ours

Contestants of ours: ``ours`` (one process), ``ours-2`` (two workers), ``ours-ray`` (the Ray engine, two actors). ``ratios.py``
beside this runs the pairs that the project has bars for.
"""

import os
import shutil
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
OURS = {"ours": ("ours.py", ["--workers", 1]), "ours-2": ("ours.py", ["--workers", 2]),
        "ours-ray": ("ours.py", ["--workers", 2, "--engine", "ray"])}


def prepare() -> Path:
    """The scratch folder with the job and our contestant in it; it is the current folder afterwards, and can be imported from."""
    source = os.environ.get("FEDHEARTH_BENCH")
    if not source or not Path(source, "bench.py").is_file():
        sys.exit("set FEDHEARTH_BENCH to the folder that holds the job (bench.py, job.py, plain.py)")
    scratch = Path(os.environ.get("FEDHEARTH_SCRATCH", ROOT / "scratch" / "overhead")).absolute()
    scratch.mkdir(parents=True, exist_ok=True)
    (scratch / "logs").mkdir(exist_ok=True)
    for file in (*Path(source).glob("*.py"), Path(__file__).with_name("ours.py")):
        shutil.copy(file, scratch)
    os.chdir(scratch)
    sys.path.insert(0, str(scratch))
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH", "")]))
    return scratch


def main() -> None:
    prepare()
    import bench  # the job's own harness

    bench.WHO.update(OURS)
    bench.main()


if __name__ == "__main__":
    main()
