"""One run in this process, measured after everything is imported: what ``sweep.py`` starts for every result.

    python -m benchmarks.hdc_fl.one_run JOB.json

All clients train in this process, so that wall and CPU time are of one core (or one GPU) and say what the method costs.
"""

from __future__ import annotations

import csv
import json
import shutil
import sys
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from benchmarks.command_line import unmet
from benchmarks.hdc_fl.process import end_with_parent, owned
from benchmarks.hdc_fl.results import machine, write

KEEP = ("served", "served_raw", "adapted", "adapted_raw", "split_hash", "dropped", "void_rounds", "versions")


def main() -> None:
    end_with_parent()
    told = json.loads(Path(sys.argv[1]).read_text(encoding="utf-8"))
    from flwr.app import Context, RecordDict

    import client_app.main  # noqa: F401
    from deploy.inprocess import RUN_ID, SERVER_NODE, InProcessGrid
    from server_app.main import serve

    with tempfile.TemporaryDirectory(dir=told["work"], prefix=owned("run", "")) as temporary:
        # what is kept is made where it stays, since a run's own files say where they lie
        folder = Path(told["keep"], told["name"]) if told["keep"] else Path(temporary, "run")
        if (folder / "summary.json").exists() and not same_run(folder, told):
            sys.exit(f"{folder} holds another run, which is finished: move it away, or name another folder with --keep")
        shutil.rmtree(folder, ignore_errors=True)  # what a killed run left there
        config = {**told["settings"], "dataset": f"npz:{told['images']['path']}", "run-id": "run", "out": str(folder),
                  "state-dir": str(folder / "clients")}
        wall, cpu = time.perf_counter(), time.process_time()
        with InProcessGrid(config, int(config["clients"])) as grid:
            summary = serve(grid, Context(RUN_ID, SERVER_NODE, {}, RecordDict(), config), engine="inprocess")
        took = {"wall": round(time.perf_counter() - wall, 2), "cpu": round(time.process_time() - cpu, 2)}
        found = result(told, summary, folder, took)
        if tries := told.get("reclustered"):
            found["reclustered"] = reclustered(folder, tries)
    write(Path(told["into"]), found)


def same_run(folder: Path, told: Mapping[str, Any]) -> bool:
    """Whether the finished run in ``folder`` is of these settings: its sweep was killed before it wrote the result down."""
    had = json.loads((folder / "summary.json").read_text(encoding="utf-8"))["run_config"]
    return not unmet(had, {**told["settings"], "dataset": f"npz:{told['images']['path']}"})


def reclustered(folder: Path, tries: Mapping[str, Any]) -> dict[str, Any]:
    """By row: what the run that has just ended would have served with other clusters; clients in the order of ``clients.csv``."""
    from deploy.recluster import finished, tried

    names = [row["client"] for row in rows_of(folder)]
    found = tried(folder, finished(folder), list(tries.values()), workers=1)
    return {row: {"clusters": {"k": one["clusters"], "silhouette": one["silhouette"]}, "served": [one["served"].get(n) for n in names],
                  "served_raw": one["served_raw_tails"]} for row, one in zip(tries, found, strict=True)}


def rows_of(run: Path) -> list[dict[str, str]]:
    """The lines of a run's ``clients.csv``."""
    with (run / "clients.csv").open(newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))


def result(told: Mapping[str, Any], summary: Mapping[str, Any], run: Path, took: Mapping[str, float]) -> dict[str, Any]:
    """What is kept of a run: each client's closing scores and what the tables need, nothing a round."""
    rows = rows_of(run)
    clients = {key: [float(row[key]) if row[key] else None for row in rows] for key in ("served", "adapted")}
    counts = {key: [int(row[key]) for row in rows] for key in ("n_train", "n_test")}
    moved = {way: summary["bytes"][way] for way in ("up", "down")}
    clusters = {key: value for key, value in (summary.get("clusters") or {}).items() if key != "assignment"}
    return {"scale": told["scale"], "configuration": told["configuration"], "row": told["row"], "seed": told["seed"],
            "settings": told["settings"], "images": {key: told["images"][key] for key in ("title", "digest")},
            "clients": clients | counts, **{key: summary[key] for key in KEEP if summary.get(key) is not None},
            "bytes": moved, **({"clusters": clusters} if clusters else {}), "seconds": took, "side_by_side": told["jobs"],
            "machine": machine(told["machine"])}


if __name__ == "__main__":
    main()
