"""FedHearth's contestant in the fixed speed job: the same shards, network and SGD step, through the product's own loop.

It needs the job's folder (``job.py`` and its harness) beside it; ``compare.py`` puts it there. Every round trains and
scores every client once, as the floor does: a client's score is taken when its next round begins, and the scores of
the last round come from the closing evaluation, which the harness does not count.
"""

import os
import shutil
import sys
import tempfile
import time

os.environ.setdefault("OMP_NUM_THREADS", "1")
from job import emit, load_shard, make_shards, opts  # noqa: E402

HERE = os.path.dirname(os.path.abspath(__file__))


def load(node, seed):
    """The client's shard as ``ClientData``."""
    import numpy as np

    from client_app.data import ClientData, Split

    a = opts()
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


def main():
    emit("proc_start")
    a = opts()
    make_shards(a.data, a.clients, a.train, a.test)
    from flwr.app import Context, RecordDict

    from deploy.inprocess import InProcessGrid
    from server_app.main import serve

    out = tempfile.mkdtemp(dir=HERE, prefix="run-")
    config = {
        "method": a.method, "dataset": "ours:load", "partition": "iid", "model": "ours:encoder", "clients": a.clients,
        "rounds": a.rounds, "batch": a.batch, "lr": a.lr, "epochs": 1, "momentum": 0.0, "weight-decay": 0.0,
        "score-adapted": "never", "out": out, "state-dir": os.path.join(out, "clients"), "run-id": "job",
        "score-every": 1 if a.eval else a.rounds + 1,
    }
    def on_round(record):
        served = record.get("served", {})
        emit("train_end", i=record["round"] - 1)
        emit("eval_end", i=record["round"] - 1, acc=sum(served.values()) / len(served) if served else None)
        emit("round_end", i=record["round"] - 1)
        if record["round"] < a.rounds:
            emit("round_start", i=record["round"])

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

    serve(Watched(config, a.clients), Context(1, 1, {}, RecordDict(), config), engine="inprocess", on_round=on_round)
    emit("done")
    shutil.rmtree(out, ignore_errors=True)


if __name__ == "__main__":
    # the data and model hooks import this file by name; one copy of it is enough
    sys.modules["ours"] = sys.modules["__main__"]
    main()
