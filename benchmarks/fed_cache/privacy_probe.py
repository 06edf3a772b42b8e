"""How much of an image can be read off its cached feature? An empirical probe, which guarantees nothing.

    FEDHEARTH_DATA=... OMP_NUM_THREADS=1 python benchmarks/fed_cache/privacy_probe.py [--seed 0] [--rounds 8] [--work FOLDER]

One FedCache run on the CIFAR-10 subset (the lite protocol of METHODS 2.6 with fewer rounds). Then the attack: some clients pool
their images and what they hold of each (the cached feature, the feature of the finished model), train a decoder from features to
images, and turn it on the features of the other clients, whose images they have never seen.

- cached: as it lies in the client's cache: float16, made while the client trained, in the round its age tells.
- fresh: float32, of the encoder that the client was left with, in eval mode, BatchNorm statistics of its own images.
- untrained: the encoder that the run started from, the same way: what the architecture alone lets through.
- one block earlier: fresh, but cut before the last block, which is not pooled; the cache never holds that.

Trivial decoders beside them: the mean of all the attackers' images, and the mean of those of the true class, which needs the label.
Writes ``privacy_probe.json`` and ``privacy_probe.md``.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE.parents[1])]

from reconstruction import Fit, fit_decoder, psnr, ssim  # noqa: E402
from rows import PROTOCOL, ROWS  # noqa: E402

DATA = "cifar10_sub12k.npz"
RUN = "run"
VICTIMS = 3
BLOCKS_BEFORE_THE_LAST = 3
HALF, EARLIER = "fresh, as float16", "one block earlier"
# a decoder of which features, turned on which
ATTACKS = (("cached", "cached"), ("fresh", "cached"), ("fresh", "fresh"), ("fresh", HALF), ("untrained", "untrained"), (EARLIER, EARLIER))
HEAD = ("decoder", "turned on", "PSNR, dB", "PSNR by client", "SSIM", "earlier rounds: PSNR", "earlier rounds: SSIM")
TEXT = """# Images out of cached features: a probe

Written by `privacy_probe.py`. One small decoder, one model, one data set: what it reads is the least that an attacker can read, not the
most. It is no guarantee.

FedCache on the CIFAR-10 subset (10 clients, Dirichlet 0.1, {rounds} rounds, a CNN of width 16 with features of D = {dim}, seed {seed};
served accuracy {served:.1%}). Attackers are {attackers} clients with {known} images, victims {victims} clients with {attacked}. Of the
victims' cached features {older_share:.0%} are of an earlier round than the last, of {oldest} rounds before it at most; these are of images
that the head is sure of, and the last columns are about them alone.

{table}

PSNR is the mean over a client's images, then over clients; SSIM is that of Wang et al. 2004, colour by colour. Over the mean image of the
class, a decoder of cached features gains {cached}, one of fresh features {fresh}.

A decoder of fresh features turned on cached ones is an attacker who has nothing but the finished encoder. One who has other clients'
caches as well trains a decoder of cached ones: that is the row to compare with the fresh one.

No feature leaves its client: all this is about somebody who gets at a client's folder. What exact reuse keeps there is fresh and float32
(in this run the features of the images kept for scoring; with a head phase or a cold start those of the training images too), so to such
a person the fresh rows apply as well, unless the run is made with `fed-cache.reuse=false`.
"""
MEAN, CLASS_MEAN = "mean image", "mean image of the class"


@dataclass(frozen=True)
class Held:
    """What one client holds of its n training images.

    Attributes
    ----------
    images : (n, 3, 32, 32) float32 in [0, 1].
    labels : (n,).
    features : by kind, (n, D) float32.
    age : (n,) rounds since the cached feature was made.
    """

    images: np.ndarray
    labels: np.ndarray
    features: Mapping[str, np.ndarray]
    age: np.ndarray


def train(settings: Mapping[str, Any]) -> dict[str, Any]:
    """The run; the clients' state stays under ``state-dir``. Returns its summary."""
    from flwr.app import Context, RecordDict

    from deploy.inprocess import InProcessGrid
    from server_app.main import serve

    with InProcessGrid(settings, int(settings["clients"])) as grid:
        return serve(grid, Context(1, 1, {}, RecordDict(), dict(settings)), engine="inprocess")


