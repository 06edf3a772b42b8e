"""Real data in every form that a user may have: each becomes a finished federated run by one command, its split shown.

    FEDHEARTH_DATA=... python benchmarks/data/real.py [--only folder table ...] [--rounds 2] [--out real.json]

From the three data sets of ``FEDHEARTH_DATA`` (CIFAR-10, PACS, Tiny-ImageNet-32) it makes, in a temporary folder, a folder of
images, a Parquet table with a domain column, a CSV table, and a data set saved to disk by Hugging Face's ``datasets``. Then it
runs ``fedhearth run`` on each and prints who got what. Accuracy after two rounds means nothing; that it runs is the point.
"""

from __future__ import annotations

import argparse
import csv
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

TINY_CLASSES, TINY_EACH = 100, 60


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--only", nargs="+", choices=CASES, default=list(CASES))
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--out", type=Path)
    arguments = parser.parse_args()
    source, found = Path(os.environ["FEDHEARTH_DATA"]), []
    with tempfile.TemporaryDirectory() as folder:
        for name in arguments.only:
            make, settings = CASES[name]
            uri = make(source, Path(folder, name))
            found.append(run(name, uri, settings | {"rounds": arguments.rounds}, Path(folder, f"run-{name}")))
            print(line(found[-1]), flush=True)
    if arguments.out:
        arguments.out.write_text(json.dumps(found, indent=1) + "\n")
    return 0 if all(case["exit"] == 0 for case in found) else 1


def run(name: str, uri: str, settings: dict[str, Any], out: Path) -> dict[str, Any]:
    """One ``fedhearth run``; what it made of the data."""
    words = [word for key, value in {**settings, "dataset": uri}.items() for word in ("-c", f"{key}={value}")]
    command = [sys.executable, "-m", "deploy.cli", "run", "--quiet", "--out", str(out), *words]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    made: dict[str, Any] = {"case": name, "dataset": uri.replace(str(out.parent), "..."), **settings, "exit": done.returncode}
    if done.returncode:
        return made | {"error": done.stderr[-1000:]}
    summary, split = json.loads((out / "summary.json").read_text()), json.loads((out / "split.json").read_text())
    train = np.array(list(split["train"].values()))
    return made | {"split_hash": summary["split_hash"], "classes": train.shape[1], "samples": train.sum(1).tolist(),
                   "classes_held": (train > 0).sum(1).tolist(), "groups": list(split["groups"].values()),
                   "picture": (out / "split.png").exists(), "seconds": round(summary["seconds"]["total"], 1)}


def line(case: dict[str, Any]) -> str:
    """One row for the terminal."""
    if case["exit"]:
        return f"{case['case']:14} exit {case['exit']}: {case['error']}"
    sizes, held, groups = case["samples"], case["classes_held"], sorted(set(case["groups"]) - {""})
    told = f", groups {' '.join(groups)}" if groups else ""
    return (f"{case['case']:16} {len(sizes)} clients of {min(sizes)} to {max(sizes)} training samples, {min(held)} to {max(held)} "
            f"of {case['classes']} classes{told}; {case['seconds']} s; split {case['split_hash'][:12]}")


def pacs(source: Path, one_in: int = 1) -> Iterator[tuple[bytes, str, str]]:
    """JPEG bytes, class and domain of every ``one_in``-th image."""
    with np.load(source / "pacs96_jpegbytes.npz", allow_pickle=False) as file:
        blob, offsets, labels, domains = (file[key] for key in ("blob", "offsets", "labels", "domains"))
        classes, domain_names = file["class_names"].astype(str), file["domain_names"].astype(str)
    for i in range(0, len(labels), one_in):
        yield blob[offsets[i]:offsets[i + 1]].tobytes(), str(classes[labels[i]]), str(domain_names[domains[i]])


def as_folder(source: Path, where: Path) -> str:
    for number, (image, label, domain) in enumerate(pacs(source, 3)):
        file = where / label / f"{domain}-{number}.jpg"
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(image)
    return f"folder:{where}"


def as_parquet(source: Path, where: Path) -> str:
    import pyarrow as pa
    import pyarrow.parquet as pq

    images, labels, domains = map(list, zip(*pacs(source), strict=True))
    where.mkdir()
    pq.write_table(pa.table({"image": images, "label": labels, "domain": domains}), where / "pacs.parquet")
    return f"table:{where / 'pacs.parquet'}"


def as_csv(source: Path, where: Path) -> str:
    """Paths, labels, and a client column: the domain and a number stand for an owner."""
    where.mkdir()
    with (where / "labels.csv").open("w", newline="") as file:
        rows = csv.writer(file)
        rows.writerow(["file", "label", "client"])
        for number, (image, label, domain) in enumerate(pacs(source, 3)):
            (where / f"{number}.jpg").write_bytes(image)
            rows.writerow([f"{number}.jpg", label, f"{domain}-{number % 2}"])
    return f"table:{where / 'labels.csv'}"


def as_npz(source: Path, where: Path) -> str:
    return f"npz:{source / 'cifar10_sub12k.npz'}"


def as_hub(source: Path, where: Path) -> str:
    """The first hundred classes of Tiny-ImageNet-32, saved to disk."""
    from datasets import ClassLabel, Dataset, Features, Image

    with np.load(source / "tinyimagenet32_jpegbytes.npz", allow_pickle=False) as file:
        blob, offsets, labels = (file[key] for key in ("train_blob", "train_offsets", "y_train"))
        names = file["class_names"].astype(str)[:TINY_CLASSES].tolist()
    chosen = np.concatenate([np.flatnonzero(labels == label)[:TINY_EACH] for label in range(TINY_CLASSES)])
    rows = {"image": [{"bytes": blob[offsets[i]:offsets[i + 1]].tobytes(), "path": None} for i in chosen], "label": labels[chosen].tolist()}
    Dataset.from_dict(rows, Features({"image": Image(), "label": ClassLabel(names=names)})).save_to_disk(where)
    return f"hub:{where}"


SMALL = {"method": "fedper", "epochs": 1, "width": 8}
CASES: dict[str, tuple[Callable[[Path, Path], str], dict[str, Any]]] = {
    "folder": (as_folder, SMALL | {"partition": "dirichlet", "alpha": 0.5, "clients": 6, "image-size": 32}),
    "parquet-domain": (as_parquet, SMALL | {"partition": "domain", "clients": 8, "image-size": 32}),
    "csv-natural": (as_csv, SMALL | {"partition": "natural", "clients": 8, "image-size": 32}),
    "cifar10": (as_npz, SMALL | {"partition": "rotation+label-subset", "classes-per-client": 5, "clients": 12, "test-split": "official"}),
    "tiny-imagenet-32": (as_hub, SMALL | {"partition": "label-subset", "classes-per-client": 20, "clients": 10}),
}


if __name__ == "__main__":
    sys.exit(main())
