"""How near each prototype weighting comes to the paper's data-point average, without sending counts.

    FEDHEARTH_DATA=... FEDHEARTH_WEIGHTS=... python benchmarks/pep_fedpt/weighting.py --work FOLDER [--splits 10]

CLS tokens of the frozen backbone that enter layers 5 to 7 (CIFAR-10 subset, 48 pixels) are divided among 20 clients by
Dirichlet(.3). Clients send class means as each ``prototype-weighting`` says, the server folds them (``rho = .2``), round after round,
and what counts is how many test tokens lie nearest (centred cosine) to their own class's prototype.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from pathlib import Path
from statistics import mean, stdev

import numpy as np

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE.parents[1])]

from data import make  # noqa: E402
from rows import LITE  # noqa: E402

CLIENTS, RHO, ROUNDS = 20, 0.2, (1, 4, 16)
WEIGHTINGS = {"count": None, "uniform": 0.0, **{f"shrunk, kappa {kappa:g}": kappa for kappa in (2.0, 5.0, 10.0, 20.0)}}
Rows = dict[str, np.ndarray]


def tokens_of(work: Path) -> tuple[list[Rows], list[np.ndarray]]:
    """CLS tokens by layer (n, D), and labels (n,), of training and test images; worked out once."""
    kept = work / "weighting.npz"
    if not kept.is_file():
        import torch

        from models.backbones import prepare
        from strategies.registry import parse_run_config

        model = parse_run_config({"method": "pep-fedpt", **LITE}).build_model(10, (3, 48, 48))
        found = {}
        with np.load(work / "cifar10.npz") as file, torch.inference_mode():
            for half in ("train", "test"):
                images = file[f"x_{half}"].transpose(0, 3, 1, 2)
                chunks = [np.ascontiguousarray(images[at:at + 100]) for at in range(0, len(images), 100)]
                parts = [model.class_tokens(prepare(torch.from_numpy(x), model.vit), mixed=False).numpy() for x in chunks]
                found |= {f"x_{half}": np.concatenate(parts, axis=1), f"y_{half}": file[f"y_{half}"]}
        np.savez(kept, **found)
    with np.load(kept) as file:
        halves = [(file[f"x_{half}"], file[f"y_{half}"]) for half in ("train", "test")]
    return [{f"layer{5 + place}": layer for place, layer in enumerate(x)} for x, _ in halves], [y for _, y in halves]


def prototypes(tokens: Rows, labels: np.ndarray, shares: list[np.ndarray], kappa: float | None, rounds: int) -> Rows:
    """The global prototypes (C, D) a layer after so many rounds of all clients."""
    from client_app.learners.pep_fedpt import sent_means
    from strategies.class_prototypes import RowMeans

    classes = int(labels.max()) + 1
    own = []
    for share in shares:
        counts = np.bincount(labels[share], minlength=classes)
        one = (np.arange(classes)[:, None] == labels[share]) / np.maximum(counts, 1)[:, None]
        own.append(({layer: (one @ x[share]).astype(np.float32) for layer, x in tokens.items()}, counts))
    known = {layer: np.zeros((classes, x.shape[1]), np.float32) for layer, x in tokens.items()}
    for _ in range(rounds):
        fold = RowMeans(known, "float32")
        for means, counts in own:
            fold.add(sent_means(known, means, counts, kappa or 0.0), counts if kappa is None else None)
        known = fold.merged(known, RHO)
    return known


def accuracy(tokens: np.ndarray, labels: np.ndarray, rows: np.ndarray) -> float:
    """Share of tokens (n, D) nearest to their class's prototype (C, D), by centred cosine."""
    filled = rows.any(axis=1)
    centre = rows[filled].mean(axis=0)
    unit = [x / np.linalg.norm(x, axis=1, keepdims=True) for x in (tokens - centre, rows - centre)]
    cosines = np.where(filled, unit[0] @ unit[1].T, -2)
    return float((cosines.argmax(axis=1) == labels).mean())


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--work", type=Path, required=True)
    parser.add_argument("--splits", type=int, default=10)
    arguments = parser.parse_args()
    from client_app.data.skewed import dirichlet

    make(Path(os.environ["FEDHEARTH_DATA"]), arguments.work, "cifar10")
    (train, test), (y_train, y_test) = tokens_of(arguments.work)
    found: dict[str, dict[int, list[float]]] = {name: {rounds: [] for rounds in ROUNDS} for name in WEIGHTINGS}
    for seed in range(arguments.splits):
        shares = dirichlet(y_train, {}, CLIENTS, np.random.default_rng(seed), alpha=0.3)
        for name, kappa in WEIGHTINGS.items():
            for rounds in ROUNDS:
                rows = prototypes(train, y_train, shares, kappa, rounds)
                found[name][rounds].append(mean(accuracy(test[layer], y_test, rows[layer]) for layer in rows))
    lines = ["| weighting | " + " | ".join(f"round {rounds}" for rounds in ROUNDS) + f" | behind count at round {ROUNDS[-1]} |",
             "|" + "---|" * (len(ROUNDS) + 2)]
    for name, by_round in found.items():
        behind = [100 * (a - b) for a, b in zip(found["count"][ROUNDS[-1]], by_round[ROUNDS[-1]], strict=True)]
        apart = f"{mean(behind):.2f} ± {stdev(behind):.2f}" if len(behind) > 1 else f"{mean(behind):.2f}"
        lines.append(f"| {name} | {' | '.join(f'{100 * mean(by_round[rounds]):.1f}' for rounds in ROUNDS)} | {apart} |")
    print("\n".join(lines))
    (HERE / "weighting.json").write_text(json.dumps({"splits": arguments.splits, "clients": CLIENTS, "accuracy": found}, indent=1))


if __name__ == "__main__":
    main()
