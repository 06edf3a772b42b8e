"""Server memory with many ResNet-18 clients: synthetic replies through the real round loop, rule, shelf and checkpoint.

    python benchmarks/memory/server.py [--clients 20 200] [--rounds 2] [--out results.json]

Every client answers with an encoder of its own (random, 44.7 MB) and a descriptor; nobody trains. What is measured is
the growth of resident memory over the state before the first message, in models. The bar: at most 4 models, whatever
the number of clients. The last round refreshes, so prototypes are built and every client is sent its own mixture.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Mapping
from pathlib import Path

import numpy as np


def peak_growth(clients: int, rounds: int) -> dict[str, float]:
    """Run one configuration in this process; sizes in MiB."""
    import psutil
    from flwr.app import ArrayRecord, Message
    from flwr.clientapp import ClientApp

    from deploy.inprocess import InProcessGrid
    from models import build_model
    from server_app.checkpoint import Checkpoints
    from server_app.encoder_shelf import EncoderShelf
    from server_app.memory import give_back_freed_memory
    from server_app.rounds import Plan, run_rounds
    from strategies.adapter import RuleStrategy
    from strategies.config import RunConfig
    from strategies.hdc_fl import Config, HdcRule
    from strategies.types import layout_of
    from strategies.wire import pack, pack_slot

    give_back_freed_memory()  # as the ServerApp does
    model = build_model("resnet18", 10, (3, 32, 32))
    start = {part: {name: t.copy() for name, t in model.tensors(part).items()} for part in ("encoder", "head")}
    del model
    size = sum(t.nbytes for t in start["encoder"].values())
    app = ClientApp()

    class Shifted(Mapping[str, np.ndarray]):
        """The encoder plus a number, one tensor at a time."""

        def __init__(self, shift: np.float32) -> None:
            self.shift = shift

        def __getitem__(self, name: str) -> np.ndarray:
            return start["encoder"][name] + self.shift

        def __iter__(self) -> Iterator[str]:
            return iter(start["encoder"])

        def __len__(self) -> int:
            return len(start["encoder"])

    def reply(message: Message, shift: float) -> Message:
        # as large as a real reply and different for every client; made one tensor at a time, so that the client, which
        # shares this process here but not in earnest, adds no second copy to what the server holds
        sketch = np.random.default_rng(int(shift * 1e6)).normal(size=512).astype(np.float16)
        content = pack({"descriptor": {"descriptor": sketch}}, {"num-examples": 100, "num-test": 10, "served": 0.5})
        message.content.clear()  # a real client has read its message, in its own memory
        content["encoder"] = pack_slot(Shifted(np.float32(shift)))
        return Message(content, reply_to=message)

    @app.train()
    def train(message, context):  # type: ignore[no-untyped-def]
        return reply(message, 1e-3 * (context.node_config["partition-id"] + 1))

    @app.evaluate()
    def evaluate(message, context):  # type: ignore[no-untyped-def]
        return Message(pack({}, {"num-examples": 100, "num-test": 10, "served": 0.5}), reply_to=message)

    class Everyone:
        def names(self) -> tuple[str, ...]:
            return tuple(f"client-{i:03d}" for i in range(clients))

        def node_id(self, name: str) -> int:
            return 1000 + int(name.split("-")[1])

        def sample(self, number: int) -> tuple[str, ...]:
            return self.names()

        def held_out(self) -> tuple[str, ...]:
            return ()

    with tempfile.TemporaryDirectory() as folder:
        shelf, checkpoints = EncoderShelf(Path(folder, "shelf")), Checkpoints(Path(folder, "checkpoints"))
        run = RunConfig(clients=clients, rounds=rounds, model="resnet18", score_adapted="never")
        rule = HdcRule(Config(restarts=5), run, shelf)
        strategy = RuleStrategy(rule, Config().wire, start, {p: layout_of(t) for p, t in start.items()}, Everyone(), run)
        process, peak, stop = psutil.Process(), 0.0, threading.Event()
        import sklearn.cluster  # noqa: F401  (a library's code is not the growth of the server)
        import sklearn.metrics  # noqa: F401

        def watch() -> None:
            nonlocal peak
            while not stop.is_set():
                memory = process.memory_info()
                # pages of the shelf's files are mapped, not held: the kernel takes them back at will
                peak = max(peak, memory.rss - memory.shared)
                time.sleep(0.005)

        before = process.memory_info()
        base = before.rss - before.shared
        watcher = threading.Thread(target=watch, daemon=True)
        watcher.start()
        began = time.monotonic()

        def after(outcome) -> None:  # type: ignore[no-untyped-def]
            shelf.sync()
            checkpoints.save(outcome.number, strategy.state, {"acked": strategy.acked})
            shelf.prune(rule.shelved(strategy.state))

        run_rounds(InProcessGrid({}, clients, app=app), strategy, ArrayRecord(), Plan(rounds, 3600.0, 0.5), after)
        stop.set()
        watcher.join()
        assert strategy.state.groups is not None and len(strategy.state.groups.clients) == clients
    return {"clients": clients, "model_mib": size / 2**20, "growth_mib": (peak - base) / 2**20, "growth_models": (peak - base) / size,
            "seconds": time.monotonic() - began}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--clients", type=int, nargs="+", default=[20, 200])
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--out", type=Path)
    parser.add_argument("--one", type=int, help=argparse.SUPPRESS)
    a = parser.parse_args()
    if a.one:
        print(json.dumps(peak_growth(a.one, a.rounds)))
        return
    rows = []
    for clients in a.clients:  # a fresh process each, so that one peak does not hide another
        done = subprocess.run([sys.executable, __file__, "--one", str(clients), "--rounds", str(a.rounds)], check=True,
                              capture_output=True, text=True)
        rows.append(json.loads(done.stdout.splitlines()[-1]))
        print(f"{clients:5d} clients: growth {rows[-1]['growth_models']:.2f} models ({rows[-1]['growth_mib']:.0f} MiB)", flush=True)
    if a.out:
        a.out.write_text(json.dumps(rows, indent=1))
    if max(row["growth_models"] for row in rows) > 4:
        sys.exit("over the bar of 4 models")


if __name__ == "__main__":
    main()