def held_by(client: int, settings: Mapping[str, Any]) -> Held:
    """What ``client`` of a finished run holds, without the images that it keeps no feature of."""
    from client_app.data.simulated import client_data, plan_of
    from client_app.head_phase import encode
    from client_app.local.sample_notes import as_payload
    from client_app.loop import recompute_batchnorm
    from client_app.loop_settings import LoopSettings
    from client_app.personal import load_personal
    from models.split import SplitModel, split_model
    from strategies.registry import parse_run_config

    run = parse_run_config(settings).run
    data = client_data(plan_of(run, run.clients), client)
    folder = Path(run.state_dir, RUN, f"client-{client:03d}")
    module, loop = load_personal(folder).module, LoopSettings(device="cpu", channels_last=run.channels_last)
    assert isinstance(module, SplitModel)
    cached, made, found = stored(folder / "features", data.train.ids, module.feature_dim)
    split = data.train.images[found]
    untrained = split_model(run, None, len(data.classes), split.shape[1:])
    recompute_batchnorm(untrained.encoder, split, loop)
    fresh = encode(module, split, loop)
    features = {"cached": cached[found], "fresh": fresh, HALF: as_payload(fresh, "float16").astype(np.float32),
                "untrained": encode(untrained, split, loop), EARLIER: encode(_cut(module), split, loop)}
    return Held(split.astype(np.float32) / 255, data.train.labels[found], features, run.rounds - made[found])


