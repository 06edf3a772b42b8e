"""FedHearth's contestant in the fixed speed job: the same shards, network and SGD step, through the product's own loop.

It needs the job's folder (``job.py`` and its harness) beside it; ``compare.py`` puts it there. Every round trains and
scores every client once, as the floor does: a client's score is taken when its next round begins, and the scores of
the last round come from the closing evaluation, which the harness does not count. ``--engine ray`` takes the Ray engine,
else ``--workers`` says how many processes the in-process engine has.
"""

import argparse
import json
import os
import shutil
import sys
import tempfile
import threading
import time

os.environ.setdefault("OMP_NUM_THREADS", "1")
from job import emit, load_shard, make_shards, opts  # noqa: E402

HERE = os.path.dirname(os.path.abspath(__file__))
# the data hook runs in processes that are started with arguments of their own
GIVEN = "FEDHEARTH_JOB"


def load(node, seed):
    """The client's shard as ``ClientData``."""
    import numpy as np

    from client_app.data import ClientData, Split

    a = opts(json.loads(os.environ[GIVEN]))
    shard = load_shard(os.path.join(a.data, f"shards_c{a.clients}_n{a.train}_m{a.test}"), node.index)
    parts = []
    for part in ("train", "test"):
        images, labels = shard["x_" + part], shard["y_" + part]
        first = 0 if part == "train" else a.train
        parts.append(Split(images, labels, np.arange(first, first + len(labels))))
    return ClientData(*parts, classes=tuple(map(str, range(10))))


def encoder(in_shape, width):
    """The job's network without its last layer, and its feature width."""
    from job import build_net

    return build_net().body, 512


def settings(a, out):
    return {
        "method": a.method, "dataset": "ours:load", "partition": "iid", "model": "ours:encoder", "clients": a.clients,
        "rounds": a.rounds, "batch": a.batch, "lr": a.lr, "epochs": 1, "momentum": 0.0, "weight-decay": 0.0, "device": "cpu",
        "score-adapted": "never", "out": out, "state-dir": os.path.join(out, "clients"), "run-id": "job",
        "score-every": 1 if a.eval else a.rounds + 1,
    }


def round_ends(number, rounds, acc=None):
    emit("train_end", i=number - 1)
    emit("eval_end", i=number - 1, acc=acc)
    emit("round_end", i=number - 1)
    if number < rounds:
        emit("round_start", i=number)


def in_process(a, out, workers):
    from flwr.app import Context, RecordDict

    from deploy.inprocess import InProcessGrid
    from server_app.main import serve

    def on_round(record):
        served = record.get("served", {})
        round_ends(record["round"], a.rounds, sum(served.values()) / len(served) if served else None)

    class Watched(InProcessGrid):
        """Tells when the first training message goes out: everything before it is start-up."""

        started = False

        def push_messages(self, messages):
            messages = list(messages)
            if not self.started and any(m.metadata.message_type == "train" for m in messages):
                self.started = True
                emit("ready", cpu=time.process_time())
                emit("round_start", i=0)
            return super().push_messages(messages)

    config = settings(a, out)
    with Watched(config, a.clients, workers) as grid:
        serve(grid, Context(1, 1, {}, RecordDict(), config), engine="inprocess", on_round=on_round)


def on_ray(a, out, workers):
    from pathlib import Path

    from deploy.launch import locked, new_run
    from deploy.simulate import simulate

    folder, over = Path(out), threading.Event()

    def watch():
        """The engine's own watcher looks three times a second, which is too coarse here."""
        seen, lines = 0, folder / "rounds.jsonl"
        while not over.wait(0.01):
            number = lines.read_bytes().count(b"\n") if lines.exists() else 0
            for each in range(seen + 1, number + 1):
                round_ends(each, a.rounds)
            seen = number

    launch = new_run(settings(a, out), "")
    emit("ready")
    emit("round_start", i=0)
    watcher = threading.Thread(target=watch, daemon=True)
    watcher.start()
    with locked(folder) as lock:
        simulate(launch.items, folder, workers, 0, lock, lambda record: None)
    time.sleep(0.1)
    over.set()
    watcher.join()


def main():
    emit("proc_start")
    own = argparse.ArgumentParser(add_help=False)
    own.add_argument("--engine", default="inprocess", choices=("inprocess", "ray"))
    engine, given = own.parse_known_args()
    os.environ[GIVEN] = json.dumps(given)
    a = opts(given)
    make_shards(a.data, a.clients, a.train, a.test)
    out = tempfile.mkdtemp(dir=HERE, prefix="run-")
    try:
        (on_ray if engine.engine == "ray" else in_process)(a, out, a.workers)
    finally:
        shutil.rmtree(out, ignore_errors=True)
    emit("done")


if __name__ == "__main__":
    # the data and model hooks import this file by name; one copy of it is enough
    sys.modules["ours"] = sys.modules["__main__"]
    main()