def stored(folder: Path, ids: np.ndarray, dim: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """The newest cached feature of ``ids`` (n,): (n, dim) float32, the round (n,) that made it, and whether there is one (n,)."""
    from client_app.local.feature_cache import FeatureCache
    from client_app.local.sample_notes import BUCKETS, LAYER

    features, version = np.zeros((len(ids), dim), np.float32), np.full(len(ids), -1)
    for view in (0, 1):
        hit = FeatureCache(folder, LAYER, (dim,), view, "float16").get(ids)
        newer = hit.found & (hit.entries["version"] > version)
        features[newer], version[newer] = hit.features[newer], hit.entries["version"][newer]
    return features, version // BUCKETS, version >= 0


def _cut(module: Any) -> Any:
    """``module`` whose features are the flattened output (n, 64 x 4 x 4 for width 16) of the block before the last."""
    from torch import nn

    from models.split import SplitModel

    # the head is not asked for anything
    return SplitModel(nn.Sequential(*list(module.encoder.children())[:BLOCKS_BEFORE_THE_LAST], nn.Flatten()), 1, 1)


def attack(attackers: list[Held], victims: list[Held], fit: Fit, seed: int) -> list[dict[str, Any]]:
    """A row a pair of features and decoder: scores over the victims' images."""
    images, labels = (np.concatenate([getattr(held, name) for held in attackers]) for name in ("images", "labels"))
    mean = images.mean(axis=0)
    of_class = {int(label): images[labels == label].mean(axis=0) for label in np.unique(labels)}
    trivial = {MEAN: ("nothing", lambda label: mean), CLASS_MEAN: ("the label", lambda label: of_class.get(label, mean))}
    rows = [score(name, given, victims, [np.stack([image(int(label)) for label in held.labels]) for held in victims])
            for name, (given, image) in trivial.items()]
    pairs = {kind: np.concatenate([held.features[kind] for held in attackers]) for kind, _ in ATTACKS}
    decoders = {kind: fit_decoder(features, images, fit, seed) for kind, features in pairs.items()}
    rows += [score(f"decoder of {of}", given, victims, [decoders[of].images(held.features[given]) for held in victims])
             for of, given in ATTACKS]
    return rows


def score(decoder: str, features: str, victims: list[Held], made: list[np.ndarray]) -> dict[str, Any]:
    """Means over each victim's images, then over victims; the same over images whose cached feature is of an earlier round."""
    found: dict[str, Any] = {"decoder": decoder, "features": features}
    for name, measure in (("psnr", psnr), ("ssim", ssim)):
        values = [measure(held.images, images) for held, images in zip(victims, made, strict=True)]
        older = [value[held.age > 0] for held, value in zip(victims, values, strict=True) if (held.age > 0).any()]
        found |= {name: float(np.mean([v.mean() for v in values])), f"{name}_by_client": [float(v.mean()) for v in values],
                  f"{name}_older": float(np.mean([v.mean() for v in older])) if older else None}
    return found


def table(result: Mapping[str, Any]) -> str:
    """Markdown: what was done, a row an attack, and what the rows say."""
    lines = [f"| {' | '.join(HEAD)} |", "|" + "---|" * len(HEAD), *(f"| {' | '.join(cells(row))} |" for row in result["rows"])]
    of = {(row["decoder"], row["features"]): row for row in result["rows"]}
    base = of[CLASS_MEAN, "the label"]
    gains = {kind: f"{row['psnr'] - base['psnr']:+.2f} dB and {row['ssim'] - base['ssim']:+.3f} SSIM"
             for kind in ("cached", "fresh") for row in [of[f"decoder of {kind}", kind]]}
    return TEXT.format(table="\n".join(lines), **gains, **result["images"], **{k: result[k] for k in ("rounds", "dim", "seed", "served")})


def cells(row: Mapping[str, Any]) -> list[str]:
    """The columns of one row."""
    by_client = ", ".join(f"{value:.1f}" for value in row["psnr_by_client"])
    older = ["-", "-"] if row["psnr_older"] is None else [f"{row['psnr_older']:.2f}", f"{row['ssim_older']:.3f}"]
    return [row["decoder"], row["features"], f"{row['psnr']:.2f}", by_client, f"{row['ssim']:.3f}", *older]


def probe(data: Path, seed: int, rounds: int, fit: Fit, place: Path, changed: Mapping[str, Any]) -> dict[str, Any]:
    """Train, attack, and what the table is made of. A run of this seed and length that lies in ``place`` is not run again."""
    place, began = place / f"seed-{seed}-rounds-{rounds}", time.process_time()
    settings = {**PROTOCOL, **ROWS["cache"].settings, "rounds": rounds, "seed": seed, "dataset": f"npz:{data}", "run-id": RUN,
                "out": f"{place}/run", "state-dir": f"{place}/clients", **changed}
    kept = place / "run" / "summary.json"
    summary = json.loads(kept.read_text()) if kept.exists() else train(settings)
    trained = time.process_time()
    held = [held_by(client, settings) for client in range(int(settings["clients"]))]
    order = np.random.default_rng(seed).permutation(len(held))
    victims, attackers = [held[at] for at in order[:VICTIMS]], [held[at] for at in order[VICTIMS:]]
    ages = np.concatenate([victim.age for victim in victims])
    images = {"attackers": len(attackers), "victims": len(victims), "known": sum(len(one.labels) for one in attackers),
              "attacked": len(ages), "older_share": float((ages > 0).mean()), "oldest": int(ages.max())}
    rows = attack(attackers, victims, fit, seed)
    return {"seed": seed, "rounds": rounds, "served": summary["served"]["mean"], "dim": held[0].features["fresh"].shape[1],
            "fit": asdict(fit), "images": images, "rows": rows,
            "cpu_seconds": {"run": trained - began, "attack": time.process_time() - trained}}


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--rounds", type=int, default=8)
    parser.add_argument("--epochs", type=int, default=Fit.epochs, help="of each decoder")
    parser.add_argument("--data", type=Path, default=Path(os.environ.get("FEDHEARTH_DATA", ""), DATA))
    parser.add_argument("--out", type=Path, default=HERE, help="where the JSON and the table go")
    parser.add_argument("--work", type=Path, help="keep the run here, and use the one that is here")
    a = parser.parse_args()
    if not a.data.is_file():
        sys.exit(f"set FEDHEARTH_DATA to the folder with {DATA}")
    with tempfile.TemporaryDirectory() as place:
        result = probe(a.data.resolve(), a.seed, a.rounds, Fit(epochs=a.epochs), a.work or Path(place), {})
    text = table(result)
    (a.out / "privacy_probe.json").write_text(json.dumps(result, indent=1) + "\n")
    (a.out / "privacy_probe.md").write_text(text)
    print(text)


if __name__ == "__main__":
    main()
